//! PERSISTENT RESERVE IN: what is registered and reserved.

use super::cdb::reserve_in::*;
use super::inquiry::transport_id;
use super::reservations::{Kind, Reservations};

/// What a service action returns, before it is cut to the allocation length.
pub(super) fn report(action: u8, reservations: &Reservations) -> Vec<u8> {
    let list = match action {
        READ_KEYS => keys(reservations),
        READ_RESERVATION => reservation(reservations),
        REPORT_CAPABILITIES => return capabilities(reservations),
        READ_FULL_STATUS => full_status(reservations),
        _ => unreachable!("no such command is known"),
    };
    let mut data = reservations.generation.to_be_bytes().to_vec();
    data.extend((list.len() as u32).to_be_bytes());
    data.extend(list);
    data
}

fn keys(reservations: &Reservations) -> Vec<u8> {
    reservations.registrations.iter().flat_map(|of| of.key.to_be_bytes()).collect()
}

fn reservation(reservations: &Reservations) -> Vec<u8> {
    let Some(reservation) = &reservations.reservation else { return Vec::new() };
    let key = reservation.holder.as_ref().and_then(|holder| reservations.key_of(holder)).unwrap_or(0);
    let mut list = key.to_be_bytes().to_vec();
    list.extend([0, 0, 0, 0, 0, reservation.kind as u8, 0, 0]);
    list
}

fn capabilities(reservations: &Reservations) -> Vec<u8> {
    // ATP_C and PTPL_C; the mask of types is valid.
    let mut data = vec![0, 8, 0x05, 0x80 | u8::from(reservations.persists), 0, 0, 0, 0];
    for kind in Kind::ALL {
        let number = kind as u8;
        data[4 + usize::from(number / 8)] |= 1 << (number % 8);
    }
    data
}

fn full_status(reservations: &Reservations) -> Vec<u8> {
    let mut list = Vec::new();
    for registration in &reservations.registrations {
        let nexus = &registration.nexus;
        let holds = reservations.reservation.as_ref().filter(|_| reservations.is_held_by(nexus));
        let id = transport_id(&nexus.initiator, &nexus.isid);
        list.extend(registration.key.to_be_bytes());
        list.extend([0, 0, 0, 0, u8::from(holds.is_some()), holds.map_or(0, |of| of.kind as u8)]);
        list.extend([0; 4]);
        list.extend(nexus.group.to_be_bytes());
        list.extend((id.len() as u32).to_be_bytes());
        list.extend(id);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::super::cdb::{u16_at, u32_at, u64_at};
    use super::*;
    use crate::scsi::reservations::{Registration, Reservation};
    use crate::scsi::testing::name;

    fn some() -> Reservations {
        Reservations {
            generation: 7,
            registrations: vec![
                Registration { nexus: name(1, 1), key: 11, since: 1 },
                Registration { nexus: name(2, 3), key: 12, since: 2 },
            ],
            reservation: Some(Reservation { kind: Kind::ExclusiveAccess, holder: Some(name(2, 3)) }),
            persists: true,
            aborted_at: None,
        }
    }

    #[test]
    fn keys_reservation_and_full_status_say_the_same() {
        let some = some();
        let keys = report(READ_KEYS, &some);
        assert_eq!(
            (u32_at(&keys, 0), u32_at(&keys, 4), u64_at(&keys, 8), u64_at(&keys, 16)),
            (7, 16, 11, 12)
        );
        let reservation = report(READ_RESERVATION, &some);
        assert_eq!((u32_at(&reservation, 4), u64_at(&reservation, 8), reservation[21]), (16, 12, 3));
        let full = report(READ_FULL_STATUS, &some);
        assert_eq!(u32_at(&full, 4) as usize, full.len() - 8);
        let second = 8 + 24 + u32_at(&full, 8 + 20) as usize;
        assert_eq!((full[8 + 12], full[second + 12], full[second + 13]), (0, 1, 3));
        assert_eq!((u64_at(&full, second), u16_at(&full, second + 18)), (12, 3));
        let none = report(READ_RESERVATION, &Reservations::default());
        assert_eq!(none, [0; 8]);
    }

    #[test]
    fn all_types_are_reported_and_whether_a_loss_of_power_is_survived() {
        let data = report(REPORT_CAPABILITIES, &some());
        assert_eq!(data, [0, 8, 0x05, 0x81, 0xea, 0x01, 0, 0]);
    }
}
