//! What a load compares with, and what it does not.

use super::*;
use crate::orientation::subject::{Storage, of_run};
use crate::rows::{StepRow, loads};
use loadline_load::host::DiskInventory;
use loadline_measure::audit::{Finding, FindingKind};
use loadline_profile::{Data, Extent};
use loadline_study::folder::OwnedFolder;
use loadline_study::folder::manifest::Manifest;
use loadline_study::plan::Purpose;
use loadline_study::searches::{SearchOver, SearchResult};
use loadline_study::timeline::Timeline;
use loadline_study::{RunFolder, read};

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
        working_set: Some(1 << 40),
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
        above.sentences[0].contains("above every listed one: 2.0 times Micron 7600 MAX"),
        "{:?}",
        above.sentences
    );
    let below = one(load("B4-T1-O32-W0-PR", 50.0));
    assert_eq!(names(&below.drives), (None, Some("Seagate Exos 2X18")));
    assert!(below.sentences[0].contains("below every listed one: 0.16 times"), "{:?}", below.sentences);
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
    assert!(said.starts_with("clusters, by node (4 here): between two: 1.0 times vSAN"), "{said}");
    assert!(said.contains("(29,716 IOPS a node)"), "{said}");
    // Of one, and where they are not known, all of it is against one of their nodes.
    for (nodes, said) in [(Some(1), "by node (1 here)"), (None, "as if this storage were one node")] {
        let found = figures(nodes);
        assert_eq!(names(&found.clusters), (Some("vSAN with two stripes"), None));
        assert!(found.sentences[0].contains(said), "{:?}", found.sentences);
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
    // The test is of the 95th percentile: a median, or a 90th, within it says nothing of that.
    let judged = |percentile: &str| Some(Within { percentile: percentile.into(), limit_us: 3_000.0 });
    for (percentile, count) in
        [("p50", None), ("p90", None), ("p95", Some(2)), ("p99.9", Some(2)), ("mean", None)]
    {
        assert_eq!(counted(Load { within: judged(percentile), ..all.clone() }), count, "{percentile}");
    }
    assert_eq!(counted(all), None, "how slow it was is not known");
}

fn step(label: &str, iops: f64) -> StepRow {
    let mut step = StepRow::none();
    step.profile = label.parse().unwrap();
    step.workers = 1;
    (step.label, step.family) = (label.into(), step.profile.family());
    (step.iops, step.bytes_per_s) = (iops, iops * step.profile.block_size.0 as f64);
    step
}

/// Storage on large disks, of which nothing else is known.
fn disks() -> Storage {
    Storage { disk: Some(1 << 40), disks_per_worker: 1, ..Storage::default() }
}

fn run(steps: &[StepRow], searches: &[SearchResult], storage: &Storage) -> Vec<LoadOrientation> {
    of_run(steps, &loads(steps), searches, storage).loads
}

#[test]
fn of_a_run_without_a_search_the_largest_load_of_each_family_is_compared() {
    let names = ["B4-T1-O1-W0-PR", "B4-T1-O8-W0-PR", "B4-T1-O8-W100-PR", "B8-T1-O8-W0-PR", "B64-T1-O8-W0-PR"];
    let steps: Vec<StepRow> =
        names.iter().zip([1e3, 9e3, 8e3, 7e3, 6e3]).map(|(name, iops)| step(name, iops)).collect();
    let found = run(&steps, &[], &Storage { nodes: Some(3), ..disks() });
    let labels: Vec<&str> = found.iter().map(|load| load.label.as_str()).collect();
    assert_eq!(labels, ["B4-T1-O8-W0-PR", "B4-T1-O8-W100-PR", "B8-T1-O8-W0-PR"]);
    assert!(found.iter().all(|load| load.nodes == Some(3) && load.refused.is_none()));
}

#[test]
fn what_is_doubtful_compares_with_nothing_and_says_why() {
    let refused = |change: &dyn Fn(&mut StepRow)| {
        let mut one = step("B4-T1-O8-W0-PR", 9e3);
        change(&mut one);
        let mut all = run(&[one], &[], &disks());
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
    let both = run(&[harmed, step("B4-T1-O8-W0-PR", 1e3)], &[], &disks());
    assert_eq!((both.len(), both[0].refused.as_deref()), (2, None));
    assert!(both[1].refused.as_ref().unwrap().contains("done to the storage in its window"));
    // A note about something else leaves it as it is.
    let mut noted = step("B4-T1-O8-W0-PR", 9e3);
    noted.findings.push(found(FindingKind::Adjusted));
    assert_eq!(run(&[noted], &[], &disks())[0].refused, None);
    // Every repeat counts.
    let mut repeats = [step("B4-T1-O8-W0-PR", 9e3), step("B4-T1-O8-W0-PR", 9e3)];
    repeats[1].findings.push(found(FindingKind::NotDirect));
    assert!(run(&repeats, &[], &disks())[0].refused.is_some());
}

#[test]
fn a_load_on_harmed_storage_is_compared_with_nothing_and_does_not_hide_the_healthy_one() {
    let text = "name = \"s\"\nprofiles = [\"B4-T1-O8-W30-PR\"]\n[target]\nsan = { copies = 2 }\n[fleet]\nnodes = 2\n\
                [[condition]]\nname = \"healthy\"\n[[condition]]\nname = \"one-down\"\ndo = [{ do = \"kill\", node = \"node-2\" }]\n\
                [[condition]]\nname = \"later\"\nwait = \"1s\"\n";
    let place = tempfile::tempdir().unwrap();
    let folder = made(place.path(), text);
    let storage = Storage { refused: None, ..Storage::of(&folder) };
    let in_condition = |name: &str, iops: f64| {
        let mut step = step("B4-T1-O8-W30-PR", iops);
        step.workers = 2;
        step.label = format!("{}-{name}", step.label);
        step.condition = Some(name.parse().unwrap());
        step
    };
    // With a node down it is faster: one copy less is written.
    let steps = [in_condition("healthy", 1e5), in_condition("one-down", 2e5), in_condition("later", 3e5)];
    let found = run(&steps, &[], &storage);
    let [healthy, down, later] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((healthy.refused.as_deref(), healthy.nodes), (None, Some(2)), "{healthy:?}");
    assert!(healthy.label.ends_with("healthy"));
    for (load, name) in [(down, "one-down"), (later, "later")] {
        let why = format!("it is not of the healthy storage, by its condition {name}: node-2 is killed");
        assert_eq!(load.refused.as_ref(), Some(&why));
        assert!(load.sentences.is_empty());
    }
}

/// The folder of a run of a study.
fn made(place: &std::path::Path, study: &str) -> RunFolder {
    let manifest = Manifest::new(read::parse("s.toml", study).unwrap(), study.into(), place.into()).unwrap();
    OwnedFolder::create(&place.join("run"), manifest).unwrap().folder
}

#[test]
fn the_storage_of_a_run_is_what_its_manifest_records_wherever_the_folder_is() {
    let study = "name = \"s\"\nprofiles = [\"B4-T1-O8-W0-PR\"]\n[target]\nsan = {}\n[fleet]\nnodes = 2\n";
    let place = tempfile::tempdir().unwrap();
    let mut folder = made(place.path(), study);
    let recorded = folder.manifest.storage.clone();
    assert_eq!(recorded.len(), 1, "a run with a cluster records where the devices are");
    let mut refused = |storage: &[DiskInventory]| {
        folder.manifest.storage = storage.to_vec();
        Storage::of(&folder).refused
    };
    let disk = DiskInventory {
        kind: "file".into(),
        file_system: Some("ext4 (rw)".into()),
        ..DiskInventory::default()
    };
    let memory = DiskInventory { memory: Some("tmpfs".into()), ..disk.clone() };
    assert_eq!(refused(std::slice::from_ref(&disk)), None);
    assert_eq!(refused(std::slice::from_ref(&memory)).as_deref(), Some("its disks are in memory (tmpfs)"));
    assert!(refused(&[]).unwrap().contains("not recorded"), "a run of an earlier version");
    assert!(refused(&[disk.clone(), memory.clone()]).unwrap().contains("in memory"));
    assert!(refused(&[disk.clone(), DiskInventory::default()]).unwrap().contains("another storage"));
    // A run on disks that are not its own says nothing of its folder.
    let other = tempfile::tempdir().unwrap();
    let folder = made(other.path(), "name = \"s\"\nprofiles = [\"B4-T1-O8-W0-PR\"]\n");
    assert!(folder.manifest.storage.is_empty());
    assert_eq!(Storage::of(&folder).refused, None);
}

#[test]
fn a_working_set_that_caches_of_drives_may_hold_is_compared_with_nothing() {
    let refused = |working_set, nodes| {
        one(Load { working_set, nodes, ..load("B4-T1-O32-W0-PR", 41_230.0) }).refused.unwrap_or_default()
    };
    assert_eq!(refused(Some(1 << 30), None), "");
    assert_eq!(
        refused(Some(64 << 10), None),
        "its working set of 64KiB is less than 1GiB: the caches of the drives may hold it"
    );
    assert_eq!(refused(None, None), "the size of its working set is not known");
    assert_eq!(refused(Some(4 << 30), Some(4)), "");
    assert!(refused(Some(3 << 30), Some(4)).contains("less than 1GiB for each node"));
    // Of a run it is what the workers use of their disks.
    let mut small = step("B4-T1-O8-W0-PR", 9e3);
    (small.workers, small.profile.working_set) = (4, Some(Extent::Percent(50.0)));
    let on = |disk| run(std::slice::from_ref(&small), &[], &Storage { disk, ..disks() })[0].refused.clone();
    assert_eq!(on(Some(512 << 20)), None);
    assert!(on(Some(511 << 20)).unwrap().contains("its working set of 1022MiB"), "{:?}", on(Some(511 << 20)));
    assert!(on(None).unwrap().contains("not known"));
    small.profile.working_set = Some(Extent::Bytes(ByteSize::GIB));
    assert_eq!(run(&[small], &[], &Storage { disk: None, ..disks() })[0].refused, None);
}

#[test]
fn writes_of_another_kind_are_compared_with_nothing() {
    let why = |change: &dyn Fn(&mut Profile)| {
        let mut load = load("B4-T1-O32-W100-PR", 41_230.0);
        change(&mut load.profile);
        one(load).refused.unwrap_or_default()
    };
    assert_eq!(
        why(&|profile| profile.data = Data::Zeros),
        "it writes zeros; published figures are of random data"
    );
    assert!(why(&|profile| profile.flush_every = Some(1)).contains("made durable"));
    assert_eq!(why(&|_| ()), "");
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
    assert!(subject::in_memory(&disk("file", Some("devtmpfs (rw)"), None)).is_some());
    // Below a file system or a device that is not memory itself.
    for (kind, system, device, below) in [
        ("file", Some("overlay (rw)"), None, "overlay over tmpfs"),
        ("block device", None, Some("loop0"), "loop0 over tmpfs"),
    ] {
        let layered = DiskInventory { memory: Some(below.into()), ..disk(kind, system, device) };
        let why = format!("its disks are in memory ({below})");
        assert_eq!(subject::in_memory(&layered).as_ref(), Some(&why));
    }
    for storage in [disk("file", Some("ext4 (rw)"), Some("vda")), disk("NBD", None, None)] {
        assert_eq!(subject::in_memory(&storage), None);
    }
    let storage = Storage { refused: Some("its disks are in memory (tmpfs)".into()), ..disks() };
    let found = run(&[step("B4-T1-O8-W0-PR", 9e3)], &[], &storage);
    assert_eq!(found[0].refused, storage.refused);
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
    let found = run(&steps, &[search(Some(11_000.0))], &disks());
    assert_eq!(found.len(), 1, "the load line, and not the largest load");
    assert_eq!(title(&found[0]), "B4-T1-O8-W0-PR: 9,900 IOPS, 40.6 MB/s within p99 <= 2.00 ms");
    let last = found[0].sentences.last().unwrap();
    assert!(
        last.starts_with("enough, within p99 <= 2.00 ms, for: 19 × Azure P10 disk (500 IOPS each)"),
        "{last}"
    );
    let found = run(&steps, &[search(None)], &disks());
    assert!(title(&found[0]).contains(": at least 9,900 IOPS"), "{}", title(&found[0]));
    // What makes the rate that missed doubtful says nothing of the one that held.
    steps[2].errors = 5;
    assert_eq!(run(&steps, &[search(Some(11_000.0))], &disks())[0].refused, None);
    steps[1].errors = 5;
    assert!(run(&steps, &[search(Some(11_000.0))], &disks())[0].refused.is_some());
    // A search that found nothing has nothing to compare, and the largest load does not take its place.
    let none = SearchResult { held: None, iops: None, latency_us: None, ..search(Some(1.0)) };
    let found = run(&steps, &[none], &disks());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].refused.as_deref(), Some("its search found no load that keeps the limit"));
    // A search that has not ended is left out.
    let open = SearchResult { done: false, ..search(None) };
    assert!(run(&steps, &[open], &disks()).is_empty());
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
