//! The start of a study, with a program that only does as if.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use loadline_question::{Answers, draft};

use super::*;

/// A draft by the name `name`.
fn made(name: &str) -> Draft {
    let given = |text: &str| Some(text.to_owned());
    let answers = Answers {
        question: given("slower"),
        effort: given("quick"),
        name: given(name),
        ..Answers::default()
    };
    draft(&answers).unwrap()
}

/// Studies that are run by a script, whose words are `run STUDY --out FOLDER …`.
fn studies(place: &Path, script: &str, begins: Duration) -> Studies {
    let program = place.join("program");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    Studies::with(Ok(program), Some(place.join("deep/runs")), begins)
}

fn names(folder: &Path) -> Vec<String> {
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut all: Vec<String> = all.collect();
    all.sort();
    all
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

const LONG: Duration = Duration::from_secs(60);
/// Begins a run, which goes on until the file `end` is there.
const BEGINS_A_RUN: &str = r#"printf '%s\n' "$@" > "$0.words"; mkdir "$4"; echo "{}" > "$4/run.json"; until [ -e "$0.end" ]; do sleep 0.05; done"#;

#[test]
fn a_run_begins_with_its_study_beside_it_and_a_second_one_waits_for_its_end() {
    let place = tempfile::tempdir().unwrap();
    let studies = studies(place.path(), BEGINS_A_RUN, LONG);
    assert_eq!(studies.view(), None);
    let draft = made("a");
    let begun = studies.start(&draft, "anna (operator)").unwrap();
    let runs = place.path().canonicalize().unwrap().join("deep/runs");
    let found = studies.find(&begun.id).unwrap();
    assert_eq!(
        (found.parent().unwrap(), begun.id.clone(), begun.page),
        (&*runs, id_of(&found), format!("/runs/{}", begun.id))
    );
    assert_eq!(studies.find("other"), None);
    let study = found.with_extension("toml");
    assert_eq!(fs::read_to_string(&study).unwrap(), draft.text);
    let log = fs::read_to_string(found.with_extension("log")).unwrap();
    assert!(log.starts_with("started at the console by anna (operator)\n"), "{log}");
    let words = fs::read_to_string(place.path().join("program.words")).unwrap();
    let expected = ["run", study.to_str().unwrap(), "--out", found.to_str().unwrap(), "--baseline", "a"];
    assert_eq!(words.lines().collect::<Vec<_>>(), expected);

    let refused = studies.start(&made("b"), "anna").unwrap_err();
    let NotStarted::Refused(why) = &refused else { panic!("{refused:?}") };
    assert!(why.contains(found.file_name().unwrap().to_str().unwrap()), "{why}");
    assert_eq!(names(&runs).len(), 3, "nothing is written for a study that is refused");
    assert!(studies.view().is_some_and(|view| view.has_begun && view.in_progress && view.message.is_none()));

    fs::write(place.path().join("program.end"), "").unwrap();
    until("its end is noted", || studies.view().is_some_and(|view| view.exit_code == Some(0)));
    // One of the same name has another folder, also within the same second.
    let again: Vec<String> = (0..2)
        .map(|_| {
            let id = studies.start(&draft, "anna").unwrap().id;
            until("its end is noted", || studies.view().is_some_and(|view| !view.in_progress));
            id
        })
        .collect();
    assert!(again[0] != again[1] && !again.contains(&begun.id), "{again:?}");
    assert_eq!(names(&runs).len(), 9);
}

#[test]
fn the_process_has_a_group_of_its_own_and_no_input() {
    let place = tempfile::tempdir().unwrap();
    let script = r#"ps -o pgid= -p $$ > "$0.group"; echo $$ >> "$0.group"; readlink /proc/$$/fd/0 >> "$0.group"; mkdir "$4"; touch "$4/run.json""#;
    studies(place.path(), script, LONG).start(&made("a"), "anna").unwrap();
    let text = fs::read_to_string(place.path().join("program.group")).unwrap();
    let [group, process, input] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert_eq!((group.trim(), input), (process, "/dev/null"));
}

#[test]
fn what_a_process_says_that_ends_at_once_is_the_message_and_nothing_is_left() {
    let place = tempfile::tempdir().unwrap();
    let script = "echo 'plan: 3 steps' >&2; echo 'loadline: no space\non the disk' >&2; mkdir \"$4\"; exit 2";
    let studies = studies(place.path(), script, LONG);
    let ended = studies.start(&made("a"), "anna").unwrap_err();
    let NotStarted::Ended(why) = &ended else { panic!("{ended:?}") };
    assert!(why.ends_with("(exit code 2): no space\non the disk"), "{why}");
    assert_eq!(names(&place.path().join("deep/runs")), Vec::<String>::new());
    let view = studies.view().unwrap();
    assert_eq!((view.has_begun, view.in_progress, view.exit_code), (false, false, Some(2)));
    assert_eq!(view.message.as_deref(), Some("no space\non the disk"));
    // The next one is not refused.
    assert!(matches!(studies.start(&made("a"), "anna"), Err(NotStarted::Ended(_))));
}

#[test]
fn a_process_that_checks_for_long_is_not_waited_for_and_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let script = format!(r#"until [ -e "$0.go" ]; do sleep 0.05; done; {BEGINS_A_RUN}"#);
    let studies = studies(place.path(), &script, Duration::from_millis(100));
    assert!(matches!(studies.start(&made("a"), "anna"), Err(NotStarted::Late(_))));
    let view = studies.view().unwrap();
    assert!(!view.has_begun && view.in_progress && studies.find(&view.id).is_none());
    fs::write(place.path().join("program.go"), "").unwrap();
    until("it begins", || studies.find(&view.id).is_some());
    fs::write(place.path().join("program.end"), "").unwrap();
    until("it ends", || studies.view().is_some_and(|view| !view.in_progress));
}

#[test]
fn without_a_program_or_a_folder_nothing_is_started_and_nothing_is_left() {
    let place = tempfile::tempdir().unwrap();
    let runs = place.path().join("runs");
    let missing = Studies::with(Ok(place.path().join("none")), Some(runs.clone()), LONG);
    assert!(matches!(missing.start(&made("a"), "anna"), Err(NotStarted::Failed(_))));
    assert_eq!((names(&runs), missing.view()), (Vec::new(), None));
    let nowhere = Studies::with(Ok(place.path().join("none")), None, LONG);
    assert!(matches!(nowhere.start(&made("a"), "anna"), Err(NotStarted::Refused(_))));
}
