//! What a load compares with, and what it does not.

use super::*;
use crate::orientation::subject::{Storage, of_run};
use crate::rows::{StepRow, loads};
use loadline_load::host::DiskInventory;
use loadline_measure::audit::{Finding, FindingKind};
use loadline_study::planned_step::Purpose;
use loadline_study::searches::{SearchOver, SearchResult};
use loadline_study::timeline::Timeline;

fn load(profile: &str, iops: f64) -> Load {
    let profile: Profile = profile.parse().unwrap();
    Load {
        label: profile.label(),
        bytes_per_s: iops * profile.block_size.0 as f64,
        profile,
        iops,
        within: None,
        at_least: false,
        p99_us: None,
        nodes: None,
        refused: None,
    }
}

fn one(load: Load) -> LoadOrientation {
    of(&[load]).loads.remove(0)
}

fn names(found: &Neighbours) -> (Option<&str>, Option<&str>) {
    (found.below.as_ref().map(|one| &*one.name), found.above.as_ref().map(|one| &*one.name))
}

#[test]
fn a_load_lies_between_the_nearest_two() {
    let found = one(load("B4-T1-O32-W0-PR", 41_230.0));
    assert_eq!(names(&found.drives), (Some("Seagate Exos 2X18"), Some("Intel SSD DC S3500 (M.2)")));
    assert_eq!(
        found.sentences[0],
        "data sheets of drives: between two: 136 times Seagate Exos 2X18 (304 IOPS), 0.62 times Intel SSD DC S3500 (M.2) (67,000 IOPS)"
    );
    assert!(found.sentences.len() <= 3, "with its title four lines: {:?}", found.sentences);
    // Of a figure that is met exactly it is not less.
    let found = one(load("B4-T1-O32-W0-PR", 67_000.0));
    assert_eq!(names(&found.drives), (Some("Intel SSD DC S3500 (M.2)"), Some("Intel SSD DC S4500")));
    assert_eq!(found.drives.below.unwrap().ratio, 1.0);
}

#[test]
fn what_is_above_all_or_below_all_says_so() {
    let above = one(load("B4-T1-O32-W0-PR", 4.2e6));
    assert_eq!(names(&above.drives), (Some("Micron 7600 MAX 6.4TB"), None));
    assert!(
        above.sentences[0].contains("above all here: 2.0 times Micron 7600 MAX"),
        "{:?}",
        above.sentences
    );
    let below = one(load("B4-T1-O32-W0-PR", 50.0));
    assert_eq!(names(&below.drives), (None, Some("hard disk of 7,200 rpm")));
    assert!(below.sentences[0].contains("below all here: 0.50 times"), "{:?}", below.sentences);
}

#[test]
fn only_figures_of_like_loads_are_compared() {
    let mixed = one(load("B4-T1-O32-W30-PR", 300_000.0));
    assert_eq!(names(&mixed.drives), (Some("Intel SSD DC P3700"), Some("Intel Optane SSD DC P4800X")));
    let written = one(load("B4-T1-O32-W100-PR", 20_000.0));
    assert_eq!(names(&written.drives), (Some("Intel SSD DC S3500 (M.2)"), Some("Intel SSD DC S4500")));
    // Nothing published is like it; what disks of a cloud are given is so whatever the load.
    let odd = one(load("B16-T1-O32-W75-PR", 20_000.0));
    assert_eq!((names(&odd.drives), names(&odd.clusters)), ((None, None), (None, None)));
    assert_eq!(odd.sentences[0], "no figure of a load like this is among the published ones");
    assert!(
        odd.machines.iter().all(|machine| machine.kind.contains("disk") || machine.kind.contains("volume"))
    );
    // Large sequential blocks by throughput, whatever their size.
    let streamed = one(load("B512-T1-O8-W0-PS", 2_000.0));
    assert_eq!(names(&streamed.drives), (Some("Seagate Exos 2X18"), Some("Intel Optane SSD DC P4800X")));
    assert!(streamed.sentences[0].contains("MB/s)"), "{:?}", streamed.sentences);
}

#[test]
fn clusters_are_compared_by_node() {
    let figures = |nodes: Option<u32>| one(Load { nodes, ..load("B8-T4-O8-W30-PR", 120_000.0) });
    // 118,865 and 136,457 IOPS of four nodes.
    let four = figures(Some(4));
    assert_eq!(names(&four.clusters), (Some("vSAN with one stripe"), Some("vSAN with two stripes")));
    let below = four.clusters.below.as_ref().unwrap();
    assert!(
        (below.ratio - 120_000.0 / 118_865.0).abs() < 1e-9 && (below.figure - 118_865.0 / 4.0).abs() < 1e-9
    );
    let said = &four.sentences[0];
    assert!(
        said.starts_with("clusters, each of 4 nodes against a node of theirs: between two: 1.0 times vSAN"),
        "{said}"
    );
    assert!(said.contains("(29,716 IOPS a node)"), "{said}");
    // Of one, and where they are not known, all of it is against one of their nodes.
    for nodes in [Some(1), None] {
        let found = figures(nodes);
        assert_eq!(names(&found.clusters), (Some("vSAN with two stripes"), None));
        assert!(found.sentences[0].contains("as if it were one node"), "{:?}", found.sentences);
    }
}

#[test]
fn machines_are_rounded_down_and_less_than_one_is_said() {
    let count = |found: &LoadOrientation, kind: &str| {
        found.machines.iter().find(|machine| machine.kind == kind).map(|machine| machine.count)
    };
    let found = one(load("B8-T1-O8-W30-PR", 11_999.0));
    assert_eq!(count(&found, "OLTP database server"), Some(9));
    assert_eq!(count(&found, "Azure P30 disk"), Some(2));
    assert!(
        found
            .sentences
            .last()
            .unwrap()
            .starts_with("enough for: 9 × OLTP database server (1,200 IOPS of 8 KiB each)")
    );
    let small = one(load("B8-T1-O8-W30-PR", 1_199.0));
    assert_eq!(count(&small, "OLTP database server"), Some(0));
    assert!(
        small.sentences.last().unwrap().contains("less than one OLTP database server (1,200 IOPS of 8 KiB)")
    );
    // Half the bytes in each I/O: by bytes it is half as many.
    assert_eq!(count(&one(load("B4-T1-O8-W30-PR", 12_000.0)), "OLTP database server"), Some(5));
    assert_eq!(count(&one(load("B16-T1-O8-W30-PR", 12_000.0)), "OLTP database server"), Some(10));
    // Neither with other blocks, nor with another mix, nor in a row.
    for other in ["B64-T1-O8-W30-PR", "B8-T1-O8-W0-PR", "B8-T1-O8-W100-PR", "B8-T1-O8-W30-PS"] {
        assert_eq!(count(&one(load(other, 12_000.0)), "OLTP database server"), None, "{other}");
    }
    // What a disk is given is limited in bytes as well: 200 MB/s are 762 blocks of 256 KiB.
    assert_eq!(count(&one(load("B256-T1-O8-W0-PR", 1_600.0)), "Azure P30 disk"), Some(2));
}

#[test]
fn a_machine_with_a_latency_is_counted_only_within_it() {
    let kind = "node of the vSAN acceptance test";
    let counted =
        |load: Load| one(load).machines.iter().find(|machine| machine.kind == kind).map(|m| m.count);
    let within = |limit_us: f64| Some(Within { percentile: "p95".into(), limit_us });
    let all = load("B8-T1-O8-W30-PR", 120_000.0);
    assert_eq!(counted(Load { within: within(3_000.0), ..all.clone() }), Some(2));
    assert_eq!(counted(Load { within: within(3_100.0), p99_us: Some(1.0), ..all.clone() }), None);
    assert_eq!(counted(Load { p99_us: Some(2_999.0), ..all.clone() }), Some(2));
    assert_eq!(counted(all), None, "how slow it was is not known");
}

fn step(label: &str, iops: f64) -> StepRow {
    let mut step = StepRow::none();
    step.profile = label.parse().unwrap();
    (step.label, step.family) = (label.into(), step.profile.family());
    (step.iops, step.bytes_per_s) = (iops, iops * step.profile.block_size.0 as f64);
    step
}

fn run(steps: &[StepRow], searches: &[SearchResult], storage: &Storage) -> Vec<LoadOrientation> {
    of_run(steps, &loads(steps), searches, storage).loads
}

#[test]
fn of_a_run_without_a_search_the_largest_load_of_each_family_is_compared() {
    let names = ["B4-T1-O1-W0-PR", "B4-T1-O8-W0-PR", "B4-T1-O8-W100-PR", "B8-T1-O8-W0-PR", "B64-T1-O8-W0-PR"];
    let steps: Vec<StepRow> =
        names.iter().zip([1e3, 9e3, 8e3, 7e3, 6e3]).map(|(name, iops)| step(name, iops)).collect();
    let found = run(&steps, &[], &Storage { nodes: Some(3), in_memory: None });
    let labels: Vec<&str> = found.iter().map(|load| load.label.as_str()).collect();
    assert_eq!(labels, ["B4-T1-O8-W0-PR", "B4-T1-O8-W100-PR", "B8-T1-O8-W0-PR"]);
    assert!(found.iter().all(|load| load.nodes == Some(3) && load.refused.is_none()));
}

#[test]
fn what_is_doubtful_compares_with_nothing_and_says_why() {
    let refused = |change: &dyn Fn(&mut StepRow)| {
        let mut one = step("B4-T1-O8-W0-PR", 9e3);
        change(&mut one);
        let mut all = run(&[one], &[], &Storage::default());
        let load = all.remove(0);
        assert_eq!((load.drives, load.clusters, load.machines.len()), Default::default());
        assert!(load.sentences.is_empty());
        load.refused.unwrap()
    };
    let found = |kind| Finding::note(kind, "a", "b", "c");
    assert!(refused(&|step| step.findings.push(found(FindingKind::NotDirect))).contains("page cache"));
    assert!(refused(&|step| step.findings.push(found(FindingKind::GeneratorBound))).contains("generator"));
    assert!(
        refused(&|step| step.findings.push(found(FindingKind::UnwrittenReads))).contains("never written")
    );
    let doubt = Finding::doubt(FindingKind::LittlesLaw, "8 outstanding", "3", "c");
    let why = refused(&|step| step.findings.push(doubt.clone()));
    assert_eq!(why, "it is doubtful: expected 8 outstanding; found 3");
    assert!(refused(&|step| step.errors = 1).contains("failed"));
    assert!(refused(&|step| step.lost_workers = 1).contains("lost"));
    assert!(refused(&|step| step.rate_iops = Some(9e3)).contains("offered a rate"));
    let mut harmed = step("B8-T1-O8-W0-PR", 9e3);
    harmed.timeline = Some(Timeline { baseline: None, events: Vec::new() });
    let both = run(&[harmed, step("B4-T1-O8-W0-PR", 1e3)], &[], &Storage::default());
    assert_eq!((both.len(), both[0].refused.as_deref()), (2, None));
    assert!(both[1].refused.as_ref().unwrap().contains("done to the storage in its window"));
    // A note about something else leaves it as it is.
    let mut noted = step("B4-T1-O8-W0-PR", 9e3);
    noted.findings.push(found(FindingKind::Adjusted));
    assert_eq!(run(&[noted], &[], &Storage::default())[0].refused, None);
    // Every repeat counts.
    let mut repeats = [step("B4-T1-O8-W0-PR", 9e3), step("B4-T1-O8-W0-PR", 9e3)];
    repeats[1].findings.push(found(FindingKind::NotDirect));
    assert!(run(&repeats, &[], &Storage::default())[0].refused.is_some());
}

#[test]
fn memory_compares_with_nothing() {
    let disk = |kind: &str, system: Option<&str>, device: Option<&str>| DiskInventory {
        kind: kind.into(),
        file_system: system.map(Into::into),
        device: device.map(Into::into),
        ..DiskInventory::default()
    };
    assert!(subject::in_memory(&disk("null", None, None)).unwrap().contains("stores nothing"));
    assert!(subject::in_memory(&disk("file", Some("tmpfs (rw,nosuid)"), None)).unwrap().contains("tmpfs"));
    assert!(subject::in_memory(&disk("block device", None, Some("ram0"))).is_some());
    assert!(subject::in_memory(&disk("file", Some("ext4 (rw)"), Some("zram1"))).is_some());
    for storage in [disk("file", Some("ext4 (rw)"), Some("vda")), disk("NBD", None, None)] {
        assert_eq!(subject::in_memory(&storage), None);
    }
    let storage = Storage { nodes: None, in_memory: Some("its disks are in memory (tmpfs)".into()) };
    let found = run(&[step("B4-T1-O8-W0-PR", 9e3)], &[], &storage);
    assert_eq!(found[0].refused, storage.in_memory);
    assert_eq!(text(&of_run(&[], &[], &[], &storage)), "", "nothing was measured");
}

#[test]
fn a_load_line_is_compared_within_its_limit() {
    let search = |missed| SearchResult {
        label: "B4-T1-O8-W0-PR".into(),
        over: SearchOver::Rate,
        percentile: "p99".into(),
        limit_us: 2_000.0,
        done: true,
        held: Some(10_000.0),
        missed,
        iops: Some(9_900.0),
        latency_us: Some(1_500.0),
        steps: 3,
        found: String::new(),
    };
    let probe = |load: f64| StepRow {
        purpose: Purpose::Search { search: 1, load },
        rate_iops: Some(load),
        ..step("B4-T1-O8-W0-PR", load)
    };
    let mut steps = vec![step("B4-T1-O8-W0-PR", 40_000.0), probe(10_000.0), probe(11_000.0)];
    let found = run(&steps, &[search(Some(11_000.0))], &Storage::default());
    assert_eq!(found.len(), 1, "the load line, and not the largest load");
    assert_eq!(title(&found[0]), "B4-T1-O8-W0-PR: 9,900 IOPS, 40.6 MB/s within p99 <= 2.00 ms");
    let last = found[0].sentences.last().unwrap();
    assert!(
        last.starts_with("enough, within p99 <= 2.00 ms, for: 19 × Azure P10 disk (500 IOPS each)"),
        "{last}"
    );
    let found = run(&steps, &[search(None)], &Storage::default());
    assert!(title(&found[0]).contains(": at least 9,900 IOPS"), "{}", title(&found[0]));
    // What makes the rate that missed doubtful says nothing of the one that held.
    steps[2].errors = 5;
    assert_eq!(run(&steps, &[search(Some(11_000.0))], &Storage::default())[0].refused, None);
    steps[1].errors = 5;
    assert!(run(&steps, &[search(Some(11_000.0))], &Storage::default())[0].refused.is_some());
    // A search that found nothing has nothing to compare, and the largest load does not take its place.
    let none = SearchResult { held: None, iops: None, latency_us: None, ..search(Some(1.0)) };
    let found = run(&steps, &[none], &Storage::default());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].refused.as_deref(), Some("its search found no load that keeps the limit"));
    // One that has not ended is not told of.
    let open = SearchResult { done: false, ..search(None) };
    assert!(run(&steps, &[open], &Storage::default()).is_empty());
}

#[test]
fn it_is_marked_as_orientation() {
    let orientation = of(&[load("B4-T1-O32-W0-PR", 41_230.0)]);
    let text = text(&orientation);
    assert!(text.starts_with("orientation only: data sheets state"), "{text}");
    assert!(text.lines().count() <= 5, "{text}");
    let refused = of(&[Load { refused: Some("why".into()), ..load("B4-T1-O32-W0-PR", 1.0) }]);
    assert_eq!(super::text(&refused), "orientation: B4-T1-O32-W0-PR: not compared: why\n");
    assert_eq!(of(&[load("B4-T1-O32-W0-PR", 0.0)]).loads[0].refused.as_deref(), Some("nothing completed"));
}
