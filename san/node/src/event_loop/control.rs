//! Does what it is told by the control path.

use std::os::fd::AsFd;

use loadline_san_core::ids::{Epoch, ReplicaId};
use loadline_san_core::replica::Replica;
use loadline_san_core::volume::{Event, OrderError, Status, Times, Volume};
use loadline_san_device::direct::Direct;
use loadline_san_store::open::open;
use loadline_san_store::store::Settings;

use super::heard::Hearing;
use super::kept::{AT_ONCE, Io, Kept};
use super::leave::Why;
use super::order::{LoopState, NotOpened, OpenReplica, OpenVolume, Order, ReplicaFault, Report, VolumeState};
use super::peer::{Outgoing, Preamble};
use super::served::Served;
use super::{EventLoop, IDLE_TICKS, Local, LoopOptions};

/// Bytes that all stores look through for what has rotted in each of these: 2 MiB a second, a TiB in six days.
const SCRUB: u64 = 200 << 10;

/// Bytes that a store looks through in each tick if a person wants it: more than most devices give beside what is asked.
const FAST_SCRUB: u64 = 64 << 20;

impl EventLoop {
    pub(super) fn order(&mut self, order: Order) {
        match order {
            Order::OpenReplica(open) => {
                let id = open.id.replica;
                let opened = self.open_replica(*open);
                let is_open = opened.is_ok();
                (self.tell)(Report::Opened(id, opened));
                if is_open {
                    self.tell_unusable(id);
                }
            }
            Order::CloseReplica(id) => {
                self.closing.push(id);
                self.close_replicas();
            }
            Order::Resize(id, extents) => {
                if let Some(kept) = self.replicas.get_mut(&id) {
                    kept.store.resize(extents);
                    self.list(id);
                }
            }
            Order::OpenVolume(open) => self.open_volume(open),
            Order::CloseVolume(id) => {
                self.detached(id, &Why::Deleted);
                self.step_volume(id, Event::Detach);
                self.volumes.remove(&id);
            }
            Order::Watch(id, watch) => self.step_volume(id, Event::Watch(watch)),
            Order::Attach(id) => {
                if let Some(served) = self.volumes.get_mut(&id) {
                    served.claims = true;
                }
                self.step_volume(id, Event::Attach);
            }
            Order::Fence(id) => self.fence(id),
            Order::GiveWay(id) => {
                if self.volumes.get_mut(&id).is_some_and(|served| std::mem::take(&mut served.claims)) {
                    self.detached(id, &Why::Elsewhere);
                    self.step_volume(id, Event::Detach);
                }
            }
            Order::Admit(id) => self.admit(id),
            Order::EndSession(session) => self.end_session(session),
            Order::Detach(id) => {
                self.detached(id, &Why::Detached);
                if let Some(served) = self.volumes.get_mut(&id) {
                    served.claims = false;
                }
                self.step_volume(id, Event::Detach);
            }
            Order::Volume(id, number, order) => {
                let Some(served) = self.volumes.get_mut(&id) else {
                    (self.tell)(Report::Ordered(number, Err(OrderError::NotOwner)));
                    return;
                };
                served.giving = Some(number);
                self.step_volume(id, Event::Order(order));
                if let Some(served) = self.volumes.get_mut(&id)
                    && let Some(number) = served.giving.take()
                {
                    served.ordered = Some(number);
                }
            }
            Order::Record(id, record) => {
                // An owner that was stopped while another node claimed the volume, and did no more, would never ask.
                let is_news = |served: &Served| {
                    served.volume.status() != Status::Watching
                        && served.volume.record().is_some_and(|known| known.epoch < record.epoch)
                };
                if self.volumes.get(&id).is_some_and(is_news) {
                    // When it was read is not known: an older one proves nothing.
                    self.step_volume(id, Event::Seen(*record, Epoch(0)));
                }
            }
            Order::Seen(id, record, asked_at) => self.step_volume(id, Event::Seen(*record, asked_at)),
            Order::Swapped(id, proposal, answer, asked_at) => {
                self.step_volume(id, Event::Swapped(proposal, answer, asked_at));
            }
            Order::Reaches(node, reaches) => self.local.push_back(Local::Reaches(node, reaches)),
            Order::Client(new) => self.new_client(*new),
            Order::NoPeer(node) => {
                if let Some(mut peer) = self.peers.remove(&node) {
                    peer.down("it was removed");
                    self.to_peers.remove(&peer.key);
                }
            }
            Order::Peer(node, name, address) => {
                let LoopOptions { me, cluster, number, .. } = self.options;
                let preamble = Preamble { cluster, from: me.node, to: node, to_loop: number };
                let peer = self.peers.entry(node).or_insert_with(|| Outgoing::new(name, address, preamble));
                peer.moved(address);
            }
            Order::Hear(socket, from) => {
                // One that comes again has lost the other, whether that is known here or not.
                let gone: Vec<u32> =
                    self.hearings.iter().filter(|(_, old)| old.from == from).map(|(key, _)| *key).collect();
                for key in gone {
                    if let Some(old) = self.hearings.remove(&key) {
                        super::client::shut_down(&old.socket);
                    }
                }
                let key = self.key();
                self.hearings.insert(key, Hearing::new(socket, from, self.options.cluster));
                self.readable.push_back(key);
            }
            Order::Fault(ids, fault) => {
                self.has_faults = true;
                for id in ids {
                    if let Some(kept) = self.replicas.get_mut(&id) {
                        kept.fault = fault;
                    }
                }
            }
            Order::Drop(node) => _ = self.dropped.insert(node),
            Order::NoFaults => {
                self.dropped.clear();
                self.replicas.values_mut().for_each(|kept| kept.fault = ReplicaFault::default());
            }
            Order::Scrub(ids) => {
                for id in ids {
                    if let Some(kept) = self.replicas.get_mut(&id) {
                        kept.scrub();
                    }
                }
            }
            Order::Look => (self.tell)(Report::State(self.state())),
            Order::Stop => self.stopped = true,
        }
    }

    /// Tells whether a replica that is open can be used, if that has changed.
    pub(super) fn tell_unusable(&mut self, id: ReplicaId) {
        if let Some(unusable) = self.replicas.get_mut(&id).and_then(Kept::unusable) {
            (self.tell)(Report::Unusable(id, unusable));
        }
    }

    pub(super) fn open_replica(&mut self, new: OpenReplica) -> Result<(), NotOpened> {
        let failed = |why: String| NotOpened { why, failed: true };
        let not_used = |why: String| NotOpened { why, failed: false };
        let OpenReplica { id, key, lease_ns, mut devices, log, capacity, settings, process } = new;
        let settings = if devices.are_in_memory() { in_memory(settings) } else { settings };
        let (store, found, damage) = open(&mut devices, &log, &capacity, id.replica, settings)
            .map_err(|why| failed(why.to_string()))?;
        if store.key() != key {
            let why = "its device has another one of the same id: the configuration was restored from an older copy";
            return Err(not_used(why.into()));
        }
        let damage = damage.first().map(|first| match damage.len() {
            1 => first.to_string(),
            all => format!("{first}; and {} more", all - 1),
        });
        let io = match devices.are_in_memory() {
            true => Io::Direct(Box::new(Direct::new(devices, self.pool.clone()))),
            false => {
                let capacity = devices.capacity.as_ref().map(AsFd::as_fd);
                let number = self.uring.add(devices.log.as_fd(), capacity);
                let number = number.map_err(|why| not_used(why.to_string()))?;
                self.of_ring.insert(number, id.replica);
                Io::Ring(number, devices)
            }
        };
        // Opening may have taken long.
        self.now = crate::clock::now();
        let replica = Replica::new(id.volume, id.replica, process, lease_ns, &found, self.now);
        self.replicas.insert(id.replica, Kept::new(replica, store, io, damage));
        self.share_out_scrub();
        self.list(id.replica);
        Ok(())
    }

    /// However many stores there are, together they look through no more while they are idle. Of one that is used each tick
    /// counts, so that it looks through up to four times its share.
    pub(super) fn share_out_scrub(&mut self) {
        let each = SCRUB * IDLE_TICKS / self.replicas.len().max(1) as u64;
        for kept in self.replicas.values_mut() {
            kept.store.scrub_at(if kept.scrubs_fast() { FAST_SCRUB } else { each });
        }
    }

    /// Those that are to be given up go when their devices do nothing for them any more.
    pub(super) fn close_replicas(&mut self) {
        for id in std::mem::take(&mut self.closing) {
            let busy = match self.replicas.get(&id).map(|kept| &kept.io) {
                Some(Io::Ring(number, _)) => self.uring.remove(*number).is_err(),
                Some(Io::Direct(_)) | None => false,
            };
            if busy {
                self.closing.push(id);
                continue;
            }
            if let Some(kept) = self.replicas.remove(&id)
                && let Io::Ring(number, _) = kept.io
            {
                self.of_ring.remove(&number);
            }
            self.listed.retain(|listed| *listed != id);
            self.share_out_scrub();
            (self.tell)(Report::Closed(id));
        }
    }

    pub(super) fn open_volume(&mut self, open: OpenVolume) {
        let times = Times::of_lease(open.lease_ns);
        self.tick_ns = self.tick_ns.min(times.tick_ns);
        if let Some(served) = self.volumes.get_mut(&open.id) {
            served.open = open;
        } else {
            let seed = self.options.seed ^ open.id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let volume = Volume::new(self.options.me, open.id, times, seed, self.now);
            self.volumes.insert(open.id, Served::new(volume, open));
        }
        self.step_volume(open.id, Event::Watch(open.watch));
    }

    pub(super) fn state(&self) -> LoopState {
        let volumes = self.volumes.iter().map(|(id, served)| VolumeState {
            id: *id,
            clients: served.clients,
            unanswered: served.volume.unanswered(),
            returning: served.volume.returning(),
            view: served.volume.view(crate::clock::now()),
            front_end: served.front_end,
        });
        let scrubs = self.replicas.iter().filter_map(|(id, kept)| Some((*id, kept.scrubs()?)));
        LoopState {
            volumes: volumes.collect(),
            clients: self.clients.len(),
            replicas: self.replicas.iter().map(|(id, kept)| kept.state(*id)).collect(),
            scrubs: scrubs.collect(),
        }
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
