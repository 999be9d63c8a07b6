//! Requests that come again before they are answered.

use super::*;

fn tag(turn: u32) -> Tag {
    Tag { session: 1, job: Job { slot: 0, turn, part: 0 } }
}

fn read(turn: u32, block: u64, again: bool) -> Command<Blocks> {
    Command::Read { tag: tag(turn), block, blocks: 1, again }
}

/// A slow device that got each read as often as its owner waits for it would become slower by that, without end.
#[test]
fn a_read_that_comes_again_is_not_begun_anew_while_it_is_under_way() {
    let mut rig = Rig::new(64);
    (0..2).for_each(|block| rig.write(block));
    rig.completions.clear();
    rig.submit(read(1, 0, false));
    (0..5).for_each(|_| rig.submit(read(1, 0, true)));
    assert_eq!(rig.submitted.len(), 1);
    // Another request of the same owner, and another part of the same one.
    rig.submit(read(2, 0, true));
    rig.submit(read(1, 1, true));
    assert_eq!(rig.submitted.len(), 3);
    rig.settle();
    assert_eq!(rig.completions.len(), 3, "each has one answer: {:?}", rig.completions);
    // Its answer may have been lost: it is carried out again. One of blocks that hold nothing is answered each time.
    rig.submit(read(1, 0, true));
    rig.settle();
    (0..2).for_each(|_| rig.submit(read(3, 9, true)));
    assert_eq!(rig.completions.len(), 6, "{:?}", rig.completions);
}

#[test]
fn a_fetch_that_comes_again_is_not_begun_anew_while_it_is_under_way() {
    let mut rig = Rig::new(64);
    rig.write(0);
    rig.completions.clear();
    let number = 1;
    for again in [false, true, true] {
        rig.submit(Command::Fetch { tag: tag(1), number, again });
    }
    assert_eq!(rig.submitted.len(), 1);
    // A read with the same name is another request.
    rig.submit(read(1, 0, true));
    assert_eq!(rig.submitted.len(), 2);
    rig.settle();
    assert_eq!(rig.completions.len(), 2, "{:?}", rig.completions);
    rig.submit(Command::Fetch { tag: tag(1), number, again: true });
    rig.settle();
    assert_eq!(rig.completions.len(), 3, "{:?}", rig.completions);
}
