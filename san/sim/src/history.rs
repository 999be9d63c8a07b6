//! What clients wrote and read, and whether it could have been so: each sector is a register, and reads and writes take
//! effect at one moment between their beginning and their end.
//!
//! Every write has values of its own (but for zeroes), so what a read returns names the write. A value can no longer be read
//! by a read that begins after
//!
//! - a write was acknowledged that began when the value's own write had ended, or
//! - a read has returned the value of another write, which began when the value's had ended, or which was read by a read
//!   that began when the value's had ended.
//!
//! A write that failed may have taken effect or not, but not later than its failure: nothing of it is issued again
//! (rule T4), and a takeover finds what is left of it before anything else is served.

use std::fmt;

/// A number that grows with everything that happens.
pub type Instant = u64;

/// A write, by its number.
pub type WriteId = u64;

#[derive(Debug, Clone)]
struct Candidate {
    write: WriteId,
    value: u64,
    began: Instant,
    ended: Option<Instant>,
    /// When a read first returned it: it had taken effect then, although it may be under way still.
    seen: Option<Instant>,
    /// It ended, and was not acknowledged.
    failed: bool,
    /// Reads that begin later must not return it.
    gone: Option<Instant>,
}

impl Candidate {
    /// When it had taken effect at the latest, if it has.
    fn took_effect(&self) -> Option<Instant> {
        [self.ended, self.seen].into_iter().flatten().min()
    }
}

/// The history of one volume: for each sector the values that a read may still return.
#[derive(Debug)]
pub struct History {
    sectors: Vec<Vec<Candidate>>,
    now: Instant,
    /// When a takeover last made all copies equal.
    equal: Instant,
    /// When the reads that are under way began, in that order.
    reads: std::collections::BTreeSet<Instant>,
}

/// A read returned what cannot be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impossible {
    /// The sector.
    pub sector: u64,
    /// What was returned.
    pub value: u64,
    /// What could have been.
    pub possible: Vec<u64>,
}

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Impossible { sector, value, possible } = self;
        write!(f, "sector {sector} has value {value}, which is none of {possible:?}")
    }
}

impl History {
    /// Of an empty volume: zeroes.
    pub fn new(sectors: u64) -> History {
        let zero =
            Candidate { write: 0, value: 0, began: 0, ended: Some(0), seen: None, failed: false, gone: None };
        History { sectors: vec![vec![zero]; sectors as usize], now: 0, equal: 0, reads: Default::default() }
    }

    /// The volume has grown.
    pub fn grow(&mut self, sectors: u64) {
        let zero =
            Candidate { write: 0, value: 0, began: 0, ended: Some(0), seen: None, failed: false, gone: None };
        self.sectors.resize(sectors as usize, vec![zero]);
    }

    fn tick(&mut self) -> Instant {
        self.now += 1;
        self.now
    }

    /// A write begins, of these values.
    pub fn write_begins(&mut self, write: WriteId, sector: u64, values: impl IntoIterator<Item = u64>) {
        let began = self.tick();
        for (candidates, value) in self.sectors[sector as usize..].iter_mut().zip(values) {
            candidates.push(Candidate {
                write,
                value,
                began,
                ended: None,
                seen: None,
                failed: false,
                gone: None,
            });
        }
    }

    /// It has ended: acknowledged, or failed.
    pub fn write_ends(&mut self, write: WriteId, sector: u64, sectors: u64, acknowledged: bool) {
        let now = self.tick();
        let oldest = self.reads.first().copied().unwrap_or(now);
        for candidates in &mut self.sectors[sector as usize..(sector + sectors) as usize] {
            let Some(this) = candidates.iter_mut().find(|c| c.write == write) else { continue };
            (this.ended, this.failed) = (Some(now), !acknowledged);
            let began = this.began;
            if acknowledged {
                for other in candidates.iter_mut().filter(|c| c.write != write) {
                    if other.took_effect().is_some_and(|ended| ended < began) {
                        other.gone.get_or_insert(now);
                    }
                }
            }
            candidates.retain(|c| c.gone.is_none_or(|gone| gone >= oldest));
        }
    }

    /// A read begins. Its name is for [`read_ends`](Self::read_ends).
    pub fn read_begins(&mut self) -> Instant {
        let began = self.tick();
        self.reads.insert(began);
        began
    }

    /// It has failed, and returned nothing.
    pub fn read_fails(&mut self, began: Instant) {
        self.reads.remove(&began);
    }

    /// It returns these values.
    pub fn read_ends(&mut self, began: Instant, sector: u64, values: &[u64]) -> Result<(), Impossible> {
        self.returns(began, sector, values.iter().copied().map(Some))
    }

    /// A map ends: it returns no values, but which of these sectors read as zeroes, as if it had read them. It states nothing of the
    /// others.
    pub fn map_ends(&mut self, began: Instant, sector: u64, zeroes: &[bool]) -> Result<(), Impossible> {
        self.returns(began, sector, zeroes.iter().map(|zeroes| zeroes.then_some(0)))
    }

    fn returns(
        &mut self,
        began: Instant,
        sector: u64,
        values: impl Iterator<Item = Option<u64>>,
    ) -> Result<(), Impossible> {
        let now = self.tick();
        self.reads.remove(&began);
        for ((sector, candidates), value) in (sector..).zip(&mut self.sectors[sector as usize..]).zip(values)
        {
            let Some(value) = value else { continue };
            let possible = |c: &&Candidate| c.gone.is_none_or(|gone| gone >= began);
            let mut matching = candidates.iter().filter(possible).filter(|c| c.value == value);
            let Some(this) = matching.next() else {
                let possible = candidates.iter().filter(possible).map(|c| c.value).collect();
                return Err(Impossible { sector, value, possible });
            };
            if matching.next().is_some() {
                // Zeroes of two writes: it could be either.
                continue;
            }
            let (write, write_began) = (this.write, this.began);
            candidates.iter_mut().filter(|c| c.write == write).for_each(|c| _ = c.seen.get_or_insert(now));
            for other in candidates.iter_mut().filter(|c| c.write != write) {
                if other.took_effect().is_some_and(|ended| ended < write_began || ended < began) {
                    other.gone.get_or_insert(now);
                }
            }
        }
        Ok(())
    }

    /// A person has decided what the volume holds now, whatever was lost by it.
    pub fn take_for_granted(&mut self, value: impl Fn(u64) -> u64) {
        let now = self.tick();
        for (sector, candidates) in (0..).zip(&mut self.sectors) {
            let value = value(sector);
            *candidates = vec![Candidate {
                write: 0,
                value,
                began: now,
                ended: Some(now),
                seen: None,
                failed: false,
                gone: None,
            }];
        }
    }

    /// Whether a copy that counts may have this value now.
    pub fn may_hold(&self, sector: u64, value: u64) -> Result<(), Impossible> {
        let candidates = self.sectors[sector as usize].iter().filter(|c| c.gone.is_none());
        let possible: Vec<u64> = candidates.map(|c| c.value).collect();
        if possible.contains(&value) { Ok(()) } else { Err(Impossible { sector, value, possible }) }
    }

    /// A takeover has ended: nothing that had failed before is on some copies only.
    pub fn made_equal(&mut self) {
        self.equal = self.tick();
    }

    /// Whether all copies that count must have the same here: no write is under way; and each that has failed has been
    /// written over by one that was acknowledged, or a takeover has ended since.
    pub fn is_settled(&self, sector: u64) -> bool {
        let lies_open = |c: &Candidate| c.ended.is_none_or(|ended| c.failed && ended > self.equal);
        !self.sectors[sector as usize].iter().any(|c| c.gone.is_none() && lies_open(c))
    }

    /// Sectors of the volume.
    pub fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledged_value_is_read_until_another_is() {
        let mut history = History::new(1);
        history.write_begins(1, 0, [10]);
        let early = history.read_begins();
        history.write_ends(1, 0, 1, true);
        let late = history.read_begins();
        assert!(history.read_ends(early, 0, &[0]).is_ok(), "it began before the write had ended");
        assert!(history.read_ends(late, 0, &[0]).is_err());
        let again = history.read_begins();
        assert!(history.read_ends(again, 0, &[10]).is_ok());
    }

    #[test]
    fn a_value_that_was_seen_stays_although_its_write_failed() {
        let mut history = History::new(1);
        history.write_begins(1, 0, [10]);
        let read = history.read_begins();
        assert!(history.read_ends(read, 0, &[10]).is_ok());
        history.write_ends(1, 0, 1, false);
        let read = history.read_begins();
        assert!(history.read_ends(read, 0, &[0]).is_err(), "it went back");
    }

    #[test]
    fn a_write_that_failed_may_be_there_or_not_until_the_next_is_acknowledged() {
        for seen in [0, 10] {
            let mut history = History::new(1);
            history.write_begins(1, 0, [10]);
            history.write_ends(1, 0, 1, false);
            assert!(history.may_hold(0, seen).is_ok());
            let read = history.read_begins();
            assert!(history.read_ends(read, 0, &[seen]).is_ok());
            let read = history.read_begins();
            assert!(history.read_ends(read, 0, &[10 - seen]).is_err(), "and then it stays so");
        }
        let mut history = History::new(1);
        history.write_begins(1, 0, [10]);
        history.write_ends(1, 0, 1, false);
        history.write_begins(2, 0, [20]);
        history.write_ends(2, 0, 1, true);
        assert!(history.may_hold(0, 10).is_err(), "it was issued again");
        assert!(history.may_hold(0, 20).is_ok());
    }

    #[test]
    fn copies_may_differ_while_a_write_is_under_way_and_after_it_failed_until_a_takeover() {
        let mut history = History::new(1);
        history.write_begins(1, 0, [10]);
        assert!(!history.is_settled(0));
        history.write_ends(1, 0, 1, false);
        assert!(!history.is_settled(0), "some may have it");
        history.made_equal();
        assert!(history.is_settled(0));
        history.write_begins(2, 0, [20]);
        history.write_ends(2, 0, 1, false);
        history.write_begins(3, 0, [30]);
        history.write_ends(3, 0, 1, true);
        assert!(history.is_settled(0), "it was written over");
    }

    #[test]
    fn a_map_says_nothing_of_data_and_of_zeroes_what_a_read_says() {
        let mut history = History::new(2);
        history.write_begins(1, 0, [10, 11]);
        let early = history.read_begins();
        history.write_ends(1, 0, 2, true);
        assert!(history.map_ends(early, 0, &[true, false]).is_ok(), "it began before the write had ended");
        let late = history.read_begins();
        assert!(history.map_ends(late, 0, &[false, false]).is_ok());
        let late = history.read_begins();
        assert!(history.map_ends(late, 0, &[false, true]).is_err());
    }

    #[test]
    fn two_writes_at_once_may_come_in_either_order() {
        let mut history = History::new(1);
        history.write_begins(1, 0, [10]);
        history.write_begins(2, 0, [20]);
        history.write_ends(1, 0, 1, true);
        history.write_ends(2, 0, 1, true);
        assert!(history.may_hold(0, 10).is_ok() && history.may_hold(0, 20).is_ok());
        let read = history.read_begins();
        assert!(history.read_ends(read, 0, &[10]).is_ok());
        let read = history.read_begins();
        assert!(history.read_ends(read, 0, &[20]).is_err());
    }
}
