//! The model: where it begins, and what may happen in a state.

use stateright::{Model, Property};

use crate::Rule;
use crate::properties;
use crate::protocol::{Action, Protocol};
use crate::state::{BLOCKS, Owner, Phase, Position, REPLICAS, Record, Replica, Set, State};

impl Protocol {
    fn offered(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend((0..state.queue.len()).map(Action::Commit));
        for node in 0..self.bounds.owners {
            let owner = &state.owners[node];
            if owner.phase != Phase::Active && owner.undecided.is_none() && state.left.takeovers > 0 {
                actions.push(Action::TakeOver(node));
            }
            if owner.phase != Phase::Idle {
                actions.push(Action::ReadRecord(node));
            }
            match owner.phase {
                Phase::Idle => {}
                Phase::TakingOver => {
                    for replica in owner.known.in_sync.iter() {
                        actions.extend([Action::Seal(node, replica), Action::Equalize(node, replica)]);
                    }
                    let some = (1..=owner.equal.0).map(Set).filter(|some| some.within(owner.equal));
                    actions.extend(some.map(|some| Action::Activate(node, some)));
                }
                Phase::Active => self.offered_active(node, actions),
            }
        }
        for node in 0..self.bounds.replicas {
            actions.extend([Action::Destage(node), Action::Crash(node)]);
            if self.without(Rule::ListAfterPromise) {
                actions.push(Action::List(node));
            }
        }
    }

    fn offered_active(&self, node: usize, actions: &mut Vec<Action>) {
        actions.extend([Action::Acknowledge(node), Action::WriteCopy(node), Action::Add(node)]);
        for replica in 0..self.bounds.replicas {
            actions.extend([
                Action::Append(node, replica),
                Action::SendCommitPoint(node, replica),
                Action::Remove(node, replica),
                Action::OpenSession(node, replica),
            ]);
        }
        for block in 0..self.bounds.blocks {
            actions.extend([Action::Write(node, block), Action::ReadCopy(node, block)]);
        }
        if self.bounds.left.reads > 0 {
            actions.extend((0..self.bounds.blocks).map(|block| Action::BeginRead(node, block)));
            actions.extend([Action::Grant(node), Action::Expire(node)]);
            actions.extend([Action::Sample(node), Action::EndRead(node)]);
        }
        if self.without(Rule::L1) {
            actions.push(Action::ArriveLate(node));
        }
        if self.without(Rule::OneSession) {
            actions.push(Action::WriteLateCopy(node));
        }
        if self.without(Rule::T4) {
            actions.push(Action::IssueAgain(node));
        }
    }

    fn begin(&self) -> State {
        // Node 0 is the owner, in epoch 1, and its opening entry is acknowledged.
        let opened = Position { epoch: 1, number: 1 };
        let all = Set::first(self.bounds.replicas);
        let record = Record { epoch: 1, owner: 0, active: true, in_sync: all, departed: [0; REPLICAS] };
        let replica = Replica {
            promise: 1,
            epoch: 1,
            commit_point: opened,
            commit_point_epoch: 1,
            ownership: 1,
            last: opened,
            ..Replica::default()
        };
        let owner = Owner {
            phase: Phase::Active,
            known: record,
            ownership: 1,
            issued: 1,
            acked: opened,
            confirmed: [1; REPLICAS],
            ..Owner::default()
        };
        State {
            record,
            queue: Vec::new(),
            owners: [owner, Owner::default(), Owner::default()],
            replicas: std::array::from_fn(|_| replica.clone()),
            acked: [0; BLOCKS],
            seen: [0; BLOCKS],
            last_value: 0,
            left: self.bounds.left,
            flaw: None,
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.begin()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.offered(state, actions);
    }

    // None: the action is not possible, or changes nothing.
    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        match action {
            Action::Write(node, block) => self.write(state, node, block),
            Action::Append(node, replica) => self.append(state, node, replica),
            Action::Acknowledge(node) => self.acknowledge(state, node),
            Action::SendCommitPoint(node, replica) => self.send_commit_point(state, node, replica),
            Action::Remove(node, replica) => self.remove(state, node, replica),
            Action::Commit(which) => self.commit(state, which),
            Action::ReadRecord(node) => self.read_record(state, node),
            Action::TakeOver(node) => self.take_over(state, node),
            Action::Seal(node, replica) => self.seal(state, node, replica),
            Action::Equalize(node, replica) => self.equalize(state, node, replica),
            Action::Activate(node, equal) => self.activate(state, node, equal),
            Action::Grant(node) => self.grant(state, node),
            Action::Expire(node) => self.expire(state, node),
            Action::ArriveLate(node) => self.arrive_late(state, node),
            Action::BeginRead(node, block) => self.begin_read(state, node, block),
            Action::Sample(node) => self.sample(state, node),
            Action::EndRead(node) => self.end_read(state, node),
            Action::List(replica) => self.list(state, replica),
            Action::OpenSession(node, replica) => self.open_session(state, node, replica),
            Action::ReadCopy(node, block) => self.read_copy(state, node, block),
            Action::WriteCopy(node) => self.write_copy(state, node),
            Action::WriteLateCopy(node) => self.write_late_copy(state, node),
            Action::Add(node) => self.add(state, node),
            Action::IssueAgain(node) => self.issue_again(state, node),
            Action::Destage(replica) => self.destage(state, replica),
            Action::Crash(node) => self.crash(state, node),
        }
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
