//! vhost-user-blk: what a front-end needs while its guest is migrated. What is written of the guest's memory is logged, and a queue ends
//! when every request that was taken from it is answered.

mod guest;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;

use guest::{
    AVAILABLE, DATA, EVENT_IDX, FEATURES, GET_ID, GUEST, Guest, IN, OUT, STATUS, TABLE, USED, USER,
    attachment, eventfd, inflight, message, request, say, state,
};
use loadline_base::buffer::AlignedBuffer;
use loadline_san_core::volume::Failure;
use loadline_san_export::session::Session as _;
use loadline_san_export::vhost::session::Listened;

const LOG_ALL: u64 = 1 << 26;
const PAGE: u64 = 4096;
/// The guest's memory ends below this page.
const PAGES: u64 = 0x20_0000 / PAGE;

/// The log of a front-end.
struct Log(File);

impl Log {
    fn new() -> Log {
        Log(File::from(AlignedBuffer::shared(4096).unwrap().1))
    }

    /// Pages of the guest that were written since the last time, by their first bytes as offsets in its memory.
    fn take(&self) -> Vec<usize> {
        let mut bytes = [0; 4096];
        self.0.read_exact_at(&mut bytes, 0).unwrap();
        self.0.write_all_at(&[0; 4096], 0).unwrap();
        let pages = (0..PAGES).filter(|page| bytes[(page / 8) as usize] & 1 << (page % 8) != 0);
        pages.map(|page| (page * PAGE - GUEST) as usize).collect()
    }

    fn body(bytes: u64) -> Vec<u8> {
        [bytes.to_le_bytes(), 0_u64.to_le_bytes()].concat()
    }
}

/// Places of the queue, with writes to its used ring logged or not.
fn places(logs: bool) -> Vec<u8> {
    let mut bytes = state(0, u32::from(logs));
    for at in [TABLE, USED, AVAILABLE].map(|at| USER + at as u64).into_iter().chain([GUEST + USED as u64]) {
        bytes.extend(at.to_le_bytes());
    }
    bytes
}

/// Begins to log, as QEMU does while queues run: the log, the feature, and the places of each queue again.
fn begin_log(guest: &mut Guest, features: u64, log: &Log) {
    guest.tell(say::SET_LOG_BASE, &Log::body(PAGES / 8), &[log.0.as_raw_fd()]);
    assert_eq!(
        guest.answer().expect("it is answered, whether or not that was asked for"),
        Log::body(PAGES / 8)
    );
    guest.tell(say::SET_FEATURES, &(FEATURES | features | LOG_ALL).to_le_bytes(), &[]);
    guest.tell(say::SET_VRING_ADDR, &places(true), &[]);
}

#[test]
fn what_is_written_of_the_memory_is_logged_before_the_guest_can_see_that_it_is_done() {
    for features in [0, EVENT_IDX] {
        let mut guest = Guest::new(features);
        request(&mut guest, 0, IN, 0, 8192);
        assert_eq!(guest.serve().unwrap(), 1);
        let log = Log::new();
        begin_log(&mut guest, features, &log);
        assert_eq!(log.take(), [USED], "an earlier process may have written there");
        // Read data is written, and where it came from is not.
        request(&mut guest, 1, IN, 8, 8192);
        let asked = guest.take().unwrap();
        guest.carry_out(&asked[0]);
        log.take();
        let before = guest.memory.get_u16(USED + 2);
        guest.session.complete(asked[0].slot, Ok(())).unwrap();
        assert_ne!(guest.memory.get_u16(USED + 2), before);
        assert_eq!(log.take(), [USED, STATUS, DATA + 0x1_0000, DATA + 0x1_1000]);
        // Written data is read.
        request(&mut guest, 2, OUT, 0, 4096);
        assert_eq!(guest.serve().unwrap(), 1);
        assert_eq!(log.take(), [USED, STATUS]);
        // What is answered at once, and what fails when a part of it may have been read.
        request(&mut guest, 3, GET_ID, 0, 20);
        assert_eq!(guest.serve().unwrap(), 0);
        assert_eq!(log.take(), [USED, STATUS, DATA + 0x3_0000]);
        request(&mut guest, 4, IN, 1 << 40, 512);
        assert_eq!(guest.serve().unwrap(), 0);
        assert_eq!(log.take(), [USED, STATUS]);
        request(&mut guest, 5, IN, 8, 4096);
        let asked = guest.take().unwrap();
        guest.fail(&asked[0], Failure::NoSpace);
        assert_eq!(log.take(), [USED, STATUS, DATA + 0x5_0000]);
        // How the guest is asked to notify lies in the used ring, too.
        guest.session.arm_queues();
        assert_eq!(log.take(), [USED]);
        // And it ends.
        guest.tell(say::SET_FEATURES, &(FEATURES | features).to_le_bytes(), &[]);
        guest.tell(say::SET_VRING_ADDR, &places(false), &[]);
        request(&mut guest, 6, IN, 0, 8192);
        assert_eq!(guest.serve().unwrap(), 1);
        assert_eq!(log.take(), [0; 0]);
    }
}

#[test]
fn a_queue_that_is_in_use_is_not_moved_when_logging_begins() {
    let mut guest = Guest::new(0);
    let mut elsewhere = places(true);
    elsewhere[8..16].copy_from_slice(&(USER + 0x400).to_le_bytes());
    let why = guest.try_tell(say::SET_VRING_ADDR, &elsewhere, &[]).unwrap_err().to_string();
    assert!(why.contains("moves a queue"), "{why}");
}

#[test]
fn nothing_is_taken_for_a_front_end_that_wants_a_log_until_the_log_is_there() {
    let mut guest = Guest::new(LOG_ALL);
    request(&mut guest, 0, IN, 0, 4096);
    assert!(!guest.session.has_queued());
    assert!(!guest.session.arm_queues());
    assert_eq!(guest.take().unwrap().len(), 0);
    let log = Log::new();
    guest.tell(say::SET_LOG_BASE, &Log::body(PAGES / 8), &[log.0.as_raw_fd()]);
    assert!(guest.session.has_queued());
    assert_eq!(guest.serve().unwrap(), 1);
    assert_eq!(log.take(), [STATUS, DATA], "its used ring is not to be logged");
}

#[test]
fn a_log_that_does_not_cover_the_memory_or_goes_away_costs_the_front_end_its_connection() {
    let mut guest = Guest::new(0);
    let log = Log::new();
    guest.tell(say::SET_LOG_BASE, &Log::body(8), &[log.0.as_raw_fd()]);
    let why = guest.try_tell(say::SET_FEATURES, &(FEATURES | LOG_ALL).to_le_bytes(), &[]).map(|_| ());
    why.unwrap();
    request(&mut guest, 0, IN, 0, 4096);
    assert!(guest.serve().unwrap_err().to_string().contains("no room"));
    let mut guest = Guest::new(0);
    begin_log(&mut guest, 0, &log);
    nix::unistd::ftruncate(&log.0, 0).unwrap();
    request(&mut guest, 0, IN, 0, 4096);
    let _ = guest.serve();
    assert!(guest.take().unwrap_err().to_string().contains("gone"));
    // No log at all.
    for (bytes, says) in [(0, ""), (u64::MAX, ""), (1 << 40, "may have"), (8192, "longer")] {
        let mut guest = Guest::new(0);
        let why = guest.try_tell(say::SET_LOG_BASE, &Log::body(bytes), &[Log::new().0.as_raw_fd()]);
        let why = why.unwrap_err().to_string();
        assert!(why.contains(says), "{why}");
    }
}

#[test]
fn a_front_end_may_be_notified_of_news_of_its_log() {
    let mut guest = Guest::new(0);
    let bell = eventfd();
    let mut asks = message(say::SET_LOG_FD, &0_u64.to_le_bytes());
    asks[4] |= 8;
    guest.send(&asks, &[bell.as_fd().as_raw_fd()]);
    assert_eq!(guest.listen().unwrap(), Listened::Watch);
    assert_eq!(guest.answer(), None, "answers were not negotiated");
    let log = Log::new();
    begin_log(&mut guest, 0, &log);
    request(&mut guest, 0, IN, 0, 4096);
    assert_eq!(guest.serve().unwrap(), 1);
    assert!(bell.read().is_ok());
    guest.tell_all();
    assert!(bell.read().is_err(), "there is no news");
    // With answers; a descriptor that is no eventfd; none.
    let protocol = guest.ask(say::GET_PROTOCOL_FEATURES, &[]);
    guest.tell(say::SET_PROTOCOL_FEATURES, &protocol, &[]);
    guest.send(&asks, &[bell.as_fd().as_raw_fd()]);
    assert_eq!(guest.listen().unwrap(), Listened::Watch);
    assert_eq!(guest.answer(), Some(vec![0; 8]));
    guest.tell(say::SET_LOG_FD, &256_u64.to_le_bytes(), &[]);
    let why = guest.try_tell(say::SET_LOG_FD, &0_u64.to_le_bytes(), &[log.0.as_raw_fd()]).unwrap_err();
    assert!(why.to_string().contains("no eventfd"), "{why}");
}

#[test]
fn a_queue_ends_only_when_what_was_taken_from_it_is_answered() {
    let mut guest = Guest::new(0);
    (0..3).for_each(|n| request(&mut guest, n, OUT, 8, 4096));
    let asked = guest.take().unwrap();
    // More comes, which is for the destination.
    request(&mut guest, 3, OUT, 8, 4096);
    guest.tell(say::SET_VRING_ENABLE, &state(0, 0), &[]);
    guest.send(&message(say::GET_VRING_BASE, &state(0, 0)), &[]);
    for asked in &asked {
        assert_eq!(guest.listen().unwrap(), Listened::Again);
        assert_eq!(guest.take().unwrap().len(), 0);
        assert_eq!(guest.answer(), None);
        guest.carry_out(asked);
        guest.session.complete(asked.slot, Ok(())).unwrap();
    }
    assert_eq!(guest.listen().unwrap(), Listened::Watch);
    assert_eq!(guest.answer(), Some(state(0, 3)), "the destination begins with the fourth");
}

#[test]
fn a_queue_does_not_end_before_what_a_former_process_has_taken_is_answered() {
    let (mut guest, file, kept) = {
        let mut guest = Guest::silent(guest::Memory::new(), attachment(1, 1));
        guest.set_up(0);
        let (kept, file) = inflight(&mut guest, 1, guest::SIZE);
        guest.tell(say::SET_INFLIGHT_FD, &kept, &[file.as_raw_fd()]);
        guest.run_queue();
        (guest, file, kept)
    };
    (0..2).for_each(|n| request(&mut guest, n, OUT, 8, 4096));
    assert_eq!(guest.take().unwrap().len(), 2);
    // The process dies. The next one gets the order to end the queue before it has begun anything.
    let mut next = Guest::silent(guest.memory, attachment(1, 1));
    next.set_up(0);
    next.tell(say::SET_INFLIGHT_FD, &kept, &[file.as_raw_fd()]);
    next.run_queue();
    request(&mut next, 2, OUT, 8, 4096);
    next.tell(say::SET_VRING_ENABLE, &state(0, 0), &[]);
    next.send(&message(say::GET_VRING_BASE, &state(0, 0)), &[]);
    assert_eq!(next.listen().unwrap(), Listened::Again);
    assert!(next.session.wants_requests() && next.session.has_queued());
    assert_eq!(next.serve().unwrap(), 2, "and not the third");
    assert!(!next.session.has_queued());
    assert_eq!(next.listen().unwrap(), Listened::Watch);
    assert_eq!(next.answer(), Some(state(0, 2)));
    assert_eq!(next.memory.answered().len(), 2);
}
