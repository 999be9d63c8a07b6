//! Logical units of SCSI: what the sessions of a volume's clients share, and sessions that stand by.
//!
//! A client with several paths has a session at each of some nodes. Those at nodes that do not own the volume stand by: they are answered, and
//! carry nothing out.
//!
//! ```text
//!  Waits ─ the volume is served ─▶ Announced ─ let in by core ─▶ LetIn ─ owned, and the reservations were read since ─▶ a client
//!    ▲                               │                            │                                                      │
//!    └── it is not served here ──────┴────────────────────────────┘                        it is not owned ─▶ disconnected ┘
//! ```
//!
//! - **U1. A client is let in to a unit only when its reservations were read after the claim by which this node owns the volume.** A
//!   change that takes something from other sessions is confirmed only if the node that has asked for it owned the volume after the
//!   configuration had it, or if the owner says, after that, that each of its commands began under the change (rule U3). So an owner
//!   has all such changes that were confirmed before it serves. As soon as another life of a node owns the volume, clients of the unit are
//!   disconnected, and what they have requested is dropped: it began without what that owner may have confirmed.
//! - **U3. A node that stands by confirms such a change when the node that owned the volume after the configuration had it reports
//!   that no command is under way there which began without it.** A later owner has it by U1.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use loadline_san_core::ids::VolumeId;
use loadline_san_core::lease::Moment;
use loadline_san_core::volume::Status;
use loadline_san_export::front_ends::{AnySession, Opening};
use loadline_san_export::scsi::reservations::Reservations;
use loadline_san_export::scsi::task::ChangeFailed;
use loadline_san_export::scsi::unit::{About, SharedUnit, Unit};
use loadline_san_export::session::Session as _;

use super::EventLoop;
use super::client::{Client, ClientOrigin, StandsBy};
use super::command::{LoopEvent, NewClient};
use super::route::Local;
use super::why::{MOST_CLIENTS, Why, has_room, is_stranger};
use crate::identity::accesses::Accesses;

/// The logical unit of a volume at this node.
struct UnitHost {
    unit: SharedUnit,
    /// Its reservations were read since this node owns the volume (rule U1).
    is_fresh: bool,
    /// The loop asks for them by this number: by a new one whenever it has lost the volume.
    wanted: u64,
    /// It has asked.
    is_asked: bool,
    /// Clients that core has let in meanwhile, and since when they wait here.
    held: Vec<(NewClient, Moment)>,
    /// Initiators that have lost sessions by which they reached the volume, and when.
    lost: VecDeque<(String, Moment)>,
}

/// How long an initiator counts that has lost its session: it may come back.
const MAY_COME_BACK_NS: u64 = 15_000_000_000;
/// The most initiators of a unit that count so.
const MOST_LOST: usize = 256;

/// The logical units of a loop.
#[derive(Default)]
pub(super) struct Units {
    hosts: HashMap<VolumeId, UnitHost, RandomState>,
    /// The last number by which the loop asks for reservations: no two units have the same.
    wanted: u64,
    /// When all initiators that stand by were reported last.
    swept: Option<Moment>,
    /// What the configuration named when it was last known to have changed.
    accesses: Arc<Accesses>,
}

impl Units {
    /// The unit of a volume, for a session of its own.
    pub(super) fn unit(&self, id: VolumeId) -> Option<SharedUnit> {
        self.hosts.get(&id).map(|host| host.unit.clone())
    }

    /// Clients that core has let in, and that wait until reservations were read; and since when.
    pub(super) fn held(&mut self) -> impl Iterator<Item = &mut Vec<(NewClient, Moment)>> {
        self.hosts.values_mut().map(|host| &mut host.held)
    }

    /// All clients that wait so.
    pub(super) fn all_held(&self) -> impl Iterator<Item = &(NewClient, Moment)> {
        self.hosts.values().flat_map(|host| &host.held)
    }

    /// The version of the reservations that each unit obeys.
    pub(super) fn obeyed_versions(&self) -> Vec<(VolumeId, u64)> {
        self.hosts.iter().map(|(id, host)| (*id, host.unit.borrow().obeyed_version())).collect()
    }

    /// The initiators that have lost sessions a moment ago by which they reached their volumes here, each with its volume.
    pub(super) fn lost(&self, now: Moment) -> Vec<(VolumeId, String)> {
        let of = |(id, host): (&VolumeId, &UnitHost)| {
            let some = host.lost.iter().filter(|(_, at)| now.since(*at) < MAY_COME_BACK_NS);
            some.map(|(name, _)| (*id, name.clone())).collect::<Vec<_>>()
        };
        self.hosts.iter().flat_map(of).collect()
    }

    /// The configuration names these. Initiators that it names no more do not come back, and are not reported: their sessions have ended.
    pub(super) fn forget_removed(&mut self, accesses: Arc<Accesses>) {
        let before = std::mem::replace(&mut self.accesses, accesses);
        for (id, host) in &mut self.hosts {
            let is_removed = |name: &str| before.name(id.0, name) && !self.accesses.name(id.0, name);
            host.lost.retain(|(name, _)| !is_removed(name));
            host.unit.borrow_mut().forget_unserved(is_removed);
        }
    }

    /// The initiators of all sessions, each with its volume, and whether it reaches the volume here.
    fn initiators(&self) -> Vec<(VolumeId, String, bool)> {
        let of = |(id, host): (&VolumeId, &UnitHost)| {
            let unit = host.unit.borrow();
            unit.initiators().map(|(name, is_active)| (*id, name.to_owned(), is_active)).collect::<Vec<_>>()
        };
        self.hosts.iter().flat_map(of).collect()
    }
}

impl EventLoop {
    /// The initiators of all sessions, each with its volume, and whether it reaches the volume here. One that is to be let in has a session,
    /// too.
    pub(super) fn initiators(&self) -> Vec<(VolumeId, String, bool)> {
        let volumes = self.volumes.iter().flat_map(|host| host.arriving.iter().chain(&host.announced));
        let coming = volumes
            .chain(self.units.all_held())
            .filter_map(|(new, _)| Some((new.volume, new.protocol.initiator_of(&new.chosen)?, false)));
        self.units.initiators().into_iter().chain(coming).collect()
    }

    /// A volume has this logical unit. `wanted`: its reservations were read after the loop asked for that by this number.
    pub(super) fn set_unit(
        &mut self,
        id: VolumeId,
        about: About,
        (reservations, version): (Reservations, u64),
        wanted: Option<u64>,
    ) {
        match self.units.hosts.get_mut(&id) {
            Some(host) => {
                let mut unit = host.unit.borrow_mut();
                unit.change(about);
                unit.learn(reservations);
                unit.knows_version(version);
            }
            None => {
                let mut unit = Unit::new(about, reservations);
                unit.knows_version(version);
                let unit = Rc::new(RefCell::new(unit));
                self.units.wanted += 1;
                let (held, lost) = (Vec::new(), VecDeque::new());
                let wanted = self.units.wanted;
                let host = UnitHost { unit, is_fresh: false, wanted, is_asked: false, held, lost };
                self.units.hosts.insert(id, host);
            }
        }
        self.wake_units(id);
        let Some(host) = self.units.hosts.get_mut(&id).filter(|host| wanted == Some(host.wanted)) else {
            return;
        };
        host.is_fresh = true;
        self.settle_unit(id);
    }

    /// A volume has no logical unit any more: it is attached nowhere.
    pub(super) fn remove_unit(&mut self, id: VolumeId) {
        if self.units.hosts.remove(&id).is_some() {
            let is_its = |client: &Client| client.volume == id && client.session.protocol().stands_by();
            self.disconnect_all(is_its, &Why::Detached);
        }
    }

    /// What sessions of a unit are to tell their clients may have changed.
    fn wake_units(&mut self, id: VolumeId) {
        let keys: Vec<u32> = self.front_ends.keys_of(id, |client| client.session.protocol().stands_by());
        keys.into_iter().for_each(|key| self.front_ends.receive_soon(key));
    }

    // ---- standing by -----------------------------------------------------------------------------------

    /// A client has come to a volume that this node does not serve: it stands by.
    pub(super) fn new_standby(&mut self, new: NewClient) {
        let is_new_stranger = is_stranger(new.certificate.as_deref(), &new.from);
        let strangers = || self.front_ends.strangers();
        if !has_room(self.front_ends.len(), strangers, is_new_stranger) {
            return super::why::refuse(new, &Why::TooMany);
        }
        let id = new.volume;
        self.open_on_unit(new, Some(StandsBy::Waits), Duration::ZERO);
        if self.has_unannounced(id) {
            self.local.push_back(Local::Attach(id));
        }
    }

    /// Opens the session of a client on the unit of its volume. It has waited so long for that.
    pub(super) fn open_on_unit(&mut self, new: NewClient, standby: Option<StandsBy>, waited: Duration) {
        let origin = ClientOrigin::of(&new);
        let NewClient { channel, volume, bytes, protocol, chosen, .. } = new;
        let unit = self.units.unit(volume);
        let attachment = self.volumes.attachment(volume).filter(|_| standby.is_none());
        let opening = Opening { channel, bytes, name: &origin.name, chosen: &chosen, attachment, unit };
        match AnySession::open(protocol, opening) {
            Ok(session) => {
                let mut client = Client::new(session, volume, origin);
                client.standby = standby;
                client.session.has_waited(waited);
                if standby.is_none()
                    && let Some(host) = self.volumes.get_mut(volume)
                {
                    host.clients += 1;
                    if let Some(attachment) = attachment {
                        client.session.attached(attachment);
                    }
                }
                self.front_ends.add(self.keys.take(), client);
            }
            Err(why) => origin.log_end(&Why::Refused(why.to_string())),
        }
    }

    /// Whether this node serves a volume for which clients stand by that were not announced.
    pub(super) fn has_unannounced(&mut self, id: VolumeId) -> bool {
        let serves = |status| !matches!(status, Status::Watching | Status::Blocked);
        self.front_ends.stand_by(id)
            && self.volumes.get(id).is_some_and(|host| serves(host.volume.status()))
            && self.front_ends.of_volume(id).any(|client| client.standby == Some(StandsBy::Waits))
    }

    /// If this node serves a volume for which clients stand by, they are announced to core, which counts them (rule T12): core is to be told
    /// if there are some.
    pub(super) fn announce_standby(&mut self, id: VolumeId) -> bool {
        let some = self.has_unannounced(id);
        if some {
            self.stand_by_until(id, StandsBy::Waits, StandsBy::Announced);
        }
        some
    }

    fn stand_by_until(&mut self, id: VolumeId, from: StandsBy, to: StandsBy) {
        for client in self.front_ends.of_volume(id).filter(|client| client.standby == Some(from)) {
            client.standby = Some(to);
        }
    }

    /// Core has let in those that were announced: they come in as soon as this node owns the volume and the unit's reservations were read.
    pub(super) fn unit_attached(&mut self, id: VolumeId) {
        if self.front_ends.stand_by(id) {
            self.stand_by_until(id, StandsBy::Announced, StandsBy::LetIn);
        }
        self.settle_unit(id);
    }

    /// Whether this life of the node owns a volume may have changed. When it does, the reservations are to be read; when another node does,
    /// or did so meanwhile, clients of the unit have nothing here any more (rule U1).
    pub(super) fn follow_owner(&mut self, id: VolumeId) {
        let me = self.options.me;
        let Some(host) = self.volumes.get_mut(id) else { return };
        let owned = host.volume.record().is_some_and(|record| record.owner == me);
        if std::mem::replace(&mut host.owned, owned) == owned {
            return;
        }
        if owned {
            return self.settle_unit(id);
        }
        let is_its = |client: &Client| client.volume == id && client.is_let_in();
        let of_unit = |client: &Client| is_its(client) && client.session.protocol().stands_by();
        self.disconnect_all(of_unit, &Why::Elsewhere);
        self.forget_reservations(id);
    }

    /// Lets in clients of a unit that core has let in, or asks for its reservations.
    fn settle_unit(&mut self, id: VolumeId) {
        let is_let_in = |client: &mut Client| client.standby == Some(StandsBy::LetIn);
        let stand_by = self.front_ends.stand_by(id) && self.front_ends.of_volume(id).any(is_let_in);
        let Some(host) = self.units.hosts.get_mut(&id) else { return };
        if host.held.is_empty() && !stand_by || !self.volumes.get(id).is_some_and(|host| host.owned) {
            return;
        }
        if host.is_fresh {
            self.let_in_to_unit(id);
        } else if !std::mem::replace(&mut host.is_asked, true) {
            (self.report)(LoopEvent::UnitWanted(id, host.wanted));
        }
    }

    /// A client of a unit that core has let in: it comes in as soon as the unit's reservations were read.
    pub(super) fn hold_for_unit(&mut self, new: NewClient, since: Moment) {
        match self.units.hosts.get_mut(&new.volume) {
            Some(host) if host.held.len() < MOST_CLIENTS => host.held.push((new, since)),
            Some(_) => super::why::refuse(new, &Why::TooMany),
            None => super::why::refuse(new, &Why::Detached),
        }
    }

    fn let_in_to_unit(&mut self, id: VolumeId) {
        let held =
            self.units.hosts.get_mut(&id).map(|host| std::mem::take(&mut host.held)).unwrap_or_default();
        for (new, since) in held {
            let waited = Duration::from_nanos(self.now.since(since));
            match self.volumes.get(id).is_some_and(|host| host.is_old(&new)) {
                true => super::why::refuse(new, &Why::Old),
                false => self.open_on_unit(new, None, waited),
            }
        }
        let Some(attachment) = self.volumes.attachment(id) else { return };
        let let_in = self.front_ends.keys_of(id, |client| client.standby == Some(StandsBy::LetIn));
        for key in let_in {
            if let Some(client) = self.front_ends.get_mut(key) {
                client.standby = None;
                client.session.attached(attachment);
                self.front_ends.stands_by_no_more(id);
                self.front_ends.receive_soon(key);
                if let Some(host) = self.volumes.get_mut(id) {
                    host.clients += 1;
                }
            }
        }
    }

    /// The volume is not served here any more: clients that stand by go on with that.
    pub(super) fn units_detached(&mut self, id: VolumeId) {
        self.forget_reservations(id);
        if let Some(host) = self.units.hosts.get_mut(&id) {
            host.held.drain(..).for_each(|(new, _)| super::why::refuse(new, &Why::Detached));
        }
        if self.front_ends.stand_by(id) {
            self.stand_by_until(id, StandsBy::Announced, StandsBy::Waits);
            self.stand_by_until(id, StandsBy::LetIn, StandsBy::Waits);
        }
    }

    /// The reservations of a volume's unit may change from now on without this node.
    fn forget_reservations(&mut self, id: VolumeId) {
        let Some(host) = self.units.hosts.get_mut(&id) else { return };
        self.units.wanted += 1;
        (host.wanted, host.is_fresh, host.is_asked) = (self.units.wanted, false, false);
        host.unit.borrow_mut().deactivate_all();
    }

    /// Reports the initiators that may not reach their volumes by any path.
    pub(super) fn report_unserved(&mut self) {
        let sweep_ns = self.options.sweep.as_nanos() as u64;
        let sweeps = self.units.swept.is_none_or(|at| self.now.since(at) >= sweep_ns);
        if sweeps {
            self.units.swept = Some(self.now);
        }
        for (id, host) in &mut self.units.hosts {
            let mut unit = host.unit.borrow_mut();
            if sweeps {
                unit.report_standing_by();
            }
            let unserved = unit.take_unserved();
            for of in unserved.iter().filter(|of| of.is_lost) {
                host.lost.retain(|(name, _)| *name != of.initiator);
                host.lost.push_back((of.initiator.clone(), self.now));
            }
            let is_old = |at: Moment| self.now.since(at) >= MAY_COME_BACK_NS;
            while host.lost.front().is_some_and(|(_, at)| is_old(*at)) || host.lost.len() > MOST_LOST {
                host.lost.pop_front();
            }
            if !unserved.is_empty() {
                (self.report)(LoopEvent::UnitUnserved(*id, unserved));
            }
        }
    }

    // ---- changes ---------------------------------------------------------------------------------------

    /// Reports the changes that sessions want.
    pub(super) fn report_changes(&mut self) {
        for (volume, client, ticket, change) in self.front_ends.take_changes() {
            (self.report)(LoopEvent::UnitChange(volume, client, ticket, Box::new(change)));
        }
    }

    /// A change was made, or not.
    pub(super) fn unit_changed(&mut self, client: u32, ticket: u32, result: Result<(), ChangeFailed>) {
        if let Some(of) = self.front_ends.get_mut(client) {
            of.session.changed(ticket, result);
            self.front_ends.has_answers(client);
        }
    }
}
