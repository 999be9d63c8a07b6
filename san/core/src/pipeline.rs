//! The entries of one group that its owner has issued and not yet acknowledged.
//!
//! A replica keeps its entries without a gap, and reports up to which one all are durable. Entries are acknowledged up to
//! the last one that the slowest required replica has: one number for each replica is enough, and no set of answers for
//! each entry.
//!
//! ```text
//!  1 … 40 │ 41   42   43   44 │          acknowledged 40, next 45
//!         │  ■    ■    ■      │  r1: 43
//!         │  ■                │  r2: 41  ─▶ 41 can be acknowledged
//! ```

use std::collections::VecDeque;

use thiserror::Error;

use crate::ids::{ReplicaId, Sequence};
use crate::rule::{Rule, left_out};

/// Why a report of a replica contradicts what was issued or what it reported before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Nonsense {
    /// It reports entries that were never issued.
    #[error("{replica} reports entries up to {said} as durable, and {issued} were issued")]
    Beyond {
        /// The replica that reports it.
        replica: ReplicaId,
        /// Up to where.
        said: u64,
        /// The last one that was issued.
        issued: u64,
    },
    /// It has lost entries that it had reported as durable: it is damaged.
    #[error(
        "{replica} has entries up to {said}, and had reported entries up to {durable} as durable: it has lost some"
    )]
    Lost {
        /// The replica that reports it.
        replica: ReplicaId,
        /// Up to where.
        said: u64,
        /// The last entry that it had reported as durable before.
        durable: u64,
    },
}

/// The window of issued entries of one group, and how far each replica is. `T` is an entry.
#[derive(Debug)]
pub struct Pipeline<T> {
    acknowledged: Sequence,
    /// All entries up to this one are acknowledged, and durable on every replica that receives them: they are not needed any more.
    released: Sequence,
    /// The entries after `released`, in order.
    window: VecDeque<T>,
    replicas: Vec<Progress>,
}

#[derive(Debug)]
struct Progress {
    replica: ReplicaId,
    durable: Sequence,
    required: bool,
}

impl<T> Pipeline<T> {
    /// Nothing was issued yet by this ownership.
    pub fn new() -> Pipeline<T> {
        Pipeline {
            acknowledged: Sequence(0),
            released: Sequence(0),
            window: VecDeque::new(),
            replicas: Vec::new(),
        }
    }

    /// The last that is acknowledged.
    pub fn acknowledged(&self) -> Sequence {
        self.acknowledged
    }

    /// The last that was issued.
    pub fn issued(&self) -> Sequence {
        Sequence(self.released.0 + self.window.len() as u64)
    }

    /// Issues an entry.
    pub fn issue(&mut self, what: T) -> Sequence {
        self.window.push_back(what);
        self.issued()
    }

    /// An entry that is still needed.
    pub fn entry(&self, sequence: Sequence) -> Option<&T> {
        let index = sequence.0.checked_sub(self.released.0 + 1)?;
        self.window.get(usize::try_from(index).ok()?)
    }

    /// The replicas that must have an entry before it is acknowledged. A replica that is new here gets everything from the lowest
    /// unacknowledged entry on (rule C2), so it counts as having what is before.
    pub fn require(&mut self, replicas: impl IntoIterator<Item = ReplicaId>) {
        self.replicas.iter_mut().for_each(|progress| progress.required = false);
        for replica in replicas {
            let known = self.follow(replica);
            self.replicas[known].required = true;
        }
    }

    /// A replica gets entries from now on, be it required or not yet.
    pub fn follow(&mut self, replica: ReplicaId) -> usize {
        self.replicas.iter().position(|p| p.replica == replica).unwrap_or_else(|| {
            self.replicas.push(Progress { replica, durable: self.acknowledged, required: false });
            self.replicas.len() - 1
        })
    }

    /// A replica gets no more entries. If it is required, nothing is acknowledged until it is not required, or has returned.
    pub fn forget(&mut self, replica: ReplicaId) {
        self.replicas.retain(|p| p.replica != replica || p.required);
    }

    /// A replica reports that all entries up to this one are durable. Late and repeated messages report less than is
    /// known: that is no news. Of a replica that gets no entries nothing is taken.
    ///
    /// A report from before the replica left and returned must never get here (its session or connection shows that):
    /// the replica has since dropped entries that it had reported as durable.
    pub fn durable(&mut self, replica: ReplicaId, through: Sequence) -> Result<(), Nonsense> {
        let issued = self.issued();
        let Some(progress) = self.replicas.iter_mut().find(|p| p.replica == replica) else { return Ok(()) };
        if through > issued {
            return Err(Nonsense::Beyond { replica, said: through.0, issued: issued.0 });
        }
        progress.durable = progress.durable.max(through);
        Ok(())
    }

    /// A replica that was connected anew reports what it has. If that is less than it reported before, the replica has lost something.
    pub fn connected(&mut self, replica: ReplicaId, through: Sequence) -> Result<(), Nonsense> {
        if let Some(progress) = self.replicas.iter().find(|p| p.replica == replica)
            && through < progress.durable
        {
            return Err(Nonsense::Lost { replica, said: through.0, durable: progress.durable.0 });
        }
        self.durable(replica, through)
    }

    /// The next that every required replica has, if there is one: it is acknowledged by this. With no replica required,
    /// nothing ever is.
    pub fn acknowledge(&mut self) -> Option<&mut T> {
        let required = self.replicas.iter().filter(|p| p.required).map(|p| p.durable);
        let through = if left_out(Rule::W4) { required.max()? } else { required.min()? };
        if through <= self.acknowledged {
            return None;
        }
        self.acknowledged = self.acknowledged.next();
        let index = self.acknowledged.0 - self.released.0 - 1;
        Some(self.window.get_mut(index as usize).expect("an entry is not released before it is acknowledged"))
    }

    /// The next that no replica needs any more, if there is one: acknowledged, and durable on every replica that gets entries.
    pub fn release(&mut self) -> Option<T> {
        let slowest = self.replicas.iter().map(|p| p.durable).min().unwrap_or(self.acknowledged);
        if self.released >= slowest.min(self.acknowledged) {
            return None;
        }
        self.released = self.released.next();
        self.window.pop_front()
    }

    /// Goes on after an entry that another owner issued. It is needed only with rule P3 left out.
    #[cfg(feature = "mutants")]
    pub fn believe(&mut self, last: Sequence) {
        (self.acknowledged, self.released) = (last, last);
        self.window.clear();
    }

    /// Nothing can be left out.
    #[cfg(not(feature = "mutants"))]
    pub fn believe(&mut self, _: Sequence) {}

    /// A replica gets entries from now on; those before, although they are not acknowledged, it does not get (rule C2 left
    /// out).
    pub fn follow_from_now(&mut self, replica: ReplicaId) {
        let durable = self.issued();
        self.replicas.push(Progress { replica, durable, required: false });
    }

    /// Up to where all is durable on a replica that gets entries.
    pub fn durable_on(&self, replica: ReplicaId) -> Option<Sequence> {
        self.replicas.iter().find(|p| p.replica == replica).map(|p| p.durable)
    }
}

impl<T> Default for Pipeline<T> {
    fn default() -> Self {
        Pipeline::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const A: ReplicaId = ReplicaId(1);
    const B: ReplicaId = ReplicaId(2);

    fn all(pipeline: &mut Pipeline<u32>) -> Vec<u32> {
        std::iter::from_fn(|| pipeline.acknowledge().copied()).collect()
    }

    #[test]
    fn an_entry_is_acknowledged_when_all_have_it_and_all_before_it() {
        let mut pipeline = Pipeline::new();
        pipeline.require([A, B]);
        assert_eq!((pipeline.issue(10), pipeline.issue(11)), (Sequence(1), Sequence(2)));
        pipeline.durable(A, Sequence(2)).unwrap();
        assert_eq!(all(&mut pipeline), []);
        pipeline.durable(B, Sequence(1)).unwrap();
        assert_eq!(all(&mut pipeline), [10]);
        pipeline.require([A]);
        assert_eq!(all(&mut pipeline), [11], "it was waiting for B, which is removed");
    }

    #[test]
    fn a_replica_that_comes_back_is_needed_only_for_what_it_gets() {
        let mut pipeline = Pipeline::new();
        pipeline.require([A]);
        for entry in 1..=3 {
            pipeline.issue(entry);
        }
        pipeline.durable(A, Sequence(2)).unwrap();
        assert_eq!(all(&mut pipeline), [1, 2]);
        pipeline.follow(B);
        assert_eq!(pipeline.durable_on(B), Some(Sequence(2)), "it gets what is not acknowledged");
        assert_eq!((pipeline.release(), pipeline.release()), (Some(1), Some(2)));
        pipeline.require([A, B]);
        pipeline.durable(A, Sequence(3)).unwrap();
        assert_eq!(all(&mut pipeline), []);
        pipeline.durable(B, Sequence(3)).unwrap();
        assert_eq!(all(&mut pipeline), [3]);
    }

    #[test]
    fn without_a_required_replica_nothing_is_acknowledged() {
        let mut pipeline = Pipeline::new();
        pipeline.follow(A);
        pipeline.issue(1);
        pipeline.durable(A, Sequence(1)).unwrap();
        assert_eq!(pipeline.acknowledge(), None);
    }

    #[test]
    fn a_report_that_cannot_be_is_an_error_and_changes_nothing() {
        let mut pipeline = Pipeline::new();
        pipeline.require([A]);
        pipeline.issue(1);
        let beyond = pipeline.durable(A, Sequence(2));
        assert_eq!(beyond, Err(Nonsense::Beyond { replica: A, said: 2, issued: 1 }));
        assert_eq!(pipeline.acknowledge(), None);
        pipeline.durable(A, Sequence(1)).unwrap();
        pipeline.durable(A, Sequence(0)).unwrap();
        let lost = pipeline.connected(A, Sequence(0));
        assert_eq!(lost, Err(Nonsense::Lost { replica: A, said: 0, durable: 1 }));
        assert_eq!(all(&mut pipeline), [1]);
        assert_eq!(pipeline.durable(B, Sequence(9)), Ok(()), "a stranger says nothing");
    }

    proptest! {
        #[test]
        fn what_is_acknowledged_is_durable_on_all_that_were_required(
            steps in prop::collection::vec((0..4u8, 0..3u64, 0..12u64), 1..150),
        ) {
            let mut pipeline = Pipeline::new();
            let mut required = vec![ReplicaId(0)];
            pipeline.require(required.clone());
            // What each replica has reported since it began to follow, and where it began.
            let mut said: BTreeMap<ReplicaId, u64> = [(ReplicaId(0), 0)].into();
            let mut last = 0;
            for (step, which, through) in steps {
                let replica = ReplicaId(which);
                match step {
                    0 => {
                        let number = pipeline.issued().0 + 1;
                        prop_assert_eq!(pipeline.issue(number), Sequence(number));
                    }
                    1 if through <= pipeline.issued().0 => {
                        pipeline.durable(replica, Sequence(through)).unwrap();
                        said.entry(replica).and_modify(|s| *s = through.max(*s));
                    }
                    2 => {
                        required = if through % 2 == 0 { vec![replica] } else { vec![ReplicaId(0), replica] };
                        pipeline.require(required.clone());
                        for replica in &required {
                            said.entry(*replica).or_insert(pipeline.acknowledged().0);
                        }
                    }
                    3 => {
                        pipeline.forget(replica);
                        if !required.contains(&replica) {
                            said.remove(&replica);
                        }
                    }
                    _ => {}
                }
                while let Some(number) = pipeline.acknowledge().copied() {
                    prop_assert_eq!(number, last + 1, "in their order");
                    last = number;
                    for replica in &required {
                        prop_assert!(said[replica] >= number, "{} has it not", replica);
                    }
                }
                let least = required.iter().map(|r| said[r]).min().unwrap();
                prop_assert!(last >= least, "what all have is acknowledged at once");
            }
        }
    }
}
