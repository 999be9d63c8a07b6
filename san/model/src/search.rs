//! Runs a search, and reports what it found.

use std::fmt;
use std::time::{Duration, Instant};

use stateright::{Checker, Expectation, HasDiscoveries, Model};

use crate::Rule;
use crate::protocol::{Action, Bounds, Protocol};

/// The result of a search.
#[derive(Debug, Clone)]
pub struct SearchResult {
    /// States, each counted once. If a depth is the bound, those one step beyond it are counted, and not
    /// looked at.
    pub states: usize,
    /// The longest way from the beginning that was gone, in steps.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// The property that is broken, if one is, and the steps that lead there.
    pub counterexample: Option<(&'static str, Vec<Action>)>,
    /// What should be reached, and was.
    pub reached: Vec<&'static str>,
}

/// Searches all states within the bounds, breadth first, until all are seen or something is broken.
///
/// It runs in one thread: with more, a state may be found on a longer way first, and a bound on the depth
/// would then cut off what is within it.
pub fn check(bounds: Bounds, left_out: Option<Rule>) -> SearchResult {
    let begun = Instant::now();
    let mut search = Protocol { bounds, left_out }.checker().finish_when(HasDiscoveries::AnyFailures);
    if let Some(steps) = bounds.depth {
        // The checker counts the beginning, too, and does not check the last states that it makes.
        search = search.target_max_depth(steps + 2);
    }
    let search = search.spawn_bfs().join();
    let mut found = SearchResult {
        states: search.unique_state_count(),
        depth: bounds.depth.unwrap_or(usize::MAX).min(search.max_depth() - 1),
        took: begun.elapsed(),
        counterexample: None,
        reached: Vec::new(),
    };
    for property in search.model().properties() {
        let Some(way) = search.discovery(property.name) else { continue };
        match property.expectation {
            Expectation::Sometimes => found.reached.push(property.name),
            _ => found.counterexample = Some((property.name, way.into_actions())),
        }
    }
    found
}

impl fmt::Display for SearchResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs_f64();
        write!(f, "{} states, {} steps deep, {seconds:.1} s", self.states, self.depth)?;
        for reached in &self.reached {
            write!(f, "\n  {reached}")?;
        }
        if let Some((property, way)) = &self.counterexample {
            write!(f, "\n  broken after {} steps: {property}", way.len())?;
            for (number, action) in (1..).zip(way) {
                write!(f, "\n  {number:3} {action:?}")?;
            }
        }
        Ok(())
    }
}
