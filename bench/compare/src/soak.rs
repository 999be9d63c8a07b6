//! Round after round of random faults under a fleet that checks every block, until the time is over: what `./dev soak` runs.

mod plan;
mod tally;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::limited::Ending;
use crate::random;
use crate::stop;
use crate::study::{Run, Runner};
use plan::Round;
use tally::Tally;

/// How long a round takes beside its windows, before one was seen: the cluster is started and filled, and all is checked.
const BESIDE: Duration = Duration::from_secs(30);
/// The soak ends after this many failed rounds.
const MOST_FAILED: usize = 3;

/// The options of a soak.
pub(crate) struct Setting<'a> {
    pub(crate) program: &'a Path,
    /// Folders of rounds are made here.
    pub(crate) place: &'a Path,
    pub(crate) minutes: u32,
    pub(crate) seed: Option<u64>,
}

/// Runs rounds until the time is over; an error if anything was found.
pub(crate) fn run(setting: &Setting<'_>) -> Result<(), String> {
    let seed = setting.seed.unwrap_or_else(random::fresh_seed);
    println!("seed {seed}: {} minutes of random faults, in rounds of {} s", setting.minutes, plan::WINDOW_S);
    println!("4 nodes, 2 copies, 8 workers; folders of rounds are in {}\n", setting.place.display());
    let end = Instant::now() + Duration::from_secs(60 * u64::from(setting.minutes));
    let mut tally = Tally::default();
    let mut longest = Round::windows() + BESIDE;
    let mut failed = 0;
    let mut number = 0;
    let mut broken = None;
    while number == 0 || Instant::now() + longest < end {
        match round(setting, seed, number, end, &mut tally) {
            Ok(done) => {
                longest = if number == 0 { done.took } else { longest.max(done.took) };
                failed += usize::from(done.failed);
            }
            // Nothing can be run here.
            Err(why) => {
                broken = Some(why);
                break;
            }
        }
        if stop::asked() > 0 {
            break;
        }
        number += 1;
        if failed >= MOST_FAILED {
            println!("{failed} rounds failed: that is enough to look at");
            break;
        }
    }
    println!("\n{}", tally.text());
    println!("the same faults again: ./dev soak --minutes {} --seed {seed}", setting.minutes);
    if let Some(why) = broken {
        return Err(why);
    }
    let problems = tally.problems();
    match (problems.is_empty(), stop::asked()) {
        (true, 0) => Ok(()),
        (true, _) => Err("stopped; nothing was found so far".into()),
        (false, _) => Err(format!("FAILED: {}", problems.join("; "))),
    }
}

/// How a round went.
struct Done {
    took: Duration,
    failed: bool,
}

fn round(
    setting: &Setting<'_>,
    seed: u64,
    number: u64,
    end: Instant,
    tally: &mut Tally,
) -> Result<Done, String> {
    let planned = Round::of(seed, number);
    let runner = Runner {
        program: setting.program,
        place: setting.place,
        prefix: "loadline-soak-",
        arguments: &["--keep"],
    };
    let mut line = Line::default();
    let run = runner.run(&planned.study, Round::windows(), |so_far| {
        let left = end.saturating_duration_since(Instant::now()).as_secs();
        let load = planned.load;
        let so_far = so_far.as_secs();
        line.show(&format!("round {}  {load}: {so_far} s, {}m{:02}s left", number + 1, left / 60, left % 60));
    })?;
    line.clear();
    let took = run.took;
    if run.ending == Ending::Stopped {
        return Ok(Done { took, failed: false });
    }
    let (text, problems) = tally.add(&planned, &run);
    println!("round {:<3} {:<16} {text}", number + 1, planned.load);
    let failed = !problems.is_empty();
    if failed {
        report(run, &problems);
    }
    Ok(Done { took, failed })
}

/// What was wrong in a round, which is kept.
fn report(run: Run, problems: &[String]) {
    let why = if run.is_done() { String::new() } else { run.why() };
    println!("    FAILED: {}", problems.join("; "));
    for line in why.lines().rev().take(8).collect::<Vec<_>>().into_iter().rev() {
        println!("    | {line}");
    }
    println!("    everything of it is in {}", run.keep().display());
}

/// A line of a terminal that is written again and again.
#[derive(Default)]
pub(crate) struct Line {
    shown: bool,
}

impl Line {
    pub(crate) fn show(&mut self, text: &str) {
        let mut terminal = std::io::stderr();
        if terminal.is_terminal() && stop::asked() == 0 {
            // Nothing is lost if it cannot be shown.
            let _ = write!(terminal, "\r\x1b[K{text}").and_then(|()| terminal.flush());
            self.shown = true;
        }
    }

    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
