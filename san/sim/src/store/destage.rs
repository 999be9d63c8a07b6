//! From the log to the extents, beside what is queued.
//!
//! ```text
//! write the blocks ─▶ sync ─▶ commit map, stamps and mark ─▶ sync ─▶ free the log ─▶ sync
//! ```
//!
//! The blocks are written to new places, and the commit is one write. So a destage that does not come to its commit has no
//! effect, and one that does not come to its end is repeated: what it brings is in the log still.

use loadline_san_core::rule::{Rule, left_out};

use super::disk::{Commit, Known, Record, View};
use super::{Disk, Store};
use crate::rng::Rng;

/// Entries that are being destaged.
#[derive(Debug)]
pub(super) struct Destage {
    records: Vec<Record>,
    done: usize,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Blocks are written, or synced. Nobody sees them before the commit, so there is nothing to do but to fail.
    Blocks,
    Commit,
    SyncCommit,
    Free,
    SyncFree,
}

const STAGES: [Stage; 6] =
    [Stage::Blocks, Stage::Blocks, Stage::Commit, Stage::SyncCommit, Stage::Free, Stage::SyncFree];

/// Without the rule that the log is freed last.
const FREE_FIRST: [Stage; 6] =
    [Stage::Free, Stage::SyncFree, Stage::Blocks, Stage::Blocks, Stage::Commit, Stage::SyncCommit];

impl Store {
    /// Does one small step of destaging. False if there is nothing to destage.
    pub fn destage(&mut self, rng: &mut Rng) -> bool {
        let Some(process) = &mut self.process else { return false };
        if process.destage.is_none() && !self.is_dead() {
            self.choose(rng);
        }
        let Some(mut destage) = self.process.as_mut().and_then(|process| process.destage.take()) else {
            return false;
        };
        if self.fails() {
            return true;
        }
        let Some(process) = &mut self.process else { return false };
        let stages = if left_out(Rule::R1Free) { FREE_FIRST } else { STAGES };
        match stages[destage.done] {
            Stage::Blocks => {}
            Stage::Commit => commit(&mut self.disk, process.known, &destage.records),
            Stage::SyncCommit => self.disk.sync_extents(),
            Stage::Free => self.disk.free(destage.records.last().expect("something is destaged").number),
            Stage::SyncFree => self.disk.sync_log(),
        }
        destage.done += 1;
        if destage.done < stages.len() {
            process.destage = Some(destage);
        }
        true
    }

    /// Chooses what to destage: some of the oldest entries, durable ones, none above the mark.
    fn choose(&mut self, rng: &mut Rng) {
        let Some(process) = &mut self.process else { return };
        let mark = process.known.mark;
        let may =
            |record: &&Record| self.disk.is_synced(record) && (record.position <= mark || left_out(Rule::R1));
        let most = self.disk.log(View::Written).take_while(may).count();
        if most > 0 {
            let records = self.disk.log(View::Written).take(1 + rng.index(most)).cloned().collect();
            process.destage = Some(Destage { records, done: 0 });
        }
    }
}

fn commit(disk: &mut Disk, known: Known, records: &[Record]) {
    let stamped = |record: &Record| {
        let stamp = if left_out(Rule::R2) { record.position.ownership } else { known.epoch };
        (record.clone(), stamp)
    };
    let known = disk.to_keep(known);
    disk.commits.push(Commit { records: records.iter().map(stamped).collect(), known });
}
