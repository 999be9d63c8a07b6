//! REPORT SUPPORTED OPERATION CODES, and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.

use loadline_base::scsi::Sense;

use super::cdb::{COMMANDS, Known, u16_at};

/// Seconds after which an initiator is advised to give a command up.
const TIMEOUT: u32 = 15;
/// Bits of a descriptor of a list: a descriptor of timeouts follows; the operation code has service actions.
const CTDP: u8 = 0x02;
const SERVACTV: u8 = 0x01;
/// Whether a command is supported, in a report on one.
const NOT_SUPPORTED: u8 = 1;
const SUPPORTED: u8 = 3;

/// What REPORT SUPPORTED OPERATION CODES returns, before it is cut to the allocation length.
pub(super) fn report(cdb: &[u8; 16]) -> Result<Vec<u8>, Sense> {
    let (with_timeouts, options) = (cdb[2] & 0x80 != 0, cdb[2] & 0x07);
    let (opcode, action) = (cdb[3], u16_at(cdb, 4));
    let has_actions = COMMANDS.iter().any(|known| known.opcode == opcode && known.action.is_some());
    let is_known = COMMANDS.iter().any(|known| known.opcode == opcode);
    let find = |action: Option<u16>| {
        COMMANDS.iter().find(|known| known.opcode == opcode && known.action.map(u16::from) == action)
    };
    match options {
        0 => Ok(all(with_timeouts)),
        1 if has_actions => Err(Sense::in_command(2)),
        1 => Ok(one(find(None), with_timeouts)),
        2 if is_known && !has_actions => Err(Sense::in_command(2)),
        2 => Ok(one(find(Some(action)), with_timeouts)),
        3 if has_actions => Ok(one(find(Some(action)), with_timeouts)),
        3 => Ok(one(find(None).filter(|_| action == 0), with_timeouts)),
        _ => Err(Sense::in_command(2)),
    }
}

fn all(with_timeouts: bool) -> Vec<u8> {
    let mut list = Vec::new();
    for known in COMMANDS {
        let flags = if with_timeouts { CTDP } else { 0 } | if known.action.is_some() { SERVACTV } else { 0 };
        list.extend([known.opcode, 0, 0, known.action.unwrap_or(0), 0, flags, 0, known.usage.len() as u8]);
        if with_timeouts {
            list.extend(timeouts());
        }
    }
    let mut data = (list.len() as u32).to_be_bytes().to_vec();
    data.extend(list);
    data
}

fn one(known: Option<&Known>, with_timeouts: bool) -> Vec<u8> {
    let Some(known) = known else { return vec![0, NOT_SUPPORTED, 0, 0] };
    let timeouts_follow = if with_timeouts { 0x80 } else { 0 };
    let mut data = vec![0, SUPPORTED | timeouts_follow, 0, known.usage.len() as u8];
    data.extend(known.usage);
    if let Some(action) = known.action {
        data[5] = data[5] & 0xe0 | action;
    }
    if with_timeouts {
        data.extend(timeouts());
    }
    data
}

/// A descriptor of timeouts: no time is usual.
fn timeouts() -> [u8; 12] {
    let [a, b, c, d] = TIMEOUT.to_be_bytes();
    [0, 10, 0, 0, 0, 0, 0, 0, a, b, c, d]
}

/// What REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS returns, before it is cut to the allocation length.
pub(super) fn functions(cdb: &[u8; 16]) -> Vec<u8> {
    // ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET, TARGET RESET.
    let functions = 0xda;
    match cdb[2] & 0x80 != 0 {
        false => vec![functions, 0, 0, 0],
        true => {
            let mut data = vec![functions, 0, 0, 12];
            // Timeouts are given, in tenths of seconds: usually none.
            data.extend([1, 0, 0, 0, 0, 0, 0, 0]);
            data.extend((TIMEOUT * 10).to_be_bytes());
            data
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cdb::u32_at;
    use super::*;

    fn cdb(options: u8, opcode: u8, action: u8) -> [u8; 16] {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[2], cdb[3], cdb[5]) = (0xa3, 0x0c, options, opcode, action);
        cdb
    }

    #[test]
    fn each_command_of_the_list_is_reported_alone_with_its_own_bits() {
        for timeouts in [0, 0x80] {
            let data = report(&cdb(timeouts, 0, 0)).unwrap();
            let length = if timeouts == 0 { 8 } else { 20 };
            assert_eq!(u32_at(&data, 0) as usize, data.len() - 4);
            assert_eq!((data.len() - 4) / length, COMMANDS.len());
            for descriptor in data[4..].chunks_exact(length) {
                let (opcode, action, flags) = (descriptor[0], descriptor[3], descriptor[5]);
                assert_eq!(flags & CTDP != 0, timeouts != 0);
                let (right, wrong) = if flags & SERVACTV != 0 { (2, 1) } else { (1, 2) };
                assert!(report(&cdb(wrong, opcode, action)).is_err(), "{opcode:02x}");
                let one = report(&cdb(right | timeouts, opcode, action)).unwrap();
                assert_eq!(one, report(&cdb(3 | timeouts, opcode, action)).unwrap());
                assert_eq!((one[1] & 7, one[4]), (SUPPORTED, opcode));
                assert_eq!(u16_at(&one, 2), u16_at(descriptor, 6));
                if flags & SERVACTV != 0 {
                    assert_eq!(one[5] & 0x1f, action);
                }
            }
        }
        assert_eq!(report(&cdb(1, 0xff, 0)).unwrap()[1], NOT_SUPPORTED);
        assert_eq!(report(&cdb(2, 0x9e, 0x11)).unwrap()[1], NOT_SUPPORTED);
        assert_eq!(report(&cdb(1, 0x28, 0)).unwrap()[5] & 0x18, 0x18, "DPO and FUA");
    }
}
