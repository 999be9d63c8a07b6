//! Runs with a stand-in for the fleet: crashes, Ctrl-C, resumes, losses.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use loadline_fleet::LossReason;
use loadline_load::WritePermission;
use loadline_load::error::ErrorKind;
use loadline_measure::audit::FindingKind;
use tokio::sync::watch;

use crate::error::StudyError;
use crate::folder::manifest::{Manifest, RunState};
use crate::folder::{OwnedFolder, RunFolder};
use crate::progress::Silent;
use crate::read::parse;
use crate::record::Shared;
use crate::run::RunVerdict;
use crate::runner::Runner;
use crate::stand_in::{Orders, Seen, StandIn};

const STUDY: &str = r#"
name = "s"
profiles = ["B4-T1-O1-W0-PR", "B8-T1-O1-W50-PR"]
[fleet]
workers_per_node = 2
disk_size = "64K"
[phases]
warm_up = "1s"
measure = "2s"
cool_down = "0s"
[run]
repeats = 2
"#;

pub(crate) struct Place {
    _temporary: tempfile::TempDir,
    pub(crate) path: PathBuf,
    pub(crate) names: Vec<&'static str>,
    pub(crate) seen: Arc<Mutex<Seen>>,
}

impl Place {
    pub(crate) fn new(study: &str) -> Place {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("run");
        let manifest =
            Manifest::new(parse("s.toml", study).unwrap(), study.into(), temporary.path().into()).unwrap();
        drop(OwnedFolder::create(&path, manifest).unwrap());
        Place { path, _temporary: temporary, names: vec!["node-1/0", "node-1/1"], seen: Arc::default() }
    }

    /// Goes on with the run. With an order to hang, Ctrl-C is pressed while it does.
    pub(crate) fn go_on(&self, orders: Orders) -> Result<(), StudyError> {
        let mut owned = OwnedFolder::resume(&self.path)?;
        let shared = Shared::new(owned.events.try_clone()?, Box::new(Silent));
        let (sender, stop) = watch::channel(false);
        let hang = orders.hang_at.map(|_| orders.hangs.clone());
        let sink = shared.sink();
        let names = self.names.clone();
        let workers = StandIn { names, orders, seen: Arc::clone(&self.seen), sink };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            if let Some(hangs) = hang {
                tokio::spawn(async move {
                    // At the latest when it should have come to that long ago.
                    let _ = tokio::time::timeout(Duration::from_secs(20), hangs.notified()).await;
                    sender.send(true).unwrap();
                });
            }
            Runner::new(&mut owned, workers, shared, stop).all().await
        })
    }

    pub(crate) fn folder(&self) -> RunFolder {
        RunFolder::open(&self.path).unwrap()
    }

    fn steps(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path.join("steps"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    pub(crate) fn disks(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path.join("disks"));
        let mut paths: Vec<PathBuf> =
            entries.into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    }
}

fn results(folder: &RunFolder) -> Vec<Option<f64>> {
    folder.results().unwrap().into_iter().map(|(_, result)| result.map(|r| r.figures.total.iops)).collect()
}

#[test]
fn a_run_measures_every_load_in_every_round_and_leaves_only_results() {
    let place = Place::new(STUDY);
    place.go_on(Orders::default()).unwrap();
    let folder = place.folder();
    assert_eq!(folder.manifest.state, RunState::Finished);
    assert_eq!(results(&folder), [Some(2000.0); 4], "two workers of 1000 a second");
    assert!(place.disks().is_empty() && folder.manifest.files.is_empty(), "what was made is removed");
    let seen = place.seen.lock().unwrap();
    assert_eq!((seen.fills, seen.measured.as_slice()), (1, [4096, 8192, 8192, 4096].as_slice()));
    let made = |permission: &WritePermission| matches!(permission, WritePermission::Made(_));
    assert!(
        seen.permissions.len() == 8 && seen.permissions.iter().all(made),
        "only what was made is written to"
    );
    assert_eq!(seen.seeds.len(), 8, "every worker of every step draws its own numbers");
    let verdict = RunVerdict::of(&folder).unwrap();
    assert_eq!((verdict.complete, verdict.planned, verdict.bad_blocks), (4, 4, 0));
    let (step, result) = folder.results().unwrap().remove(0);
    let result = result.unwrap();
    assert_eq!(result.began.as_str(), "2023-11-14T22:13:20.000Z", "when its warm-up began");
    assert_eq!(result.hosts.len(), 1);
    let host = fs::read_to_string(folder.step_path(&step).join("host.jsonl")).unwrap();
    assert_eq!((host.lines().count(), result.series["host.jsonl"]), (1, host.len() as u64));
}

#[test]
fn existing_devices_go_to_the_workers_in_order_and_are_written_to_only_if_they_are_given_up() {
    let devices = "[target]\ndevices = [\"a.img\", \"/b.img\", \"c.img\", \"null:1MiB\"]\n[fleet]";
    let study = STUDY.replace("[fleet]", devices).replace("disk_size = \"64K\"", "disks_per_worker = 2");
    for given_up in [false, true] {
        let place = Place::new(&study);
        let mut owned = OwnedFolder::resume(&place.path).unwrap();
        owned.folder.manifest.destroy_data = given_up;
        owned.save().unwrap();
        drop(owned);
        place.go_on(Orders::default()).unwrap();
        let seen = place.seen.lock().unwrap();
        let beside_the_study = |name: &str| place.path.with_file_name(name).display().to_string();
        assert_eq!(seen.disks["node-1/0"], [beside_the_study("a.img"), "/b.img".into()]);
        assert_eq!(seen.disks["node-1/1"], [beside_the_study("c.img"), "null:1MiB".into()]);
        let expected = if given_up { WritePermission::Destroy } else { WritePermission::Refused };
        assert_eq!(seen.permissions[..3], [expected.clone(), expected.clone(), expected]);
        assert_eq!((seen.fills, place.path.join("disks").exists()), (0, false));
    }
}

#[test]
fn ctrl_c_in_any_step_costs_that_step_and_nothing_else() {
    for interrupted in 0..4 {
        let place = Place::new(STUDY);
        let error = place.go_on(Orders { hang_at: Some(interrupted), ..Orders::default() }).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Interrupted);
        let complete = results(&place.folder()).iter().flatten().count();
        assert_eq!((complete, place.disks().len()), (interrupted, 2), "the files are kept to go on with");
        place.go_on(Orders::default()).unwrap();
        assert_eq!(results(&place.folder()), [Some(2000.0); 4]);
        let seen = place.seen.lock().unwrap();
        assert_eq!(seen.measured, [4096, 8192, 8192, 4096], "no step was measured to its end twice");
        assert_eq!(seen.fills, 1, "what was filled is not filled again");
        let aside: Vec<String> =
            place.steps().into_iter().filter(|name| name.ends_with("-interrupted-1")).collect();
        assert!(aside.len() == 1 && aside[0].starts_with(&format!("00{}", interrupted + 1)), "{aside:?}");
    }
}

#[test]
fn a_step_without_its_result_was_never_measured() {
    let place = Place::new(STUDY);
    place.go_on(Orders { hang_at: Some(3), ..Orders::default() }).unwrap_err();
    let second = place.path.join("steps").join(&place.folder().plan.steps[1].folder);
    // The process ended after the temporary file was written and before it was renamed.
    fs::rename(second.join("result.json"), second.join("result.new")).unwrap();
    place.go_on(Orders::default()).unwrap();
    assert_eq!(place.seen.lock().unwrap().measured, [4096, 8192, 8192, 8192, 4096]);
    assert_eq!(results(&place.folder()), [Some(2000.0); 4]);
}

#[test]
fn a_crash_after_files_were_made_and_before_that_was_written_down_leaves_none_behind() {
    let place = Place::new(STUDY);
    place.go_on(Orders { hang_at: Some(0), ..Orders::default() }).unwrap_err();
    let mut owned = OwnedFolder::resume(&place.path).unwrap();
    owned.folder.manifest.files.iter_mut().for_each(|file| file.identity = None);
    owned.save().unwrap();
    drop(owned);
    place.go_on(Orders::default()).unwrap();
    assert_eq!(place.seen.lock().unwrap().fills, 2, "new files are filled");
    assert!(place.disks().is_empty());
}

#[test]
fn a_file_that_is_gone_is_made_and_filled_again_and_another_in_its_place_is_left_alone() {
    let place = Place::new(STUDY);
    place.go_on(Orders { hang_at: Some(1), ..Orders::default() }).unwrap_err();
    let disk = place.disks().remove(0);
    fs::remove_file(&disk).unwrap();
    fs::write(&disk, "another program's").unwrap();
    let error = place.go_on(Orders::default()).unwrap_err();
    assert!(
        error.kind == ErrorKind::Usage && error.message.contains("not the file that this run made"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&disk).unwrap(), "another program's");
    fs::remove_file(&disk).unwrap();
    place.go_on(Orders::default()).unwrap();
    assert_eq!(place.seen.lock().unwrap().fills, 2);
}

#[test]
fn what_a_killed_keeper_has_left_of_a_migration_is_removed_by_the_next_resume() {
    let place = Place::new(STUDY);
    let at = |name: &str| place.path.join("verify").join(name);
    for name in ["node-1-0-0.journal", "node-1-0-0.migrated", "node-1-0-0.other"] {
        fs::write(at(name), "").unwrap();
    }
    drop(OwnedFolder::resume(&place.path).unwrap());
    let there =
        ["node-1-0-0.journal", "node-1-0-0.migrated", "node-1-0-0.other"].map(|name| at(name).exists());
    assert_eq!(there, [true, false, false]);
}

#[test]
fn a_crash_before_the_files_are_removed_leaves_that_to_the_next_resume() {
    let place = Place::new(STUDY);
    place.go_on(Orders { crash_at_the_end: true, ..Orders::default() }).unwrap_err();
    assert_eq!((results(&place.folder()), place.disks().len()), (vec![Some(2000.0); 4], 2));
    place.go_on(Orders::default()).unwrap();
    assert!(place.disks().is_empty());
    assert_eq!(place.seen.lock().unwrap().measured.len(), 4, "nothing was measured for it");
}

#[test]
fn a_lost_worker_is_counted_and_its_run_goes_on() {
    let place = Place::new(STUDY);
    place.go_on(Orders { lose: Some(("node-1/1".into(), LossReason::Died)), ..Orders::default() }).unwrap();
    let (_, result) = place.folder().results().unwrap().remove(0);
    let result = result.unwrap();
    assert_eq!((result.lost(), result.workers.len()), (1, 2));
    assert_eq!(result.findings[0].kind, FindingKind::LostWorkers);
    assert!(result.findings[0].found.contains("node-1/1 (it was told to)"), "{}", result.findings[0]);
    assert!(result.findings.iter().all(|f| f.kind != FindingKind::LittlesLaw), "that is explained already");
    assert_eq!(RunVerdict::of(&place.folder()).unwrap().doubts, 4);
}

#[test]
fn a_worker_that_refuses_its_job_ends_the_run_as_a_usage_error() {
    let place = Place::new(STUDY);
    let orders = Orders { lose: Some(("node-1/0".into(), LossReason::Refused)), ..Orders::default() };
    let error = place.go_on(orders).unwrap_err();
    assert!(error.kind == ErrorKind::Usage && error.message.contains("step 1 (B4-T1-O1-W0-PR)"), "{error}");
    assert_eq!(results(&place.folder()), [None; 4]);
}

#[test]
fn a_job_that_was_taken_once_and_is_refused_later_is_a_loss_and_the_run_goes_on() {
    let place = Place::new(STUDY);
    let lose = Some(("node-1/0".into(), LossReason::Refused));
    place.go_on(Orders { lose, lose_from: 1, ..Orders::default() }).unwrap();
    let lost: Vec<usize> =
        place.folder().results().unwrap().into_iter().map(|(_, result)| result.unwrap().lost()).collect();
    assert_eq!(lost, [0, 1, 1, 1]);
}

#[test]
fn a_step_that_no_worker_finished_is_complete_and_three_in_a_row_end_the_run() {
    let place = Place::new(STUDY);
    place.go_on(Orders { lose_all: Some((1, 2)), ..Orders::default() }).unwrap();
    let (_, result) = place.folder().results().unwrap().remove(1);
    let result = result.unwrap();
    assert_eq!((result.lost(), result.figures.total.iops), (2, 2000.0), "what arrived is there");
    assert_eq!(result.findings[0].kind, FindingKind::LostWorkers);

    let place = Place::new(STUDY);
    let error = place.go_on(Orders { lose_all: Some((0, 4)), ..Orders::default() }).unwrap_err();
    assert!(error.kind == ErrorKind::Failed && error.message.contains("step 3"), "{error}");
    assert!(error.message.contains("node-1/0: it was told to"), "{error}");
    assert_eq!(results(&place.folder()).iter().flatten().count(), 3);
    place.go_on(Orders::default()).unwrap();
    assert_eq!(place.folder().manifest.state, RunState::Finished);
}

#[test]
fn a_worker_that_dies_while_it_fills_fills_once_more_and_no_more_than_that() {
    let place = Place::new(STUDY);
    place.go_on(Orders { die_in_fills: 1, ..Orders::default() }).unwrap();
    assert_eq!(place.seen.lock().unwrap().filled, ["node-1/0", "node-1/1", "node-1/0"]);
    let place = Place::new(STUDY);
    let error = place.go_on(Orders { die_in_fills: 2, ..Orders::default() }).unwrap_err();
    assert!(error.kind == ErrorKind::Failed && error.message.contains("node-1/0"), "{error}");
    assert!(!place.folder().manifest.filled);
}

#[test]
fn a_stop_condition_ends_the_run_and_the_step_that_it_ended_is_measured_anew() {
    let study = format!("{STUDY}stop_if = [\"p99>50ms\", \"errors>0\"]");
    let place = Place::new(&study);
    let error = place.go_on(Orders { stop_condition: true, ..Orders::default() }).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Limit);
    assert_eq!((results(&place.folder()), place.disks().len()), (vec![None; 4], 2));
    place.go_on(Orders::default()).unwrap();
    let limits: Vec<String> = place.seen.lock().unwrap().stop_if.iter().map(ToString::to_string).collect();
    assert_eq!(limits, ["p99>50ms", "errors>0"], "every job has them");
}

#[test]
fn bad_blocks_that_a_step_found_before_it_was_ended_are_told() {
    let place = Place::new(STUDY);
    let error = place.go_on(Orders { stop_condition: true, bad_blocks: 3, ..Orders::default() }).unwrap_err();
    assert!(error.kind == ErrorKind::Failed && error.message.contains("3 blocks"), "{error}");
    let events = fs::read_to_string(place.path.join("events.jsonl")).unwrap();
    assert!(events.contains("\"bad_blocks\""), "{events}");
}

#[test]
fn lost_writes_are_a_finding_and_every_step_is_recorded_all_the_same() {
    let study = format!("{STUDY}verify = true");
    let place = Place::new(&study);
    place.go_on(Orders { bad_blocks: 3, ..Orders::default() }).unwrap();
    let verdict = RunVerdict::of(&place.folder()).unwrap();
    assert_eq!(
        (verdict.complete, verdict.bad_blocks),
        (4, 12),
        "two steps write, two workers find three each"
    );
    let (_, result) = place.folder().results().unwrap().remove(1);
    assert!(result.unwrap().findings.iter().any(|finding| finding.kind == FindingKind::Integrity));
}

#[test]
fn the_disks_of_a_worker_that_does_not_come_back_are_scanned_by_another() {
    let study = format!("{STUDY}verify = true");
    let place = Place::new(&study);
    place.go_on(Orders { cannot_scan: Some("node-1/0".into()), ..Orders::default() }).unwrap();
    let scans = &place.seen.lock().unwrap().scans;
    let journal = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    assert!(scans.iter().all(|(worker, _)| worker == "node-1/1"), "{scans:?}");
    assert_eq!(scans.iter().filter(|(_, path)| journal(path) == "node-1-0-0.journal").count(), 2);
}

#[test]
fn a_run_of_which_files_are_left_is_not_finished_and_resuming_it_removes_them() {
    let place = Place::new(STUDY);
    place.go_on(Orders { cannot_remove: Some("node-1/1".into()), ..Orders::default() }).unwrap();
    let folder = place.folder();
    assert_ne!(folder.manifest.state, RunState::Finished);
    assert_eq!((folder.manifest.files.len(), place.disks().len()), (1, 1));
    assert!(folder.results().unwrap().iter().all(|(_, result)| result.is_some()));
    let measured = place.seen.lock().unwrap().measured.len();
    place.go_on(Orders::default()).unwrap();
    assert_eq!(place.folder().manifest.state, RunState::Finished);
    assert_eq!((place.disks().len(), place.seen.lock().unwrap().measured.len()), (0, measured));
}

#[test]
fn two_controllers_never_share_a_folder() {
    let place = Place::new(STUDY);
    let first = OwnedFolder::resume(&place.path).unwrap();
    let error = OwnedFolder::resume(&place.path).unwrap_err();
    assert!(error.message.contains(&format!("process {}", std::process::id())), "{error}");
    drop(first);
    OwnedFolder::resume(&place.path).unwrap();
}

#[test]
fn a_run_of_another_study_or_version_is_not_gone_on_with() {
    let place = Place::new(STUDY);
    fs::write(place.path.join("study.toml"), STUDY.replace("repeats = 2", "repeats = 3")).unwrap();
    let error = OwnedFolder::resume(&place.path).unwrap_err();
    assert!(error.message.contains("no longer the study"), "{error}");
    fs::remove_file(place.path.join("study.toml")).unwrap();
    let mut owned = OwnedFolder::resume(&place.path).unwrap();
    owned.folder.manifest.loadline = "0.0.1".into();
    owned.save().unwrap();
    drop(owned);
    let error = OwnedFolder::resume(&place.path).unwrap_err();
    assert!(error.message.contains("begun by loadline 0.0.1"), "{error}");
    RunFolder::open(&place.path).expect("it can still be reported");
}

#[test]
fn a_folder_that_holds_anything_is_not_taken_for_a_new_run() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("thesis.txt"), "mine").unwrap();
    let manifest =
        Manifest::new(parse("s.toml", STUDY).unwrap(), STUDY.into(), folder.path().into()).unwrap();
    let error = OwnedFolder::create(folder.path(), manifest.clone()).unwrap_err();
    assert!(error.kind == ErrorKind::Usage && error.message.contains("is not empty"), "{error}");
    let owned = OwnedFolder::create(&folder.path().join("run"), manifest).unwrap();
    owned.abandon().unwrap();
    assert!(!folder.path().join("run").exists(), "a run in which nothing was begun leaves nothing");
}

#[test]
fn another_step_s_result_is_not_taken_for_this_one_s() {
    let place = Place::new(STUDY);
    place.go_on(Orders::default()).unwrap();
    let folder = place.folder();
    let path = |n: usize| folder.step_path(&folder.plan.steps[n]).join("result.json");
    fs::copy(path(0), path(2)).unwrap();
    let error = folder.results().unwrap_err();
    assert!(error.message.contains("another run or step"), "{error}");
}
