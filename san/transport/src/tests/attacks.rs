//! What someone on the way can do to records: change, repeat, leave out, swap and reflect them, and cut them off.

use std::io::IoSlice;

use super::*;
use crate::records::{RecordError, Records};

/// Both ends, as records without a connection.
fn records(protection: Protection) -> (Records, Records) {
    let (ours, theirs) = run(pair(protection));
    (ours.into_parts().1, theirs.into_parts().1)
}

/// The sealed bytes of a message.
fn sealed(records: &mut Records, data: &[u8]) -> Vec<u8> {
    records.seal(&[IoSlice::new(data)]);
    let bytes = records.unsent().to_vec();
    records.sent(bytes.len());
    bytes
}

/// What is read of these bytes.
fn opened(records: &mut Records, bytes: &[u8]) -> Result<Vec<u8>, RecordError> {
    let (mut data, mut rest) = (Vec::new(), bytes);
    loop {
        let space = records.space();
        let some = rest.len().min(space.len());
        space[..some].copy_from_slice(&rest[..some]);
        records.received(some);
        rest = &rest[some..];
        let mut buffer = [0; 3000];
        loop {
            match records.read(&mut buffer)? {
                0 => break,
                count => data.extend_from_slice(&buffer[..count]),
            }
        }
        if rest.is_empty() {
            return Ok(data);
        }
    }
}

fn message(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn what_was_sealed_is_opened_whatever_its_length() {
    for protection in BOTH {
        let (mut ours, mut theirs) = records(protection);
        for length in [1, 15, 16, 17, 4096, 16383, 16384, 16385, 200_000] {
            let data = message(length);
            assert_eq!(opened(&mut theirs, &sealed(&mut ours, &data)).unwrap(), data, "{length} there");
            assert_eq!(opened(&mut ours, &sealed(&mut theirs, &data)).unwrap(), data, "{length} back");
        }
    }
}

#[test]
fn a_record_that_was_changed_in_any_bit_is_refused() {
    for protection in BOTH {
        for bit in 0..(5 + 40 + 1 + 16) * 8 {
            let (mut ours, mut theirs) = records(protection);
            let mut bytes = sealed(&mut ours, &message(40));
            bytes[bit / 8] ^= 1 << (bit % 8);
            // A length that was raised makes it wait for more; nothing is delivered.
            let read = opened(&mut theirs, &bytes);
            assert!(read.as_ref().map_or(true, Vec::is_empty), "bit {bit} of {protection:?}: {read:?}");
        }
    }
}

#[test]
fn what_is_read_of_a_stream_is_what_was_encrypted_and_not_what_was_authenticated() {
    let is_visible = |protection| {
        let (mut ours, _) = records(protection);
        let data = message(4096);
        sealed(&mut ours, &data).windows(64).any(|window| window == &data[100..164])
    };
    assert!(!is_visible(Protection::Encrypted));
    assert!(is_visible(Protection::Authenticated));
}

#[test]
fn a_record_that_is_repeated_left_out_swapped_or_reflected_is_refused() {
    for protection in BOTH {
        let sent = || {
            let (mut ours, theirs) = records(protection);
            let parts: Vec<Vec<u8>> = (0..3).map(|at| sealed(&mut ours, &message(100 + at))).collect();
            (ours, theirs, parts)
        };
        let (_, mut theirs, parts) = sent();
        assert!(opened(&mut theirs, &parts[0]).is_ok());
        assert_eq!(opened(&mut theirs, &parts[0]), Err(forged()), "repeated");
        let (_, mut theirs, parts) = sent();
        assert_eq!(opened(&mut theirs, &parts[1]), Err(forged()), "left out");
        let (_, mut theirs, parts) = sent();
        assert_eq!(opened(&mut theirs, &[&parts[1][..], &parts[0][..]].concat()), Err(forged()), "swapped");
        let (mut ours, _, parts) = sent();
        assert_eq!(opened(&mut ours, &parts[0]), Err(forged()), "reflected");
    }
}

fn forged() -> RecordError {
    RecordError::Forged(crate::keys::Forged)
}

#[test]
fn a_record_of_another_connection_is_refused_and_none_is_sealed_like_another() {
    for protection in BOTH {
        let (mut first, mut second_reader) = (records(protection).0, records(protection));
        let of_first = sealed(&mut first, &message(64));
        assert_eq!(opened(&mut second_reader.1, &of_first), Err(forged()));
        let of_second = sealed(&mut second_reader.0, &message(64));
        assert_ne!(of_first, of_second, "the same data and the same number on two connections");
        let again = sealed(&mut first, &message(64));
        assert_ne!(of_first, again, "the same data twice on one connection");
    }
}

#[test]
fn a_record_that_was_cut_off_delivers_nothing() {
    for protection in BOTH {
        let (mut ours, _) = records(protection);
        let bytes = sealed(&mut ours, &message(100));
        for length in [0, 1, 4, 5, 6, 60, bytes.len() - 1] {
            let (_, mut theirs) = records(protection);
            assert_eq!(opened(&mut theirs, &bytes[..length]), Ok(Vec::new()));
        }
    }
}

#[test]
fn what_is_not_protected_or_too_long_is_refused() {
    let (_, mut theirs) = records(Protection::Encrypted);
    let open_alert = [21, 3, 3, 0, 2, 2, 40];
    assert!(matches!(opened(&mut theirs, &open_alert), Err(RecordError::Protocol(_))));
    let (_, mut theirs) = records(Protection::Encrypted);
    assert!(matches!(opened(&mut theirs, &[23, 3, 3, 0xff, 0xff]), Err(RecordError::Protocol(_))));
}

#[test]
fn keys_change_and_nothing_is_lost() {
    for protection in BOTH {
        let (mut ours, mut theirs) = records(protection);
        ours.change_keys_after(3);
        theirs.change_keys_after(5);
        for round in 0..40 {
            let data = message(1000 + round);
            assert_eq!(opened(&mut theirs, &sealed(&mut ours, &data)).unwrap(), data, "round {round}");
            assert_eq!(opened(&mut ours, &sealed(&mut theirs, &data)).unwrap(), data, "round {round}");
        }
    }
}

#[test]
fn the_end_is_known_only_if_it_was_said() {
    let (mut ours, mut theirs) = records(Protection::Encrypted);
    ours.close();
    let bytes = ours.unsent().to_vec();
    assert_eq!(opened(&mut theirs, &bytes[..bytes.len() - 1]), Ok(Vec::new()));
    assert!(!theirs.is_closed());
    assert_eq!(opened(&mut theirs, &bytes[bytes.len() - 1..]), Ok(Vec::new()));
    assert!(theirs.is_closed());
}

/// Whoever is connected can send them: a node must not compute for it without end, nor keep answers that it does not read.
#[test]
fn changes_of_keys_without_data_between_are_refused_and_answered_once() {
    let (mut ours, mut theirs) = records(Protection::Encrypted);
    let mut bytes = Vec::new();
    for _ in 0..20 {
        ours.ask_for_a_key();
        bytes.extend_from_slice(ours.unsent());
        let sent = ours.unsent().len();
        ours.sent(sent);
    }
    assert_eq!(opened(&mut theirs, &bytes), Ok(Vec::new()));
    assert!(theirs.unsent().is_empty(), "no answer before there are data");
    assert_eq!(
        opened(&mut ours, &sealed(&mut theirs, &message(10))).unwrap(),
        message(10),
        "one change, and then the data"
    );
    assert_eq!(opened(&mut theirs, &sealed(&mut ours, &message(10))).unwrap(), message(10));
    let mut bytes = Vec::new();
    for _ in 0..100 {
        ours.ask_for_a_key();
        bytes.extend_from_slice(ours.unsent());
        let sent = ours.unsent().len();
        ours.sent(sent);
    }
    assert!(matches!(opened(&mut theirs, &bytes), Err(RecordError::Protocol(_))));
    assert!(
        matches!(opened(&mut theirs, &[]), Err(RecordError::Protocol(_))),
        "and nothing is opened behind it"
    );
}

/// What comes before a forged record is good and is read first; then the refusal is known, though nothing more arrives.
#[test]
fn a_forged_record_behind_good_ones_is_refused_without_waiting_for_more() {
    for protection in BOTH {
        let (mut ours, mut theirs) = records(protection);
        let mut bytes = sealed(&mut ours, &message(100));
        let mut forged_one = sealed(&mut ours, &message(100));
        forged_one[20] ^= 1;
        bytes.extend_from_slice(&forged_one);
        theirs.space()[..bytes.len()].copy_from_slice(&bytes);
        theirs.received(bytes.len());
        let mut buffer = [0; 3000];
        assert_eq!(theirs.read(&mut buffer), Ok(100));
        assert!(theirs.has_data(), "a loop asks again before it waits for its socket");
        assert_eq!(theirs.read(&mut buffer), Err(forged()));
    }
}
