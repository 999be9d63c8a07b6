//! The volumes of a loop: those that this node serves, watches, or has replicas of.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;
use loadline_san_core::ids::VolumeId;
use loadline_san_core::lease::Moment;
use loadline_san_core::volume::{Times, Volume};
use loadline_san_export::session::Attachment;

use super::command::{OpenVolume, VolumeState};
use super::volume_host::VolumeHost;
use super::{LoopOptions, STORE_TICK_NS};
use crate::config::catalog::Limit;

/// All volumes of one loop: those that this node serves, watches or has replicas of.
pub(super) struct Volumes {
    options: LoopOptions,
    hosts: HashMap<VolumeId, VolumeHost, RandomState>,
    /// Volumes whose waiting requests may begin.
    to_begin: VecDeque<VolumeId>,
    /// Between two ticks of volumes.
    tick_ns: u64,
    /// A volume has, or had, a limit.
    are_limited: bool,
}

impl Volumes {
    pub(super) fn new(options: LoopOptions) -> Volumes {
        Volumes {
            options,
            hosts: HashMap::default(),
            to_begin: VecDeque::new(),
            tick_ns: STORE_TICK_NS,
            are_limited: false,
        }
    }

    pub(super) fn get(&self, id: VolumeId) -> Option<&VolumeHost> {
        self.hosts.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: VolumeId) -> Option<&mut VolumeHost> {
        self.hosts.get_mut(&id)
    }

    /// All volumes of the loop, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &VolumeHost> {
        self.hosts.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut VolumeHost> {
        self.hosts.values_mut()
    }

    /// The ids of all of them.
    pub(super) fn ids(&self) -> Vec<VolumeId> {
        self.hosts.keys().copied().collect()
    }

    /// A volume is to be served or watched; or is to be so otherwise than before.
    pub(super) fn open(&mut self, open: OpenVolume, now: Moment) {
        let times = Times::of_lease(open.lease_ns);
        self.tick_ns = self.tick_ns.min(times.tick_ns);
        if let Some(host) = self.hosts.get_mut(&open.id) {
            host.open = open;
        } else {
            let seed = self.options.seed ^ open.id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let volume = Volume::new(self.options.me, open.id, times, seed, now);
            self.hosts.insert(open.id, VolumeHost::new(volume, open));
        }
    }

    /// A volume was deleted.
    pub(super) fn remove(&mut self, id: VolumeId) {
        self.hosts.remove(&id);
    }

    /// The attachment by which clients are let in to a volume; `None` if this node does not own it.
    pub(super) fn attachment(&self, id: VolumeId) -> Option<Attachment> {
        let (number, alone_since) = self.hosts.get(&id)?.volume.attachment()?;
        Some(Attachment { cluster: self.options.cluster.0, volume: id.0, number, alone_since })
    }

    /// Requests of a volume's clients may begin, at the time of the last clock reading: nothing is carried out that arrived later than
    /// `now`.
    pub(super) fn begin_soon(&mut self, id: VolumeId) {
        if !self.to_begin.contains(&id) {
            self.to_begin.push_back(id);
        }
    }

    /// What the clients of a volume may do a second from now on.
    pub(super) fn limit(&mut self, id: VolumeId, limit: Option<Limit>) {
        if let Some(host) = self.hosts.get_mut(&id) {
            host.limit(limit);
            self.are_limited |= limit.is_some();
            self.begin_soon(id);
        }
    }

    /// When the first request may begin that waits for the limit of its volume.
    pub(super) fn next_limited(&self) -> Option<Moment> {
        let hosts = || self.hosts.values().filter_map(|host| host.limited);
        if self.are_limited { hosts().min() } else { None }
    }

    /// Requests may begin that have waited for the limit of their volume until now.
    pub(super) fn begin_limited(&mut self, now: Moment) {
        if self.are_limited {
            let due =
                |(id, host): (&VolumeId, &VolumeHost)| host.limited.filter(|at| *at <= now).map(|_| *id);
            let due: Vec<VolumeId> = self.hosts.iter().filter_map(due).collect();
            due.into_iter().for_each(|id| self.begin_soon(id));
        }
    }

    /// Whether requests may begin.
    pub(super) fn have_waiting(&self) -> bool {
        !self.to_begin.is_empty()
    }

    /// The next volume whose requests may begin.
    pub(super) fn next_to_begin(&mut self) -> Option<VolumeId> {
        self.to_begin.pop_front()
    }

    /// Requests that are carried out.
    pub(super) fn at_work(&self) -> usize {
        self.hosts.values().map(|host| host.at_work.len()).sum()
    }

    /// Between two ticks.
    pub(super) fn tick_ns(&self) -> u64 {
        self.tick_ns
    }

    /// Volumes that take this tick: those that wait for something, and with `idle_too` all others.
    pub(super) fn due(&self, idle_too: bool) -> Vec<VolumeId> {
        let due = |(id, host): (&VolumeId, &VolumeHost)| (idle_too || host.is_busy()).then_some(*id);
        self.hosts.iter().filter_map(due).collect()
    }

    /// Whether any volume waits for something, so that every tick counts.
    pub(super) fn are_busy(&self) -> bool {
        self.hosts.values().any(VolumeHost::is_busy)
    }

    /// How each is. `bound`: how many of a volume's clients reach it at this node only.
    pub(super) fn states(&self, bound: impl Fn(VolumeId) -> usize) -> Vec<VolumeState> {
        let state = |(id, host): (&VolumeId, &VolumeHost)| VolumeState {
            id: *id,
            clients: host.clients,
            bound: bound(*id) + host.bound_coming(),
            lost_ns: host.lost.map(|lost| crate::clock::now().since(lost)),
            unanswered: host.volume.unanswered(),
            copied: host.volume.copied(),
            returning: host.volume.returning(),
            view: host.volume.view(crate::clock::now()),
            front_end: host.front_end,
        };
        self.hosts.iter().map(state).collect()
    }
}
