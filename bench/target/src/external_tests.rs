//! Commands of the shell, and a person who is played, do things to storage that is not there.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use loadline_base::units::TimeSpan;

use crate::error::ErrorKind;
use crate::external::{ACTIONS, External, ExternalSpec, Prompt};
use crate::{Fault, FaultKind, TargetError};

fn spec(commands: &[(&str, &str)]) -> ExternalSpec {
    let of = |(action, line): &(&str, &str)| (action.to_string(), line.to_string());
    ExternalSpec {
        nodes: vec!["a".into(), "b".into()],
        commands: commands.iter().map(of).collect(),
        health: None,
        prompt: false,
        limit: None,
    }
}

fn fault(what: FaultKind, node: &str) -> Fault {
    Fault::of(what, node)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap_or_default()
}

static GO_ON: AtomicBool = AtomicBool::new(false);

#[test]
fn each_fault_runs_its_command_which_knows_the_node_and_what_was_done() {
    let folder = folder();
    let line =
        format!("echo $LOADLINE_ACTION \"$NODE\" $BY $LOADLINE_WAS >> {}/log", folder.path().display());
    let commands = spec(&ACTIONS.map(|action| (action, line.as_str())));
    let mut storage = External::new(commands, None).unwrap();
    let slow = FaultKind::SlowDevice { by: TimeSpan(Duration::from_millis(5)) };
    storage.inject(&fault(slow, "a"), &GO_ON).unwrap();
    storage.inject(&fault(FaultKind::Fill, "b"), &GO_ON).unwrap();
    assert_eq!(storage.harmed().collect::<Vec<_>>(), [("a", slow), ("b", FaultKind::Fill)]);
    let twice = storage.inject(&fault(FaultKind::Kill, "a"), &GO_ON).unwrap_err();
    assert!(twice.kind == ErrorKind::Usage && twice.message.contains("return first"), "{twice}");
    storage.inject(&fault(FaultKind::Return, "b"), &GO_ON).unwrap();
    let up = storage.inject(&fault(FaultKind::Return, "b"), &GO_ON).unwrap_err();
    assert!(up.message.contains("b cannot return: the node has no fault"), "{up}");
    let unknown = storage.inject(&fault(FaultKind::Kill, "c"), &GO_ON).unwrap_err();
    assert!(unknown.message.contains("no node c in the storage; it has a, b"), "{unknown}");
    storage.heal(&GO_ON).unwrap();
    assert_eq!(storage.harmed().count(), 0);
    let log = "slow-device a 5ms\nfill b\nreturn b fill\nreturn a slow-device\n";
    assert_eq!(read(folder.path(), "log"), log);
}

#[test]
fn the_name_of_a_node_is_never_run() {
    let folder = folder();
    let made = folder.path().join("made");
    let name = format!("x'\"; touch {0} $(touch {0}) `touch {0}` \\", made.display());
    let line = format!("printf %s $NODE > /dev/null; printf %s \"$NODE\" > {}/name", folder.path().display());
    let mut storage =
        External::new(ExternalSpec { nodes: vec![name.clone()], ..spec(&[("kill", &line)]) }, None).unwrap();
    storage.inject(&fault(FaultKind::Kill, &name), &GO_ON).unwrap();
    assert_eq!(read(folder.path(), "name"), name);
    assert!(!made.exists(), "a part of the name was run");
    for name in ["-oProxyCommand=x", "", "a\nb"] {
        let named = ExternalSpec { nodes: vec![name.into()], ..spec(&[("kill", "true")]) };
        let refused = External::new(named, None).unwrap_err();
        assert!(refused.message.contains("cannot be a node"), "{refused}");
    }
}

/// Whether the process whose number is in this file still runs.
fn runs(folder: &Path, file: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", read(folder, file).trim()));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_command_that_hangs_is_killed_at_its_limit_with_its_children() {
    let folder = folder();
    let line = format!("echo before; sleep 600 & echo $! > {}/child; wait", folder.path().display());
    let limit = Some(TimeSpan(Duration::from_secs(2)));
    let mut storage = External::new(ExternalSpec { limit, ..spec(&[("kill", &line)]) }, None).unwrap();
    let begun = Instant::now();
    let late = storage.inject(&fault(FaultKind::Kill, "a"), &GO_ON).unwrap_err();
    assert!(late.kind == ErrorKind::Failed && begun.elapsed() < Duration::from_secs(20), "{late}");
    assert!(late.message.contains("within 2s") && late.message.contains("said: before"), "{late}");
    assert!(!read(folder.path(), "child").is_empty() && !runs(folder.path(), "child"), "its child is left");
    assert_eq!(storage.harmed().count(), 1, "it may have done a part, which is to be healed");
}

#[test]
fn a_command_is_killed_with_its_children_when_it_is_to_stop() {
    let folder = folder();
    let line = format!("sleep 600 & echo $! > {}/child; wait", folder.path().display());
    let mut storage = External::new(spec(&[("kill", &line)]), None).unwrap();
    let stop = AtomicBool::new(false);
    let stopped = std::thread::scope(|scope| {
        scope.spawn(|| {
            let begun = Instant::now();
            while read(folder.path(), "child").is_empty() && begun.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(Duration::from_millis(10));
            }
            stop.store(true, Ordering::Relaxed);
        });
        storage.inject(&fault(FaultKind::Kill, "a"), &stop).unwrap_err()
    });
    assert_eq!(stopped.kind, ErrorKind::Interrupted);
    // The process that inherits it may take a moment to collect its exit.
    let begun = Instant::now();
    while runs(folder.path(), "child") {
        assert!(begun.elapsed() < Duration::from_secs(10), "its child is left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_command_that_fails_is_shown_with_the_end_of_what_it_said() {
    let line = "yes first | head -n 5000; echo reason >&2; exit 7";
    let mut storage = External::new(spec(&[("cut", line)]), None).unwrap();
    let failed = storage.inject(&fault(FaultKind::Cut, "b"), &GO_ON).unwrap_err();
    let text = &failed.message;
    assert!(text.starts_with("b is cut off: ") && text.contains("exit code 7"), "{text}");
    assert!(
        text.ends_with("reason") && text.contains("the last that it said was") && text.len() < 5000,
        "{text}"
    );
    let mut storage = External::new(spec(&[("cut", "kill -9 $$")]), None).unwrap();
    let killed = storage.inject(&fault(FaultKind::Cut, "b"), &GO_ON).unwrap_err();
    assert!(killed.message.contains("signal 9 ended it, and said nothing"), "{killed}");
}

#[test]
fn what_a_command_leaves_running_is_not_waited_for() {
    let begun = Instant::now();
    let mut storage = External::new(spec(&[("freeze", "sleep 20 & exit 0")]), None).unwrap();
    storage.inject(&fault(FaultKind::Freeze, "a"), &GO_ON).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn what_cannot_be_used_is_refused_before_anything_starts() {
    let one = spec(&[("kill", "true")]);
    for (spec, part) in [
        (ExternalSpec { nodes: vec![], ..one.clone() }, "has no nodes"),
        (ExternalSpec { nodes: vec!["a".into(), "a".into()], ..one.clone() }, "a is there twice"),
        (spec(&[]), "prompt = true"),
        (spec(&[("kil", "true")]), "did you mean kill?"),
        (spec(&[("slow_device", "true")]), "did you mean slow-device?"),
        (spec(&[("slow", "true")]), "did you mean slow-device?"),
        (
            spec(&[("bananas", "true")]),
            "nothing of that name can be done. There can be commands for kill, freeze",
        ),
        (spec(&[("kill", " ")]), "the command for kill is empty"),
        (ExternalSpec { health: Some(String::new()), ..one.clone() }, "for health is empty"),
        (ExternalSpec { limit: Some(TimeSpan::ZERO), ..one.clone() }, "a limit of"),
        (ExternalSpec { prompt: true, ..one.clone() }, "no way to ask"),
    ] {
        let refused = External::new(spec, None).unwrap_err();
        assert!(refused.kind == ErrorKind::Usage && refused.message.contains(part), "{refused}");
    }
    let check = |spec: &ExternalSpec, what, node| spec.check([fault(what, node)].iter());
    check(&one, FaultKind::Kill, "a").unwrap();
    let missing = check(&one, FaultKind::FailDevice, "a").unwrap_err();
    assert!(missing.kind == ErrorKind::Usage && missing.message.contains("fail-device = "), "{missing}");
    let mut storage = External::new(one.clone(), None).unwrap();
    assert_eq!(storage.inject(&fault(FaultKind::FailDevice, "a"), &GO_ON), Err(missing));
    assert_eq!(storage.harmed().count(), 0, "nothing was done");
    assert!(check(&one, FaultKind::Kill, "c").unwrap_err().message.contains("no node c"));
    check(&ExternalSpec { prompt: true, ..one }, FaultKind::FailDevice, "a").unwrap();
}

#[test]
fn a_person_is_asked_for_what_has_no_command() {
    let asked = Arc::new(Mutex::new(Vec::<String>::new()));
    let asked_before = asked.clone();
    let ask: Prompt = Box::new(move |question, stop| {
        asked_before.lock().unwrap().push(question.into());
        // A person who is asked to freeze something never answers.
        while question.contains("stand still") && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        match stop.load(Ordering::Relaxed) {
            true => Err(TargetError::interrupted()),
            false => Ok(()),
        }
    });
    let limit = Some(TimeSpan(Duration::from_millis(200)));
    let prompted = ExternalSpec { prompt: true, limit, ..spec(&[("cut", "true")]) };
    assert!(prompted.tells_redundancy());
    let mut storage = External::new(prompted, Some(ask)).unwrap();
    let second = Duration::from_secs(1);
    assert!(storage.await_redundancy(second, &GO_ON).unwrap(), "nothing was done: no person is asked");
    storage.inject(&fault(FaultKind::Kill, "a"), &GO_ON).unwrap();
    storage.inject(&fault(FaultKind::Cut, "b"), &GO_ON).unwrap();
    storage.inject(&fault(FaultKind::Return, "a"), &GO_ON).unwrap();
    assert!(storage.await_redundancy(second, &GO_ON).unwrap());
    let late = storage.inject(&fault(FaultKind::Freeze, "a"), &GO_ON).unwrap_err();
    assert!(late.kind == ErrorKind::Failed && late.message.contains("within 200ms"), "{late}");
    let stopped = storage.inject(&fault(FaultKind::Return, "a"), &AtomicBool::new(true)).unwrap_err();
    assert_eq!(stopped.kind, ErrorKind::Interrupted);
    let asked = asked.lock().unwrap();
    assert_eq!(asked[0], "Now do this: kill a, as by a power cut. Then press Enter.");
    assert_eq!(asked[1], "Now do this: undo the faults of a (a is killed). Then press Enter.");
    assert_eq!(asked[2], "Wait until every copy is in sync. Then press Enter.");
    assert_eq!(asked.len(), 5, "{asked:?}");
}

#[test]
fn health_is_asked_until_every_copy_is_in_sync_and_twice() {
    let folder = folder();
    let count = format!("echo x >> {0}/log; [ $(wc -l < {0}/log) -ge 2 ]", folder.path().display());
    let with = |health: &str| ExternalSpec { health: Some(health.into()), ..spec(&[("kill", "true")]) };
    let mut storage = External::new(with(&count), None).unwrap();
    assert!(storage.await_redundancy(Duration::from_secs(30), &GO_ON).unwrap());
    assert_eq!(read(folder.path(), "log").lines().count(), 3, "not yet, yes, yes");
    let mut never = External::new(with("exit 1"), None).unwrap();
    assert!(!never.await_redundancy(Duration::ZERO, &GO_ON).unwrap());
    let mut strange = External::new(with("echo what; exit 3"), None).unwrap();
    let error = strange.await_redundancy(Duration::ZERO, &GO_ON).unwrap_err();
    assert!(
        error.kind == ErrorKind::Failed && error.message.contains("exit code 3, and said: what"),
        "{error}"
    );
    let stop = AtomicBool::new(true);
    assert_eq!(never.await_redundancy(Duration::MAX, &stop).unwrap_err().kind, ErrorKind::Interrupted);

    let mut blind = External::new(spec(&[("kill", "true"), ("return", "true")]), None).unwrap();
    assert!(blind.await_redundancy(Duration::ZERO, &GO_ON).unwrap(), "nothing was done");
    blind.inject(&fault(FaultKind::Kill, "a"), &GO_ON).unwrap();
    blind.heal(&GO_ON).unwrap();
    let unknown = blind.await_redundancy(Duration::ZERO, &GO_ON).unwrap_err();
    assert!(unknown.kind == ErrorKind::Usage && unknown.message.contains("give health"), "{unknown}");
}

#[test]
fn nodes_return_even_if_others_cannot() {
    let line = "[ \"$NODE\" = b ]";
    let mut storage = External::new(spec(&[("kill", "true"), ("return", line)]), None).unwrap();
    storage.inject(&fault(FaultKind::Kill, "a"), &GO_ON).unwrap();
    storage.inject(&fault(FaultKind::Kill, "b"), &GO_ON).unwrap();
    assert!(storage.heal(&GO_ON).unwrap_err().message.starts_with("a is back: "));
    assert_eq!(storage.harmed().collect::<Vec<_>>(), [("a", FaultKind::Kill)]);
}
