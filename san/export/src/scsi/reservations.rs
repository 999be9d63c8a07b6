//! Persistent reservations: the state that the configuration keeps, what commands make of it, and which commands it prevents (SPC-4, 5.13).
//!
//! # Invariants
//! - No I_T nexus is registered twice, and no key is 0.
//! - The holder of a reservation is registered. A reservation of all registrants has no single holder, and ends with the last of them.
//! - A command changes registrations or reservation only if it comes from a registered nexus with its key, except for REGISTER.
//! - What is kept says by itself which tasks a PREEMPT AND ABORT ends: whoever learns it ends them, also if the one that has asked for it
//!   never learned whether it was made, and if other changes have followed before it was learned.

use loadline_base::scsi::{Sense, key};
use serde::{Deserialize, Serialize};

use super::about::NexusName;
use super::cdb::Touches;

/// The most registrations of a volume.
pub const MOST_REGISTRATIONS: usize = 1024;

/// All registrations of a volume, and its reservation. It is kept whether or not APTPL was set: it survives every node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reservations {
    /// PRGENERATION: how many changes of registrations there were.
    #[serde(default)]
    pub generation: u32,
    /// Who is registered, in the order in which they came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub registrations: Vec<Registration>,
    /// The reservation, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Reservation>,
    /// Whether the last registration requested that all of this survives a loss of power (APTPL).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub persists: bool,
    /// The generation that the last PREEMPT AND ABORT has made: by another number than before, tasks are to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aborted_at: Option<u32>,
}

/// An I_T nexus that is registered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// The nexus.
    pub nexus: NexusName,
    /// Its key: not 0.
    pub key: u64,
    /// The generation by which it was registered. One that was removed and came again has another number.
    #[serde(default)]
    pub since: u32,
}

/// A reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reservation {
    /// What it prevents.
    pub kind: Kind,
    /// The registered nexus that has it; `None` for one of all registrants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<NexusName>,
}

/// Types of reservations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Kind {
    /// Only the holder writes.
    WriteExclusive = 1,
    /// Only the holder reads and writes.
    ExclusiveAccess = 3,
    /// Only those that are registered write.
    WriteExclusiveRegistrantsOnly = 5,
    /// Only those that are registered read and write.
    ExclusiveAccessRegistrantsOnly = 6,
    /// Only those that are registered write, and each of them is a holder.
    WriteExclusiveAllRegistrants = 7,
    /// Only those that are registered read and write, and each of them is a holder.
    ExclusiveAccessAllRegistrants = 8,
}

impl Kind {
    /// All types.
    pub const ALL: [Kind; 6] = [
        Kind::WriteExclusive,
        Kind::ExclusiveAccess,
        Kind::WriteExclusiveRegistrantsOnly,
        Kind::ExclusiveAccessRegistrantsOnly,
        Kind::WriteExclusiveAllRegistrants,
        Kind::ExclusiveAccessAllRegistrants,
    ];

    /// The type of this number.
    pub fn of_number(number: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    fn is_of_all(self) -> bool {
        matches!(self, Kind::WriteExclusiveAllRegistrants | Kind::ExclusiveAccessAllRegistrants)
    }

    fn lets_registrants(self) -> bool {
        !matches!(self, Kind::WriteExclusive | Kind::ExclusiveAccess)
    }

    fn prevents_reads(self) -> bool {
        use Kind::*;
        matches!(self, ExclusiveAccess | ExclusiveAccessRegistrantsOnly | ExclusiveAccessAllRegistrants)
    }
}

/// What PERSISTENT RESERVE OUT requests: its service actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    Register {
        /// Its key now does not matter.
        ignores: bool,
        /// At all target ports.
        all_ports: bool,
        persists: bool,
    },
    Reserve(Kind),
    Release(Kind),
    Clear,
    Preempt {
        kind: Kind,
        /// The tasks of nexuses that lose their registrations end.
        aborts: bool,
    },
}

/// Why a request is not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION.
    Sense(Sense),
}

/// What a nexus is told of a change that another one made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// All registrations were cleared.
    Cleared,
    /// A reservation that let it write was released.
    Released,
    /// Its registration was removed.
    Removed,
}

impl Reservations {
    /// The key of a nexus, if it is registered.
    pub fn key_of(&self, nexus: &NexusName) -> Option<u64> {
        self.registrations.iter().find(|registration| registration.nexus == *nexus).map(|of| of.key)
    }

    /// Whether the reservation is one of this nexus.
    pub fn is_held_by(&self, nexus: &NexusName) -> bool {
        self.reservation.as_ref().is_some_and(|reservation| match &reservation.holder {
            Some(holder) => holder == nexus,
            None => self.key_of(nexus).is_some(),
        })
    }

    /// Whether the reservation prevents a command of this nexus.
    pub(super) fn prevent(&self, nexus: &NexusName, touches: Touches) -> bool {
        let Some(reservation) = &self.reservation else { return false };
        let prevents = match touches {
            Touches::Never | Touches::Paths | Touches::Nothing | Touches::Reservations => false,
            Touches::Reads => reservation.kind.prevents_reads(),
            Touches::Writes => true,
        };
        let may =
            || self.is_held_by(nexus) || reservation.kind.lets_registrants() && self.key_of(nexus).is_some();
        prevents && !may()
    }

    /// What a request of a nexus makes of it, with the key and the service action key of its parameters. `ports` are all target port groups.
    pub(super) fn carry_out(
        &self,
        by: &NexusName,
        request: Request,
        (own, service): (u64, u64),
        ports: &[u16],
    ) -> Result<Reservations, Refused> {
        let registered = self.key_of(by);
        let mut to = self.clone();
        if let Request::Register { ignores, all_ports, persists } = request {
            if !ignores && own != registered.unwrap_or(0) {
                return Err(Refused::Conflict);
            }
            let group = |group| NexusName { group, ..by.clone() };
            let nexuses =
                if all_ports { ports.iter().copied().map(group).collect() } else { vec![by.clone()] };
            let mut changes = false;
            for nexus in nexuses {
                changes |= service != 0 || to.key_of(&nexus).is_some();
                to.register(nexus, service)?;
            }
            if changes {
                to.persists = persists;
                to.generation = to.generation.wrapping_add(1);
            }
            return Ok(to);
        }
        if registered != Some(own) {
            return Err(Refused::Conflict);
        }
        match request {
            Request::Register { .. } => unreachable!("it was carried out"),
            Request::Reserve(kind) => match &self.reservation {
                Some(old) if self.is_held_by(by) && old.kind == kind => {}
                Some(_) => return Err(Refused::Conflict),
                None => to.reserve(by, kind),
            },
            Request::Release(kind) => match &self.reservation {
                Some(old) if self.is_held_by(by) => {
                    if old.kind != kind {
                        return Err(Refused::Sense(Sense::new(key::ILLEGAL_REQUEST, 0x26, 0x04)));
                    }
                    to.reservation = None;
                }
                _ => {}
            },
            Request::Clear => {
                let generation = self.generation.wrapping_add(1);
                to = Reservations { generation, aborted_at: self.aborted_at, ..Reservations::default() };
            }
            Request::Preempt { kind, aborts } => {
                to.preempt(by, kind, service)?;
                to.generation = to.generation.wrapping_add(1);
                if aborts {
                    to.aborted_at = Some(to.generation);
                }
            }
        }
        Ok(to)
    }

    /// Registers a nexus with a key, or with 0 unregisters it.
    fn register(&mut self, nexus: NexusName, key: u64) -> Result<(), Refused> {
        if key == 0 {
            self.registrations.retain(|of| of.nexus != nexus);
            self.end_without_holder();
            return Ok(());
        }
        if let Some(old) = self.registrations.iter_mut().find(|of| of.nexus == nexus) {
            old.key = key;
            return Ok(());
        }
        if self.registrations.len() >= MOST_REGISTRATIONS {
            return Err(Refused::Sense(Sense::new(key::ILLEGAL_REQUEST, 0x55, 0x04)));
        }
        let since = self.generation.wrapping_add(1);
        self.registrations.push(Registration { nexus, key, since });
        Ok(())
    }

    fn reserve(&mut self, by: &NexusName, kind: Kind) {
        let holder = (!kind.is_of_all()).then(|| by.clone());
        self.reservation = Some(Reservation { kind, holder });
    }

    /// The reservation ends if nobody that is registered has it.
    fn end_without_holder(&mut self) {
        let is_held = match self.reservation.as_ref().map(|reservation| &reservation.holder) {
            None | Some(None) => !self.registrations.is_empty(),
            Some(Some(holder)) => self.key_of(holder).is_some(),
        };
        if !is_held {
            self.reservation = None;
        }
    }

    /// Removes the registrations with a key, and takes the reservation over if it is one of theirs.
    fn preempt(&mut self, by: &NexusName, kind: Kind, of: u64) -> Result<(), Refused> {
        let is_of_all = self.reservation.as_ref().is_some_and(|reservation| reservation.holder.is_none());
        let everyone = of == 0 && is_of_all;
        if of == 0 && !everyone {
            return Err(Refused::Sense(Sense::in_parameters(8)));
        }
        let is_meant = |registration: &Registration| everyone || registration.key == of;
        if !self.registrations.iter().any(is_meant) {
            return Err(Refused::Conflict);
        }
        let holder = self.reservation.as_ref().and_then(|reservation| reservation.holder.as_ref());
        let takes_over = everyone || holder.and_then(|holder| self.key_of(holder)) == Some(of);
        self.registrations.retain(|registration| registration.nexus == *by || !is_meant(registration));
        if takes_over {
            self.reserve(by, kind);
        }
        Ok(())
    }
}

/// Whether the tasks of a nexus end when reservations become others, by a PREEMPT AND ABORT among the changes. If there were others beside
/// it, more tasks end than it has named: who was named is not known any more.
pub(super) fn aborts(from: &Reservations, to: &Reservations, nexus: &NexusName) -> bool {
    if from.aborted_at == to.aborted_at {
        return false;
    }
    let since = |of: &Reservations| of.registrations.iter().find(|of| of.nexus == *nexus).map(|of| of.since);
    match (since(from), since(to)) {
        (Some(old), new) => new != Some(old),
        // It may have come and been removed meanwhile.
        (None, _) => to.generation != from.generation.wrapping_add(1),
    }
}

/// What a nexus is told when reservations become others, and not by itself.
pub(super) fn told(from: &Reservations, to: &Reservations, nexus: &NexusName) -> Option<Told> {
    from.key_of(nexus)?;
    if to.key_of(nexus).is_none() {
        return Some(if to.registrations.is_empty() { Told::Cleared } else { Told::Removed });
    }
    let old = from.reservation.as_ref().filter(|old| old.kind.lets_registrants())?;
    let is_kept = to.reservation.as_ref().is_some_and(|new| new.kind == old.kind);
    (!is_kept).then_some(Told::Released)
}

#[cfg(test)]
mod tests;
