//! What `--plan` prints: every step, its length, the space, the total.

use std::path::Path;
use std::time::Duration;

use loadline_base::units::TimeSpan;
use loadline_fleet::FleetKind;
use loadline_study::check::{PlanCheck, human};
use loadline_study::{Plan, Study};

use crate::output::text::counted;

/// Prints the plan on standard output. `complete` are the numbers of steps that need not be measured any more.
pub(in crate::study) fn print(study: &Study, plan: &Plan, found: &PlanCheck, out: &Path, complete: &[u32]) {
    crate::output::write(text(study, plan, found, out, complete).as_bytes());
}

fn text(study: &Study, plan: &Plan, found: &PlanCheck, out: &Path, complete: &[u32]) -> String {
    let phases = &study.phases;
    let (loads, repeats) = (plan.loads().count(), study.run.repeats);
    let mut text = format!(
        "study {}: {} × {} = {}, in {}\n",
        study.name,
        counted(loads as u64, "load"),
        counted(repeats.into(), "repeat"),
        counted(plan.steps.len() as u64, "step"),
        out.display()
    );
    let each = counted(plan.fleet.disks_per_worker.into(), "disk");
    let fleet = format!("{}, {each} each", plan.fleet.placement.summary());
    let disks = match plan.disk_size {
        Some(size) => match plan.cluster {
            Some(cluster) => {
                format!("volumes of {} with {}", human(size), counted(cluster.copies as u64, "copy"))
            }
            None => format!("files of {}", human(size)),
        },
        None if !found.hosts.is_empty() => "existing disks of the hosts".into(),
        None if study.makes_disks() => "disks that are made with the machines".into(),
        None if found.devices.is_empty() => "existing devices".into(),
        None => {
            let named = found.devices.iter().map(|d| format!("{} ({})", d.target, human(d.size)));
            named.collect::<Vec<_>>().join(", ")
        }
    };
    text.push_str(&format!("fleet: {fleet}: {disks}\n"));
    if let Some(machines) = &found.machines {
        text.push_str(&format!("machines, made for the run and deleted at its end: {machines}\n"));
    }
    for host in &found.hosts {
        let devices = host.devices.iter().map(|d| format!("{} ({})", d.target, human(d.size)));
        let folders =
            host.folders.iter().map(|(path, free)| format!("{} ({} free)", path.display(), human(*free)));
        let all: Vec<String> = devices.chain(folders).collect();
        text.push_str(&format!("host {} ({}): {}\n", host.node, host.destination, all.join(", ")));
    }
    if let Some((cluster, needed)) = &found.cluster {
        text.push_str(&format!(
            "cluster {}, {}: the run makes volumes there that need {} of its devices, {} are free; the run removes them at its end\n",
            cluster.id,
            counted(cluster.nodes as u64, "node"),
            human(*needed),
            human(cluster.free)
        ));
    }
    let cores = study.nodes().and_then(|node| node.cpu_limit).filter(|_| plan.starts_cluster());
    if let Some(cores) = cores {
        text.push_str(&format!(
            "nodes: the process of each of them may use {cores} cores of this machine, by a control group\n"
        ));
    }
    let network = study.nodes().and_then(|node| node.network).filter(|_| plan.starts_cluster());
    if let Some(network) = network {
        text.push_str(&format!(
            "nodes: each of them sends at most {0} a second to the others, and receives at most {0} a second, in a network namespace\n",
            network.per_second
        ));
    }
    text.push_str(&format!(
        "each step: warm up {}, measure {}, cool down {}\n\n",
        phases.warm_up, phases.measure, phases.cool_down
    ));
    let width = plan.steps.iter().map(|step| step.label.chars().count()).max().unwrap_or(0).max(7);
    let numbers = plan.steps.len().to_string().len().max(4);
    text.push_str(&format!("{:>numbers$}  {:<width$}  repeat  length\n", "step", "profile"));
    for step in &plan.steps {
        let length = if complete.contains(&step.number) { "complete".into() } else { span(plan.step_length) };
        let line =
            format!("{:>numbers$}  {:<width$}  {:>6}  {length}\n", step.number, step.label, step.repeat);
        text.push_str(&line);
    }
    text.push('\n');
    for search in &plan.searches {
        let most = search.most_steps();
        text.push_str(&format!(
            "searches after these steps: {}, in at most {most} steps, usually in fewer than half of them\n",
            search.words()
        ));
    }
    if let Some(steady) = phases.steady {
        text.push_str(&format!(
            "before each sweep: load until it is steady (rounds of {}), at most {}\n",
            TimeSpan::seconds(steady.round_s()),
            steady.limit
        ));
    }
    if let Some(external) = &study.target.external {
        text.push_str("commands, which run as you (/bin/sh -c) with --run-commands:\n");
        for (action, line) in external.lines() {
            text.push_str(&format!("  {action}: {}\n", line.escape_debug()));
        }
    }
    let commands = study.node_commands();
    if commands.lines().next().is_some() {
        text.push_str("commands, which run with --run-commands:\n");
        for (action, line, place) in commands.lines() {
            text.push_str(&format!("  {action}, {place}: {}\n", line.escape_debug()));
        }
    }
    for criterion in &study.success {
        text.push_str(&format!("to decide: {criterion}\n"));
    }
    for space in &found.space {
        text.push_str(&format!(
            "space: {} for {} in {}, {} are free\n",
            human(space.needed),
            space.purpose,
            space.folder.display(),
            human(space.free)
        ));
    }
    let left = plan.steps.len().saturating_sub(complete.len());
    let searched = match plan.searches.len() {
        0 => String::new(),
        _ => format!(", at most {} with those of the searches", span(plan.length())),
    };
    let total = plan.step_length.saturating_mul(u32::try_from(left).unwrap_or(u32::MAX));
    let fill = if plan.fill && left > 0 {
        let size = plan.disk_size.map_or("the devices".into(), |_| human(plan.file_space()));
        format!(", and before them up to {size} written once, at the storage's speed")
    } else {
        String::new()
    };
    let scans = if study.run.verify && left > 0 && plan.loads().any(|step| step.profile.write_percent > 0) {
        ", and after each step that writes a scan of what was written, at the storage's speed"
    } else {
        ""
    };
    text.push_str(&format!("total: {} of steps{searched}{fill}{scans}\n", span(total)));
    text
}

fn span(length: Duration) -> String {
    TimeSpan(length).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_study::read::parse;

    #[test]
    fn a_plan_that_verifies_states_that_scans_come_on_top() {
        let study = |run: &str| {
            parse("s.toml", &format!("name = \"s\"\nprofiles = [\"B4-T1-O8-W100-PR\"]\n[run]\n{run}"))
                .unwrap()
        };
        let mentions_scan = |study: &Study, complete: &[u32]| {
            let plan = Plan::of(study).unwrap();
            text(study, &plan, &PlanCheck::default(), Path::new("x"), complete)
                .contains("a scan of what was written")
        };
        assert!(mentions_scan(&study("verify = true\nrepeats = 1"), &[]));
        assert!(
            !mentions_scan(&study("verify = true\nrepeats = 1"), &[1])
                && !mentions_scan(&study("repeats = 1"), &[])
        );
    }

    #[test]
    fn a_plan_says_what_cores_and_what_network_the_nodes_of_its_cluster_have() {
        let planned = |node: &str| {
            let text_of = format!(
                "name = \"s\"\nprofiles = [\"B4-T1-O8-W0-PR\"]\n[target]\nsan = {{ node = {{ {node} }} }}\n[fleet]\nnodes = 2"
            );
            let study = parse("s.toml", &text_of).unwrap();
            text(&study, &Plan::of(&study).unwrap(), &PlanCheck::default(), Path::new("x"), &[])
        };
        let line =
            "nodes: the process of each of them may use 0.5 cores of this machine, by a control group\n";
        assert!(planned("cpu_limit = 0.5").contains(line));
        assert!(!planned("model = \"intel-s4500\"").contains("cores"));
        let network = "nodes: each of them sends at most 20MiB a second to the others, and receives at most 20MiB a second, in a network \
                       namespace\n";
        assert!(planned("network = { per_second = \"20MiB\" }").contains(network));
        assert!(!planned("cpu_limit = 0.5").contains("namespace"));
    }

    #[test]
    fn a_plan_names_every_step_its_length_and_the_total() {
        let study = parse(
            "s.toml",
            "name = \"files\"\nprofiles = [\"B4-T1-O8-W0-PR\", \"B64-T1-O8-W100-PS\"]\n[fleet]\nnodes = 2\n\
             disk_size = \"64MiB\"\n[phases]\nwarm_up = \"1s\"\nmeasure = \"3s\"\ncool_down = \"0s\"\n[run]\nrepeats = 2",
        )
        .unwrap();
        let plan = Plan::of(&study).unwrap();
        let text = text(&study, &plan, &PlanCheck::default(), Path::new("runs/x"), &[1]);
        assert_eq!(
            text,
            "study files: 2 loads × 2 repeats = 4 steps, in runs/x\n\
             fleet: 2 nodes × 1 worker, 1 disk each: files of 64 MiB\n\
             each step: warm up 1s, measure 3s, cool down 0s\n\n\
             step  profile            repeat  length\n   \
             1  B4-T1-O8-W0-PR          1  complete\n   \
             2  B64-T1-O8-W100-PS       1  4s\n   \
             3  B64-T1-O8-W100-PS       2  4s\n   \
             4  B4-T1-O8-W0-PR          2  4s\n\n\
             total: 12s of steps, and before them up to 128 MiB written once, at the storage's speed\n"
        );
    }
}
