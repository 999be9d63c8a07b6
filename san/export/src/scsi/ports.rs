//! Target port groups: REPORT TARGET PORT GROUPS and SET TARGET PORT GROUPS. Each node is a group with one port.

use loadline_base::scsi::{Sense, key};

use super::about::{About, AccessState};
use super::cdb::u16_at;

/// The states that a group can have: active/optimised, standby, unavailable.
const SUPPORTED: u8 = 0x01 | 0x04 | 0x08;
const ACTIVE: u8 = 0;
const STANDBY: u8 = 2;
const UNAVAILABLE: u8 = 3;
/// Bytes of the header of a list that SET TARGET PORT GROUPS gets, and of each of its descriptors.
const HEADER: usize = 4;

/// The most bytes of the list that SET TARGET PORT GROUPS gets.
pub(super) const MOST_LIST: usize = 4096;

fn number(state: AccessState) -> u8 {
    match state {
        AccessState::ActiveOptimized => ACTIVE,
        AccessState::Standby => STANDBY,
        AccessState::Unavailable => UNAVAILABLE,
    }
}

/// What REPORT TARGET PORT GROUPS returns, before it is cut to the allocation length.
pub(super) fn report(cdb: &[u8; 16], about: &About) -> Result<Vec<u8>, Sense> {
    let mut list = match cdb[1] >> 5 {
        0 => Vec::new(),
        // The extended header; no time is known that a change of states takes.
        1 => vec![0x10, 0, 0, 0],
        _ => return Err(Sense::in_command(1)),
    };
    for port in &about.ports {
        let [high, low] = port.group.to_be_bytes();
        list.extend([number(port.state), SUPPORTED, high, low, 0, 0, 0, 1]);
        list.extend([0, 0, high, low]);
    }
    let mut data = (list.len() as u32).to_be_bytes().to_vec();
    data.extend(list);
    Ok(data)
}

/// The group that a list of SET TARGET PORT GROUPS makes active, if it is another one than now.
pub(super) fn set(list: &[u8], about: &About) -> Result<Option<u16>, Sense> {
    if list.len() < HEADER || !list.len().is_multiple_of(HEADER) {
        return Err(Sense::new(key::ILLEGAL_REQUEST, 0x1a, 0x00));
    }
    let mut active = None;
    for (index, descriptor) in list.chunks_exact(HEADER).enumerate().skip(1) {
        let at = (index * HEADER) as u16;
        let group = u16_at(descriptor, 2);
        let port = about.ports.iter().find(|port| port.group == group).ok_or(Sense::in_parameters(at + 2))?;
        match descriptor[0] {
            ACTIVE if active.is_none() => active = Some(port),
            STANDBY => {}
            _ => return Err(Sense::in_parameters(at)),
        }
    }
    // One group is always active: it cannot be made another state without a successor.
    let active = active.ok_or(Sense::in_parameters(HEADER as u16))?;
    match active.state {
        AccessState::ActiveOptimized => Ok(None),
        AccessState::Standby => Ok(Some(active.group)),
        AccessState::Unavailable => Err(FAILED),
    }
}

/// SET TARGET PORT GROUPS COMMAND FAILED.
pub(super) const FAILED: Sense = Sense::new(key::HARDWARE_ERROR, 0x67, 0x0a);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::about::Port;
    use crate::scsi::testing::about;

    #[test]
    fn groups_are_reported_with_their_states_and_ports() {
        let about = about();
        let data = report(&[0; 16], &about).unwrap();
        assert_eq!(data[..4], [0, 0, 0, 36]);
        assert_eq!(data[4..16], [0, 0x0d, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]);
        assert_eq!((data[16], data[28]), (STANDBY, UNAVAILABLE));
        let mut extended = [0; 16];
        extended[1] = 0x20 | 0x0a;
        let data = report(&extended, &about).unwrap();
        assert_eq!(data[..8], [0, 0, 0, 40, 0x10, 0, 0, 0]);
    }

    #[test]
    fn a_group_on_standby_is_made_active_and_no_group_can_be_left_without_a_successor() {
        let about = about();
        let list = |descriptors: &[[u8; 4]]| [&[[0; 4]][..], descriptors].concat().concat();
        assert_eq!(set(&list(&[[0, 0, 0, 2]]), &about), Ok(Some(2)));
        assert_eq!(set(&list(&[[2, 0, 0, 1], [0, 0, 0, 2]]), &about), Ok(Some(2)));
        assert_eq!(set(&list(&[[0, 0, 0, 1]]), &about), Ok(None), "it is active");
        assert_eq!(set(&list(&[[2, 0, 0, 1]]), &about), Err(Sense::in_parameters(4)));
        assert_eq!(set(&list(&[[0, 0, 0, 9]]), &about), Err(Sense::in_parameters(6)));
        assert_eq!(set(&list(&[[0, 0, 0, 1], [0, 0, 0, 2]]), &about), Err(Sense::in_parameters(8)));
        assert_eq!(set(&list(&[[0, 0, 0, 3]]), &about), Err(FAILED));
        assert_eq!(set(&[0; 6], &about).unwrap_err().code, (0x1a, 0));
        assert!(about.ports.contains(&Port { group: 3, state: AccessState::Unavailable }));
    }
}
