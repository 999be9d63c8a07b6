//! What all rounds together came to.

use std::collections::BTreeMap;
use std::fmt::Write;

use loadline_base::figures::thousands;

use super::plan::{KINDS, Round};
use crate::limited::Ending;
use crate::samples::Samples;
use crate::study::{Checked, Event, Run};

/// Of all faults and returns, so many may not be done, and it is a soak still: one in four.
const MOST_NOT_DONE: usize = 4;

/// What was seen of one kind of faults.
#[derive(Default)]
struct Kind {
    done: usize,
    not_done: usize,
    stalls: Samples,
    /// When it was healed.
    return_stalls: Samples,
    out: Samples,
    never_back: usize,
}

/// The sums over all rounds of a soak: rounds, faults, checks, errors and problems.
#[derive(Default)]
pub(crate) struct Tally {
    rounds: usize,
    failed: usize,
    planned: usize,
    not_done: usize,
    checked: Checked,
    errors: u64,
    lost_workers: u64,
    kinds: BTreeMap<String, Kind>,
    problems: Vec<String>,
}

impl Tally {
    /// Counts a round. What it came to in a line, and what was wrong with it.
    pub(crate) fn add(&mut self, planned: &Round, run: &Run) -> (String, Vec<String>) {
        self.rounds += 1;
        let mut problems = Vec::new();
        if !matches!(run.ending, Ending::Code(0 | 3)) {
            problems.push(format!("loadline run: {}", run.ending));
        }
        let mut checked = Checked::default();
        let mut faults: BTreeMap<&str, usize> = BTreeMap::new();
        let (mut stall, mut outs, mut done) = (None::<f64>, None::<f64>, 0);
        let (mut errors, mut lost_workers) = (0, 0);
        let mut refused = Vec::new();
        for step in &run.steps {
            step.checked.iter().for_each(|of_step| checked.add(of_step));
            errors += step.errors;
            lost_workers += step.lost_workers;
            let mut harmed: BTreeMap<&str, &str> = BTreeMap::new();
            for event in &step.events {
                if let Some(why) = &event.failed {
                    refused.push(format!("{} of {}: {why}", event.kind, event.node));
                } else {
                    done += 1;
                    stall = [stall, event.stall_s].into_iter().flatten().reduce(f64::max);
                    outs = event.out_s.iter().copied().flatten().chain(outs).reduce(f64::max);
                }
                let is_return = event.kind == "return";
                let kind = match is_return {
                    true => harmed.remove(event.node.as_str()).unwrap_or(&event.kind),
                    false => &event.kind,
                };
                self.kinds.entry(kind.to_owned()).or_default().add(event, is_return);
                if event.failed.is_none() && !is_return {
                    harmed.insert(&event.node, &event.kind);
                    *faults.entry(&event.kind).or_default() += 1;
                }
            }
        }
        if checked.bad() > 0 {
            problems.push(format!(
                "{} blocks lost, {} corrupt, {} foreign, {} unreadable",
                checked.lost, checked.corrupt, checked.foreign, checked.unreadable
            ));
        } else if run.is_done() && checked.checked <= checked.unjudged {
            problems.push("no block was judged".into());
        } else if matches!(run.ending, Ending::Code(0 | 3)) && run.steps.is_empty() {
            problems.push("it left no report".into());
        }
        // The load goes on through every fault: a worker that is lost for good, or an I/O that failed, was failed by the storage.
        if lost_workers + errors > 0 {
            problems.push(format!("{lost_workers} workers lost, {errors} I/Os failed"));
        }
        let not_done = if run.steps.is_empty() { 0 } else { planned.planned.saturating_sub(done) };
        self.planned += if run.steps.is_empty() { 0 } else { planned.planned };
        self.not_done += not_done;
        self.checked.add(&checked);
        self.errors += errors;
        self.lost_workers += lost_workers;
        self.failed += usize::from(!problems.is_empty());
        let number = self.rounds;
        self.problems.extend(problems.iter().map(|problem| format!("round {number}: {problem}")));

        let of_kind = |(kind, _): &(&'static str, u64)| {
            faults.get(kind).map(|count| if *count == 1 { (*kind).into() } else { format!("{count} {kind}") })
        };
        let faults: Vec<String> = KINDS.iter().filter_map(of_kind).collect();
        let seconds = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2} s"));
        let mut text = if faults.is_empty() { "no faults".into() } else { faults.join(", ") };
        let bad = checked.bad();
        let _ = write!(
            text,
            "\n    {} blocks checked, {bad} bad; longest stall {}, workers out {}",
            thousands(checked.checked as f64),
            seconds(stall),
            seconds(outs)
        );
        for (count, what) in [
            (lost_workers, "workers lost"),
            (errors, "I/Os failed"),
            (not_done as u64, "faults or returns not done"),
        ] {
            if count > 0 {
                let _ = write!(text, ", {count} {what}");
            }
        }
        for why in refused {
            let _ = write!(text, "\n    not done: {why}");
        }
        (text, problems)
    }

    /// Why the soak failed; empty if it did not.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = self.problems.clone();
        if self.not_done * MOST_NOT_DONE > self.planned {
            problems.push(format!(
                "{} of {} faults and returns were not done, more than a quarter",
                self.not_done, self.planned
            ));
        }
        problems
    }

    /// The table at the end.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Text grows in memory.
        let _ = writeln!(
            text,
            "{:<12} {:>5} {:>8}  {:^22}  {:^22}  {:^22} {:>10}",
            "", "", "", "longest stall s", "stall at return s", "workers out s", ""
        );
        let three = |[median, p95, max]: [String; 3]| format!("{median:>7}{p95:>7}{max:>8}");
        let titles = || three(["median", "p95", "max"].map(String::from));
        let _ = writeln!(
            text,
            "{:<12} {:>5} {:>8}  {}  {}  {} {:>10}",
            "fault",
            "done",
            "not done",
            titles(),
            titles(),
            titles(),
            "never back"
        );
        for (name, _) in KINDS {
            let Some(kind) = self.kinds.get(name) else { continue };
            let _ = writeln!(
                text,
                "{name:<12} {:>5} {:>8}  {}  {}  {} {:>10}",
                kind.done,
                kind.not_done,
                three(kind.stalls.three()),
                three(kind.return_stalls.three()),
                three(kind.out.three()),
                kind.never_back
            );
        }
        let all = &self.checked;
        let _ = writeln!(
            text,
            "\n{} rounds, {} failed; {} of {} faults and returns not done",
            self.rounds, self.failed, self.not_done, self.planned
        );
        let _ = writeln!(
            text,
            "{} blocks checked ({} not judged): {} lost, {} corrupt, {} foreign, {} unreadable",
            thousands(all.checked as f64),
            thousands(all.unjudged as f64),
            all.lost,
            all.corrupt,
            all.foreign,
            all.unreadable
        );
        let _ = write!(text, "{} I/Os failed, {} workers were lost", self.errors, self.lost_workers);
        text
    }
}

impl Kind {
    fn add(&mut self, event: &Event, is_return: bool) {
        if event.failed.is_some() {
            self.not_done += usize::from(!is_return);
            return;
        }
        if is_return {
            event.stall_s.iter().for_each(|stall| self.return_stalls.add(*stall));
            return;
        }
        self.done += 1;
        event.stall_s.iter().for_each(|stall| self.stalls.add(*stall));
        event.out_s.iter().flatten().for_each(|out| self.out.add(*out));
        self.never_back += event.out_s.iter().filter(|out| out.is_none()).count();
    }
}
