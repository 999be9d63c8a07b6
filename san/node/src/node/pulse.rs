//! For a service manager: when this node serves, and whether a part of it hangs.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::Node;
use crate::event_loop::command::LoopCommand;

/// Checks that no thread of a node hangs on which its volumes depend. The check runs on the thread of the control path: if that one
/// hangs, no check ends.
#[derive(Debug)]
pub struct Pulse {
    node: Node,
    /// Answered by the thread of the configuration when it has reached the job that this check has given to it.
    pending: Option<oneshot::Receiver<()>>,
    /// The turns of that thread, and since when the thread has made no further one while a job waited.
    turns: (u64, Instant),
}

impl Node {
    /// Waits until this process has read the configuration and applied it once: devices that can be opened are open, volumes have
    /// their sockets, and clients are let in. A device that hangs is not waited for.
    pub async fn until_applied(&self) {
        while !self.wait_until(Duration::from_secs(60), |state| state.applied).await {}
    }

    /// Checks of this node.
    pub fn pulse(&self) -> Pulse {
        Pulse { node: self.clone(), pending: None, turns: (0, Instant::now()) }
    }
}

impl Pulse {
    /// Which thread hangs, for people; `None` if all respond. A thread of the data path hangs if it does not answer within
    /// `data_path`. That of the configuration hangs if one piece of work takes longer than `configuration`: each request to a
    /// configuration store has a shorter limit, so that a store which does not answer is no reason.
    pub async fn hung(&mut self, data_path: Duration, configuration: Duration) -> Option<String> {
        let until = tokio::time::Instant::now() + data_path;
        let mut answers = Vec::new();
        for (number, commands) in (0..).zip(&self.node.0.loops) {
            let (answer, answered) = oneshot::channel();
            self.node.state().state_requests.entry(number).or_default().push(answer);
            commands.give(LoopCommand::ReportState);
            answers.push((number, answered));
        }
        for (number, answered) in answers {
            if !matches!(tokio::time::timeout_at(until, answered).await, Ok(Ok(()))) {
                return Some(format!("loop-{number} has not answered for {} s", data_path.as_secs()));
            }
        }
        let is_reached = self.pending.as_mut().is_none_or(|pending| pending.try_recv().is_ok());
        let turns = self.node.0.config.turns();
        if is_reached || turns != self.turns.0 {
            self.turns = (turns, Instant::now());
        }
        if is_reached {
            self.pending = Some(self.node.0.config.reach());
        }
        let silent = self.turns.1.elapsed();
        (silent >= configuration)
            .then(|| format!("config is at one piece of work since {} s", silent.as_secs()))
    }
}
