//! Logical units of a real iSCSI target, that of Linux's `tgt`.

#[path = "../../../tests/peers/tgt.rs"]
mod tgt;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use loadline_base::clock::Nanos;
use loadline_load::{
    Disk, Job, LoadError, Outcome, Target, Verify, WritePermission, prepare, prepare_to_fill, prepare_to_scan,
};
use loadline_measure::audit::FindingKind;
use loadline_profile::Profile;
use tgt::{NAME, Tgt};

fn job(uri: &str, profile: &str, writes: WritePermission) -> Job {
    let profile: Profile = profile.parse().unwrap();
    let target: Target = uri.parse().unwrap();
    let mut job = Job::new(vec![Disk { target, writes }], profile);
    (job.warm_up, job.measure) = ("0s".parse().unwrap(), "1s".parse().unwrap());
    job
}

fn run(job: &Job) -> Result<Outcome, LoadError> {
    prepare(job)?.run(Nanos::now(), &AtomicBool::new(false), &mut |_, _| {})
}

fn refused(uri: &str, profile: &str, writes: WritePermission) -> String {
    prepare(&job(uri, profile, writes)).err().expect("it is refused").message
}

fn is_clean(outcome: &Outcome) -> bool {
    outcome.verify.as_ref().is_some_and(|found| found.bad() == 0 && found.checked > 0)
}

/// Has a target agree to digests.
fn allow_digests(tgt: &Tgt) {
    for key in ["HeaderDigest", "DataDigest"] {
        tgt.admin(&["--op", "update", "--mode", "target", "--tid", "1", "--name", key, "--value", "CRC32C"]);
    }
}

/// A file of so many MiB, as a disk.
fn disk(folder: &Path, mib: u64) -> PathBuf {
    let path = folder.join("disk");
    std::fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
    path
}

/// Fills, loads by this profile, and scans.
fn fill_load_and_scan(uri: &str, profile: &str, journal: PathBuf) -> Outcome {
    let quiet = &mut |_, _| {};
    let mut job = job(uri, profile, WritePermission::Destroy);
    job.verify = Some(Verify { journals: vec![journal] });
    prepare_to_fill(&job).unwrap().fill(&AtomicBool::new(false), quiet).unwrap();
    let outcome = run(&job).unwrap();
    let window = &outcome.window;
    assert!(window.read.completed() > 0 && window.write.completed() > 0, "{profile}");
    assert_eq!((window.errors(), window.censored()), (0, 0), "{profile}");
    assert!(is_clean(&outcome), "{profile}: {:?}", outcome.verify);
    let scan = prepare_to_scan(&job).unwrap().scan(&AtomicBool::new(false), quiet);
    assert!(
        scan.incomplete.is_none() && scan.report.bad() == 0 && scan.report.checked > 0,
        "{profile}: {:?}",
        scan.report
    );
    outcome
}

#[test]
fn a_unit_is_filled_loaded_by_several_sessions_and_verified_with_digests_and_without() {
    let folder = tempfile::tempdir().unwrap();
    let tgt = Tgt::start(&disk(folder.path(), 8));
    for options in ["", "?digest=crc32c"] {
        // Blocks of 1 MiB are written as the target asks for them.
        for profile in ["B4-T2-O8-W50-PR", "B64-T1-O4-W50-PR", "B1024-T1-O2-W50-PS"] {
            let uri = format!("{}{options}", tgt.uri());
            let outcome = fill_load_and_scan(&uri, profile, folder.path().join("journal"));
            assert_eq!(outcome.engine, "io_uring");
        }
        allow_digests(&tgt);
    }
}

#[test]
fn writes_are_durable_before_they_are_answered_if_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let tgt = Tgt::start(&disk(folder.path(), 2));
    for through in [false, true] {
        let mut job = job(&tgt.uri(), "B4-T1-O4-W100-PR", WritePermission::Destroy);
        (job.profile.write_through, job.profile.flush_every) = (through, (!through).then_some(8));
        let outcome = run(&job).unwrap();
        assert!(outcome.window.write.completed() > 0);
        assert!(
            outcome.findings.iter().all(|found| found.kind != FindingKind::Errors),
            "{:?}",
            outcome.findings
        );
        assert_eq!(outcome.window.errors(), 0);
    }
}

#[test]
fn a_user_logs_in_by_its_secret_and_nobody_else_does() {
    let folder = tempfile::tempdir().unwrap();
    let tgt = Tgt::start(&disk(folder.path(), 1));
    tgt.admin(&["--op", "new", "--mode", "account", "--user", "bench", "--password", "sesame-opens-it"]);
    tgt.admin(&["--op", "bind", "--mode", "account", "--tid", "1", "--user", "bench"]);
    let secret = folder.path().join("secret");
    let of_user =
        |user: &str| format!("iscsi://{user}@127.0.0.1:{}/{NAME}/1?secret={}", tgt.port, secret.display());
    std::fs::write(&secret, "sesame-opens-it\n").unwrap();
    let profile = "B4-T2-O2-W0-PR";
    assert!(run(&job(&of_user("bench"), profile, WritePermission::Refused)).unwrap().window.read.bytes > 0);
    allow_digests(&tgt);
    let with_digest = format!("{}&digest=crc32c", of_user("bench"));
    assert!(run(&job(&with_digest, profile, WritePermission::Refused)).is_ok());
    for (uri, why) in [(tgt.uri(), "requires CHAP"), (of_user("other"), "does not let other in")] {
        let error = refused(&uri, profile, WritePermission::Refused);
        assert!(error.contains(why), "{uri}: {error}");
    }
    std::fs::write(&secret, "sesame-opens-all").unwrap();
    let error = refused(&of_user("bench"), profile, WritePermission::Refused);
    assert!(error.contains("does not let bench in") && !error.contains("sesame"), "{error}");
    std::fs::remove_file(&secret).unwrap();
    assert!(refused(&of_user("bench"), profile, WritePermission::Refused).contains("cannot be read"));
}

#[test]
fn what_a_target_does_not_offer_is_refused_before_any_io() {
    let folder = tempfile::tempdir().unwrap();
    let tgt = Tgt::start(&disk(folder.path(), 1));
    let reads = |uri: &str| refused(uri, "B4-T1-O1-W0-PR", WritePermission::Refused);
    let of = |target: &str, lun: u16| format!("iscsi://127.0.0.1:{}/{target}/{lun}", tgt.port);
    assert!(reads(&of(NAME, 0)).contains("LUN 0 is no disk"));
    assert!(reads(&of(NAME, 9)).contains("no such LUN"), "{}", reads(&of(NAME, 9)));
    let nowhere = reads(&of("iqn.2003-01.org.example:none", 1));
    assert!(nowhere.contains("no target iqn.2003-01.org.example:none"), "{nowhere}");
    let writes = |profile| refused(&tgt.uri(), profile, WritePermission::Refused);
    assert!(writes("B4-T1-O1-W100-PR").contains("--destroy-data"));
    assert!(reads(&tgt.uri().replace("127.0.0.1", "127.0.0.9")).contains("cannot be reached"));
    tgt.admin(&[
        "--op",
        "update",
        "--mode",
        "logicalunit",
        "--tid",
        "1",
        "--lun",
        "1",
        "--params",
        "readonly=1",
    ]);
    let protected = refused(&tgt.uri(), "B4-T1-O1-W100-PR", WritePermission::Destroy);
    assert!(protected.contains("write protected"), "{protected}");
    assert!(run(&job(&tgt.uri(), "B4-T1-O1-W0-PR", WritePermission::Refused)).is_ok());
}

#[test]
fn a_unit_that_changes_behind_the_load_is_found_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = disk(folder.path(), 1);
    let tgt = Tgt::start(&path);
    let mut job = job(&tgt.uri(), "B4-T1-O4-W0-PR", WritePermission::Destroy);
    job.verify = Some(Verify { journals: vec![folder.path().join("journal")] });
    prepare_to_fill(&job).unwrap().fill(&AtomicBool::new(false), &mut |_, _| {}).unwrap();
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    assert!(!is_clean(&run(&job).unwrap()));
}

#[test]
fn a_target_that_is_killed_ends_the_load_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let tgt = Tgt::start(&disk(folder.path(), 4));
    let mut job = job(&tgt.uri(), "B4-T2-O8-W50-PR", WritePermission::Destroy);
    job.measure = "60s".parse().unwrap();
    let prepared = prepare(&job).unwrap();
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(1500));
        drop(tgt);
    });
    let begun = Instant::now();
    let outcome = prepared.run(Nanos::now(), &AtomicBool::new(false), &mut |_, _| {});
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    killer.join().unwrap();
    let why = match outcome {
        Ok(outcome) => outcome.ended_early.expect("it did not come to its end").message,
        Err(error) => error.message,
    };
    assert!(why.contains("iSCSI target closed the connection"), "{why}");
}
