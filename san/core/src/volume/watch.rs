//! Watching a volume: it is taken over if that is asked for, or if nobody serves it.
//!
//! Nobody serves it if no member that can be reached has granted a lease for a while, nor was asked to be sealed: a takeover
//! in progress is left alone. The wait is a little different each time, so that two who watch rarely begin together.

use std::collections::BTreeMap;

use super::{Action, Context};
use crate::ids::{Epoch, Incarnation, ReplicaId};
use crate::lease::Moment;
use crate::message::{FromOwner, FromReplica, ToOwner, ToReplica};
use crate::record::Group;

/// See the module.
#[derive(Debug)]
pub(super) struct Watch {
    /// Not before: somebody may be at it, or a try of ours has failed.
    not_before: Moment,
    /// The record's epoch that was seen, and since when.
    seen: (Epoch, Moment),
    /// When the members were last asked, and what they have answered since: nanoseconds of quiet.
    asked: Option<Moment>,
    answers: BTreeMap<ReplicaId, u64>,
}

impl Watch {
    pub(super) fn new(now: Moment) -> Watch {
        Watch { not_before: now, seen: (Epoch(0), now), asked: None, answers: BTreeMap::new() }
    }

    pub(super) fn message<D>(&mut self, c: &mut Context, from: &FromReplica, message: &ToOwner<D>) {
        if let ToOwner::Probed { promise, quiet_ns } = message {
            c.promised = c.promised.max(promise.epoch);
            self.answers.insert(from.replica, *quiet_ns);
        }
    }

    /// Whether it is to be taken over now.
    pub(super) fn tick<D>(
        &mut self,
        c: &mut Context,
        now: Moment,
        attached: bool,
        watching: bool,
        out: &mut Vec<Action<D>>,
    ) -> bool {
        if !attached && !watching || c.is_undecided() {
            return false;
        }
        let Some(record) = c.record() else {
            c.look(now, out);
            return false;
        };
        if attached {
            return now >= self.not_before;
        }
        if self.seen.0 != record.epoch {
            self.seen = (record.epoch, now);
        }
        let quiet = c.times.quiet_ns;
        if self.asked.is_some_and(|then| now.since(then) < quiet / 4) {
            return false;
        }
        // The longest quiet that anybody knows of a group is the shortest that its members tell.
        let quiet_of = |group: &Group| {
            let answers = group.in_sync.iter().filter_map(|replica| self.answers.get(replica));
            answers.min().copied()
        };
        let everywhere = record.groups.iter().all(|group| quiet_of(group).is_some());
        // An owner that reaches only some groups serves nobody.
        let is_quiet = everywhere
            && record.groups.iter().any(|group| quiet_of(group) >= Some(quiet))
            && now.since(self.seen.1) >= quiet
            && now >= self.not_before;
        self.asked = Some(now);
        self.answers.clear();
        for (replica, node) in record.members() {
            let header = FromOwner {
                volume: c.volume,
                replica,
                owner: c.me,
                epoch: record.epoch,
                session: 0,
                process: Incarnation(0),
            };
            out.push(Action::Send { to: node, header, message: ToReplica::Probe });
        }
        if is_quiet {
            let wait = c.random(quiet);
            self.not_before = now.after(wait);
            if wait < quiet / 2 {
                return true;
            }
        }
        c.look(now, out);
        false
    }
}
