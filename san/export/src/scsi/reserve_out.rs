//! PERSISTENT RESERVE OUT: from its parameters to a change of the configuration; and RESERVE(6), RELEASE(6).

use loadline_base::scsi::operation::RESERVE_6;
use loadline_base::scsi::{Sense, key};

use super::about::NexusId;
use super::cdb::{u32_at, u64_at};
use super::reservations::{Kind, Request};
use super::unit::Unit;

/// Bytes of the parameters.
pub(super) const PARAMETERS: usize = 24;

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_AND_IGNORE: u8 = 6;
/// Bits of byte 20 of the parameters.
const SPEC_I_PT: u8 = 0x08;
const ALL_TG_PT: u8 = 0x04;
const APTPL: u8 = 0x01;

/// Whether the length of the parameters is right.
pub(super) fn check(cdb: &[u8; 16]) -> Result<(), Sense> {
    match u32_at(cdb, 5) as usize {
        PARAMETERS => Ok(()),
        _ => Err(Sense::new(key::ILLEGAL_REQUEST, 0x1a, 0x00)),
    }
}

/// What is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) request: Request,
    /// The reservation key, and the service action key.
    pub(super) keys: (u64, u64),
}

/// Reads the parameters of a command.
pub(super) fn read(cdb: &[u8; 16], bytes: &[u8; PARAMETERS]) -> Result<Parameters, Sense> {
    let action = cdb[1] & 0x1f;
    // Only the whole unit is reserved.
    let kind = || match cdb[2] >> 4 {
        0 => Kind::of_number(cdb[2] & 0x0f).ok_or(Sense::in_command(2)),
        _ => Err(Sense::in_command(2)),
    };
    let flags = bytes[20];
    let known = SPEC_I_PT | ALL_TG_PT | APTPL;
    // Registrations of other initiators are not made.
    if flags & !known != 0 || flags & SPEC_I_PT != 0 {
        return Err(Sense::in_parameters(20));
    }
    let register = |ignores| Request::Register {
        ignores,
        all_ports: flags & ALL_TG_PT != 0,
        persists: flags & APTPL != 0,
    };
    let request = match action {
        REGISTER => register(false),
        REGISTER_AND_IGNORE => register(true),
        RESERVE => Request::Reserve(kind()?),
        RELEASE => Request::Release(kind()?),
        CLEAR => Request::Clear,
        PREEMPT | PREEMPT_AND_ABORT => {
            Request::Preempt { kind: kind()?, aborts: action == PREEMPT_AND_ABORT }
        }
        _ => return Err(Sense::in_command(1)),
    };
    let keys = (u64_at(bytes, 0), u64_at(bytes, 8));
    Ok(Parameters { request, keys })
}

/// Whether RESERVE(6) and persistent reservations exclude each other here: who uses one kind gets a conflict from the other.
pub(super) fn is_of_other_kind(cdb: &[u8; 16], unit: &Unit) -> bool {
    match cdb[0] >> 5 {
        // RELEASE(6) without a reservation does nothing.
        0 => cdb[0] == RESERVE_6 && !unit.reservations().registrations.is_empty(),
        _ => unit.reserved().is_some(),
    }
}

/// RESERVE(6) or RELEASE(6). Whether it is carried out; otherwise there is a conflict.
pub(super) fn reserve_unit(cdb: &[u8; 16], unit: &mut Unit, by: NexusId) -> bool {
    let is_of_other = unit.reserved().is_some_and(|holder| holder != by);
    if cdb[0] == RESERVE_6 {
        if is_of_other {
            return false;
        }
        unit.set_reserved(Some(by));
    } else if !is_of_other {
        unit.set_reserved(None);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cdb(action: u8, kind: u8) -> [u8; 16] {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, action, kind, PARAMETERS as u8);
        cdb
    }

    #[test]
    fn parameters_are_keys_and_flags() {
        let mut bytes = [0; PARAMETERS];
        (bytes[7], bytes[15], bytes[20]) = (1, 2, ALL_TG_PT | APTPL);
        let read_one = read(&cdb(REGISTER, 0), &bytes).unwrap();
        let register = Request::Register { ignores: false, all_ports: true, persists: true };
        assert_eq!(read_one, Parameters { request: register, keys: (1, 2) });
        let preempt = read(&cdb(PREEMPT_AND_ABORT, 5), &bytes).unwrap();
        let kind = Kind::WriteExclusiveRegistrantsOnly;
        assert_eq!(preempt.request, Request::Preempt { kind, aborts: true });
        assert_eq!(read(&cdb(PREEMPT, 5), &bytes).unwrap().request, Request::Preempt { kind, aborts: false });
    }

    #[test]
    fn what_is_not_supported_is_refused_with_its_byte() {
        let mut bytes = [0; PARAMETERS];
        for kind in [0, 2, 4, 9, 0x11] {
            assert_eq!(read(&cdb(RESERVE, kind), &bytes), Err(Sense::in_command(2)), "{kind:02x}");
        }
        bytes[20] = SPEC_I_PT;
        assert_eq!(read(&cdb(REGISTER, 0), &bytes), Err(Sense::in_parameters(20)));
        let mut long = cdb(REGISTER, 0);
        long[8] = 25;
        assert_eq!(check(&long).unwrap_err().code, (0x1a, 0));
        assert_eq!(check(&cdb(REGISTER, 0)), Ok(()));
    }
}
