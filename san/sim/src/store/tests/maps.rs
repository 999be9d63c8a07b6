//! Maps: what a store reports of blocks without reading them is what a read would find.

use loadline_san_core::map::{Allocated, Held, Map};
use proptest::prelude::*;

use super::*;

const TAG: Tag = Tag { session: 1, job: Job { slot: 4, turn: 0, part: 2 } };

/// What the store reports of these blocks. Nothing is read for that.
fn mapped(rig: &mut Rig, block: u64, blocks: u32) -> Map {
    // Destaging may read, and the scrub.
    rig.run();
    let reads =
        |rig: &Rig| rig.submitted.iter().filter(|(_, request)| matches!(request, IoRequest::Read(_))).count();
    let before = reads(rig);
    rig.completions.clear();
    rig.submit(Command::Map { tag: TAG, block, blocks });
    assert_eq!(reads(rig), before);
    let map = rig.completions.drain(..).find_map(|completion| match completion {
        Completion::Mapped { tag: TAG, map } => Some(map),
        _ => None,
    });
    let map = map.expect("it is answered at once");
    assert!(map.is_answer_to(&(block..block + u64::from(blocks))), "{map:?}");
    map
}

/// What each of these blocks holds, by as many maps as are needed.
fn all(rig: &mut Rig, from: u64, end: u64) -> (Vec<Held>, u32) {
    let (mut held, mut at, mut maps) = (Vec::new(), from, 0);
    while at < end {
        let map = mapped(rig, at, (end - at) as u32);
        for (until, of) in map.runs(at..end, &mut 0) {
            held.resize((until - from) as usize, of);
        }
        (at, maps) = (map.until, maps + 1);
    }
    (held, maps)
}

fn looked_up(rig: &Rig, block: u64) -> Held {
    match rig.store.look_up(block) {
        read::BlockSource::Nothing => Held::Nothing,
        read::BlockSource::Zeroes => Held::Zeroes,
        read::BlockSource::Data { .. } => Held::Data,
    }
}

#[derive(Debug, Clone)]
enum Step {
    Write(u64, u32),
    Zeroes(u64, u32),
    Trim(u64, u32),
    /// What is in the log is acknowledged up to here: what comes later stays there.
    Acknowledge,
    Destage,
    /// So many answers of the device, in the middle of a round.
    Some(usize),
    /// What is above the commit point is dropped, and listed.
    Return,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = || (0..60u64, prop_oneof![4 => 1..5u32, 1 => 1..60u32]);
    let step = prop_oneof![
        5 => range().prop_map(|(block, blocks)| Step::Write(block, blocks.min(9))),
        2 => range().prop_map(|(block, blocks)| Step::Zeroes(block, blocks)),
        3 => range().prop_map(|(block, blocks)| Step::Trim(block, blocks)),
        2 => Just(Step::Acknowledge),
        2 => Just(Step::Destage),
        2 => (1..9usize).prop_map(Step::Some),
        1 => Just(Step::Return),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_map_reports_what_a_read_finds(steps in steps(), from in 0..60u64) {
        const BLOCKS: u64 = 64;
        let mut rig = Rig::new(BLOCKS);
        let mut sequence = 0;
        for step in steps {
            let mut entry = |rig: &mut Rig, block: u64, blocks: u32, op| {
                sequence += 1;
                let blocks = blocks.min((BLOCKS - block) as u32);
                rig.append(at(sequence), true, Entry { block, blocks, op });
                rig.settle();
            };
            match step {
                Step::Write(block, blocks) => {
                    let data = Blocks::new(vec![[block + 1; 8]; blocks as usize]);
                    entry(&mut rig, block, blocks, EntryOp::Data(Payload { data, first: 0 }));
                }
                Step::Zeroes(block, blocks) => entry(&mut rig, block, blocks, EntryOp::Zeroes),
                Step::Trim(block, blocks) => entry(&mut rig, block, blocks, EntryOp::Trim),
                Step::Acknowledge => rig.commit_point(at(sequence), at(sequence)),
                Step::Destage => {
                    for _ in 0..3 {
                        rig.store.destage_soon();
                        rig.run();
                        rig.settle();
                    }
                }
                Step::Some(answers) => {
                    rig.store.destage_soon();
                    rig.run();
                    for _ in 0..answers.min(rig.submitted.len()) {
                        rig.do_one(|_| true);
                    }
                }
                Step::Return => {
                    sequence += 1;
                    rig.submit(Command::Return { after: at(sequence), empty: false });
                    rig.settle();
                }
                Step::Restart => {
                    rig.settle();
                    rig = Rig::on(rig.disk).0;
                }
            }
            let (held, maps) = all(&mut rig, from, BLOCKS);
            prop_assert_eq!((held.len() as u64, maps), (BLOCKS - from, 1), "so few are reported at once");
            let list: Vec<_> = rig.store.list().collect();
            for (block, held) in (from..).zip(held) {
                let listed = list.iter().any(|range| range.contains(&block));
                let expected = if listed { Held::Data } else { looked_up(&rig, block) };
                prop_assert_eq!(held, expected, "block {}", block);
            }
        }
    }
}

#[test]
fn a_map_ends_where_it_would_have_too_many_ranges_and_the_next_goes_on() {
    let blocks = 2100;
    let mut rig = Rig::new(blocks);
    for block in (0..blocks).step_by(2) {
        rig.write(block);
        if block % 32 == 0 {
            rig.destage();
        }
    }
    let first = mapped(&mut rig, 0, blocks as u32);
    assert_eq!((first.ranges.len(), first.until), (1024, 2048));
    let (held, maps) = all(&mut rig, 0, blocks);
    assert_eq!(maps, 2);
    assert!(held.iter().enumerate().all(|(block, held)| (*held == Held::Data) == (block % 2 == 0)));
}

#[test]
fn a_block_that_did_not_match_its_checksum_counts_as_data() {
    let mut rig = Rig::new(64);
    rig.write(5);
    rig.destage();
    let read::BlockSource::Data { area, at: place, .. } = rig.store.look_up(5) else {
        panic!("it is written")
    };
    rig.disk.corrupt_at(area, place);
    rig.submit(Command::Read { tag: TAG, block: 4, blocks: 3, again: false });
    rig.settle();
    let map = mapped(&mut rig, 0, 64);
    assert_eq!(map.ranges, [Allocated { blocks: 4..7, zeroes: false }], "all that was read at once");
}

#[test]
fn a_large_hole_and_a_large_trim_are_reported_at_once() {
    // Far beyond what is there: nothing of it was ever written.
    let mut rig = Rig::new(64);
    rig.write(3);
    let map = mapped(&mut rig, 0, 1 << 20);
    assert_eq!((map.ranges.len(), map.until), (1, 1 << 20));
    let trim = Entry { block: 0, blocks: 64, op: EntryOp::Trim };
    rig.append(at(rig.appended + 1), true, trim);
    rig.settle();
    let map = mapped(&mut rig, 0, 1 << 20);
    assert_eq!((map.ranges.len(), map.until), (0, 1 << 20));
}
