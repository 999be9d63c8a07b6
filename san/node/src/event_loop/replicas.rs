//! The replicas of a loop, with their stores and devices. Nothing here knows clients or other nodes: what replicas send is handed
//! to their caller.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::os::fd::AsFd;

use foldhash::fast::RandomState;
use loadline_san_core::ids::{NodeId, ReplicaId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::lease::Moment;
use loadline_san_core::message::{FromReplica, ToOwner};
use loadline_san_core::replica::{Action, Event, Replica};
use loadline_san_core::store::Completion;
use loadline_san_device::direct::Direct;
use loadline_san_device::pool::{Blocks, Pool};
use loadline_san_device::uring::Uring;
use loadline_san_store::cache::Region;
use loadline_san_store::io::{Done, Token};
use loadline_san_store::open::open;
use loadline_san_store::store::Settings;

use super::IDLE_TICKS;
use super::command::{DeviceFault, NotOpened, OpenReplica, ReplicaState, Scrub};
use super::direct_reads::DirectReads;
use super::replica_host::{AT_ONCE, Io, ReplicaHost, number_of};
use crate::unusable::Unusable;

/// Bytes that all stores scrub in each of their ticks, if nothing else is chosen: 2 MiB a second, a TiB in six days.
const SCRUB: u64 = 200 << 10;
/// Bytes that a store scrubs in each tick if a scrub was ordered: more than most devices read beside the load.
const FAST_SCRUB: u64 = 64 << 20;

/// All open replicas of one loop.
#[derive(Default)]
pub(super) struct Replicas {
    hosts: HashMap<ReplicaId, ReplicaHost, RandomState>,
    /// The replica of each store that the ring knows.
    of_ring: HashMap<u32, ReplicaId, RandomState>,
    /// Replicas that are to be given up.
    closing: Vec<ReplicaId>,
    /// Replicas whose stores have something to do.
    listed: VecDeque<ReplicaId>,
    wakes: BinaryHeap<Reverse<(Moment, ReplicaId)>>,
    /// Devices hold back what they have done, or did: they have models, or faults on purpose.
    hold_back: bool,
    /// A person has a replica scrubbed.
    scrubs: bool,
    /// A store was busy at the last tick.
    are_busy: bool,
    /// Bytes that all stores scrub in each of their ticks, if that was chosen.
    scrub: Option<u64>,
    // Vectors that are used again.
    actions: Vec<Action<Blocks>>,
    sent: Vec<Action<Blocks>>,
    completions: Vec<Completion<Blocks>>,
}

impl Replicas {
    /// Whether devices are used by the ring: none of them is in memory.
    pub(super) fn use_ring(&self) -> bool {
        !self.of_ring.is_empty()
    }

    /// The group of a replica that is open.
    pub(super) fn group_of(&self, id: ReplicaId) -> Option<GroupIndex> {
        self.hosts.get(&id).map(|host| host.store.identity().group)
    }

    /// How each is.
    pub(super) fn states(&self) -> Vec<ReplicaState> {
        self.hosts.iter().map(|(id, host)| host.state(*id)).collect()
    }

    /// How far those are that a person has scrubbed.
    pub(super) fn scrubs(&self) -> Vec<(ReplicaId, Scrub)> {
        self.hosts.iter().filter_map(|(id, host)| Some((*id, host.scrubs()?))).collect()
    }

    // ---- opening and closing ---------------------------------------------------------------------------

    /// Opens a replica that is on a device. That may take long.
    pub(super) fn open(&mut self, new: OpenReplica, uring: &mut Uring, pool: &Pool) -> Result<(), NotOpened> {
        let not_used = |why: String| NotOpened { why, failed: None };
        let OpenReplica { id, key, lease_ns, mut devices, log, capacity, settings, is_new, process } = new;
        // One with a model behaves as a disk, whatever is behind it.
        let is_fast = devices.are_in_memory() && !devices.have_model();
        let settings = if is_fast { in_memory(settings) } else { settings };
        let ids =
            [&log, &capacity].map(|of| of.lock().expect("no holder panics").superblock().device.0 as u32);
        let (store, found, damage) = open(&mut devices, &log, &capacity, id.replica, settings)
            .map_err(|why| NotOpened { failed: Some(ids[number_of(why.area())]), why: why.to_string() })?;
        if store.key() != key {
            let why = "its device holds another replica with the same id: the configuration was restored from an older copy";
            return Err(not_used(why.into()));
        }
        let damage = damage.first().map(|first| match damage.len() {
            1 => first.to_string(),
            all => format!("{first}; and {} more", all - 1),
        });
        let io = match devices.are_in_memory() {
            true => Io::Direct(Box::new(Direct::new(devices, pool.clone()))),
            false => {
                let capacity = devices.capacity.as_ref().map(AsFd::as_fd);
                let number = uring.add(devices.log.as_fd(), capacity);
                let number = number.map_err(|why| not_used(why.to_string()))?;
                self.of_ring.insert(number, id.replica);
                Io::Ring(number, devices)
            }
        };
        let now = crate::clock::now();
        let make = if is_new { Replica::made } else { Replica::new };
        let replica = make(id.volume, id.replica, process, lease_ns, &found, now);
        let host = ReplicaHost::new(replica, store, io, ids, damage);
        self.hold_back |= host.holds_back();
        self.hosts.insert(id.replica, host);
        self.share_out_scrub();
        self.list(id.replica);
        Ok(())
    }

    /// A replica is to be given up.
    pub(super) fn close(&mut self, id: ReplicaId) {
        self.closing.push(id);
    }

    /// Gives up those that are to be, once their devices do nothing for them any more. `closed` is called for each.
    pub(super) fn end_closing(&mut self, uring: &mut Uring, mut closed: impl FnMut(ReplicaId)) {
        for id in std::mem::take(&mut self.closing) {
            let busy = match self.hosts.get(&id).map(|host| &host.io) {
                Some(Io::Ring(number, _)) => uring.remove(*number).is_err(),
                Some(Io::Direct(_)) | None => false,
            };
            if busy {
                self.closing.push(id);
                continue;
            }
            if let Some(host) = self.hosts.remove(&id)
                && let Io::Ring(number, _) = host.io
            {
                self.of_ring.remove(&number);
            }
            self.listed.retain(|listed| *listed != id);
            self.share_out_scrub();
            closed(id);
        }
    }

    /// The volume of a replica has so many extents in its group now.
    pub(super) fn resize(&mut self, id: ReplicaId, extents: u64) {
        if let Some(host) = self.hosts.get_mut(&id) {
            host.store.resize(extents);
            self.list(id);
        }
    }

    // ---- working ---------------------------------------------------------------------------------------

    /// The store of a replica has something to do.
    pub(super) fn list(&mut self, id: ReplicaId) {
        if let Some(host) = self.hosts.get_mut(&id)
            && !std::mem::replace(&mut host.listed, true)
        {
            self.listed.push_back(id);
        }
    }

    /// Whether some store has something to do.
    pub(super) fn have_work(&self) -> bool {
        !self.listed.is_empty()
    }

    /// The next replica whose store has something to do.
    pub(super) fn next_listed(&mut self) -> Option<ReplicaId> {
        self.listed.pop_front()
    }

    /// The ring has done something for a store.
    pub(super) fn done(&mut self, number: u32, token: Token, done: Done<Blocks>, now: Moment) {
        if let Some(id) = self.of_ring.get(&number).copied() {
            self.hosts.get_mut(&id).expect("the ring knows open stores only").done(token, done, now);
            self.list(id);
        }
    }

    /// The store of a listed replica does what it can do now. What it completes is returned, in a vector that is to be
    /// [given back](Self::give_back). Whether it has more to do.
    pub(super) fn run(
        &mut self,
        id: ReplicaId,
        uring: &mut Uring,
        pool_is_short: bool,
        reads: &impl DirectReads,
    ) -> (Vec<Completion<Blocks>>, bool) {
        let mut completions = std::mem::take(&mut self.completions);
        let host = self.hosts.get_mut(&id).expect("listed replicas are open");
        host.listed = false;
        host.store.hold(if pool_is_short { 0 } else { u64::MAX });
        let more = host.run(uring, reads, &mut completions);
        (completions, more)
    }

    /// The vector of [`Self::run`], empty.
    pub(super) fn give_back(&mut self, completions: Vec<Completion<Blocks>>) {
        self.completions = completions;
    }

    /// A replica takes a step. `send` is called for each message to an owner, with the owner's node.
    pub(super) fn step(
        &mut self,
        id: ReplicaId,
        event: Event<Blocks>,
        now: Moment,
        mut send: impl FnMut(NodeId, FromReplica, ToOwner<Blocks>),
    ) {
        let Some(host) = self.hosts.get_mut(&id) else { return };
        let wanted = host.step(now, event, &mut self.actions, &mut self.sent);
        if let Some(at) = host.replica.wake_at() {
            self.wakes.push(Reverse((at, id)));
        }
        host.busy |= wanted;
        for action in self.sent.drain(..) {
            if let Action::Send(node, from, answer) = action {
                send(node, from, answer);
            }
        }
        if wanted {
            self.list(id);
        }
    }

    /// Whether an open replica can be used, if that has changed since this was last asked.
    pub(super) fn unusable(&mut self, id: ReplicaId) -> Option<Option<Unusable>> {
        self.hosts.get_mut(&id).and_then(ReplicaHost::unusable)
    }

    // ---- time ------------------------------------------------------------------------------------------

    /// When the next replica is to be woken.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        self.wakes.peek().map(|Reverse((at, _))| *at)
    }

    /// A replica that is to be woken by now.
    pub(super) fn take_due(&mut self, now: Moment) -> Option<ReplicaId> {
        let Reverse((at, id)) = self.wakes.peek().copied()?;
        (at <= now).then(|| {
            self.wakes.pop();
            id
        })
    }

    /// Stores take a tick: busy ones each time, and others in their turn.
    pub(super) fn tick(&mut self, number: u64) {
        let turn = number % IDLE_TICKS;
        let (mut ticked, mut scrubs) = (Vec::new(), false);
        self.are_busy = false;
        for (id, host) in &mut self.hosts {
            let fast = host.scrubs_fast();
            scrubs |= fast;
            let active = std::mem::take(&mut host.busy) || host.store.is_destaging();
            self.are_busy |= active || fast;
            if active || fast || id.0 % IDLE_TICKS == turn {
                host.store.tick();
                ticked.push(*id);
            }
        }
        ticked.into_iter().for_each(|id| self.list(id));
        if scrubs || self.scrubs {
            self.scrubs = scrubs;
            self.share_out_scrub();
        }
    }

    /// Whether a store was busy at the last tick, so that every tick counts.
    pub(super) fn are_busy(&self) -> bool {
        self.are_busy || !self.closing.is_empty()
    }

    // ---- scrubs and faults -----------------------------------------------------------------------------

    /// A person has these scrubbed, as fast as their devices let.
    pub(super) fn scrub(&mut self, ids: &[ReplicaId]) {
        for id in ids {
            if let Some(host) = self.hosts.get_mut(id) {
                host.scrub();
            }
        }
    }

    /// All stores together scrub so many bytes in each tick from now on, if that was chosen.
    pub(super) fn scrub_at(&mut self, bytes: Option<u64>) {
        self.scrub = bytes;
        self.share_out_scrub();
    }

    /// However many stores there are, together they scrub no more while they are idle. Of one that is used each tick counts, so that
    /// it scrubs up to four times its share.
    fn share_out_scrub(&mut self) {
        let each = self.scrub.unwrap_or(SCRUB) * IDLE_TICKS / self.hosts.len().max(1) as u64;
        // Nothing would be no scrub at all.
        let each = each.max(1);
        for host in self.hosts.values_mut() {
            let is_ordered = host.scrubs_fast();
            host.store.scrub_at(if is_ordered { FAST_SCRUB } else { each });
            host.store.scrub_with_log(is_ordered);
        }
    }

    /// This device has this fault, on purpose.
    pub(super) fn fault(&mut self, device: u32, fault: DeviceFault) {
        self.hold_back = true;
        self.hosts.values_mut().for_each(|host| host.have_fault(device, fault));
    }

    /// No device has a fault on purpose any more. What was held back by one still comes.
    pub(super) fn no_faults(&mut self) {
        self.hosts.values_mut().for_each(ReplicaHost::have_no_fault);
    }

    /// The read cache of a replica is to be here. Returns whether the replica is open.
    pub(super) fn change_cache(&mut self, id: ReplicaId, region: Region) -> bool {
        let host = self.hosts.get_mut(&id);
        host.map(|host| host.store.change_cache(region)).is_some()
    }

    /// Whether the cache of a replica was somewhere, and is not there any more. Once.
    pub(super) fn has_given_back_cache(&mut self, id: ReplicaId) -> bool {
        let before = self.hosts.get_mut(&id).and_then(|host| host.store.cache_given_back());
        before.is_some_and(|before| !before.starts.is_empty())
    }

    /// When what devices have done, and is held back, is to be known next.
    pub(super) fn next_held(&self) -> Option<Moment> {
        let hosts = || self.hosts.values().filter_map(ReplicaHost::next_held);
        if self.hold_back { hosts().min() } else { None }
    }

    /// What was held back until now goes to the stores.
    pub(super) fn tell_held(&mut self, now: Moment) {
        if !self.hold_back {
            return;
        }
        self.hold_back = self.hosts.values().any(ReplicaHost::holds_back);
        let mut told = Vec::new();
        for (id, host) in &mut self.hosts {
            if host.tell_held(now) {
                told.push(*id);
            }
        }
        told.into_iter().for_each(|id| self.list(id));
    }
}

/// Bytes that a store on devices in memory destages together: they are in the CPU's cache still, and their buffers are when they
/// are used again. With 8 MiB a write cost 1.1 to 1.2 times as much, and with 256 KiB 1.1 times, by shared memory.
const ROUND_IN_MEMORY: u64 = 1 << 20;

/// How a store on devices in memory behaves: a smaller append takes no longer for each where nothing is synced, and is answered
/// sooner; what is destaged soon need not be read from the log; and what is written together waits for nothing.
fn in_memory(settings: Settings) -> Settings {
    let round = settings.round.min(ROUND_IN_MEMORY);
    Settings { together: AT_ONCE, low: 0, round, at_once: 256, ..settings }
}
