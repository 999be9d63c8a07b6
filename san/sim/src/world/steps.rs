//! What processes do: a replica, a store or a volume takes a step, and its actions are carried out.

use loadline_san_core::ids::ReplicaId;
use loadline_san_core::message::{FromOwner, ToReplica};
use loadline_san_core::replica;
use loadline_san_core::store::Completion;
use loadline_san_core::volume::{self, CommandError, Event, Request, Status};

use super::tenant::merge;
use super::{Happening, Question, World, show};
use crate::coverage::{name_of_answer, name_of_command, name_of_message, name_of_status};
use crate::store::Blocks;
use crate::time::MS;

impl World {
    /// A message arrives at a replica.
    pub(crate) fn deliver(&mut self, node: usize, header: &FromOwner, message: ToReplica<Blocks>) {
        let here =
            self.nodes[node].process.as_ref().is_some_and(|p| p.replicas.contains_key(&header.replica));
        if here {
            self.receives(header, &message);
            self.step_replica(node, header.replica, replica::Event::Message(*header, message));
            self.received_from = None;
        }
    }

    /// A replica takes a step.
    pub(crate) fn step_replica(&mut self, node: usize, id: ReplicaId, event: replica::Event<Blocks>) {
        let now = self.clock(node);
        let Some(process) = &mut self.nodes[node].process else { return };
        let Some(replica) = process.replicas.get_mut(&id) else { return };
        let mut replies = std::mem::take(&mut self.replies);
        if let Err(misdirected) = replica.step(now, event, &mut replies) {
            panic!("nothing is misdirected here: {misdirected}");
        }
        let life = process.life;
        for action in replies.drain(..) {
            if !self.is_alive(node, life) {
                // It was killed between two actions.
                break;
            }
            match action {
                replica::Action::Send(to, header, answer) => {
                    self.trace_event(|| format!("n{node} {id} → {}  {}", header.owner, brief(&answer)));
                    self.coverage.count("answer", name_of_answer(&answer));
                    let to = to.0 as usize;
                    self.carry(node, to, Happening::ToOwner(to, header, answer));
                }
                replica::Action::Store(command) => {
                    self.submitted(node, id, &command);
                    self.trace_event(|| format!("n{node} {id} does {}", brief(&command)));
                    let state = &mut self.nodes[node];
                    state.stores.get_mut(&id).expect("a replica has a store").submit(command);
                    self.wake_store(node, id, life);
                }
            }
        }
        self.replies = replies;
    }

    /// A store has something to do.
    pub(crate) fn wake_store(&mut self, node: usize, id: ReplicaId, life: u64) {
        let process = self.nodes[node].process.as_mut().expect("it is alive");
        if process.stepping.insert(id) {
            let delay = self.rng.below(self.weather.disk_slowest);
            self.after(delay, Happening::Store(node, id, life));
        }
    }

    /// A store does its next step.
    pub(crate) fn step_store(&mut self, node: usize, id: ReplicaId, life: u64) {
        if !self.is_alive(node, life) {
            return;
        }
        if self.hung.contains(&id) {
            self.after(MS, Happening::Store(node, id, life));
            return;
        }
        let state = &mut self.nodes[node];
        let store = state.stores.get_mut(&id).expect("stores stay");
        let mut completions = Vec::new();
        let discards = store.discards();
        let more = store.step(&mut self.rng, &mut completions);
        if more {
            let delay = self.rng.below(self.weather.disk_slowest);
            self.after(delay, Happening::Store(node, id, life));
        } else {
            state.process.as_mut().expect("it is alive").stepping.remove(&id);
        }
        for completion in completions {
            let promised = matches!(completion, Completion::Promised(_));
            let emptied = discards && matches!(completion, Completion::Listed(_));
            self.store_reports(id, &completion);
            self.step_replica(node, id, replica::Event::Store(completion));
            if promised {
                self.steer("promised", node);
            }
            if emptied {
                self.coverage.count("situation", "a damaged store was emptied");
                self.steer("emptied", node);
            }
        }
    }

    // ---- volumes --------------------------------------------------------------------------------------

    /// A volume takes a step.
    pub(crate) fn step_volume(&mut self, node: usize, event: Event<Blocks>) {
        let now = self.clock(node);
        let Some(process) = &mut self.nodes[node].process else { return };
        let mut actions = std::mem::take(&mut self.actions);
        let before = process.volume.status();
        let command =
            if let Event::Command(command) = &event { Some(name_of_command(command)) } else { None };
        if matches!(event, Event::Detach | Event::Fence) {
            process.let_in = false;
        }
        process.volume.step(now, event, &mut actions);
        let at_once = |action: &volume::Action<Blocks>| match action {
            volume::Action::Done(Err(why)) => *why != CommandError::Superseded,
            _ => false,
        };
        if let Some(name) = command {
            match actions.iter().any(at_once) {
                true => self.coverage.count("command", &format!("{name}, refused")),
                false => process.last_command = name,
            }
        }
        for action in &actions {
            match action {
                volume::Action::Attached => process.let_in = true,
                volume::Action::Detached => process.let_in = false,
                _ => {}
            }
        }
        let (after, life) = (process.volume.status(), process.life);
        if before != after {
            self.trace_event(|| format!("n{node}.{life} is {}", name_of_status(after)));
            self.coverage.transition(before, after);
            self.status_changed(node, after);
        }
        for action in actions.drain(..) {
            if !self.is_alive(node, life) {
                // It was killed between two actions.
                break;
            }
            self.act(node, life, action);
        }
        self.actions = actions;
    }

    fn act(&mut self, node: usize, life: u64, action: volume::Action<Blocks>) {
        match action {
            volume::Action::Send { to, header, message } => {
                self.trace_event(|| {
                    format!("n{node}.{life} → {}  e{} {}", header.replica, header.epoch.0, brief(&message))
                });
                self.coverage.count("message", name_of_message(&message));
                let to = to.0 as usize;
                self.carry(node, to, Happening::ToReplica(to, header, message));
            }
            volume::Action::ReadRecord { asked_at } => {
                self.ask(node, life, Question::Read(asked_at));
            }
            volume::Action::QueryNodes { nodes, within_ns } => {
                self.ask_whether_they_run(node, life, &nodes, within_ns);
            }
            volume::Action::Propose { record, replaces } => {
                self.trace_event(|| format!("n{node}.{life} proposes {}", show(&record)));
                self.ask(node, life, Question::Propose(record, replaces));
            }
            volume::Action::Fill { request, at, blocks, content } => {
                self.fill(request, at, blocks, &content);
            }
            volume::Action::Map { request, map } => self.map(request, &map),
            volume::Action::Merge { ownership, job, request, head, tail } => {
                let merged = merge(&request, head.as_ref(), tail.as_ref());
                self.after(self.merge_delay, Happening::Merged(node, life, ownership, job, merged));
            }
            volume::Action::Attached => self.let_in(node),
            volume::Action::Detached => self.detached(node),
            volume::Action::Complete(request, result) => self.completed(request, result),
            volume::Action::Done(result) => {
                let process = self.nodes[node].process.as_ref().expect("it is alive");
                self.coverage.count("command", "answered");
                if result.is_ok() {
                    self.coverage.count("command", process.last_command);
                }
            }
        }
    }

    /// A client's request, to the volume at its node.
    pub(crate) fn request(&mut self, node: usize, request: Request<Blocks>) {
        self.step_volume(node, Event::Request(request));
    }

    fn status_changed(&mut self, node: usize, status: Status) {
        if status == Status::Active || status == Status::Changing {
            self.check_owner(node);
        }
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != node);
        let busy = others.filter_map(|(_, n)| n.process.as_ref()).map(|p| p.volume.status());
        let at_it = |status| matches!(status, Status::Sealing | Status::Equalizing | Status::Activating);
        if at_it(status) && busy.clone().any(at_it) {
            self.coverage.count("situation", "takeover within takeover");
        }
        self.steer(name_of_status(status), node);
    }
}

/// The debug text of something, without the data in it.
fn brief(what: &impl std::fmt::Debug) -> String {
    let text = format!("{what:?}");
    text.replace("Sequence", "").replace("Epoch", "")
}
