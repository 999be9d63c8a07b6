//! vhost-user-blk: what a front-end can have at the most, and what a former life of the server has left.

mod guest;

use std::os::fd::AsRawFd;

use guest::{
    BYTES, DATA, Descriptor, EVENT_IDX, FLUSH, GUEST, Guest, HEADERS, IN, INDIRECT, Memory, SIZE, STATUS,
    TABLE, TABLES, USER, attachment, message, one_region, request, say,
};
use loadline_san_export::session::Session as _;
use loadline_san_export::vhost::session::Listened;

#[test]
fn a_front_end_cannot_keep_the_thread_for_itself() {
    // Requests that are answered at once, in any number.
    let mut guest = Guest::new(0);
    let many: Vec<_> = (0..60).map(|n| (DATA + 16 * n, 16, false)).chain([(STATUS, 1, true)]).collect();
    guest.memory.chain(TABLES, 0, &many);
    guest.memory.header(DATA, 99, 0);
    let of = Descriptor { at: GUEST + TABLES as u64, bytes: 16 * 61, flags: INDIRECT, next: 0 };
    guest.memory.describe(TABLE, 0, of);
    let mut rounds = 0;
    for _ in 0..3 {
        (0..SIZE).for_each(|_| guest.memory.offer(0));
        while guest.session.has_queued() {
            assert_eq!(guest.serve().unwrap(), 0);
            rounds += 1;
        }
        assert_eq!(guest.memory.answered().len(), usize::from(SIZE));
    }
    assert!(rounds >= 3);
    // Messages, in any number.
    let mut guest = Guest::silent(Memory::new(), attachment(1, 1));
    (0..100).for_each(|_| guest.send(&message(3, &[]), &[]));
    assert_eq!(guest.listen().unwrap(), Listened::More);
    while guest.listen().unwrap() == Listened::More {}
    // A bell that was made to wait: it is not waited for.
    let mut guest = Guest::new(0);
    let flags = nix::fcntl::OFlag::empty();
    nix::fcntl::fcntl(&guest.kick, nix::fcntl::FcntlArg::F_SETFL(flags)).unwrap();
    guest.session.queue_notified(0);
    // Data that comes with what needs none takes nothing.
    guest.memory.header(HEADERS, FLUSH, 0);
    guest.memory.chain(
        TABLE,
        0,
        &[(HEADERS, 16, false), (DATA, 4096, false), (DATA, 1 << 19, true), (STATUS, 1, true)],
    );
    guest.memory.offer(0);
    assert_eq!((guest.take().unwrap().len(), guest.session.bytes()), (1, 0));
}

#[test]
fn only_memory_is_mapped_that_can_be_replaced_when_it_goes_away() {
    use nix::sys::memfd::{MFdFlags, memfd_create};
    let all = BYTES as u64;
    let refused = |file: std::os::fd::RawFd, bytes: u64| {
        let mut guest = Guest::new(0);
        let is = guest.try_tell(say::ADD_MEM_REG, &one_region(GUEST + all, bytes, USER + all, 0), &[file]);
        is.unwrap_err().to_string()
    };
    let (pipe, _writer) = nix::unistd::pipe().unwrap();
    assert!(refused(pipe.as_raw_fd(), 4096).contains("is no memory"));
    let huge = memfd_create("huge", MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB).unwrap();
    nix::unistd::ftruncate(&huge, 2 << 20).unwrap();
    assert!(refused(huge.as_raw_fd(), 4096).contains("whole huge pages"));
    // Again and again, while a request refers to what was there before.
    let mut guest = Guest::new(0);
    let file = guest.memory.file.as_raw_fd();
    let mut last = Ok(Listened::Watch);
    for round in 0..40 {
        request(&mut guest, round % 8, IN, 0, 4096);
        guest.take().unwrap();
        let add = if round % 2 == 0 { say::ADD_MEM_REG } else { say::REM_MEM_REG };
        let files = [file];
        let files = if round % 2 == 0 { &files[..] } else { &[] };
        last = guest.try_tell(add, &one_region(GUEST + all, all, USER + all, 0), files);
        if last.is_err() {
            break;
        }
    }
    assert!(last.unwrap_err().to_string().contains("again and again"));
}

#[test]
fn memory_that_is_a_file_on_a_disk_is_left_out_and_a_request_with_data_in_it_fails_alone() {
    let all = BYTES as u64;
    let on_disk = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    on_disk.set_len(all).unwrap();
    let mut guest = Guest::new(0);
    let region = one_region(GUEST + all, all, USER + all, 0);
    guest.try_tell(say::ADD_MEM_REG, &region, &[on_disk.as_raw_fd()]).unwrap();
    guest.memory.header(HEADERS, IN, 0);
    guest.memory.chain(TABLE, 0, &[(HEADERS, 16, false), (BYTES, 4096, true), (STATUS, 1, true)]);
    guest.memory.offer(0);
    assert_eq!(guest.take().unwrap().len(), 0, "nothing is asked of the disk");
    assert_eq!(guest.memory.get(STATUS, 1), [1], "an I/O error");
    // Others go on, and the file can be taken back.
    request(&mut guest, 1, IN, 0, 4096);
    assert_eq!(guest.take().unwrap().len(), 1);
    guest.try_tell(say::REM_MEM_REG, &region, &[]).unwrap();
    assert!(guest.try_tell(say::REM_MEM_REG, &region, &[]).is_err(), "it is not there any more");
}

#[test]
fn an_answer_of_a_former_process_is_notified_without_a_new_request() {
    let mut guest = Guest::new(EVENT_IDX);
    request(&mut guest, 0, FLUSH, 0, 0);
    let asked = guest.take().unwrap();
    // Answered, and the process dies before it notifies.
    guest.session.complete(asked[0].slot, Ok(())).unwrap();
    let _ = guest.call.read();
    let memory = std::mem::replace(&mut guest.memory, Memory::new());
    drop(guest);
    let mut guest = Guest::silent(memory, attachment(2, 1));
    guest.set_up(EVENT_IDX);
    guest.run_queue();
    guest.tell_all();
    assert_eq!(guest.call.read().unwrap(), 1);
    guest.tell_all();
    assert!(guest.call.read().is_err(), "once");
}
