//! The same studies on a cluster of ours and on Ceph, both in memory, with two copies on three nodes: the quick study's loads healthy
//! and with a node down, and a node that is killed and comes back in the middle of a window.

use std::path::Path;
use std::time::Duration;

use super::Setting;
use crate::ceph::Ceph;
use crate::samples::Samples;
use crate::san::folder_in;
use crate::soak::Line;
use crate::study::{Runner, Step};

const NODES: u64 = 3;
const DISK_MIB: u64 = 128;
/// Those of the quick study.
const LOADS: [&str; 4] = ["B4-T1-O4-W0-PR", "B4-T1-O4-W100-PR", "B8-T1-O4-W30-PR", "B256-T1-O2-W0-PS"];
const WINDOW_S: u64 = 8;
/// Until a condition is measured: Ceph notices a daemon that is gone within seconds, and peers its groups anew.
const SETTLES_S: u64 = 15;
/// Of the window in which the node is killed, and comes back.
const FAULTS_S: [u64; 3] = [60, 15, 35];

/// A storage system that the studies are run on.
struct System {
    name: &'static str,
    /// What is said of it in a study.
    target: String,
    /// A node, as it calls it.
    node: &'static str,
    arguments: &'static [&'static str],
}

/// What was seen of one load in one condition.
#[derive(Default)]
struct Seen {
    iops: Samples,
    p99_us: Samples,
    cpu_us: Samples,
}

impl Seen {
    fn add(&mut self, step: &Step) {
        self.iops.add(step.iops);
        step.p99_us.into_iter().for_each(|p99| self.p99_us.add(p99));
        // Of the whole machine: clients, nodes and whatever the storage has beside them.
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        step.host_busy.into_iter().for_each(|busy| self.cpu_us.add(1e6 * busy * cpus / step.iops));
    }
}

/// What was seen of the kills.
#[derive(Default)]
struct Kills {
    stalls_s: Samples,
    return_stalls_s: Samples,
    errors: u64,
    bad: u64,
    checked: u64,
}

pub(super) fn measure(setting: &Setting<'_>) -> Result<(), String> {
    let rounds = setting.context.pairs;
    println!(
        "the same studies on Loadline's SAN and on Ceph, in turn: {NODES} nodes, two copies, in memory, {NODES} workers; {rounds} \
         rounds; medians and ranges\n"
    );
    let mut seen: Vec<[[Seen; 2]; 2]> = LOADS.iter().map(|_| Default::default()).collect();
    let mut kills: [Kills; 2] = Default::default();
    let mut line = Line::default();
    for round in 1..=rounds {
        for of in 0..2 {
            // Either is alone on the machine while it is measured.
            let folder = folder_in(setting.memory)?;
            let ceph = if of == 1 { Some(three_images(folder.path())?) } else { None };
            let system = ceph.as_ref().map_or_else(ours, theirs);
            let mut progress = |what: &str, so_far: Duration| {
                let name = system.name;
                line.show(&format!("{name}, round {round} of {rounds}: {what}, {} s", so_far.as_secs()));
            };
            conditions(
                setting,
                &system,
                |so_far| progress("conditions", so_far),
                |load, condition, step| seen[load][condition][of].add(step),
            )?;
            node_killed(setting, &system, |so_far| progress("kill", so_far), &mut kills[of])?;
            line.clear();
        }
    }
    print(&seen, &kills);
    Ok(())
}

fn three_images(folder: &Path) -> Result<Ceph, String> {
    let ceph = Ceph::start(folder, DISK_MIB)?;
    (1..NODES).try_for_each(|image| ceph.make_image(&format!("disk{image}"), DISK_MIB))?;
    Ok(ceph)
}

fn ours() -> System {
    let target = "[target]\nsan = { copies = 2, log = \"64MiB\" }\n".to_string();
    System { name: "Loadline", target, node: "node-3", arguments: &[] }
}

fn theirs(ceph: &Ceph) -> System {
    let devices: Vec<String> =
        (0..NODES).map(|image| format!("\"{}\"", ceph.image(&format!("disk{image}")))).collect();
    let (conf, run) = (ceph.conf(), ceph.run_folder());
    let (conf, run) = (conf.display(), run.display());
    let target = format!(
        "[target]\ndevices = [{}]\n\n[target.external]\nnodes = [\"0\", \"1\", \"2\"]\nlimit = \"2m\"\n\
         health = '''ceph --conf {conf} pg stat | grep -Eq '^([0-9]+) pgs: \\1 active\\+clean;' '''\n\
         [target.external.commands]\nkill = '''kill -9 $(cat {run}/osd.$NODE.pid)'''\n\
         return = '''ceph-osd --conf {conf} -i $NODE'''\n",
        devices.join(", ")
    );
    System { name: "Ceph", target, node: "2", arguments: &["--destroy-data"] }
}

fn study(system: &System, head: &str, window_s: u64, tail: &str) -> String {
    let disk =
        if system.arguments.is_empty() { format!("disk_size = \"{DISK_MIB}MiB\"\n") } else { String::new() };
    format!(
        "name = \"beside\"\n{head}\n{}\n[fleet]\nnodes = {NODES}\nworkers_per_node = 1\n{disk}\n[phases]\nfill = true\n\
         warm_up = \"2s\"\nmeasure = \"{window_s}s\"\ncool_down = \"0s\"\n{tail}",
        system.target
    )
}

/// Runs a study. Its steps; an error if it did not come to its end.
fn steps(
    setting: &Setting<'_>,
    system: &System,
    text: &str,
    windows: Duration,
    progress: impl FnMut(Duration),
) -> Result<Vec<Step>, String> {
    let runner = Runner {
        program: &setting.context.program,
        place: setting.memory,
        prefix: "loadline-compare-",
        arguments: system.arguments,
    };
    let run = runner.run(text, windows, progress)?;
    if !run.is_done() {
        let (ending, why) = (run.ending, run.why());
        return Err(format!("{}: {ending}; everything is in {}\n{why}", system.name, run.keep().display()));
    }
    Ok(run.steps)
}

fn conditions(
    setting: &Setting<'_>,
    system: &System,
    progress: impl FnMut(Duration),
    mut measured: impl FnMut(usize, usize, &Step),
) -> Result<(), String> {
    let names = LOADS.map(|load| format!("\"{load}\"")).join(", ");
    let tail = format!(
        "[[condition]]\nname = \"healthy\"\n[[condition]]\nname = \"one-down\"\nwait = \"{SETTLES_S}s\"\n\
         do = [{{ do = \"kill\", node = \"{}\" }}]\n[run]\nrepeats = 1\n",
        system.node
    );
    let text = study(system, &format!("profiles = [{names}]"), WINDOW_S, &tail);
    let windows = Duration::from_secs(2 * LOADS.len() as u64 * (WINDOW_S + 3) + SETTLES_S);
    for step in steps(setting, system, &text, windows, progress)? {
        if let Some(place) = LOADS.iter().position(|load| step.label.starts_with(load)) {
            measured(place, usize::from(step.label.ends_with("one-down")), &step);
        }
    }
    Ok(())
}

fn node_killed(
    setting: &Setting<'_>,
    system: &System,
    progress: impl FnMut(Duration),
    kills: &mut Kills,
) -> Result<(), String> {
    let [window, kill, back] = FAULTS_S;
    let node = system.node;
    let head = format!(
        "profiles = [\"B4-T1-O4-W50-PR\"]\nfaults = [\n    {{ at = \"{kill}s\", do = \"kill\", node = \"{node}\" }},\n    \
         {{ at = \"{back}s\", do = \"return\", node = \"{node}\" }},\n]"
    );
    let text = study(system, &head, window, "[run]\nrepeats = 1\nverify = true\n");
    for step in steps(setting, system, &text, Duration::from_secs(window + 3), progress)? {
        for event in &step.events {
            let stalls = if event.kind == "kill" { &mut kills.stalls_s } else { &mut kills.return_stalls_s };
            event.stall_s.into_iter().for_each(|stall| stalls.add(stall));
            if let Some(why) = &event.failed {
                println!("{}: {} was not done: {why}", system.name, event.kind);
            }
        }
        kills.errors += step.errors;
        if let Some(checked) = step.checked {
            kills.bad += checked.bad();
            kills.checked += checked.checked;
        }
    }
    Ok(())
}

fn print(seen: &[[[Seen; 2]; 2]], kills: &[Kills; 2]) {
    println!("{:<18} {:<9} {:<14} {:>26} {:>26} {:>8}", "load", "condition", "", "Loadline", "Ceph", "ratio");
    type Figure = (&'static str, fn(&Seen) -> &Samples, fn(f64) -> String);
    let figures: [Figure; 3] = [
        ("IOPS", |seen| &seen.iops, |iops| format!("{iops:.0}")),
        ("p99", |seen| &seen.p99_us, |us| format!("{:.2} ms", us / 1e3)),
        ("CPU us an I/O", |seen| &seen.cpu_us, |us| format!("{us:.1}")),
    ];
    let ratio = |ours: &Samples, theirs: &Samples| match (ours.median(), theirs.median()) {
        (Some(ours), Some(theirs)) if theirs > 0.0 => format!("{:.2}", ours / theirs),
        _ => "-".into(),
    };
    for (load, conditions) in LOADS.iter().zip(seen) {
        for (condition, [ours, theirs]) in ["healthy", "one down"].iter().zip(conditions) {
            for (name, of, show) in figures {
                println!(
                    "{load:<18} {condition:<9} {name:<14} {:>26} {:>26} {:>8}",
                    of(ours).range(show),
                    of(theirs).range(show),
                    ratio(of(ours), of(theirs))
                );
            }
        }
    }
    let [ours, theirs] = kills;
    let seconds = |seconds: f64| format!("{seconds:.2} s");
    for (name, of) in [
        ("longest stall when a node is killed", (|of| &of.stalls_s) as fn(&Kills) -> &Samples),
        ("longest stall when it comes back", |of| &of.return_stalls_s),
    ] {
        println!(
            "{name:<43} {:>26} {:>26} {:>8}",
            of(ours).range(seconds),
            of(theirs).range(seconds),
            ratio(of(ours), of(theirs))
        );
    }
    for (name, of) in [
        ("I/Os that failed in it", (|of| of.errors) as fn(&Kills) -> u64),
        ("blocks checked", |of| of.checked),
        ("blocks bad", |of| of.bad),
    ] {
        println!("{name:<43} {:>26} {:>26}", of(ours), of(theirs));
    }
    println!(
        "\nCPU is that of the whole machine, clients included. Workers stay where they are with Ceph; with Loadline those of the \
         node that is killed go on elsewhere, and the stall is that of the others.\n"
    );
}

#[cfg(test)]
mod tests {
    use super::LOADS;

    #[test]
    fn the_loads_are_those_of_the_quick_study() {
        let quick = include_str!("../../../../studies/quick.toml");
        let used: Vec<&str> = quick.lines().filter_map(|line| line.strip_prefix("use = ")).collect();
        assert_eq!(used, LOADS.map(|load| format!("\"{load}\"")));
    }
}
