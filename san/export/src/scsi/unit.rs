//! A logical unit: what all sessions of a volume share.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use loadline_base::scsi::Sense;

pub use super::about::{About, AccessState, NexusId, NexusName, Port};
use super::attention::{Attention, Attentions};
use super::cdb::Touches;
use super::locks::{LockId, Locks, Owner, Sharing};
use super::modes::Modes;
use super::reservations::{Reservations, Told, aborts, told};

/// The unit of a volume. The sessions of the volume share it: they are of one loop.
pub type SharedUnit = Rc<RefCell<Unit>>;

#[derive(Debug)]
struct Nexus {
    name: NexusName,
    attentions: Attentions,
    /// Tickets of tasks that waited and may go on.
    resumed: VecDeque<u32>,
    /// It reaches the volume. Otherwise it is answered as at a port on standby.
    is_active: bool,
    /// It has sent a command: it may know states of ports.
    has_begun: bool,
    /// Its tasks were ended, and it has not learned it yet.
    is_ended: bool,
    /// Another session of this name is to take its place.
    is_displaced: bool,
    /// How often its tasks were ended.
    generation: u32,
    /// Tasks of this generation, and of earlier ones.
    tasks: usize,
    ended: usize,
    /// Both, by the version of the reservations that were known when each began.
    begun: BTreeMap<u64, usize>,
}

/// A task by which its unit knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TaskId {
    pub(super) nexus: NexusId,
    pub(super) ticket: u32,
    generation: u32,
    /// The version of the reservations that were known when it began.
    version: u64,
}

/// What a task waits for or has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// Blocks.
    Blocks(LockId),
    /// The right to change the reservations.
    Reservations(LockId),
    /// Tasks that were ended are to be gone.
    Ending,
}

/// A logical unit.
#[derive(Debug)]
pub struct Unit {
    about: About,
    /// The same as it was told: what it knows of ports is derived from this and from its sessions.
    told: About,
    reservations: Reservations,
    /// The version of them in the configuration.
    version: u64,
    /// A change of the reservations that is under way: by whom, and what they become.
    changing: Option<(TaskId, Reservations)>,
    modes: Modes,
    nexuses: BTreeMap<NexusId, Nexus>,
    next: u32,
    blocks: Locks,
    changes: Locks,
    /// Who has it by RESERVE(6).
    reserved: Option<NexusId>,
    /// Tasks that wait until none is ending.
    awaiting_end: Vec<Owner>,
    is_woken: bool,
    /// Initiators that may not reach the volume at all.
    unserved: Vec<Unserved>,
}

/// An initiator that may not reach a volume by any path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unserved {
    /// The name of the initiator.
    pub initiator: String,
    /// It has lost the session by which it did, and may come back at once. Otherwise it has ended that session by itself, has begun one
    /// that stands by, or has one and another node owns the volume now.
    pub is_lost: bool,
}

/// Whether a session may enter a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It may.
    Free,
    /// It may as soon as an earlier session of its name has left.
    Taken,
    /// Never: a later session of its name is in.
    Lost,
}

impl Unit {
    /// A unit that no initiator has reached yet. `reservations` is what the configuration keeps.
    pub fn new(about: About, reservations: Reservations) -> Unit {
        let mut unit = Unit {
            about: about.clone(),
            told: about.clone(),
            reservations,
            version: 0,
            changing: None,
            modes: Modes::default(),
            nexuses: BTreeMap::new(),
            next: 0,
            blocks: Locks::default(),
            changes: Locks::default(),
            reserved: None,
            awaiting_end: Vec::new(),
            is_woken: false,
            unserved: Vec::new(),
        };
        unit.become_known();
        unit
    }

    // ---- sessions ---------------------------------------------------------------------------------------

    /// A session comes. It enters when it may: of two of one name, the one that came last stays.
    pub fn arrive(&mut self) -> NexusId {
        self.next += 1;
        NexusId(self.next)
    }

    /// A session begins that has [come](Self::arrive). Its first command is told that it is new: unit attention 29/00. It is answered as at a
    /// port on standby until it is [activated](Self::activate).
    pub fn enter(&mut self, id: NexusId, name: NexusName) {
        let mut attentions = Attentions::default();
        attentions.add(Attention::Began);
        let nexus = Nexus {
            name,
            attentions,
            resumed: VecDeque::new(),
            is_active: false,
            has_begun: false,
            is_ended: false,
            is_displaced: false,
            generation: 0,
            tasks: 0,
            ended: 0,
            begun: BTreeMap::new(),
        };
        self.nexuses.insert(id, nexus);
    }

    /// A session comes and begins.
    #[cfg(test)]
    pub(super) fn enter_now(&mut self, name: NexusName) -> NexusId {
        let id = self.arrive();
        self.enter(id, name);
        id
    }

    /// A session has ended, and without a logout if `is_lost`: its RESERVE(6), its tasks and what they have locked end. Its
    /// [block steps](super::task::Step::Block) that are under way must take effect before any that is issued later and overlaps them, or not
    /// at all. If it reached the volume, its initiator may not reach it any more.
    pub fn leave(&mut self, nexus: NexusId, is_lost: bool) {
        let Some(left) = self.nexuses.remove(&nexus) else { return };
        if left.is_active {
            self.unserved.push(Unserved { initiator: left.name.initiator, is_lost });
        }
        if self.reserved == Some(nexus) {
            self.reserved = None;
        }
        let mut freed = Vec::new();
        self.blocks.leave_all(nexus, &mut freed);
        self.changes.leave_all(nexus, &mut freed);
        self.awaiting_end.retain(|(waiting, _)| *waiting != nexus);
        self.resume(freed);
        if left.ended > 0 {
            self.ended_has_gone();
        }
        // A session of the same name may wait for this.
        self.is_woken = true;
    }

    /// A place for a session of this name that has [come](Self::arrive). If one is in that came before, it is asked to end: it is
    /// [displaced](Self::is_displaced).
    pub fn place(&mut self, id: NexusId, name: &NexusName) -> Place {
        let mut place = Place::Free;
        for (other, nexus) in self.nexuses.iter_mut().filter(|(_, nexus)| nexus.name == *name) {
            if *other > id {
                return Place::Lost;
            }
            place = Place::Taken;
            self.is_woken |= !std::mem::replace(&mut nexus.is_displaced, true);
        }
        place
    }

    /// Whether the session is to end because a new one has its name.
    pub fn is_displaced(&self, nexus: NexusId) -> bool {
        self.nexuses.get(&nexus).is_some_and(|nexus| nexus.is_displaced)
    }

    /// Whether tasks of this session were ended by another one (reset, PREEMPT AND ABORT) since the last call: the session is to end all
    /// that it has without an answer, before it begins others.
    pub fn take_ended(&mut self, nexus: NexusId) -> bool {
        self.nexuses.get_mut(&nexus).is_some_and(|nexus| std::mem::take(&mut nexus.is_ended))
    }

    /// Whether tasks that were [ended](Self::take_ended) are still there. A reset is answered once none is.
    pub fn is_ending(&self) -> bool {
        self.nexuses.values().any(|nexus| nexus.ended > 0)
    }

    /// The ticket of a task of this session that waited and may go on: [`Task::resume`](super::task::Task::resume) is to be called.
    pub fn take_resumed(&mut self, nexus: NexusId) -> Option<u32> {
        self.nexuses.get_mut(&nexus)?.resumed.pop_front()
    }

    /// Whether since the last call a session was given something by [`take_ended`](Self::take_ended), [`take_resumed`](Self::take_resumed)
    /// or [`is_displaced`](Self::is_displaced), a session has left, or [`is_ending`](Self::is_ending) became false: all sessions are to be
    /// given a turn.
    pub fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.is_woken)
    }

    pub(super) fn name_of(&self, nexus: NexusId) -> Option<&NexusName> {
        self.nexuses.get(&nexus).map(|nexus| &nexus.name)
    }

    /// What the session is to be told before its next command, if there is anything.
    pub(super) fn take_attention(&mut self, nexus: NexusId) -> Option<Sense> {
        self.nexuses.get_mut(&nexus)?.attentions.take()
    }

    fn tell_others(&mut self, by: NexusId, attention: Attention) {
        for (_, nexus) in self.nexuses.iter_mut().filter(|(id, _)| **id != by) {
            nexus.attentions.add(attention);
        }
    }

    // ---- what it is -------------------------------------------------------------------------------------

    /// What it says of itself.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// The unit is another one now. If the size changed, each session is told (2A/09); if states of ports changed, too (2A/06). If another
    /// node owns it, initiators of this one may not reach it any more.
    pub fn change(&mut self, about: About) {
        let (old, was_elsewhere) = (self.about.bytes, self.active_elsewhere());
        self.told = about;
        self.become_known();
        if self.active_elsewhere().is_some_and(|now| was_elsewhere != Some(now)) {
            self.report_standing_by();
        }
        if old != self.about.bytes {
            self.nexuses.values_mut().for_each(|nexus| nexus.attentions.add(Attention::SizeChanged));
        }
    }

    /// If another node owns the unit, initiators of this one may not reach it.
    pub fn report_standing_by(&mut self) {
        if self.active_elsewhere().is_some() {
            let stand_by = self.nexuses.values().filter(|nexus| !nexus.is_active);
            let unserved =
                |nexus: &Nexus| Unserved { initiator: nexus.name.initiator.clone(), is_lost: false };
            self.unserved.extend(stand_by.map(unserved));
        }
    }

    /// This node owns the volume, and this session reaches it from now on. If it has sent commands before, it is told (2A/06).
    pub fn activate(&mut self, nexus: NexusId) {
        let Some(nexus) = self.nexuses.get_mut(&nexus) else { return };
        let was_active = std::mem::replace(&mut nexus.is_active, true);
        if nexus.has_begun && !was_active {
            nexus.attentions.add(Attention::StatesChanged);
        }
        self.become_known();
    }

    /// This node does not own the volume any more: no session reaches it, and all are told (2A/06).
    pub fn deactivate_all(&mut self) {
        self.nexuses.values_mut().for_each(|nexus| nexus.is_active = false);
        self.become_known();
    }

    /// The initiators that may not reach the volume at all, since this was last called.
    pub fn take_unserved(&mut self) -> Vec<Unserved> {
        std::mem::take(&mut self.unserved)
    }

    /// These initiators are not to reach the volume any more: what was to be [taken](Self::take_unserved) of them is forgotten.
    pub fn forget_unserved(&mut self, is_one: impl Fn(&str) -> bool) {
        self.unserved.retain(|of| !is_one(&of.initiator));
    }

    /// The initiator of each session, and whether the session reaches the volume.
    pub fn initiators(&self) -> impl Iterator<Item = (&str, bool)> {
        self.nexuses.values().map(|nexus| (nexus.name.initiator.as_str(), nexus.is_active))
    }

    /// The port of another node that is known to be active.
    fn active_elsewhere(&self) -> Option<u16> {
        let mut others = self.about.ports.iter().filter(|port| port.group != self.about.here);
        others.find(|port| port.state == AccessState::ActiveOptimized).map(|port| port.group)
    }

    /// A session stands by: its initiator may have no other one.
    pub fn stands_by(&mut self, name: &NexusName) {
        self.unserved.push(Unserved { initiator: name.initiator.clone(), is_lost: false });
    }

    /// Whether this session reaches the volume.
    pub(crate) fn is_active(&self, nexus: NexusId) -> bool {
        self.nexuses.get(&nexus).is_some_and(|nexus| nexus.is_active)
    }

    /// What it says of itself becomes what it was told, but for its own state. No two ports are active: what it knows of others may be old.
    fn become_known(&mut self) {
        let mut about = self.told.clone();
        let is_active = self.nexuses.values().any(|nexus| nexus.is_active);
        for port in &mut about.ports {
            if port.group == about.here {
                port.state = if is_active { AccessState::ActiveOptimized } else { AccessState::Standby };
            } else if is_active && port.state == AccessState::ActiveOptimized {
                port.state = AccessState::Standby;
            }
        }
        let old = std::mem::replace(&mut self.about, about);
        if old.ports != self.about.ports {
            for nexus in self.nexuses.values_mut().filter(|nexus| nexus.has_begun) {
                nexus.attentions.add(Attention::StatesChanged);
            }
        }
    }

    pub(super) fn modes(&self) -> Modes {
        self.modes
    }

    /// A session has selected modes: the others are told.
    pub(super) fn select(&mut self, modes: Modes, by: NexusId) {
        if std::mem::replace(&mut self.modes, modes) != modes {
            self.tell_others(by, Attention::ModesChanged);
        }
    }

    /// Whether sense data are sent as descriptors (D_SENSE of the control mode page), and not in the fixed format.
    pub fn sends_descriptors(&self) -> bool {
        self.modes.descriptors
    }

    // ---- tasks ------------------------------------------------------------------------------------------

    /// LOGICAL UNIT RESET: the tasks of all sessions end ([`take_ended`](Self::take_ended)), RESERVE(6) ends, modes are as at the beginning,
    /// and all sessions are told (29/03), the one that requested it too.
    pub fn reset(&mut self) {
        self.reserved = None;
        self.modes = Modes::default();
        self.end_all();
        self.nexuses.values_mut().for_each(|nexus| nexus.attentions.add(Attention::Reset));
    }

    /// CLEAR TASK SET: the tasks of all sessions end ([`take_ended`](Self::take_ended)), and the other sessions that had some are told
    /// (2F/00).
    pub fn clear_tasks(&mut self, by: NexusId) {
        for (_, nexus) in self.nexuses.iter_mut().filter(|(id, nexus)| **id != by && nexus.tasks > 0) {
            nexus.attentions.add(Attention::TasksCleared);
        }
        self.end_all();
    }

    fn end_all(&mut self) {
        self.nexuses.values_mut().for_each(Nexus::end_tasks);
        self.is_woken = true;
    }

    /// A task begins. Without its session there is none.
    pub(super) fn begin_task(&mut self, id: NexusId, ticket: u32) -> Option<TaskId> {
        let nexus = self.nexuses.get_mut(&id)?;
        nexus.tasks += 1;
        nexus.has_begun = true;
        *nexus.begun.entry(self.version).or_default() += 1;
        Some(TaskId { nexus: id, ticket, generation: nexus.generation, version: self.version })
    }

    /// Whether the task was ended by another session, or its own has left.
    pub(super) fn is_ended(&self, task: TaskId) -> bool {
        self.nexuses.get(&task.nexus).is_none_or(|nexus| nexus.generation != task.generation)
    }

    /// A task is over, with what it has or waits for. To be called once for each that [began](Self::begin_task).
    pub(super) fn end_task(&mut self, task: TaskId, held: Option<Held>) {
        if let Some(held) = held {
            self.let_go(task, held);
        }
        let Some(nexus) = self.nexuses.get_mut(&task.nexus) else { return };
        if let Some(count) = nexus.begun.get_mut(&task.version) {
            *count -= 1;
            if *count == 0 {
                nexus.begun.remove(&task.version);
            }
        }
        if nexus.generation == task.generation {
            nexus.tasks -= 1;
            return;
        }
        nexus.ended -= 1;
        self.ended_has_gone();
    }

    fn ended_has_gone(&mut self) {
        if !self.is_ending() {
            let waiting = std::mem::take(&mut self.awaiting_end);
            self.resume(waiting);
            self.is_woken = true;
        }
    }

    fn resume(&mut self, owners: Vec<Owner>) {
        for (nexus, ticket) in owners {
            if let Some(nexus) = self.nexuses.get_mut(&nexus) {
                nexus.resumed.push_back(ticket);
                self.is_woken = true;
            }
        }
    }

    // ---- waiting ----------------------------------------------------------------------------------------

    /// A task is to have these blocks. Whether it has them at once; otherwise it is resumed when it does.
    pub(super) fn lock(&mut self, task: TaskId, blocks: Range<u64>, sharing: Sharing) -> (Held, bool) {
        let (id, is_held) = self.blocks.enter(blocks, sharing, (task.nexus, task.ticket));
        (Held::Blocks(id), is_held)
    }

    /// A task is to change the reservations, as the only one. Whether it may at once; otherwise it is resumed when it may.
    pub(super) fn lock_reservations(&mut self, task: TaskId) -> (Held, bool) {
        let (id, is_held) = self.changes.enter(0..1, Sharing::Alone, (task.nexus, task.ticket));
        (Held::Reservations(id), is_held)
    }

    /// A task waits until no ended task is left. It is resumed then.
    pub(super) fn await_end(&mut self, task: TaskId) -> Held {
        self.awaiting_end.push((task.nexus, task.ticket));
        Held::Ending
    }

    /// A task does not have or wait for this any more.
    pub(super) fn let_go(&mut self, task: TaskId, held: Held) {
        let mut freed = Vec::new();
        match held {
            Held::Blocks(id) => self.blocks.leave(id, &mut freed),
            Held::Reservations(id) => {
                if self.changing.as_ref().is_some_and(|(by, _)| *by == task) {
                    self.changing = None;
                }
                self.changes.leave(id, &mut freed);
            }
            Held::Ending => self.awaiting_end.retain(|waiting| *waiting != (task.nexus, task.ticket)),
        }
        if let Some(nexus) = self.nexuses.get_mut(&task.nexus) {
            // Its ticket may be that of another task soon.
            nexus.resumed.retain(|ticket| *ticket != task.ticket);
        }
        self.resume(freed);
    }

    // ---- reservations -----------------------------------------------------------------------------------

    /// What the configuration keeps, as far as it is known here.
    pub fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    /// What the configuration keeps now. Each session that lost something is told (2A/03, 2A/04, 2A/05), but for the one that has changed
    /// it. The tasks of sessions that a PREEMPT AND ABORT has removed end ([`take_ended`](Self::take_ended)).
    pub fn learn(&mut self, reservations: Reservations) {
        let by = self.changing.as_ref().filter(|(_, to)| *to == reservations).map(|(by, _)| by.nexus);
        self.become_reserved(by, reservations);
    }

    /// What was [learned](Self::learn) last, or at the beginning, is this version of the reservations in the configuration.
    pub fn knows_version(&mut self, version: u64) {
        self.version = version;
    }

    /// Every command that is under way began when this version of the reservations, or a later one, was known.
    pub fn obeyed_version(&self) -> u64 {
        let first = |nexus: &Nexus| nexus.begun.keys().next().copied();
        self.nexuses.values().filter_map(first).fold(self.version, u64::min)
    }

    /// A change of the reservations is under way.
    pub(super) fn is_changing(&mut self, by: TaskId, to: Reservations) {
        self.changing = Some((by, to));
    }

    /// The change that was under way was made, or not.
    pub(super) fn has_changed(&mut self, by: TaskId, from: &Reservations, is_made: bool) {
        let Some((by, to)) = self.changing.take_if(|(changing, _)| *changing == by) else { return };
        // Otherwise what is kept was learned meanwhile.
        if is_made && self.reservations == *from {
            self.become_reserved(Some(by.nexus), to);
        }
    }

    fn become_reserved(&mut self, by: Option<NexusId>, reservations: Reservations) {
        let old = std::mem::replace(&mut self.reservations, reservations);
        for (id, nexus) in &mut self.nexuses {
            if by == Some(*id) {
                continue;
            }
            let aborts = aborts(&old, &self.reservations, &nexus.name) && nexus.tasks > 0;
            if aborts {
                nexus.end_tasks();
                self.is_woken = true;
            }
            match told(&old, &self.reservations, &nexus.name) {
                Some(Told::Cleared) => nexus.attentions.add(Attention::ReservationsCleared),
                Some(Told::Released) => nexus.attentions.add(Attention::ReservationReleased),
                Some(Told::Removed) => nexus.attentions.add(Attention::RegistrationRemoved),
                None if aborts => nexus.attentions.add(Attention::TasksCleared),
                None => {}
            }
        }
    }

    /// Whether a reservation of either kind prevents a command. Commands of reservations have rules of their own.
    pub(super) fn prevent(&self, id: NexusId, touches: Touches) -> bool {
        let Some(nexus) = self.nexuses.get(&id) else { return true };
        match touches {
            Touches::Never | Touches::Paths | Touches::Reservations => false,
            _ => self.reserved.is_some_and(|by| by != id) || self.reservations.prevent(&nexus.name, touches),
        }
    }

    /// Who has it by RESERVE(6).
    pub(super) fn reserved(&self) -> Option<NexusId> {
        self.reserved
    }

    pub(super) fn set_reserved(&mut self, by: Option<NexusId>) {
        self.reserved = by;
    }

    /// Whether nothing is locked and no task is there.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.blocks.is_empty()
            && self.changes.is_empty()
            && self.awaiting_end.is_empty()
            && self
                .nexuses
                .values()
                .all(|nexus| nexus.tasks == 0 && nexus.ended == 0 && nexus.resumed.is_empty())
    }
}

impl Nexus {
    fn end_tasks(&mut self) {
        if self.tasks > 0 {
            self.is_ended = true;
            self.generation += 1;
            self.ended += std::mem::take(&mut self.tasks);
        }
    }
}

#[cfg(test)]
mod tests;
