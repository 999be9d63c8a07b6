//! For a service manager: when this node serves, and whether a part of it hangs.

use std::time::{Duration, Instant};

use super::{Inner, Node};
use crate::event_loop::command::LoopCommand;

/// Checks that no thread of a node hangs on which its volumes depend. The check runs on the thread of the control path: if that one
/// hangs, there is no check.
#[derive(Debug)]
pub struct Pulse {
    node: Node,
    /// For each loop: the events that it has sent, and since when this number has not changed.
    loops: Vec<(u64, Instant)>,
    /// The same for the thread of the configuration, and the pieces of work that it has done.
    config: (u64, Instant),
}

impl Node {
    /// Waits until this process has read the configuration and applied it once: devices that can be opened are open, volumes have
    /// their sockets, and clients are let in. A device that hangs is not waited for.
    pub async fn until_applied(&self) {
        while !self.wait_until(Duration::from_secs(60), |state| state.applied).await {}
    }

    /// Checks of this node.
    pub fn pulse(&self) -> Pulse {
        let now = Instant::now();
        Pulse { node: self.clone(), loops: vec![(0, now); self.0.loops.len()], config: (0, now) }
    }
}

impl Pulse {
    /// Which thread hangs, for people; `None` if none does. Each check gives every thread something to do that takes no time, and a
    /// thread hangs if it has completed nothing for `limit`. So a loop that opens many replicas one after the other does not hang, and
    /// neither does the configuration if its store does not answer: each request to a store has a limit of its own, of 9 s at most.
    pub fn hung(&mut self, limit: Duration) -> Option<String> {
        let now = Instant::now();
        let Inner { config, loops, .. } = &*self.node.0;
        let mut hung = None;
        let mut check = |seen: &mut (u64, Instant), done: u64, name: &str| {
            if done != seen.0 {
                *seen = (done, now);
            }
            let silent = now.duration_since(seen.1);
            if silent >= limit {
                hung.get_or_insert_with(|| {
                    format!("{name} has completed nothing for {} s", silent.as_secs())
                });
            }
        };
        for ((number, commands), seen) in (0..).zip(loops).zip(&mut self.loops) {
            let events = self.node.state().events.get(&number).copied().unwrap_or(0);
            check(seen, events, &format!("loop-{number}"));
            commands.give(LoopCommand::ReportState);
        }
        check(&mut self.config, config.turns(), "config");
        config.take_a_turn();
        hung
    }
}
