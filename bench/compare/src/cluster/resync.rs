//! What it costs that a node comes back after thirty seconds: what is copied, how long, and what clients see meanwhile.

use std::time::Duration;

use super::{Setting, row};
use crate::samples::Samples;
use crate::soak::Line;
use crate::study::{Event, Runner};

const WINDOW_S: u64 = 110;
const VOLUME_MIB: u64 = 256;
const VOLUMES: u64 = 8;

pub(super) fn measure(setting: &Setting<'_>) -> Result<(), String> {
    println!(
        "a node is killed at 20 s and returns at 50 s, of {WINDOW_S} s: 4 nodes, 2 copies, {VOLUMES} volumes of {VOLUME_MIB} \
         MiB, 4K 30 % writes; {} rounds\n",
        setting.context.pairs
    );
    let text = format!(
        "name = \"resync\"\nprofiles = [\"B4-T1-O4-W30-PR\"]\nfaults = [\n    {{ at = \"20s\", do = \"kill\", node = \
         \"node-3\" }},\n    {{ at = \"50s\", do = \"return\", node = \"node-3\" }},\n]\n\n[target]\nsan = {{ copies = 2 \
         }}\n\n[fleet]\nnodes = 4\nworkers_per_node = 2\ndisk_size = \"{VOLUME_MIB}MiB\"\n\n[phases]\nwarm_up = \
         \"5s\"\nmeasure = \"{WINDOW_S}s\"\ncool_down = \"1s\"\n\n[run]\nrepeats = 1\n"
    );
    let mut returns = Vec::new();
    let mut line = Line::default();
    for round in 1..=setting.context.pairs {
        let runner = Runner {
            program: &setting.context.program,
            place: setting.disk,
            prefix: "loadline-compare-",
            arguments: &[],
        };
        let run = runner.run(&text, Duration::from_secs(WINDOW_S + 6), |so_far| {
            line.show(&format!("resync: round {round} of {}, {} s", setting.context.pairs, so_far.as_secs()));
        })?;
        line.clear();
        let step = run.only()?;
        if !step.doubts.is_empty() {
            println!("round {round} is doubtful: {}", step.doubts.into_iter().collect::<Vec<_>>().join(", "));
        }
        let back = step.events.into_iter().find(|event| event.kind == "return" && event.failed.is_none());
        match back {
            Some(back) => returns.push(back),
            None => println!("round {round}: the node did not return"),
        }
    }
    print(&returns);
    Ok(())
}

fn print(returns: &[Event]) {
    let figures = |path: &str| -> Samples { returns.iter().filter_map(|back| back.number(path)).collect() };
    let of_how_many = |samples: &Samples| match returns.len() - samples.count() {
        0 => String::new(),
        missing => format!(", {missing} of {} rounds without", returns.len()),
    };
    let times = |samples: &Samples| samples.range(|value| format!("{value:.2} x")) + &of_how_many(samples);
    let bytes = figures("resync_bytes");
    let mib = bytes.range(|bytes| format!("{:.1} MiB", bytes / 1048576.0));
    row("to be copied", &(mib + &of_how_many(&bytes)), None);
    let all = ((VOLUMES * VOLUME_MIB) << 20) as f64;
    row("  of the bytes of all volumes", &bytes.range(|bytes| format!("{:.1} %", bytes * 100.0 / all)), None);
    let seconds = figures("redundant_s");
    row(
        "until every copy was in sync",
        &(seconds.range(|seconds| format!("{seconds:.2} s")) + &of_how_many(&seconds)),
        None,
    );
    let p99 = figures("resync/p99_ratio");
    let met = p99.median().is_some_and(|median| median <= 2.0);
    row("p99 meanwhile, of before", &times(&p99), Some(("wanted at most 2.0 x", met)));
    row("IOPS meanwhile, of before", &times(&figures("resync/iops_ratio/estimate")), None);
    row("p99 after, of before", &times(&figures("plateau/p99_ratio")), None);
    row("IOPS after, of before", &times(&figures("plateau/iops_ratio/estimate")), None);
    println!();
}
