//! What the store promises, over crashes at every step; and that it breaks its promise where a rule is left out.

use loadline_san_core::ids::{Incarnation, NodeId, Owner, Sequence};
use loadline_san_core::message::{Content, Entry, Job, Payload, Rotten};
use loadline_san_core::rule::leave_out;
use loadline_san_core::store::Tag;

use super::*;
use crate::rng::Rng;

mod any_order;

const BLOCKS: u64 = 16;
const TAG: Tag = Tag { session: 1, job: Job { slot: 2, turn: 3, part: 4 } };
/// Enough seeds to see each outcome of a few coins.
const SEEDS: u64 = 64;

fn promise(epoch: u64) -> Promise {
    Promise { epoch: Epoch(epoch), owner: Owner { node: NodeId(1), incarnation: Incarnation(1) } }
}

fn position(ownership: u64, sequence: u64) -> Position {
    Position { ownership: Epoch(ownership), sequence: Sequence(sequence) }
}

fn open_store() -> Store {
    let mut store = Store::new(BLOCKS, promise(1));
    store.open();
    store
}

fn data(block: u64, values: &[u64]) -> Entry<Blocks> {
    let data = Rc::new(values.iter().map(|value| [*value; 8]).collect());
    Entry { block, blocks: values.len() as u32, what: What::Data(Payload { data, first: 0 }) }
}

fn without_data(block: u64, blocks: u32, what: What<Blocks>) -> Entry<Blocks> {
    Entry { block, blocks, what }
}

/// The entry of this number of ownership 1, in epoch 1, while nothing is acknowledged.
fn append(number: u64, entry: Entry<Blocks>) -> Command<Blocks> {
    let (position, mark) = (position(1, number), Position::START);
    Command::Append { number, position, sequenced: true, entry, mark, epoch: Epoch(1) }
}

fn mark(mark: Position, epoch: u64) -> Command<Blocks> {
    Command::Mark { mark, epoch: Epoch(epoch) }
}

/// Submits these, and does all that is queued.
fn run(store: &mut Store, commands: impl IntoIterator<Item = Command<Blocks>>) -> Vec<Completion<Blocks>> {
    let (mut rng, mut out) = (Rng::new(0), Vec::new());
    commands.into_iter().for_each(|command| store.submit(command));
    while store.step(&mut rng, &mut out) {}
    out
}

fn destage_all(store: &mut Store) {
    let mut rng = Rng::new(0);
    while store.destage(&mut rng) {}
}

fn positions(store: &Store) -> Vec<Position> {
    store.log().map(|record| record.position).collect()
}

/// Where each range of changes begins and ends.
fn changed(store: &mut Store, since: u64) -> Vec<(u64, u64)> {
    let question = Command::Changed { tag: TAG, since: Epoch(since), from: 0 };
    let answers = run(store, [question]);
    let [Completion::Changed { ranges, next: None, .. }] = &answers[..] else { panic!("{answers:?}") };
    ranges.iter().map(|range| (range.start, range.end)).collect()
}

fn read(store: &mut Store, block: u64, blocks: u32) -> Result<Content<Blocks>, Rotten> {
    let mut answers = run(store, [Command::Read { tag: TAG, block, blocks }]);
    let Some(Completion::Data { content, .. }) = answers.pop() else { panic!("{answers:?}") };
    content
}

fn is_data(content: Result<Content<Blocks>, Rotten>, values: &[u64]) -> bool {
    let Ok(Content::Data(payload)) = content else { return false };
    payload.data[payload.first as usize..]
        .iter()
        .eq(&values.iter().map(|value| [*value; 8]).collect::<Vec<_>>())
}

/// What this returns when a rule is left out.
fn without<T>(rule: Rule, what: impl FnOnce() -> T) -> T {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            leave_out(None);
        }
    }
    let _reset = Reset;
    leave_out(Some(rule));
    what()
}

#[test]
fn destage_stops_at_the_mark() {
    let scenario = || {
        let mut store = open_store();
        run(&mut store, [append(1, data(0, &[10])), append(2, data(1, &[20])), append(3, data(2, &[30]))]);
        run(&mut store, [mark(position(1, 1), 1)]);
        destage_all(&mut store);
        positions(&store)
    };
    assert_eq!(scenario(), [position(1, 2), position(1, 3)]);
    assert_eq!(without(Rule::R1, scenario), [], "without the rule it takes all");
}

#[test]
fn destage_waits_behind_an_entry_above_the_mark() {
    let mut store = open_store();
    // Of a later ownership, as a takeover brings it; then a copy of what is acknowledged.
    for (number, at) in [(1, position(5, 7)), (2, position(1, 1))] {
        let (entry, mark) = (data(number, &[number]), position(1, 1));
        let epoch = Epoch(1);
        run(&mut store, [Command::Append { number, position: at, sequenced: false, entry, mark, epoch }]);
    }
    destage_all(&mut store);
    assert_eq!(positions(&store), [position(5, 7), position(1, 1)]);
    assert_eq!(store.end(), Position::START, "neither is of the sequence");
}

#[test]
fn destage_waits_until_the_log_is_synced() {
    let mut store = open_store();
    let (mut rng, mut out) = (Rng::new(0), Vec::new());
    store.submit(append(1, data(0, &[10])));
    store.submit(mark(position(1, 1), 1));
    store.step(&mut rng, &mut out);
    assert_eq!((store.value(0), store.durable_value(0)), (Some([10; 8]), None));
    assert!(!store.destage(&mut rng));
}

/// The value of a block after a destage that was cut short by a loss of power, for each step and some seeds.
fn after_torn_destages() -> Vec<Option<Block>> {
    let mut values = Vec::new();
    for (steps, seed) in (0..=6).flat_map(|steps| (0..SEEDS).map(move |seed| (steps, seed))) {
        let mut store = open_store();
        run(&mut store, [append(1, data(0, &[10])), append(2, data(0, &[20])), mark(position(1, 2), 1)]);
        let mut rng = Rng::new(seed);
        for _ in 0..steps {
            assert!(store.destage(&mut rng));
        }
        if seed % 2 == 0 {
            store.power_loss(&mut rng)
        } else {
            store.kill(&mut rng)
        }
        assert_eq!(store.open().end, position(1, 2), "also if its record is freed");
        values.push(store.value(0));
        destage_all(&mut store);
        values.push(store.durable_value(0));
    }
    values
}

#[test]
fn a_destage_that_is_cut_short_is_repeated() {
    assert!(after_torn_destages().iter().all(|value| *value == Some([20; 8])));
    let lost = without(Rule::R1Free, after_torn_destages);
    assert!(lost.iter().any(|value| *value != Some([20; 8])), "without the rule something is lost");
}

#[test]
fn an_extent_is_stamped_with_the_epoch_of_its_destage() {
    let scenario = || {
        let mut store = open_store();
        run(&mut store, [append(1, data(5, &[10])), mark(position(1, 1), 4)]);
        destage_all(&mut store);
        assert_eq!(positions(&store), []);
        (store.stamp(4), changed(&mut store, 4))
    };
    assert_eq!(scenario(), (Some(Epoch(4)), vec![(4, 8)]));
    assert_eq!(
        without(Rule::R2, scenario),
        (Some(Epoch(1)), vec![]),
        "without the rule nobody would copy it"
    );
}

#[test]
fn a_trimmed_extent_leaves_a_tombstone() {
    let scenario = || {
        let mut store = open_store();
        let trim = without_data(4, 4, What::Trim);
        run(&mut store, [append(1, data(4, &[1, 2, 3, 4])), append(2, trim), mark(position(1, 2), 7)]);
        destage_all(&mut store);
        assert_eq!(read(&mut store, 4, 4), Ok(Content::Nothing));
        changed(&mut store, 7)
    };
    assert_eq!(scenario(), [(4, 8)]);
    assert_eq!(without(Rule::R3, scenario), [], "without the rule the old data would be back with a replica");
}

#[test]
fn a_part_of_an_extent_is_trimmed_to_zeroes() {
    let mut store = open_store();
    let trim = without_data(5, 5, What::Trim);
    run(&mut store, [append(1, data(4, &[1, 2, 3, 4])), append(2, trim), mark(position(1, 2), 1)]);
    destage_all(&mut store);
    assert!(is_data(read(&mut store, 4, 4), &[1, 0, 0, 0]));
    assert_eq!(read(&mut store, 8, 4), Ok(Content::Nothing), "what was never there is not allocated");
    assert_eq!(changed(&mut store, 1), [(4, 12)], "and told of all the same");
}

#[test]
fn zeroes_are_allocated() {
    let mut store = open_store();
    run(&mut store, [append(1, without_data(2, 1, What::Zeroes))]);
    assert!(is_data(read(&mut store, 1, 3), &[0, 0, 0]));
    run(&mut store, [mark(position(1, 1), 1)]);
    destage_all(&mut store);
    assert!(is_data(read(&mut store, 1, 3), &[0, 0, 0]));
}

/// The ends that two starts find: one after a kill, one after a loss of power then, for some seeds.
fn ends_of_two_starts() -> Vec<(Position, Position)> {
    let ends = |seed| {
        let (mut store, mut rng) = (open_store(), Rng::new(seed));
        store.submit(append(1, data(0, &[10])));
        store.step(&mut rng, &mut Vec::new());
        store.kill(&mut rng);
        let first = store.open().end;
        store.power_loss(&mut rng);
        (first, store.open().end)
    };
    (0..SEEDS).map(ends).collect()
}

#[test]
fn what_a_start_reports_is_durable() {
    assert!(ends_of_two_starts().iter().all(|ends| *ends == (position(1, 1), position(1, 1))));
    let lost = without(Rule::R4, ends_of_two_starts);
    assert!(lost.contains(&(position(1, 1), Position::START)), "without the rule it is taken back");
}

#[test]
fn a_mark_is_kept_with_its_epoch() {
    for destaged in [false, true] {
        let scenario = || {
            let mut store = open_store();
            run(&mut store, [append(1, data(0, &[1])), append(2, data(4, &[2])), mark(position(1, 1), 3)]);
            if destaged {
                destage_all(&mut store);
            }
            run(&mut store, [Command::Promise(promise(2))]);
            store.power_loss(&mut Rng::new(0));
            let found = store.open();
            (found.mark, found.epoch)
        };
        assert_eq!(scenario(), (position(1, 1), Epoch(3)));
        assert_eq!(
            without(Rule::R8, scenario),
            (position(1, 1), Epoch(2)),
            "without the rule the epoch is lost"
        );
    }
}

#[test]
fn a_record_of_the_log_carries_mark_and_epoch() {
    let mut store = open_store();
    let (position, mark) = (position(2, 2), position(2, 1));
    let entry = data(0, &[1]);
    run(&mut store, [Command::Append { number: 1, position, sequenced: true, entry, mark, epoch: Epoch(6) }]);
    store.power_loss(&mut Rng::new(0));
    let found = store.open();
    assert_eq!((found.mark, found.epoch, found.end), (mark, Epoch(6), position));
}

/// A return that is cut short by a loss of power: the list, the positions in the log, the end. For each step, some seeds.
fn after_torn_returns() -> Vec<(Vec<Range<u64>>, Vec<Position>, Position)> {
    let mut found = Vec::new();
    for (steps, seed) in (0..=5).flat_map(|steps| (0..SEEDS).map(move |seed| (steps, seed))) {
        let mut store = open_store();
        let entries = [append(1, data(0, &[1])), append(2, data(9, &[2])), append(3, data(5, &[3, 3]))];
        run(&mut store, entries);
        store.submit(mark(position(1, 1), 1));
        store.submit(Command::Return { after: position(8, 40), empty: false });
        let (mut rng, mut out) = (Rng::new(seed), Vec::new());
        (0..=steps).for_each(|_| assert!(store.step(&mut rng, &mut out)));
        if steps == 5 {
            assert_eq!(out, [Completion::Listed(store.list().to_vec())]);
        }
        store.power_loss(&mut rng);
        let end = store.open().end;
        found.push((store.list().to_vec(), positions(&store), end));
    }
    found
}

#[test]
fn a_return_lists_what_it_drops_whatever_happens() {
    let lists = |list: &[Range<u64>]| list == [5..7, 9..10];
    let found = after_torn_returns();
    for (list, log, end) in &found {
        let dropped = *end == position(8, 40);
        assert_eq!(*end, if dropped { position(8, 40) } else { position(1, 3) });
        let left = if dropped { 1 } else { 3 };
        assert!(log.iter().copied().eq((1..=left).map(|n| position(1, n))), "dropped all or none: {log:?}");
        assert!(lists(list) || !dropped && list.is_empty(), "{list:?}");
    }
    assert!(found.iter().any(|(list, log, _)| lists(list) && log.len() == 3), "the list comes first");
    let dropped = |(list, log, _): &(Vec<_>, Vec<_>, _)| list.is_empty() && log.len() == 1;
    assert!(
        without(Rule::C1, after_torn_returns).iter().any(dropped),
        "without the rule nobody knows of them"
    );
}

#[test]
fn a_list_grows_with_each_return_until_the_replica_has_joined() {
    let mut store = open_store();
    run(&mut store, [append(1, data(0, &[1])), Command::Return { after: position(2, 10), empty: false }]);
    let entry = data(1, &[2]);
    let (at, mark, epoch) = (position(2, 11), Position::START, Epoch(2));
    let append = Command::Append { number: 2, position: at, sequenced: true, entry, mark, epoch };
    assert_eq!(run(&mut store, [append]), [Completion::Appended(2)]);
    assert_eq!(store.end(), at);
    assert_eq!(
        run(&mut store, [Command::Return { after: position(3, 5), empty: false }]),
        [Completion::Listed(vec![Range { start: 0, end: 2 }])]
    );
    assert_eq!((store.end(), positions(&store)), (position(3, 5), vec![]));
    run(&mut store, [Command::Joined, Command::Promise(promise(3))]);
    store.power_loss(&mut Rng::new(0));
    store.open();
    assert_eq!(store.list(), []);
}

#[test]
fn what_is_only_in_the_log_counts_as_changed() {
    let scenario = || {
        let mut store = open_store();
        run(&mut store, [append(1, data(2, &[1, 2, 3]))]);
        changed(&mut store, 9)
    };
    assert_eq!(scenario(), [(2, 5)]);
    assert_eq!(without(Rule::C3Log, scenario), [], "without the rule it is not copied");
}

#[test]
fn what_is_stamped_since_counts_as_changed() {
    let scenario = || {
        let mut store = open_store();
        for (number, epoch) in [(1, 3), (2, 5)] {
            run(&mut store, [append(number, data(number * 4, &[1])), mark(position(1, number), epoch)]);
            destage_all(&mut store);
        }
        [3, 5, 6].map(|since| changed(&mut store, since))
    };
    assert_eq!(scenario(), [vec![(4, 12)], vec![(8, 12)], vec![]]);
    assert_eq!(
        without(Rule::C3Stamp, scenario),
        [vec![], vec![], vec![]],
        "without the rule it is not copied"
    );
}

#[test]
fn changes_are_told_in_parts() {
    let mut store = Store::new(64, promise(1));
    store.open();
    run(&mut store, (0..20).map(|n| append(n + 1, data(n * 2, &[n]))));
    let (mut from, mut told) = (Some(5), Vec::new());
    while let Some(here) = from {
        let answers = run(&mut store, [Command::Changed { tag: TAG, since: Epoch(1), from: here }]);
        let [Completion::Changed { ranges, next, .. }] = &answers[..] else { panic!("{answers:?}") };
        assert!(ranges.len() <= MOST_RANGES);
        told.extend(ranges.clone());
        from = *next;
    }
    assert!(told.into_iter().eq((3..20).map(|n| n * 2..n * 2 + 1)));
}

#[test]
fn entries_above_the_mark_keep_their_numbers() {
    let mut store = open_store();
    let entries = (1..5).map(|n| append(n, data(n, &[n * 10])));
    run(&mut store, entries.chain([mark(position(1, 2), 1)]));
    let before = run(&mut store, [Command::Above(1)]);
    destage_all(&mut store);
    store.power_loss(&mut Rng::new(0));
    store.open();
    let after = run(&mut store, [Command::Above(1)]);
    assert_eq!(before, after);
    let [Completion::Above(_, above)] = &after[..] else { panic!("{after:?}") };
    assert!(above.iter().map(|mention| mention.position).eq([position(1, 3), position(1, 4)]));
    let mut answers = run(&mut store, [Command::Fetch { tag: TAG, number: above[1].number }]);
    let Some(Completion::Data { content, .. }) = answers.pop() else { panic!("{answers:?}") };
    assert!(is_data(content, &[40]));
    let gone = run(&mut store, [Command::Fetch { tag: TAG, number: 1 }]);
    assert_eq!(gone, [Completion::Data { tag: TAG, content: Err(Rotten) }]);
}

#[test]
fn a_read_may_overtake_a_write() {
    let overtakes = |seed| {
        let (mut store, mut rng, mut out) = (open_store(), Rng::new(seed), Vec::new());
        store.submit(append(1, data(0, &[1])));
        store.submit(Command::Above(1));
        while store.step(&mut rng, &mut out) {}
        out.contains(&Completion::Above(1, vec![]))
    };
    let count = (0..SEEDS).filter(|seed| overtakes(*seed)).count() as u64;
    assert!((1..SEEDS).contains(&count));
}

#[test]
fn appends_of_a_dead_process_may_land() {
    let landed = |seed| {
        let (mut store, mut rng) = (open_store(), Rng::new(seed));
        (1..5).for_each(|n| store.submit(append(n, data(n, &[n]))));
        store.kill(&mut rng);
        assert!((1..5).all(|block| store.durable_value(block).is_none()), "they are not synced");
        let end = store.open().end.sequence.0;
        assert!((1..5).all(|block| store.durable_value(block).is_some() == (block <= end)));
        end
    };
    let ends: Vec<u64> = (0..SEEDS).map(landed).collect();
    assert!((0..5).all(|end| ends.contains(&end)), "any prefix: {ends:?}");
}

#[test]
fn a_rotten_block_is_healed_by_overwriting() {
    let (mut store, mut rng) = (open_store(), Rng::new(1));
    assert!(!store.rot(&mut rng), "nothing is allocated");
    run(&mut store, [append(1, data(0, &[1, 2, 3, 4])), mark(position(1, 1), 1)]);
    destage_all(&mut store);
    assert!(store.rot(&mut rng));
    assert_eq!(read(&mut store, 0, 4), Err(Rotten));
    let rotten: Vec<u64> = (0..4).filter(|block| read(&mut store, *block, 1).is_err()).collect();
    assert_eq!(rotten.len(), 1);
    run(&mut store, [append(2, data(rotten[0], &[9]))]);
    assert!(is_data(read(&mut store, rotten[0], 1), &[9]), "the log has it");
    run(&mut store, [mark(position(1, 2), 1)]);
    destage_all(&mut store);
    assert!(is_data(read(&mut store, rotten[0], 1), &[9]));
}

#[test]
fn a_rotten_log_is_damaged_and_not_shorter() {
    let (mut store, mut rng) = (open_store(), Rng::new(1));
    assert!(!store.rot_log(&mut rng), "the log is empty");
    run(&mut store, [append(1, data(0, &[1])), append(2, data(4, &[2]))]);
    assert!(store.rot_log(&mut rng));
    assert_eq!((0..8).filter(|block| read(&mut store, *block, 1).is_err()).count(), 1);
    store.kill(&mut rng);
    assert!(store.open().damaged);
    assert!(!store.destage(&mut rng));
}

#[test]
fn a_rotten_record_is_not_destaged_as_good() {
    let (mut store, mut rng) = (open_store(), Rng::new(1));
    run(&mut store, [append(1, data(0, &[1])), mark(position(1, 1), 1)]);
    store.rot_log(&mut rng);
    destage_all(&mut store);
    assert_eq!(positions(&store), []);
    assert_eq!(read(&mut store, 0, 1), Err(Rotten));
}

#[test]
fn a_failure_is_told_once_and_is_final() {
    for destages in [false, true] {
        let mut store = open_store();
        run(&mut store, [append(1, data(0, &[1])), mark(position(1, 1), 1)]);
        store.fail_next();
        if destages {
            assert!(store.destage(&mut Rng::new(0)));
            assert!(!store.destage(&mut Rng::new(0)));
        } else {
            store.submit(append(2, data(1, &[2])));
        }
        assert_eq!(run(&mut store, []), [Completion::Failed]);
        assert_eq!(run(&mut store, [append(3, data(1, &[2])), Command::Above(1)]), []);
        store.kill(&mut Rng::new(0));
        assert!(store.open().damaged);
        assert_eq!(run(&mut store, [append(1, data(1, &[2])), Command::Above(1)]), []);
        assert!(store.is_dead() && store.is_idle());
    }
}
