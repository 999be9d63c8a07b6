//! Whatever happens in whichever order: what was told is there, and the rest is a prefix.

use std::cell::Cell;

use proptest::prelude::*;

use super::*;
use crate::rng::Rng;

/// What happens to a store.
#[derive(Debug, Clone)]
enum Happens {
    Append { block: u64, blocks: u64, kind: u8 },
    Acknowledged,
    Steps(u32),
    Destage(u32),
    Kill,
    PowerLoss,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        6 => (0..BLOCKS, 1..6u64, 0..8u8).prop_map(|(block, blocks, kind)| Happens::Append { block, blocks, kind }),
        2 => Just(Happens::Acknowledged),
        6 => (1..10u32).prop_map(Happens::Steps),
        4 => (1..10u32).prop_map(Happens::Destage),
        1 => Just(Happens::Kill),
        1 => Just(Happens::PowerLoss),
    ]
}

/// A store, and what must be in it.
struct Checked {
    store: Store,
    rng: Rng,
    /// All entries that it should have or may have, from the first on.
    entries: Vec<Entry<Blocks>>,
    /// So many were told to be durable.
    durable: u64,
    /// How many there were when this process began.
    before: u64,
    value: Cell<u64>,
}

impl Checked {
    fn new(seed: u64) -> Checked {
        let (store, rng) = (open_store(), Rng::new(seed));
        Checked { store, rng, entries: Vec::new(), durable: 0, before: 0, value: Cell::new(0) }
    }

    fn entry(&self, block: u64, blocks: u64, kind: u8) -> Entry<Blocks> {
        let blocks = blocks.min(BLOCKS - block);
        match kind {
            0 => without_data(block, blocks as u32, What::Zeroes),
            1 | 2 => without_data(block, blocks as u32, What::Trim),
            _ => {
                self.value.set(self.value.get() + blocks);
                data(block, &(0..blocks).map(|n| self.value.get() - n).collect::<Vec<_>>())
            }
        }
    }

    fn happens(&mut self, happens: &Happens) {
        match *happens {
            Happens::Append { block, blocks, kind } => {
                self.entries.push(self.entry(block, blocks, kind));
                let (sequence, entry) = (self.entries.len() as u64, self.entries.last().unwrap().clone());
                let (number, position) = (sequence - self.before, position(1, sequence));
                let (mark, epoch) = (Position::START, Epoch(1));
                self.store.submit(Command::Append { number, position, sequenced: true, entry, mark, epoch });
            }
            Happens::Acknowledged if self.durable == 0 => {}
            Happens::Acknowledged => self.store.submit(mark(position(1, self.durable), 1)),
            Happens::Steps(steps) => {
                let mut out = Vec::new();
                (0..steps).for_each(|_| _ = self.store.step(&mut self.rng, &mut out));
                for completion in out {
                    let Completion::Appended(through) = completion else { panic!("{completion:?}") };
                    self.durable = self.before + through;
                }
            }
            Happens::Destage(steps) => (0..steps).for_each(|_| _ = self.store.destage(&mut self.rng)),
            Happens::Kill => {
                self.store.kill(&mut self.rng);
                self.start();
            }
            Happens::PowerLoss => {
                self.store.power_loss(&mut self.rng);
                self.start();
            }
        }
    }

    /// Something of the end may be gone, but nothing that was told.
    fn start(&mut self) {
        let found = self.store.open();
        let end = found.end.sequence.0;
        assert!((self.durable..=self.entries.len() as u64).contains(&end), "{end}, {} told", self.durable);
        assert!(found.mark <= found.end && !found.damaged);
        self.entries.truncate(end as usize);
        (self.durable, self.before) = (end, end);
        for block in 0..BLOCKS {
            assert_eq!(self.store.durable_value(block).unwrap_or(ZERO), self.expected(block, end), "{block}");
        }
    }

    /// What is in a block after so many entries.
    fn expected(&self, block: u64, entries: u64) -> Block {
        let covers = |entry: &&Entry<Blocks>| entry.range().contains(&block);
        match self.entries[..entries as usize].iter().rev().find(covers) {
            Some(Entry { block: first, what: What::Data(payload), .. }) => {
                payload.data[(block - first) as usize]
            }
            _ => ZERO,
        }
    }

    fn check(&self) {
        let written = self.store.end().sequence.0;
        for block in 0..BLOCKS {
            assert_eq!(
                self.store.value(block).unwrap_or(ZERO),
                self.expected(block, written),
                "block {block}"
            );
        }
        let above = self.store.log().filter(|record| record.position > self.store.mark()).count() as u64;
        assert_eq!(
            above,
            written - self.store.mark().sequence.0.min(written),
            "all above the mark is in the log"
        );
    }
}

proptest! {
    #[test]
    fn what_was_told_survives_and_the_rest_is_a_prefix(
        seed in any::<u64>(),
        events in prop::collection::vec(happens(), 1..150),
    ) {
        let mut checked = Checked::new(seed);
        for event in &events {
            checked.happens(event);
            checked.check();
        }
    }
}
