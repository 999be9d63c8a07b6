//! Answers become studies that can be planned, or faults that name the answer.

use loadline_question::{Answers, Draft, Fault, Field, Question, draft, questions};
use proptest::prelude::*;

/// Answers by their keys.
fn answers(given: &[(&str, &str)]) -> Answers {
    let of = |(key, value): &(&str, &str)| ((*key).to_string(), serde_json::json!(value));
    serde_json::from_value(given.iter().map(of).collect::<serde_json::Map<_, _>>().into()).unwrap()
}

fn made(given: &[(&str, &str)]) -> Draft {
    draft(&answers(given)).unwrap_or_else(|faults| panic!("{given:?}: {faults:?}"))
}

/// The one fault of these answers.
fn fault(given: &[(&str, &str)]) -> Fault {
    let faults = draft(&answers(given)).unwrap_err();
    assert_eq!(faults.len(), 1, "{given:?}: {faults:?}");
    faults.into_iter().next().unwrap()
}

const STORAGES: [&[(&str, &str)]; 6] = [
    &[("storage", "cluster"), ("nodes", "2")],
    &[("storage", "cluster")],
    &[("storage", "running"), ("api", "127.0.0.1:7400"), ("hosts", "a=root@a,b=root@b")],
    &[
        ("storage", "running"),
        ("api", "https://a:7400"),
        ("hosts", "a=r@a, b=r@b, c=r@c"),
        ("access_file", "a.pem"),
    ],
    &[("storage", "folder"), ("folder", "/mnt/it's \"here\"")],
    &[("storage", "devices"), ("devices", "/dev/sdb nbd://h/x,null:64GiB")],
];

#[test]
fn each_question_has_a_study_for_each_storage_load_and_effort() {
    for question in Question::ALL {
        for storage in STORAGES {
            for load in
                ["office desktops", "database", "file-server", "backup", "B4-T1-O4-W30-PR", "4k-randread"]
            {
                for effort in ["quick", "normal", "thorough"] {
                    let mut given = vec![("question", question.value()), ("load", load), ("effort", effort)];
                    given.extend(storage);
                    let draft = made(&given);
                    assert!(draft.plan.seconds > 0 && !draft.plan.steps.is_empty(), "{}", draft.text);
                    assert!(draft.text.lines().all(|line| line.chars().count() <= 200), "{}", draft.text);
                }
            }
        }
    }
}

#[test]
fn a_study_says_what_its_question_needs() {
    let capacity = made(&[("question", "capacity"), ("limit", "p99 <= 3ms"), ("effort", "quick")]);
    assert!(capacity.text.contains("capacity = { percentile = 99, limit = \"3ms\" }"), "{}", capacity.text);
    assert_eq!((capacity.plan.steps.len(), capacity.plan.searches.len()), (1, 1));
    assert!(capacity.plan.most_seconds > capacity.plan.seconds && capacity.run_options.is_empty());

    let down = made(&[("question", "node-down"), ("effort", "quick")]);
    assert!(down.text.contains("do = \"kill\", node = \"node-3\"") && down.study.run.verify, "{}", down.text);

    let slower = made(&[("question", "slower"), ("effort", "quick"), ("name", "nightly.1")]);
    assert_eq!(slower.run_options, ["--baseline", "nightly-1"]);
    assert_eq!(slower.study.run.repeats, 4, "a comparison takes four repeats");
    assert_eq!(slower.study.profile.len(), 2, "its latency at a rate, and its IOPS without one");

    let accept = made(&[("question", "accept"), ("effort", "quick"), ("machines", "2")]);
    assert_eq!(accept.study.success.len(), 1);
    assert!(accept.text.contains("fleet >= 6000 IOPS of database under 10ms at p95"), "{}", accept.text);
    let conditions: Vec<&str> = accept.study.condition.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(conditions, ["healthy", "node-down", "recovered"]);
    assert!(accept.study.run.verify && accept.study.load_line.is_some());
}

#[test]
fn one_machine_is_in_the_singular() {
    for (question, machines, words) in [
        ("slower", "1", "Is 1 machine ("),
        ("slower", "2", "Are 2 machines ("),
        ("node-down", "1", "What does 1 machine ("),
        ("node-down", "2", "What do 2 machines ("),
    ] {
        let storage = [("storage", "folder"), ("folder", "/x")];
        let draft = made(&[&[("question", question), ("machines", machines)], &storage[..]].concat());
        assert!(draft.text.contains(&format!("asks = \"{words}")), "{}", draft.text);
    }
}

#[test]
fn only_a_load_that_writes_to_existing_disks_gives_them_up() {
    let on = |load, devices| {
        made(&[("question", "slower"), ("storage", "devices"), ("devices", devices), ("load", load)])
    };
    let writes = on("database", "/dev/sdb");
    assert!(writes.destroys_data && writes.text.contains("ALL DATA ON THEM IS LOST"));
    assert!(writes.run_options.contains(&"--destroy-data".to_string()));
    assert_eq!(writes.study.phases.fill, Some(true), "a block that was never written costs nothing to read");
    let reads = on("4k-randread", "/dev/sdb");
    assert!(!reads.destroys_data && !reads.run_options.contains(&"--destroy-data".to_string()));
    assert_eq!(reads.study.phases.fill, None, "nothing is filled that is only read");
    assert!(!on("database", "null:1GiB").destroys_data);
    assert!(!made(&[("question", "slower")]).destroys_data, "the run removes what it made");
}

#[test]
fn commands_that_kill_nodes_need_their_permission() {
    let running = [("storage", "running"), ("api", "127.0.0.1:7400"), ("hosts", "a=root@a b=root@b")];
    let with = |question| made(&[&[("question", question)][..], &running].concat());
    assert!(with("node-down").run_options.contains(&"--run-commands".to_string()));
    assert!(with("capacity").run_options.is_empty() && !with("capacity").text.contains("systemctl"));
}

#[test]
fn each_wrong_answer_is_named() {
    for (given, field, part) in [
        (&[("question", "why")][..], Field::Question, "capacity, node-down, slower, accept"),
        (&[("question", "node-down"), ("nodes", "1")], Field::Nodes, "at least 2 nodes"),
        (&[("question", "accept"), ("nodes", "1")], Field::Nodes, "at least 2 nodes"),
        (&[("question", "capacity"), ("nodes", "0")], Field::Nodes, "from 1 to 32"),
        (&[("question", "capacity"), ("nodes", "33")], Field::Nodes, "from 1 to 32"),
        (&[("question", "capacity"), ("limit", "0ms")], Field::Limit, "limit of 0"),
        (&[("question", "slower"), ("limit", "5ms")], Field::Limit, "only if question is capacity or accept"),
        (&[("question", "capacity"), ("load", "toaster")], Field::Load, "office-desktops"),
        (
            &[("question", "capacity"), ("load", "B8192-T1-O1-W100-PR"), ("effort", "quick")],
            Field::Load,
            "log",
        ),
        (&[("question", "accept"), ("load", "vmfleet-vdi-read")], Field::Load, "rate of its own"),
        (&[("question", "capacity"), ("effort", "heroic")], Field::Effort, "quick, normal, thorough"),
        (&[("question", "capacity"), ("disk_size", "1000")], Field::DiskSize, "4 KiB"),
        (&[("question", "capacity"), ("name", "../../etc/x")], Field::Name, "is not a name"),
        (&[("question", "capacity"), ("name", "x\"\nrun = 1")], Field::Name, "is not a name"),
        (&[("question", "capacity"), ("machines", "256"), ("nodes", "32")], Field::Machines, "at most 1024"),
        (
            &[("question", "capacity"), ("storage", "moon")],
            Field::Storage,
            "cluster, running, folder, devices",
        ),
        (&[("question", "capacity"), ("storage", "folder")], Field::Folder, "/mnt/storage"),
        (&[("question", "capacity"), ("hosts", "a=b")], Field::Hosts, "only if storage is running"),
        (
            &[("question", "slower"), ("storage", "devices"), ("devices", "iscsi://x/y")],
            Field::Devices,
            "iscsi",
        ),
        (
            &[("question", "node-down"), ("storage", "folder"), ("folder", "/x"), ("members", "a")],
            Field::Members,
            "at least 2 nodes",
        ),
        (
            &[
                ("question", "node-down"),
                ("storage", "running"),
                ("api", "127.0.0.1:7400"),
                ("hosts", "a=r@a,b"),
            ],
            Field::Hosts,
            "b=root@HOST",
        ),
        (
            &[
                ("question", "slower"),
                ("storage", "running"),
                ("api", "https://a:1"),
                ("hosts", "a=-oProxyCommand=x"),
            ],
            Field::Hosts,
            "not a host",
        ),
    ] {
        let faults = draft(&answers(given)).unwrap_err();
        let found = faults.iter().find(|fault| fault.field == field);
        assert!(found.is_some_and(|fault| fault.message.contains(part)), "{given:?}: {faults:?}");
    }
    assert!(fault(&[]).missing && fault(&[]).field == Field::Question);
    let many = draft(&answers(&[("question", "capacity"), ("limit", "0"), ("nodes", "x")])).unwrap_err();
    assert_eq!(many.iter().map(|fault| fault.field).collect::<Vec<_>>(), [Field::Nodes, Field::Limit]);
}

#[test]
fn answers_that_are_the_defaults_make_the_same_study_as_no_answers() {
    let mut all = answers(&[("question", "accept")]);
    let none = draft(&all).unwrap();
    for field in questions().fields {
        if all.needs(field.field) {
            all.set(field.field, all.value(field.field));
        }
    }
    assert_eq!(draft(&all).unwrap().text, none.text);
}

proptest! {
    #[test]
    fn no_answer_panics_or_leaves_its_place_in_the_file(
        question in "capacity|node-down|slower|accept",
        storage in "running|folder|devices",
        text in "[ -~\n\u{202e}\u{e4}]{0,40}",
    ) {
        let given = [
            ("question", question.as_str()), ("storage", &storage), ("effort", "quick"),
            ("api", "127.0.0.1:7400"), ("hosts", &text), ("folder", &text), ("devices", &text),
        ];
        let mut answers = answers(&given);
        for field in [Field::Api, Field::Hosts, Field::Folder, Field::Devices] {
            if !answers.needs(field) {
                answers.set(field, None);
            }
        }
        if let Ok(draft) = draft(&answers) {
            // Whatever the text is, the study has no key beside those of this crate.
            prop_assert!(draft.study.description.is_some() && draft.study.run.repeats >= 1);
            if storage == "folder" {
                prop_assert_eq!(draft.study.target.folder, Some(text.trim().into()));
            }
        }
    }
}
