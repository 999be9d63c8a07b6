//! Runs that search, grow, compare policies, fill further and further and measure ceilings, with a stand-in for the
//! fleet whose storage carries a stated load.

use std::fs;

use loadline_measure::audit::FindingKind;
use loadline_measure::stats::median;

use crate::folder::manifest::RunState;
use crate::plan::Plan;
use crate::planned_step::Purpose;
use crate::read::parse;
use crate::run::RunVerdict;
use crate::runner_tests::Place;
use crate::stand_in::{Orders, Queue};

const FOUR: [&str; 4] = ["node-1/0", "node-1/1", "node-2/0", "node-2/1"];

fn study(rest: &str) -> String {
    format!(
        "name = \"s\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n{rest}\n[fleet]\nnodes = 2\nworkers_per_node = 2\n\
         disk_size = \"4MiB\"\n"
    )
}

const PHASES: &str = "[phases]\nwarm_up = \"0s\"\nmeasure = \"1s\"\ncool_down = \"0s\"\n";

fn place(study: &str) -> Place {
    let mut place = Place::new(study);
    place.names = FOUR.to_vec();
    place
}

#[test]
fn a_load_line_is_searched_resumed_and_found() {
    let goal = "load_line = { percentile = 50, limit = \"2ms\", width = \"10%\" }";
    let place = place(&format!("{}{PHASES}[run]\nrepeats = 2\n", study(goal)));
    let carries = |hang_at| Orders { carries: Some(2_345.0), hang_at, ..Orders::default() };
    // Ctrl-C in the middle of the search: what it had measured counts when it goes on.
    assert!(place.go_on(carries(Some(5))).is_err());
    let begun = place.folder().searches().unwrap();
    assert!(!begun[0].done && begun[0].steps == 3, "{begun:?}");
    let steps = place.folder().plan.steps.len();
    place.go_on(carries(None)).unwrap();
    let folder = place.folder();
    assert_eq!(folder.manifest.state, RunState::Finished);
    assert!(folder.plan.steps.len() > steps);
    let found = folder.searches().unwrap().remove(0);
    let (held, missed) = (found.held.unwrap(), found.missed.unwrap());
    assert!(held <= 2_345.0 && missed > 2_345.0 && missed / held <= 1.1 + 1e-9, "{found:?}");
    assert!((found.iops.unwrap() / held - 1.0).abs() < 0.01 && found.latency_us.unwrap() < 600.0);
    assert!(found.found.contains("p50 <= 2.00 ms holds up to"), "{found:?}");
    // Each end was measured twice, and every step has the fleet's rate in four parts.
    let searched = folder.plan.steps.iter().filter(|s| matches!(s.purpose, Purpose::Search { .. }));
    for step in searched {
        let Purpose::Search { load, .. } = step.purpose else { unreachable!() };
        let rate = step.profile.rate.unwrap().rate.iops(step.profile.block_size);
        assert!((rate * 4.0 / load - 1.0).abs() < 1e-12, "{step:?}");
    }
    let at = |load: f64| {
        let same = |p: Purpose| matches!(p, Purpose::Search { load: l, .. } if l == load);
        folder.plan.steps.iter().filter(|s| same(s.purpose)).count()
    };
    assert_eq!((at(held), at(missed)), (2, 2));
    assert_eq!(RunVerdict::of(&folder).unwrap().complete, folder.plan.steps.len());
    place.go_on(carries(None)).unwrap();
    assert_eq!(place.folder().plan.steps.len(), folder.plan.steps.len(), "a finished run stays as it is");
}

/// The share of arrivals at random at one server with equal service times `d` that wait for at most `t` (M/D/1): A. K. Erlang, 1909.
fn waits_at_most(arrivals: f64, d: f64, t: f64) -> f64 {
    let terms = 0..=(t / d) as i32;
    let sum: f64 = terms
        .map(|k| {
            let x = arrivals * (t - f64::from(k) * d);
            let power: f64 = (1..=k).map(|j| -x / f64::from(j)).product();
            power * x.exp()
        })
        .sum();
    (1.0 - arrivals * d) * sum
}

/// The load at which the 95th percentile of a queue is at the limit is known from theory: a search finds it.
#[test]
fn a_load_line_is_where_queueing_theory_has_it() {
    let (service_s, limit_s) = (0.001, 0.01);
    // M/M/1: the response is exponential with rate mu - lambda.
    let exponential = 1.0 / service_s - 20f64.ln() / limit_s;
    // M/D/1: the wait, which the service follows.
    let (mut low, mut high) = (1.0, 1.0 / service_s);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        let held = waits_at_most(middle, service_s, limit_s - service_s) >= 0.95;
        *(if held { &mut low } else { &mut high }) = middle;
    }
    for (expected, of_queue) in [(exponential, true), (low, false)] {
        let goal = "load_line = { percentile = 95, limit = \"10ms\", width = \"4%\" }";
        let phases = PHASES.replace("measure = \"1s\"", "measure = \"100s\"");
        let place = place(&format!("{}{phases}[run]\nrepeats = 1\n", study(goal)));
        let queue = Queue { servers: 1, service_s, exponential: of_queue };
        place.go_on(Orders { queue: Some(queue), ..Orders::default() }).unwrap();
        let found = place.folder().searches().unwrap().remove(0);
        let (held, missed) = (found.held.unwrap(), found.missed.unwrap());
        // Of 60,000 I/Os, neighbours alike, a percentile moves by some per cent, and with it the load.
        assert!(held < expected * 1.05 && missed > expected * 0.95, "{expected} is right: {found:?}");
        assert!(missed / held <= 1.05, "{found:?}");
    }
}

#[test]
fn a_criterion_that_only_a_closed_loop_meets_is_doubtful() {
    let doubts = [2_000, 3_000].map(|least| {
        let goal = format!(
            "load_line = {{ percentile = 50, limit = \"2ms\" }}\n\
             success = [\"fleet >= {least} IOPS of 4K read under 2ms at p50\"]"
        );
        let place = place(&format!("{}{PHASES}[run]\nrepeats = 1\n", study(&goal)));
        // In a closed loop 4,000 IOPS are reached at half a millisecond; a rate of more than 2,345 is slow.
        place.go_on(Orders { carries: Some(2_345.0), ..Orders::default() }).unwrap();
        let verdict = RunVerdict::of(&place.folder()).unwrap();
        assert!(verdict.missed.is_empty(), "{verdict:?}");
        verdict.doubts
    });
    assert_eq!(doubts[1], doubts[0] + 1, "a rate of 2,000 is met in both");
}

#[test]
fn a_capacity_is_the_most_workers_on_each_node() {
    let goal = "capacity = { percentile = 50, limit = \"2ms\" }\nsuccess = [\"fleet >= 1900 IOPS of 4K read\", \
                \"each node >= 1100 IOPS of 4K read under 2ms at p50\"]";
    let place = place(&format!("{}{PHASES}[run]\nrepeats = 1\n", study(goal)));
    let orders = Orders { carries: Some(3_000.0), carries_workers: true, ..Orders::default() };
    place.go_on(orders).unwrap();
    let folder = place.folder();
    let found = folder.searches().unwrap().remove(0);
    assert_eq!((found.held, found.missed, found.iops), (Some(1.0), Some(2.0), Some(2_000.0)), "{found:?}");
    let workers = place.seen.lock().unwrap().workers.clone();
    assert!(workers.contains(&vec!["node-1/0".into(), "node-2/0".into()]), "one of each node: {workers:?}");
    // Slow steps are no success: the first criterion has no latency, the second is missed.
    let verdict = RunVerdict::of(&folder).unwrap();
    assert_eq!(verdict.missed.len(), 1, "{verdict:?}");
    assert!(verdict.missed[0].contains("1,000 IOPS on the node that did least"), "{verdict:?}");
}

#[test]
fn workers_are_added_one_by_one_in_a_circle_over_the_nodes() {
    let place = place(&format!("{}{PHASES}[run]\nrepeats = 1\n[matrix]\nworkers = \"each\"\n", study("")));
    place.go_on(Orders::default()).unwrap();
    let workers = place.seen.lock().unwrap().workers.clone();
    let expected: [&[&str]; 4] = [
        &["node-1/0"],
        &["node-1/0", "node-2/0"],
        &["node-1/0", "node-1/1", "node-2/0"],
        &["node-1/0", "node-1/1", "node-2/0", "node-2/1"],
    ];
    assert_eq!(workers, expected.map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>()));
    let folder = place.folder();
    let labels: Vec<&str> = folder.plan.steps.iter().map(|s| s.label.as_str()).collect();
    assert_eq!(labels[0], "B4-T1-O1-W0-PR-w1");
    assert_eq!(labels[3], "B4-T1-O1-W0-PR", "all of them is the load as it is");
    let last = folder.result(&folder.plan.steps[2]).unwrap().unwrap();
    let nodes: Vec<f64> = last.nodes.values().map(|node| node.iops).collect();
    assert_eq!((nodes, last.seconds.len()), (vec![2_000.0, 1_000.0], 1));
}

#[test]
fn each_policy_has_files_of_its_own_which_are_removed() {
    let policies =
        "[[policy]]\nname = \"one\"\nfolder = \"one\"\n[[policy]]\nname = \"two\"\nfolder = \"two\"\n";
    let place = place(&format!("{}{PHASES}[run]\nrepeats = 1\n{policies}", study("")));
    let beside = |name: &str| place.path.with_file_name(name);
    fs::create_dir(beside("one")).unwrap();
    fs::create_dir(beside("two")).unwrap();
    place.go_on(Orders { crash_at_the_end: true, ..Orders::default() }).unwrap_err();
    let made = |name: &str| fs::read_dir(beside(name)).unwrap().count();
    assert_eq!((made("one"), made("two")), (4, 4));
    place.go_on(Orders::default()).unwrap();
    assert_eq!((made("one"), made("two"), place.folder().manifest.state), (0, 0, RunState::Finished));
    let folder = place.folder();
    let labels: Vec<&str> = folder.plan.steps.iter().map(|s| s.label.as_str()).collect();
    assert_eq!(labels, ["B4-T1-O1-W0-PR-one", "B4-T1-O1-W0-PR-two"]);
    let seen = place.seen.lock().unwrap();
    assert_eq!(seen.fills, 2, "each policy's disks are filled");
    let last = &seen.disks["node-1/0"][0];
    assert!(last.contains("/two/loadline-"), "{last}");
}

#[test]
fn levels_of_filling_come_in_order_and_each_writes_on_from_the_one_before() {
    let levels = "[matrix]\nfill_level = [\"75%\", \"25%\"]\nworking_set = [\"25%\"]\n";
    let place = place(&format!("{}{PHASES}[run]\nrepeats = 2\n{levels}", study("")));
    place.go_on(Orders::default()).unwrap();
    let folder = place.folder();
    let order: Vec<(Option<f64>, u32)> = folder.plan.steps.iter().map(|s| (s.fill_level, s.repeat)).collect();
    assert_eq!(order, [(Some(25.0), 1), (Some(25.0), 2), (Some(75.0), 1), (Some(75.0), 2)]);
    let seen = place.seen.lock().unwrap();
    let mib = 1 << 20;
    assert_eq!(seen.fill_extents.len(), 2);
    assert_eq!(seen.fill_extents[0].0, 0);
    assert_eq!(seen.fill_extents[1].0, mib, "the first MiB of four is written already");
    assert!(seen.fill_extents[1].1.contains(&(2 * mib).to_string()), "{:?}", seen.fill_extents);
    assert_eq!(folder.manifest.filled_percent, Some(75.0));
}

#[test]
fn ceilings_are_measured_first_by_the_first_worker_of_each_node() {
    let ceilings = "[[ceilings.node]]\nname = \"node-1\"\nfolder = \".\"\nsize = \"1MiB\"\n[[ceilings.node]]\n\
                    name = \"node-2\"\ndevices = [\"null:1GiB\"]\n";
    let place = place(&format!("{}{PHASES}[run]\nrepeats = 1\nverify = true\n{ceilings}", study("")));
    place.go_on(Orders::default()).unwrap();
    let folder = place.folder();
    assert_eq!(folder.plan.steps[0].purpose, Purpose::Ceiling);
    let seen = place.seen.lock().unwrap();
    assert_eq!(seen.workers[0], ["node-1/0", "node-2/0"]);
    assert_eq!(seen.fills, 2, "the files, and the scratch file");
    assert_eq!(seen.scans.len(), 0, "it only reads");
    let ceiling = folder.result(&folder.plan.steps[0]).unwrap().unwrap();
    assert_eq!(ceiling.figures.total.iops, 2_000.0);
    let ways: Vec<_> =
        seen.links.iter().map(|(link, before)| (&*link.from.0, &*link.to.0, *before)).collect();
    assert_eq!(
        ways,
        [("node-1/0", "node-2/0", 0), ("node-2/0", "node-1/0", 0)],
        "the network, before any load"
    );
    assert_eq!(place.disks().len(), 0);
    let left = fs::read_dir(place.path.parent().unwrap()).unwrap().flatten();
    assert_eq!(left.filter(|e| e.path().extension().is_some_and(|x| x == "img")).count(), 0);
}

#[test]
fn the_network_is_measured_once_and_a_way_that_leads_nowhere_ends_no_run() {
    let ceilings = "[ceilings]\nnetwork_writes = 1\n[[ceilings.node]]\nname = \"node-1\"\ndevices = [\"null:1GiB\"]\n\
                    [[ceilings.node]]\nname = \"node-2\"\naddress = \"10.0.0.2\"\ndevices = [\"null:1GiB\"]\n";
    let place = place(&format!("{}{PHASES}[run]\nrepeats = 1\n{ceilings}", study("")));
    let orders = Orders { unreachable: Some("node-1/0".into()), ..Orders::default() };
    assert!(place.go_on(Orders { hang_at: Some(1), ..orders }).is_err(), "Ctrl-C in the second step");
    place.go_on(Orders::default()).unwrap();
    let network = place.folder().manifest.network.unwrap();
    let found: Vec<_> =
        network.iter().map(|link| (&*link.to, link.speed.is_some(), link.why.is_some())).collect();
    assert_eq!(found, [("node-2", true, false), ("node-1", false, true)]);
    assert!(network[1].one_host && network[1].why.as_ref().unwrap().contains("no route"), "{network:?}");
    let seen = place.seen.lock().unwrap();
    let asked: Vec<_> = seen.links.iter().map(|(link, _)| link.ip.map(|ip| ip.to_string())).collect();
    assert_eq!(asked, [Some("10.0.0.2".into()), None], "and not again when the run is resumed");
    let events = fs::read_to_string(place.path.join("events.jsonl")).unwrap();
    assert_eq!(events.matches("network_measured").count(), 1);
}

#[test]
fn what_the_study_only_reads_is_not_written_to_for_the_sake_of_a_ceiling() {
    let text = "name = \"s\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n[target]\ndevices = [\"precious.img\"]\n\
                [[ceilings.node]]\nname = \"node-1\"\nfolder = \".\"\nsize = \"1MiB\"\n";
    let mut place = Place::new(&format!("{text}{PHASES}[run]\nrepeats = 1\nstop_if = [\"p99>1h\"]\n"));
    place.names = vec!["node-1/0"];
    place.go_on(Orders::default()).unwrap();
    let seen = place.seen.lock().unwrap();
    assert!(seen.filled_disks.iter().all(|disk| disk.contains("ceiling")), "{:?}", seen.filled_disks);
    assert_eq!(
        (seen.filled_disks.len(), seen.stop_if.len()),
        (1, 1),
        "and the stop conditions apply everywhere"
    );
}

#[test]
fn a_load_keeps_its_digits_through_the_runs_folder() {
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..2_000 {
        random = random.wrapping_mul(0xd129_0d3d_bb1b_4f21).wrapping_add(7);
        let load = 10.0 + (random >> 11) as f64 / 1e9;
        let purpose = Purpose::Search { search: 1, load };
        let text = serde_json::to_string(&purpose).unwrap();
        let Purpose::Search { load: read, .. } = serde_json::from_str(&text).unwrap() else { panic!() };
        assert_eq!(read.to_bits(), load.to_bits(), "{text}");
    }
}

#[test]
fn a_warm_up_ends_when_the_load_is_steady_and_is_shared_by_the_steps_of_a_sweep() {
    let phases = PHASES.replace("[phases]", "[phases]\nsteady = { limit = \"60s\", round = \"2s\" }");
    let sweep = "[vary]\noutstanding = [2, 4]\n[[profile]]\nuse = \"B8-T1-O1-W0-PR\"\n";
    let place = place(&format!("{}{phases}[run]\nrepeats = 1\n{sweep}", study("")));
    place.go_on(Orders { unsteady_s: 30, ..Orders::default() }).unwrap();
    let folder = place.folder();
    let results: Vec<_> = folder.results().unwrap().into_iter().map(|(_, r)| r.unwrap()).collect();
    let shared: Vec<u32> = results.iter().map(|r| r.warm_up.as_ref().unwrap().step).collect();
    assert_eq!(shared, [1, 1, 1, 4, 4, 4], "one for each block size");
    assert!(results.iter().all(|r| r.warm_up.as_ref().unwrap().steady));
    assert_eq!(place.seen.lock().unwrap().begun.len(), 6 + 2);
    let seconds: Vec<f64> = results.iter().map(|r| r.warm_up.as_ref().unwrap().seconds as f64).collect();
    assert!(median(&seconds).unwrap() >= 10.0, "{seconds:?}");
}

#[test]
fn what_is_not_steady_at_the_limit_is_measured_and_marked() {
    let phases = PHASES.replace("[phases]", "[phases]\nsteady = { limit = \"10s\" }");
    let place = place(&format!("{}{phases}[run]\nrepeats = 1\n", study("")));
    place.go_on(Orders { unsteady_s: 195, ..Orders::default() }).unwrap();
    let folder = place.folder();
    let result = folder.result(&folder.plan.steps[0]).unwrap().unwrap();
    assert!(!result.warm_up.as_ref().unwrap().steady);
    let marked = result.findings.iter().find(|f| f.kind == FindingKind::NotSteady).unwrap();
    assert!(marked.found.contains("after 10 s"), "{marked:?}");
}

#[test]
fn a_worker_that_is_lost_in_a_warm_up_and_what_it_found_are_told() {
    let phases = PHASES.replace("[phases]", "[phases]\nsteady = { limit = \"60s\", round = \"2s\" }");
    let place = place(&format!("{}{phases}[run]\nrepeats = 2\n", study("")));
    place.go_on(Orders { lose_in_warm_up: Some(0), ..Orders::default() }).unwrap();
    let folder = place.folder();
    let results: Vec<_> = folder.results().unwrap().into_iter().map(|(_, r)| r.unwrap()).collect();
    let first = results[0].warm_up.as_ref().unwrap();
    assert!(!first.steady && first.lost_workers == 1 && first.seconds < 10, "{first:?}");
    assert!(
        results[0]
            .findings
            .iter()
            .any(|f| f.kind == FindingKind::NotSteady && f.found.contains("1 were lost"))
    );
    let second = results[1].warm_up.as_ref().unwrap();
    assert!(second.steady && second.step == 2, "it is not shared: {second:?}");
    assert_eq!(RunVerdict::of(&folder).unwrap().bad_blocks, 2, "storage that failed in a warm-up has failed");
}

#[test]
fn a_sweep_over_workers_is_warmed_up_for_by_all_that_it_measures() {
    let phases = PHASES.replace("[phases]", "[phases]\nsteady = { limit = \"60s\", round = \"2s\" }");
    let place = place(&format!("{}{phases}[run]\nrepeats = 1\n[matrix]\nworkers = [1, 2, 3]\n", study("")));
    place.go_on(Orders::default()).unwrap();
    assert_eq!(place.seen.lock().unwrap().begun, [3, 1, 2, 3]);
}

#[test]
fn each_node_is_every_node_of_the_fleet_and_a_tables_name_is_its_own() {
    let text = "name = \"s\"\nsuccess = [\"each node >= 900 IOPS of oltp\", \"fleet >= 1000 IOPS of oltp-big\", \
                \"fleet >= 1500 IOPS of oltp\"]\n[fleet]\nnodes = 2\nworkers_per_node = 2\ndisk_size = \"4MiB\"\n\
                [[profile]]\nname = \"oltp\"\n[[profile]]\nname = \"oltp-big\"\nblock_size = \"8K\"\n\
                [matrix]\nworkers = [1]\n";
    let place = place(&format!("{text}{PHASES}[run]\nrepeats = 1\n"));
    place.go_on(Orders::default()).unwrap();
    let missed = RunVerdict::of(&place.folder()).unwrap().missed;
    assert_eq!(missed.len(), 2, "{missed:?}");
    assert!(missed[0].contains("each node") && missed[0].contains("found 0 IOPS"), "{missed:?}");
    assert!(missed[1].contains("1500 IOPS of oltp: found 1,000"), "{missed:?}");
}

#[test]
fn a_run_that_is_not_complete_decides_nothing() {
    let place = place(&format!(
        "{}{PHASES}[run]\nrepeats = 2\n",
        study("success = [\"fleet >= 9000 IOPS of read\"]")
    ));
    assert!(place.go_on(Orders { hang_at: Some(1), ..Orders::default() }).is_err());
    assert!(RunVerdict::of(&place.folder()).unwrap().missed.is_empty());
    place.go_on(Orders::default()).unwrap();
    assert_eq!(RunVerdict::of(&place.folder()).unwrap().missed.len(), 1);
}

#[test]
fn a_cluster_that_cannot_be_is_refused_before_anything_is_done() {
    let plan = |target: &str, fleet: &str| {
        let text =
            format!("name = \"s\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n[target]\n{target}\n[fleet]\n{fleet}\n");
        Plan::of(&parse("s.toml", &text).unwrap())
    };
    let four = "nodes = 4\ndisk_size = \"64MiB\"";
    let two = plan("san = {}", four).unwrap();
    let cluster = two.cluster.unwrap();
    assert_eq!((cluster.nodes, cluster.copies, two.fill), (4, 2, true));
    // Eight copies on four nodes: two on each, and room for one more; each with its log of 256 MiB.
    assert!(cluster.device.unwrap().0 >= 3 * ((64 << 20) + (256 << 20)), "{cluster:?}");
    assert_eq!(two.cluster_space().0, 4 * cluster.device.unwrap().0);
    // Nodes with log devices have two.
    let node = "san = { node = { model = \"intel-s4500\", log_model = \"intel-p4800x\" } }";
    let hybrid = plan(node, four).unwrap();
    assert_eq!(hybrid.cluster_space().0, 2 * two.cluster_space().0);
    let wrong = plan(&node.replace("intel-p4800x", "intel-p480x"), four).unwrap_err().to_string();
    assert!(wrong.contains("san.node.log_model") && wrong.contains("intel-p4800x"), "{wrong}");
    let striped = plan("san = { stripes = 4 }", four).unwrap().cluster.unwrap();
    assert!(
        striped.device.unwrap().0 >= 9 * ((16 << 20) + (256 << 20)),
        "each stripe's copies have logs of their own"
    );
    for (target, fleet, part) in [
        ("san = { copies = 2 }", "nodes = 1", "copies = 2, each on another node"),
        ("san = { copies = 4 }", four, "1 to 3 copies"),
        ("san = { copies = 3, least = 4 }", four, "least = 4 of 3 copies"),
        ("san = { copies = 1, least = 2 }", four, "least = 2 of 1 copy:"),
        ("san = { copies = 2 }", "nodes = 1", "and there is 1 node:"),
        ("san = { least = 0 }", four, "1 to 2 are possible"),
        ("san = { stripes = 13 }", four, "1 to 12"),
        ("san = {}\ndevices = [\"/dev/x\"]", four, "san makes the disks"),
        ("san = { log = \"31MiB\" }", four, "32MiB is the least"),
        ("san = {}", "join = 4", "no join"),
        ("san = {}", "[[fleet.node]]\nname = \"a\"", "no join or [[fleet.node]]"),
        ("san = {}", "nodes = 4\ndisk_size = \"65000\"", "whole blocks"),
    ] {
        let message = plan(target, fleet).unwrap_err().message;
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn policies_share_one_cluster_that_has_room_for_all_of_them() {
    let plan = |policies: &str| {
        let text = format!(
            "name = \"s\"\nprofiles = [\"B4096-T1-O1-W100-PS\"]\n[fleet]\nnodes = 4\ndisk_size = \"64MiB\"\n{policies}"
        );
        Plan::of(&parse("s.toml", &text).unwrap())
    };
    let policy = |name: &str, san: &str| format!("[[policy]]\nname = \"{name}\"\nsan = {{ {san} }}\n");
    let device = |policies: &str| plan(policies).unwrap().cluster.unwrap().device.unwrap().0;
    let (one, four) = (policy("one", ""), policy("four", "stripes = 4"));
    let both = [one.clone(), four.clone()].concat();
    let (each, all) = (device(&one) + device(&four), device(&both));
    assert!(all >= each * 9 / 10 && all <= each * 12 / 10, "{all} and {each}");
    assert!(device(&policy("one", "log = \"64MiB\"")) < device(&one) * 2 / 3);
    assert_eq!(plan(&both).unwrap().loads().count(), 2);
    assert_eq!(
        plan(&[policy("two", ""), policy("three", "copies = 3")].concat()).unwrap().cluster.unwrap().copies,
        2
    );
    let folder = "[[policy]]\nname = \"other\"\nfolder = \"/x\"\n";
    for (policies, part) in [
        (format!("{one}{folder}"), "either all policies are of the run's cluster"),
        (format!("{one}[target]\nsan = {{}}\n"), "say the rest in each of them"),
        (policy("one", "copies = 5"), "[[policy]] one san: copies = 5"),
        (policy("one", "log = \"32MiB\"").replace("32", "31"), "the least"),
        (policy(&"x".repeat(41), ""), "40 characters"),
        (policy("one", "log = \"32MiB\"").replace("}", ", copies = 2 }"), ""),
    ] {
        match plan(&policies) {
            Err(error) => assert!(!part.is_empty() && error.message.contains(part), "{}", error.message),
            Ok(_) => assert!(part.is_empty(), "{policies}"),
        }
    }
    let long = plan(&policy("one", "log = \"32MiB\"")).map(|_| ());
    assert_eq!(long, Ok(()), "4 MiB at once are as much as such a log takes");
    let plan = |load: &str, san: &str| {
        let text = format!(
            "name = \"s\"\nprofiles = [\"{load}\"]\n[target]\nsan = {{ {san} }}\n[fleet]\nnodes = 2\ndisk_size = \"1GiB\"\n"
        );
        Plan::of(&parse("s.toml", &text).unwrap()).map(|_| ()).map_err(|error| error.message)
    };
    let small = "log = \"32MiB\"";
    assert!(plan("B4100-T1-O1-W100-PS", small).unwrap_err().contains("at most 4MiB"));
    assert_eq!(plan("B4100-T1-O1-W0-PS", small), Ok(()), "reads by shared memory may be longer");
    let by_nbd = format!("{small}, access = \"nbd\"");
    assert!(plan("B4100-T1-O1-W0-PS", &by_nbd).unwrap_err().contains("at most 4MiB"));
    assert!(plan("B33000-T1-O1-W100-PS", "log = \"1GiB\"").unwrap_err().contains("at most 32MiB"));
}

#[test]
fn what_is_refused_before_anything_is_done() {
    let plan = |text: &str| {
        let study = parse("s.toml", &format!("name = \"s\"\n{text}")).unwrap();
        Plan::of(&study).unwrap_err().message
    };
    let image = "name = \"s\"\nprofiles = [\"B4-T1-O1-W100-PR\"]\n[target]\ndevices = [\"DISK\"]\n[fleet]\njoin = 1\n";
    let joined = |disk: &str| Plan::of(&parse("s.toml", &image.replace("DISK", disk)).unwrap()).map(|_| ());
    assert_eq!(joined("rbd:pool/image"), Ok(()), "it is the same disk from every host");
    assert!(
        joined("nbd://127.0.0.1/disk").unwrap_err().message.contains("on another host could be overwritten")
    );
    let read = "profiles = [\"B4-T1-O1-W0-PR\"]\n";
    let write = "profiles = [\"B4-T1-O1-W100-PR\"]\n";
    let ceiling = "[[ceilings.node]]\nname = \"x\"\ndevices = [\"/dev/x\"]\n";
    for (text, part) in [
        (
            format!("{write}[target]\nfolder = \"/x\"\n[fleet]\njoin = 1\n{ceiling}"),
            "on another host could be overwritten",
        ),
        (format!("{read}{ceiling}"), "there is no such node; the fleet has node-1"),
        (format!("load_line = {{ percentile = 99, limit = \"0s\" }}\n{read}"), "a limit of 0"),
        (format!("{read}[vary]\nfill_level = [\"25%\"]\n"), "at 25 % full it would reach 100 %"),
        (
            "[[profile]]\nbase_offset = \"512M\"\nworking_set = \"25%\"\n[matrix]\nfill_level = [\"25%\"]\n"
                .to_string(),
            "would reach 62 %",
        ),
        (
            format!(
                "{read}[target]\ndevices = [\"/dev/x\"]\n[phases]\nfill = true\n[[profile]]\nname = \"y\"\n\
                     working_set = \"1MiB\"\n[matrix]\nfill_level = [\"100%\"]\n"
            ),
            "must be a percentage",
        ),
        (
            format!("{read}[target]\ndevices = [\"/dev/x\"]\n[matrix]\nfill_level = [\"100%\"]\n"),
            "say fill = true",
        ),
        (
            format!(
                "{read}[[policy]]\nname = \"a\"\nfolder = \"./x\"\n[[policy]]\nname = \"b\"\nfolder = \"x\"\n"
            ),
            "the same folder",
        ),
        (
            format!(
                "load_line = {{ percentile = 99, limit = \"1s\" }}\n[matrix]\noutstanding = {0:?}\nthreads = {0:?}\n",
                (1..=60).collect::<Vec<u32>>()
            ),
            "vary less beside a search",
        ),
    ] {
        let message = plan(&text);
        assert!(message.contains(part), "no \"{part}\" in {message}");
    }
    // On two hosts two disks may well have one name.
    let joined =
        format!("name = \"s\"\n{read}[target]\ndevices = [\"/dev/x\", \"/dev/x\"]\n[fleet]\njoin = 2\n");
    assert!(Plan::of(&parse("s.toml", &joined).unwrap()).is_ok());
    let wrong = parse("s.toml", "name = \"s\"\n[matrix]\nworkers = \"all\"").unwrap_err().message;
    assert!(wrong.contains("or \"each\""), "{wrong}");
}
