//! Nodes are killed and come back, one after the other, under a fleet that checks every block.

use std::time::Duration;

use loadline_base::figures::thousands;

use super::{Setting, row};
use crate::random::Random;
use crate::samples::Samples;
use crate::soak::Line;
use crate::study::{Checked, Runner, Step};

/// Kills in one window, when the first one is, and how far the next one is behind, seconds. Workers of a node are out for some
/// three seconds, and what was missed is copied in one.
const KILLS: u32 = 6;
const FIRST_S: u32 = 3;
const EVERY_S: u32 = 9;
const RETURN_AFTER_S: u32 = 5;
const NODES: u64 = 4;

#[derive(Default)]
struct Seen {
    kills: u32,
    stalls: Samples,
    return_stalls: Samples,
    out: Samples,
    never_back: usize,
    not_done: usize,
    checked: Checked,
    errors: u64,
    lost_workers: u64,
}

pub(super) fn measure(setting: &Setting<'_>) -> Result<(), String> {
    println!(
        "nodes are killed and return {RETURN_AFTER_S} s later: 4 nodes, 2 copies, 8 workers, 4K 50 % writes, every block \
         checked; seed {}\n",
        setting.seed
    );
    let mut random = Random::of(setting.seed, 0);
    let mut seen = Seen::default();
    let mut line = Line::default();
    // A kill that is refused is made up for, but not for ever.
    let most = 2 * setting.kills.div_ceil(KILLS);
    for _ in 0..most {
        let done = seen.kills;
        if done >= setting.kills {
            break;
        }
        let kills = (setting.kills - done).min(KILLS);
        let window_s = FIRST_S + kills * EVERY_S + 1;
        let text = study(&mut random, kills, window_s);
        let runner = Runner {
            program: &setting.context.program,
            place: setting.disk,
            prefix: "loadline-compare-",
            arguments: &["--keep"],
        };
        let run = runner.run(&text, Duration::from_secs(u64::from(window_s) + 2), |so_far| {
            let all = setting.kills;
            line.show(&format!("faults: {done} of {all} kills, {} s in this window", so_far.as_secs()));
        })?;
        line.clear();
        let bad: u64 = run.steps.iter().filter_map(|step| step.checked.as_ref()).map(Checked::bad).sum();
        run.steps.iter().for_each(|step| seen.add(step));
        if bad > 0 {
            println!("{bad} blocks are bad: everything is in {}", run.keep().display());
        } else if let Err(why) = run.only() {
            seen.print();
            return Err(why);
        }
    }
    seen.print();
    match seen.checked.bad() {
        0 => Ok(()),
        bad => Err(format!("{bad} blocks are bad")),
    }
}

fn study(random: &mut Random, kills: u32, window_s: u32) -> String {
    let fault = |kill: u32| {
        let (at, node) = (FIRST_S + kill * EVERY_S, random.within(1, NODES));
        let back = at + RETURN_AFTER_S;
        format!(
            "    {{ at = \"{at}s\", do = \"kill\", node = \"node-{node}\" }},\n    {{ at = \"{back}s\", do = \"return\", node \
             = \"node-{node}\" }},\n"
        )
    };
    let faults: String = (0..kills).map(fault).collect();
    format!(
        "name = \"kills\"\nprofiles = [\"B4-T1-O4-W50-PR\"]\nfaults = [\n{faults}]\n\n[target]\nsan = {{ copies = 2 \
         }}\n\n[fleet]\nnodes = {NODES}\nworkers_per_node = 2\ndisk_size = \"16MiB\"\n\n[phases]\nwarm_up = \
         \"1s\"\nmeasure = \"{window_s}s\"\ncool_down = \"1s\"\n\n[run]\nrepeats = 1\nverify = true\n"
    )
}

impl Seen {
    fn add(&mut self, step: &Step) {
        step.checked.iter().for_each(|checked| self.checked.add(checked));
        self.errors += step.errors;
        self.lost_workers += step.lost_workers;
        for event in &step.events {
            if let Some(why) = &event.failed {
                self.not_done += 1;
                println!("not done: {} of {}: {why}", event.kind, event.node);
            } else if event.kind == "return" {
                event.stall_s.iter().for_each(|stall| self.return_stalls.add(*stall));
            } else {
                self.kills += 1;
                event.stall_s.iter().for_each(|stall| self.stalls.add(*stall));
                event.out_s.iter().flatten().for_each(|out| self.out.add(*out));
                self.never_back += event.out_s.iter().filter(|out| out.is_none()).count();
            }
        }
    }

    fn print(&self) {
        if self.kills == 0 {
            return;
        }
        let three = |samples: &Samples| {
            let [median, p95, max] = samples.three();
            format!("median {median} s, p95 {p95} s, max {max} s")
        };
        let most = |share: f64, limit: f64| self.stalls.at(share).is_some_and(|stall| stall < limit);
        row(
            &format!("{} kills: longest stall of the workers that stayed", self.kills),
            &three(&self.stalls),
            None,
        );
        row("  its p95", "", Some(("wanted under 2 s", most(0.95, 2.0))));
        row("  its max", "", Some(("wanted under 3 s", most(1.0, 3.0))));
        row("longest stall when the node returns", &three(&self.return_stalls), None);
        row(&format!("{} workers of killed nodes: out for", self.out.count()), &three(&self.out), None);
        let checked = thousands(self.checked.checked as f64);
        let bad = self.checked.bad();
        let value = format!("{checked} checked, {bad} bad");
        row(
            "blocks",
            &value,
            Some(("wanted 0 bad", bad == 0 && self.checked.checked > self.checked.unjudged)),
        );
        let (errors, lost, never) = (self.errors, self.lost_workers, self.never_back);
        row(
            "I/Os failed, workers lost, workers never back",
            &format!("{errors}, {lost}, {never}"),
            Some(("wanted 0", errors + lost == 0 && never == 0)),
        );
        if self.not_done > 0 {
            row("kills and returns that were not done", &self.not_done.to_string(), None);
        }
        println!();
    }
}
