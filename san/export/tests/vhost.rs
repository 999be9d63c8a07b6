//! vhost-user-blk: what front-ends ask is what a disk is asked, and what they do wrong harms only them.

mod guest;

use std::os::fd::AsRawFd;

use guest::{
    AVAILABLE, BYTES, DATA, DISCARD, DISK, Descriptor, EVENT_IDX, FLUSH, GET_ID, GUEST, Guest, HEADERS, IN,
    INDIRECT, Memory, NEXT, OUT, SIZE, STATUS, TABLE, TABLES, USED, USER, WRITE, WRITE_ZEROES, attachment,
    inflight, message, one_region, places, region, request, say, state,
};
use loadline_san_core::lease::Moment;
use loadline_san_core::volume::Failure;
use loadline_san_export::block::Operation;
use loadline_san_export::session::{QueueWatch, Session as _};
use loadline_san_export::vhost::session::{Listened, SessionError};
use proptest::prelude::*;

fn status(guest: &Guest, number: usize) -> u8 {
    guest.memory.get(STATUS + number, 1)[0]
}

#[test]
fn a_disk_is_read_written_flushed_trimmed_and_named() {
    let mut guest = Guest::new(0);
    guest.memory.put(DATA, &[7; 8192]);
    request(&mut guest, 0, OUT, 16, 8192);
    request(&mut guest, 1, FLUSH, 0, 0);
    request(&mut guest, 2, IN, 15, 1536);
    request(&mut guest, 3, GET_ID, 0, 20);
    let asked = guest.take().unwrap();
    let kinds: Vec<_> = asked.iter().map(|asked| (asked.sector, asked.sectors)).collect();
    assert_eq!(kinds, [(16, 16), (0, 0), (15, 3)], "what is only reported is not requested");
    for asked in asked {
        guest.carry_out(&asked);
        guest.session.complete(asked.slot, Ok(())).unwrap();
    }
    assert_eq!(guest.memory.answered(), [(9, 21), (0, 1), (3, 1), (6, 1537)]);
    assert!((0..4).all(|number| status(&guest, number) == 0));
    assert_eq!(guest.memory.get(DATA + 0x2_0000, 1536), &guest.disk[15 * 512..18 * 512]);
    assert_eq!(guest.disk[16 * 512..32 * 512], [7; 8192]);
    assert_eq!(guest.memory.get(DATA + 0x3_0000, 20), b"disk\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");

    let segment = |sector: u64, sectors: u32, flags: u32| {
        [sector.to_le_bytes().to_vec(), sectors.to_le_bytes().to_vec(), flags.to_le_bytes().to_vec()].concat()
    };
    let cases = [
        (DISCARD, segment(16, 8, 0), Some(true), 0),
        (WRITE_ZEROES, segment(24, 3, 0), Some(false), 0),
        (WRITE_ZEROES, segment(24, 8, 1), Some(true), 0),
        (WRITE_ZEROES, segment(25, 8, 1), Some(false), 0),
        (DISCARD, segment(16, 8, 1), None, 2),
        (DISCARD, segment(16, 8, 2), None, 2),
        (WRITE_ZEROES, segment(DISK as u64 / 512, 1, 0), None, 1),
        (WRITE_ZEROES, segment(0, u32::MAX, 0), None, 1),
        (DISCARD, segment(u64::MAX, 1, 0), None, 1),
        (DISCARD, [segment(0, 8, 0), segment(8, 8, 0)].concat(), None, 1),
        (99, segment(0, 8, 0), None, 2),
    ];
    for (number, (kind, data, trims, is)) in cases.into_iter().enumerate() {
        guest.memory.put(DATA, &data);
        request(&mut guest, 0, kind, 0, data.len() as u32);
        let asked = guest.take().unwrap();
        let trimmed = asked.first().map(|asked| matches!(asked.operation, Operation::Trim));
        assert_eq!(trimmed, trims, "case {number}");
        asked.iter().for_each(|asked| guest.session.complete(asked.slot, Ok(())).unwrap());
        assert_eq!(status(&guest, 0), is, "case {number}");
    }
}

#[test]
fn what_fails_is_told_and_nothing_is_lost_of_the_rest() {
    let mut guest = Guest::new(0);
    for number in 0..3 {
        request(&mut guest, number, IN, 0, 4096);
    }
    let asked = guest.take().unwrap();
    guest.fail(&asked[1], Failure::Corrupt);
    assert_eq!((guest.memory.answered(), status(&guest, 1), status(&guest, 0)), (vec![(3, 1)], 1, 0xff));
    assert_eq!(guest.session.in_flight(), 2);
}

#[test]
fn the_other_side_is_told_when_it_wants_to_be_and_says_so_itself_when_it_is_to() {
    for event_index in [0, EVENT_IDX] {
        let mut guest = Guest::new(event_index);
        let _ = guest.call.read();
        let (queue, _) = guest.session.next_queue_watch().expect("its bell is to be watched");
        assert!(guest.session.next_queue_watch().is_none(), "once");
        // The front-end is to notify from the first request on.
        assert!(!guest.session.arm_queues());
        request(&mut guest, 0, FLUSH, 0, 0);
        assert!(guest.session.arm_queues(), "there is one already");
        guest.session.queue_notified(queue);
        assert!(matches!(guest.session.next_queue_watch(), Some((0, QueueWatch::By(_)))));
        // Another bell takes its place.
        let kick = std::os::fd::AsFd::as_fd(&guest.call).as_raw_fd();
        guest.tell(say::SET_VRING_KICK, &0_u64.to_le_bytes(), &[kick]);
        assert_eq!(guest.session.next_queue_watch(), Some((0, QueueWatch::No)));
        assert!(matches!(guest.session.next_queue_watch(), Some((0, QueueWatch::By(_)))));
        // The client requests a notification of the first answer, or of the third.
        guest.memory.put(AVAILABLE + 4 + 2 * usize::from(SIZE), &0_u16.to_le_bytes());
        guest.serve().unwrap();
        assert_eq!(guest.call.read().unwrap(), 1);
        guest.memory.put(AVAILABLE + 4 + 2 * usize::from(SIZE), &2_u16.to_le_bytes());
        for notified in [event_index == 0, true] {
            request(&mut guest, 1, FLUSH, 0, 0);
            guest.serve().unwrap();
            assert_eq!(guest.call.read().is_ok(), notified, "event index {event_index:#x}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// A driver may split header, data and status over descriptors in any way, in the queue's table or in one of its own.
    #[test]
    fn a_request_is_understood_however_it_is_split(
        write in any::<bool>(),
        sector in 0_u64..100,
        sectors in 1_u32..40,
        cuts in prop::collection::vec(1_u32..5000, 0..12),
        indirect in any::<bool>(),
    ) {
        let mut guest = Guest::new(0);
        let length = sectors * 512;
        guest.memory.header(HEADERS, if write { OUT } else { IN }, sector);
        let data: Vec<u8> = (0..length).map(|n| (n / 512 + n * 3) as u8).collect();
        // One after the other: header, data, and far away the status.
        let header = guest.memory.get(HEADERS, 16).to_vec();
        guest.memory.put(DATA, &header);
        if write {
            guest.memory.put(DATA + 16, &data);
        }
        let (readable, writable) = if write { (16 + length, 1) } else { (16, length + 1) };
        let mut pieces = Vec::new();
        let mut cuts = cuts.into_iter();
        for (start, bytes, is_write) in [(DATA, readable, false), (DATA + readable as usize, writable, true)] {
            let mut at = 0;
            while at < bytes {
                let some = cuts.next().unwrap_or(u32::MAX).min(bytes - at);
                pieces.push((start + at as usize, some, is_write));
                at += some;
            }
        }
        if indirect {
            guest.memory.chain(TABLES, 0, &pieces);
            let bytes = 16 * pieces.len() as u32;
            let of = Descriptor { at: GUEST + TABLES as u64, bytes, flags: INDIRECT, next: 0 };
            guest.memory.describe(TABLE, 5, of);
        } else {
            guest.memory.chain(TABLE, 5, &pieces);
        }
        guest.memory.offer(5);
        prop_assert_eq!(guest.serve().unwrap(), 1);
        let from = sector as usize * 512;
        let disk = &guest.disk[from..from + length as usize];
        let last = DATA + (readable + writable) as usize - 1;
        prop_assert_eq!(guest.memory.get(last, 1), &[0]);
        if write {
            prop_assert_eq!(disk, data);
        } else {
            prop_assert_eq!(guest.memory.get(DATA + 16, length as usize), disk);
        }
        prop_assert_eq!(guest.memory.answered(), [(5, if write { 1 } else { length + 1 })]);
    }
}

/// What becomes of a chain that is not as it should be.
fn of_chain(make: impl FnOnce(&mut Memory)) -> Result<Option<u8>, String> {
    let mut guest = Guest::new(0);
    guest.memory.header(HEADERS, IN, 0);
    guest.memory.put(STATUS, &[0xff]);
    make(&mut guest.memory);
    let asked = guest.take().map_err(|error| error.to_string())?;
    assert_eq!(asked.len(), 0, "nothing is asked of the disk");
    let is = status(&guest, 0);
    // And it goes on with others.
    request(&mut guest, 1, IN, 0, 512);
    assert_eq!(guest.serve().map_err(|error| error.to_string())?, 1);
    Ok((is != 0xff).then_some(is))
}

#[test]
fn a_chain_that_is_wrong_fails_itself_or_its_connection() {
    let head = (HEADERS, 16, false);
    let status = (STATUS, 1, true);
    let of = |at: u64, bytes: u32, flags: u16, next: u16| Descriptor { at, bytes, flags, next };
    let offered = |pieces: Vec<(usize, u32, bool)>| {
        of_chain(move |memory| {
            memory.chain(TABLE, 0, &pieces);
            memory.offer(0);
        })
    };
    // There is a place for the answer.
    for (what, pieces) in [
        ("no data", vec![head, status]),
        ("data of no whole sector", vec![head, (DATA, 100, true), status]),
        ("more than is read at once", vec![head, (DATA, 1 << 19, true), (DATA, 1 << 26, true), status]),
        ("data outside of the memory", vec![head, (BYTES, 512, true), status]),
        ("data half outside of it", vec![head, (BYTES - 256, 512, true), status]),
        ("half a header", vec![(HEADERS, 8, false), (DATA, 512, true), status]),
        ("data to be read and to be written", vec![head, (DATA, 512, false), (DATA, 512, true), status]),
        ("no header", vec![(DATA, 512, true), status]),
    ] {
        assert_eq!(offered(pieces), Ok(Some(1)), "{what}");
    }
    assert_eq!(
        of_chain(|memory| {
            memory.header(HEADERS, IN, DISK as u64 / 512);
            memory.chain(TABLE, 0, &[head, (DATA, 512, true), status]);
            memory.offer(0);
        }),
        Ok(Some(1)),
        "beyond the end"
    );
    // There is none.
    for (what, pieces) in [
        ("no place for the result", vec![head, (DATA, 512, false)]),
        ("the result's place outside", vec![head, (DATA, 512, true), (BYTES, 1, true)]),
        ("to be read behind what is to be written", vec![head, status, head]),
    ] {
        assert!(offered(pieces).is_err(), "{what}");
    }
    type Table = (&'static str, fn(&mut Memory));
    let tables: [Table; 9] = [
        ("in circles", |memory| {
            for index in 0..3 {
                let at = GUEST + DATA as u64;
                memory.describe(
                    TABLE,
                    index,
                    Descriptor { at, bytes: 512, flags: NEXT | WRITE, next: (index + 1) % 3 },
                );
            }
            memory.offer(0);
        }),
        ("out of the table", |memory| {
            memory.describe(TABLE, 0, Descriptor { at: GUEST, bytes: 16, flags: NEXT, next: SIZE });
            memory.offer(0);
        }),
        ("a head out of the table", |memory| memory.offer(SIZE)),
        ("a head far out of it", |memory| memory.offer(u16::MAX)),
        ("a table within a table", |memory| {
            let at = GUEST + TABLES as u64;
            memory.describe(TABLE, 0, Descriptor { at, bytes: 16, flags: INDIRECT, next: 0 });
            memory.describe(TABLES, 0, Descriptor { at, bytes: 16, flags: INDIRECT, next: 0 });
            memory.offer(0);
        }),
        ("half a table", |memory| {
            let at = GUEST + TABLES as u64;
            memory.describe(TABLE, 0, Descriptor { at, bytes: 24, flags: INDIRECT, next: 0 });
            memory.offer(0);
        }),
        ("a table outside of the memory", |memory| {
            memory.describe(TABLE, 0, Descriptor { at: u64::MAX - 8, bytes: 64, flags: INDIRECT, next: 0 });
            memory.offer(0);
        }),
        ("a table of more than is ever needed", |memory| {
            memory.describe(TABLE, 0, Descriptor { at: GUEST, bytes: 16 << 20, flags: INDIRECT, next: 0 });
            memory.offer(0);
        }),
        ("more than the queue has room for", |memory| {
            memory.put(AVAILABLE + 2, &(SIZE + 1).to_le_bytes());
        }),
    ];
    for (what, make) in tables {
        let is = of_chain(make);
        assert!(is.is_err(), "{what}: {is:?}");
    }
    _ = of;
}

#[test]
fn messages_that_are_wrong_end_the_connection() {
    let set_up = |features| {
        let mut guest = Guest::silent(Memory::new(), attachment(1, 1));
        guest.set_up(features);
        guest
    };
    let all = BYTES as u64;
    let cases: [(&str, u32, Vec<u8>, bool); 15] = [
        ("features that were not offered", say::SET_FEATURES, (1_u64 << 40).to_le_bytes().into(), false),
        ("features of the protocol", say::SET_PROTOCOL_FEATURES, (1_u64 << 63).to_le_bytes().into(), false),
        ("memory that overlaps", say::ADD_MEM_REG, one_region(GUEST + all / 2, all, USER + 2 * all, 0), true),
        ("the same of its own addresses", say::ADD_MEM_REG, one_region(GUEST + all, all, USER + 1, 0), true),
        ("longer than its file", say::ADD_MEM_REG, one_region(GUEST + all, all + 4096, USER + all, 0), true),
        (
            "at an odd place of its file",
            say::ADD_MEM_REG,
            one_region(GUEST + all, 4096, USER + all, 77),
            true,
        ),
        ("of no length", say::ADD_MEM_REG, one_region(GUEST + all, 0, USER + all, 0), true),
        ("beyond all addresses", say::ADD_MEM_REG, one_region(u64::MAX - 8, 4096, USER + all, 0), true),
        ("that was not shared", say::REM_MEM_REG, one_region(GUEST + all, all, USER, 0), false),
        ("a queue that is not offered", say::SET_VRING_NUM, state(16, 64), false),
        ("a size that is no power of two", say::SET_VRING_NUM, state(0, 65), false),
        ("a size that is too large", say::SET_VRING_NUM, state(0, 2048), false),
        ("a queue outside of the memory", say::SET_VRING_ADDR, places(0, USER - 16, USER, USER), false),
        ("a queue at an odd place", say::SET_VRING_ADDR, places(0, USER + 8, USER, USER), false),
        ("a bell that is a file", say::SET_VRING_KICK, 0_u64.to_le_bytes().into(), true),
    ];
    for (what, request, body, with_file) in cases {
        let mut guest = set_up(0);
        let file = guest.memory.file.as_raw_fd();
        let files: &[i32] = if with_file { &[file] } else { &[] };
        let is = guest.try_tell(request, &body, files);
        assert!(matches!(is, Err(SessionError::Message(_))), "{what}: {is:?}");
    }
    // What breaks the vhost crate's own rules.
    for (what, bytes) in [
        ("an unknown message", message(999, &[])),
        (
            "a message that is too long",
            [message(2, &[])[..8].to_vec(), u32::MAX.to_le_bytes().to_vec()].concat(),
        ),
        ("a body of another length", message(say::SET_VRING_NUM, &[0; 4])),
        (
            "another version",
            [2_u32.to_le_bytes(), 3_u32.to_le_bytes(), 8_u32.to_le_bytes(), [0; 4], [0; 4]].concat(),
        ),
    ] {
        let mut guest = set_up(0);
        guest.send(&bytes, &[]);
        assert!(guest.listen().is_err(), "{what}");
    }
    // While a queue runs.
    let cases: [(&str, u32, Vec<u8>); 4] = [
        ("a queue that is moved", say::SET_VRING_ADDR, places(0, USER, USER + 4096, USER + 8192)),
        ("a queue of another size", say::SET_VRING_NUM, state(0, 8)),
        ("another index", say::SET_VRING_BASE, state(0, 8)),
        ("its memory is removed", say::REM_MEM_REG, one_region(GUEST, all, USER, 0)),
    ];
    for (what, request, body) in cases {
        let mut guest = Guest::new(0);
        assert!(guest.try_tell(request, &body, &[]).is_err(), "{what}");
    }
    // A queue that reaches beyond the memory is found when it begins.
    let mut guest = set_up(0);
    guest.tell(say::SET_VRING_NUM, &state(0, 64), &[]);
    guest.tell(say::SET_VRING_ADDR, &places(0, USER, USER + all - 4, USER + 4096), &[]);
    let kick = std::os::fd::AsFd::as_fd(&guest.kick).as_raw_fd();
    assert!(guest.try_tell(say::SET_VRING_KICK, &0_u64.to_le_bytes(), &[kick]).is_err());
}

#[test]
fn half_a_message_is_waited_for_but_not_for_ever() {
    let mut guest = Guest::silent(Memory::new(), attachment(1, 1));
    let whole = message(say::GET_FEATURES, &[]);
    guest.send(&whole[..5], &[]);
    assert_eq!(guest.listen().unwrap(), Listened::Again);
    guest.send(&whole[5..], &[]);
    assert_eq!(guest.listen().unwrap(), Listened::Watch);
    assert!(guest.answer().is_some());
    guest.send(&message(say::SET_FEATURES, &[0; 8])[..15], &[]);
    assert_eq!(guest.listen().unwrap(), Listened::Again);
    guest.now = Moment(1_100_000_000);
    assert!(matches!(guest.listen(), Err(SessionError::Rest)));
    // One that never reads what it is answered.
    let mut guest = Guest::silent(Memory::new(), attachment(1, 1));
    let mut last = Ok(Listened::Watch);
    for _ in 0..100_000 {
        if !matches!(last, Ok(Listened::Watch)) {
            break;
        }
        guest.send(&message(say::GET_FEATURES, &[]), &[]);
        last = guest.listen();
    }
    assert_eq!(last.unwrap(), Listened::Again);
    guest.now = Moment(1_100_000_000);
    assert!(guest.listen().is_err());
}

#[test]
fn one_that_goes_away_or_makes_its_memory_go_away_is_hung_up_on() {
    let mut guest = Guest::new(0);
    request(&mut guest, 0, IN, 0, 4096);
    let asked = guest.take().unwrap();
    nix::sys::socket::shutdown(guest.socket.as_raw_fd(), nix::sys::socket::Shutdown::Both).unwrap();
    assert_eq!(guest.listen().unwrap(), Listened::End);
    // What was begun ends all the same.
    guest.session.complete(asked[0].slot, Ok(())).unwrap();

    let mut guest = Guest::new(0);
    request(&mut guest, 0, IN, 0, 4096);
    request(&mut guest, 1, OUT, 0, 4096);
    let asked = guest.take().unwrap();
    // Its pages are gone before the answer.
    nix::unistd::ftruncate(&guest.memory.file, 0).unwrap();
    guest.carry_out(&asked[0]);
    guest.session.complete(asked[0].slot, Ok(())).unwrap();
    assert!(matches!(guest.take(), Err(SessionError::Lost)));
    // The test's own mapping is gone as well: nothing reads it any more.
    std::mem::forget(guest.memory);
}

#[test]
fn a_queue_ends_when_what_is_in_flight_is_done() {
    let mut guest = Guest::new(0);
    request(&mut guest, 0, IN, 0, 4096);
    request(&mut guest, 1, IN, 0, 4096);
    let asked = guest.take().unwrap();
    request(&mut guest, 2, IN, 0, 4096);
    assert_eq!(guest.try_tell(say::GET_VRING_BASE, &state(0, 0), &[]).unwrap(), Listened::Again);
    assert!(!guest.session.wants_turn() && !guest.session.has_queued() && guest.answer().is_none());
    guest.session.complete(asked[0].slot, Ok(())).unwrap();
    assert_eq!(guest.listen().unwrap(), Listened::Again);
    guest.session.complete(asked[1].slot, Ok(())).unwrap();
    assert!(guest.session.wants_turn());
    assert_eq!(guest.listen().unwrap(), Listened::Watch);
    assert_eq!(guest.answer().unwrap(), state(0, 2), "it goes on with the third");
    assert!(!guest.session.has_queued(), "and is not looked at any more");
    // It begins again where it was, and nothing is lost or done twice.
    guest.tell(say::SET_VRING_BASE, &state(0, 2), &[]);
    let kick = std::os::fd::AsFd::as_fd(&guest.kick).as_raw_fd();
    guest.tell(say::SET_VRING_KICK, &0_u64.to_le_bytes(), &[kick]);
    assert_eq!(guest.serve().unwrap(), 1);
    assert_eq!(
        guest.memory.answered(),
        [(0, 1), (3, 1), (6, 4097)].map(|(h, n)| (h, if h == 6 { n } else { 4097 }))
    );
    // One that is never done.
    request(&mut guest, 0, IN, 0, 4096);
    let _ = guest.take().unwrap();
    assert_eq!(guest.try_tell(say::GET_VRING_BASE, &state(0, 0), &[]).unwrap(), Listened::Again);
    guest.now = Moment(31_000_000_000);
    assert!(matches!(guest.listen(), Err(SessionError::Drain)));
}

/// A front-end's process is served, the server dies with requests in flight, and another takes its place. What is begun anew,
/// by the first sector; and the statuses.
fn killed(number: u64, alone_since: u64) -> (Vec<u64>, Vec<u8>) {
    let mut guest = Guest::silent(Memory::new(), attachment(1, 1));
    guest.set_up(0);
    let (kept, file) = inflight(&mut guest, 1, SIZE);
    guest.tell(say::SET_INFLIGHT_FD, &kept, &[file.as_raw_fd()]);
    guest.run_queue();
    for number in 0..4 {
        request(&mut guest, number, OUT, 8 * u64::from(number), 4096);
    }
    let asked = guest.take().unwrap();
    // The second is answered, and one more arrives that is not taken.
    guest.session.complete(asked[1].slot, Ok(())).unwrap();
    request(&mut guest, 4, OUT, 8 * 4, 4096);
    let memory = std::mem::replace(&mut guest.memory, Memory::new());
    drop(guest);

    let mut guest = Guest::silent(memory, attachment(number, alone_since));
    guest.set_up(0);
    guest.tell(say::SET_INFLIGHT_FD, &kept, &[file.as_raw_fd()]);
    guest.run_queue();
    assert!(guest.session.has_queued());
    let asked = guest.take().unwrap();
    let again = asked.iter().map(|asked| asked.sector / 8).collect();
    asked.iter().for_each(|asked| guest.session.complete(asked.slot, Ok(())).unwrap());
    let mut heads: Vec<u16> = guest.memory.answered().iter().map(|(head, _)| *head / 3).collect();
    heads.sort_unstable();
    assert_eq!(heads, [0, 1, 2, 3, 4], "each is answered once");
    (again, (0..5).map(|number| status(&guest, number)).collect())
}

#[test]
fn what_was_in_flight_when_the_server_died_is_begun_anew_once() {
    assert_eq!(killed(1, 1), (vec![0, 2, 3, 4], vec![0; 5]));
    assert_eq!(killed(5, 1), (vec![0, 2, 3, 4], vec![0; 5]), "attached several times, here only");
    // T4: what another owner may have come between fails, and only what was not begun is done.
    assert_eq!(killed(5, 4), (vec![4], vec![1, 0, 1, 1, 0]));
}

#[test]
fn blocks_are_put_straight_where_they_are_wanted_if_each_has_one_place() {
    let mut guest = Guest::new(0);
    guest.memory.header(HEADERS, IN, 8);
    let of = |pieces: &[(usize, u32, bool)], guest: &mut Guest| {
        let all: Vec<_> = std::iter::once((HEADERS, 16, false))
            .chain(pieces.iter().copied())
            .chain(std::iter::once((STATUS, 1, true)))
            .collect();
        guest.memory.chain(TABLE, 0, &all);
        guest.memory.offer(0);
        let slot = guest.take().unwrap()[0].slot;
        let direct_read = [(0, 2), (1, 1), (0, 1)]
            .map(|(at, blocks)| guest.session.direct_read(slot, at, blocks).is_some());
        guest.session.complete(slot, Ok(())).unwrap();
        direct_read
    };
    assert_eq!(of(&[(DATA, 8192, true)], &mut guest), [true, true, true]);
    assert_eq!(of(&[(DATA, 4096, true), (DATA + 9000, 4096, true)], &mut guest), [true, true, true]);
    assert_eq!(
        of(&[(DATA, 4096, true), (DATA + 9000, 512, true), (DATA, 3584, true)], &mut guest),
        [false, false, true]
    );
    guest.memory.header(HEADERS, IN, 9);
    assert_eq!(of(&[(DATA, 8192, true)], &mut guest), [false, false, false], "it begins within a block");
}

#[test]
fn the_configuration_says_what_the_disk_is() {
    let mut guest = Guest::silent(Memory::new(), attachment(1, 1));
    guest.set_up(0);
    let ask = |offset: u32, bytes: u32| {
        [offset.to_le_bytes().to_vec(), bytes.to_le_bytes().to_vec(), vec![0; 4], vec![0; bytes as usize]]
            .concat()
    };
    let config = guest.ask(say::GET_CONFIG, &ask(0, 60))[12..].to_vec();
    assert_eq!(config.len(), 60);
    assert_eq!(u64::from_le_bytes(config[..8].try_into().unwrap()), DISK as u64 / 512);
    assert_eq!(guest.ask(say::GET_CONFIG, &ask(20, 4))[12..], 512_u32.to_le_bytes());
    assert_eq!(guest.ask(say::GET_CONFIG, &ask(250, 100)).len(), 12, "nothing is there");
    _ = (region(0, 0, 0, 0), USED, WRITE);
}
