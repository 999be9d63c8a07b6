//! What is sent at once is bounded, and requests that need room fail when a device is full.

mod serving;

use loadline_san_core::message::ToReplica;
use loadline_san_core::volume::{Action, Event, Failure, Request, RequestId, RequestOp};
use serving::*;

/// The blocks of the entries that are sent, each from the first to before the last.
fn sent(out: &[Action<u8>]) -> Vec<(u64, u64)> {
    let entries = out.iter().filter_map(|action| match action {
        Action::Send { message: ToReplica::Entry { entry, .. }, .. } => {
            Some((entry.range().start, entry.range().end))
        }
        _ => None,
    });
    entries.collect()
}

#[test]
fn what_is_zeroed_at_once_is_little_however_much_is_asked_for() {
    let (mut volume, mut out) = large();
    let id = RequestId(1);
    let all = Request { id, op: RequestOp::WriteZeroes, sector: 0, sectors: 40_000 * 8 };
    volume.step(NOW, Event::Request(all), &mut out);
    assert_eq!(sent(&out), [(0, 8192), (8192, 16384)]);
    out.clear();
    has(&mut volume, 2, false, &mut out);
    assert_eq!(sent(&out), [], "one is still under way");
    has(&mut volume, 3, false, &mut out);
    assert_eq!(sent(&out), [(16384, 24576), (24576, 32768)]);
    out.clear();
    has(&mut volume, 5, false, &mut out);
    assert_eq!(sent(&out), [(32768, 40000)]);
    out.clear();
    has(&mut volume, 6, false, &mut out);
    assert_eq!(out, [Action::Complete(id, Ok(()))]);
}

#[test]
fn a_full_device_is_an_error_of_what_needs_room_and_of_nothing_else() {
    let (mut volume, mut out) = large();
    has(&mut volume, 1, true, &mut out);
    let request = |id, op| Request { id: RequestId(id), op, sector: 0, sectors: 8 };
    out.clear();
    volume.step(NOW, Event::Request(request(1, RequestOp::Write(7))), &mut out);
    assert_eq!(out, [Action::Complete(RequestId(1), Err(Failure::NoSpace))]);
    for (id, op) in [(2, RequestOp::WriteZeroes), (3, RequestOp::Trim)] {
        out.clear();
        volume.step(NOW, Event::Request(request(id, op)), &mut out);
        assert_eq!(sent(&out), [(0, 1)]);
        out.clear();
        has(&mut volume, id, id == 2, &mut out);
        assert_eq!(out, [Action::Complete(RequestId(id), Ok(()))]);
    }
    out.clear();
    volume.step(NOW, Event::Request(request(4, RequestOp::Write(7))), &mut out);
    assert_eq!(sent(&out), [(0, 1)], "there is room again");
}
