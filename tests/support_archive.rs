//! `loadline san support`: what is in its archive, what is not, and what the command leaves alone.

mod nodes;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nodes::{Cluster, hosts};

/// The files of an archive, by their path in it.
fn content(archive: &Path) -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().expect("there is room");
    nodes::run(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(folder.path()));
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.path().to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).expect("it is there").flatten() {
            match entry.file_type().expect("it is there").is_dir() {
                true => folders.push(entry.path()),
                false => {
                    let name = entry
                        .path()
                        .strip_prefix(folder.path().join("loadline-support"))
                        .expect("in one folder")
                        .to_owned();
                    let text = std::fs::read_to_string(entry.path()).expect("it is text");
                    files.insert(name.to_str().expect("it is text").to_owned(), text);
                }
            }
        }
    }
    files
}

/// Lines of all files that only their owner can read: keys, certificates of nodes, tokens.
fn secrets(folder: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).expect("it is there").flatten() {
            let metadata = entry.metadata().expect("it is there");
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if metadata.is_file()
                && metadata.len() < 1 << 20
                && metadata.permissions().mode() & 0o077 == 0
            {
                let text =
                    String::from_utf8_lossy(&std::fs::read(entry.path()).expect("it is there")).into_owned();
                lines.extend(
                    text.lines()
                        .filter(|line| line.len() >= 12 && !line.starts_with("-----"))
                        .map(str::to_owned),
                );
            }
        }
    }
    lines
}

#[test]
fn an_archive_has_what_nodes_report_names_what_is_missing_and_has_no_secret() {
    let mut cluster = Cluster::start_with(3, &["--transport", "encrypted"], "");
    cluster.loadline(&["volume", "create", "disk", "--size", "64MiB", "--copies", "2"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let invited = cluster.invite(1);
    let token = cluster.folder().join("token");
    let config = cluster.node_folder(1).join("node.toml");
    let text = |path: &PathBuf| path.to_str().expect("it is text").to_owned();
    let add = ["san", "access", "add", "grafana", "--role", "viewer", "--token", "--out"];
    cluster.loadline(&[&add[..], &[&text(&token), "--config", &text(&config)]].concat());
    cluster.kill(2);
    // The archive has a status in which the node is known to be dead.
    let begun = std::time::Instant::now();
    while !cluster.try_loadline(&["node", "list"]).1.contains("does not report") {
        assert!(begun.elapsed().as_secs() < 20, "a node that was killed does not report");
    }

    let archive = cluster.folder().join("support.tar.gz");
    let (code, said) = cluster.try_loadline(&["san", "support", "--output", &text(&archive)]);
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("missing: node node-2:"), "{said}");
    assert_eq!(std::fs::metadata(&archive).expect("it was written").permissions().mode() & 0o777, 0o600);
    let files = content(&archive);
    let mut expected =
        vec!["README.txt", "host.json", "missing.txt", "status.json", "status.txt", "versions.txt"];
    let of_nodes = ["local.json", "log.txt", "metrics.txt", "support.json"];
    let of_nodes: Vec<String> = ["node-1", "node-3"]
        .iter()
        .flat_map(|node| of_nodes.map(|file| format!("nodes/{node}/{file}")))
        .collect();
    expected.extend(of_nodes.iter().map(String::as_str));
    // Of a host that runs nodes as services.
    let found: Vec<&str> = files.keys().map(String::as_str).filter(|name| *name != "journal.txt").collect();
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert!(files["missing.txt"].starts_with("node node-2: ") && files["missing.txt"].lines().count() == 1);
    assert!(files["status.txt"].contains("does not report"), "{}", files["status.txt"]);
    assert!(files["versions.txt"].contains("node node-3: "), "{}", files["versions.txt"]);
    assert!(files["nodes/node-1/metrics.txt"].contains("# TYPE"));
    // What the node has written to its standard error since it began.
    let (log, written) = (&files["nodes/node-1/log.txt"], cluster.log(1));
    let last = log.lines().last().expect("it has logged");
    assert!(log.contains("disk") && written.contains(last), "{log}\n----\n{written}");
    let support: serde_json::Value =
        serde_json::from_str(&files["nodes/node-1/support.json"]).expect("it is JSON");
    assert_eq!(support["settings"]["store"], cluster.file());
    assert!(support["host"]["memory"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{support}");

    let mut secrets = secrets(cluster.folder());
    secrets.push(invited.clone());
    secrets.extend(invited.split(['-', '.']).filter(|part| part.len() >= 20).map(str::to_owned));
    assert!(secrets.len() > 20, "keys and certificates of three nodes, and tokens");
    let whole: String = files.values().map(String::as_str).collect();
    for secret in &secrets {
        assert!(!whole.contains(secret.as_str()), "{secret} is in the archive");
    }

    // It is never written over.
    let before = std::fs::read(&archive).expect("it was written");
    let (code, said) = cluster.try_loadline(&["san", "support", "--output", &text(&archive)]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("choose another name"), "{said}");
    assert!(std::fs::read(&archive).expect("it is there") == before);

    let one = cluster.folder().join("one.tar.gz");
    let (code, said) =
        cluster.try_loadline(&["san", "support", "--output", &text(&one), "--json", "--node", "node-3"]);
    assert_eq!(code, 0, "{said}");
    let of_node = |name: &&String| name.starts_with("nodes/");
    assert!(content(&one).keys().filter(of_node).all(|name| name.starts_with("nodes/node-3/")));
    let none = cluster.folder().join("none.tar.gz");
    let (code, said) =
        cluster.try_loadline(&["san", "support", "--output", &text(&none), "--node", "node-9"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("there is no node node-9; there are: node-1, node-2, node-3"), "{said}");
    assert!(!none.exists());

    // No node answers: what this host has is written.
    let (code, said) = cluster.run_at(2, &["san", "support", "--output", &text(&none)]);
    assert_eq!(code, 3, "{said}");
    assert!(content(&none)["missing.txt"].contains("does not answer"), "{said}");
}

#[test]
fn it_is_made_on_the_host_of_a_node_and_by_a_viewer_elsewhere() {
    if !hosts::possible() {
        return;
    }
    let cluster = Cluster::start_on_hosts(2, &[], "");
    let path = |name: &str| cluster.folder().join(name).to_str().expect("it is text").to_owned();
    let nodes = |archive: &str| {
        let files = content(Path::new(archive));
        ["node-1", "node-2"].map(|node| files.contains_key(&format!("nodes/{node}/support.json")))
    };
    // By the socket of a node, whose own certificate proves access to the other nodes.
    let here = path("here.tar.gz");
    cluster.loadline_on(1, &["san", "support", "--output", &here]);
    assert_eq!(nodes(&here), [true, true]);

    let (viewer, config) = (path("viewer.pem"), cluster.node_folder(2).join("node.toml"));
    let config = config.to_str().expect("it is text");
    let add = ["san", "access", "add", "alice", "--role", "viewer", "--out", &viewer, "--config", config];
    cluster.loadline_on(2, &add);
    let api = format!("https://{}:7400", cluster.address(2));
    // A node learns of a new access within a moment.
    let begun = std::time::Instant::now();
    let ask = |api: &str, words: &[&str]| {
        let mut command = cluster.hosts().command(1, env!("CARGO_BIN_EXE_loadline"));
        command.args(words).args(["--api", api, "--access", &viewer]).output().expect("the program is there")
    };
    for node in [1, 2] {
        let api = format!("https://{}:7400", cluster.address(node));
        while !ask(&api, &["node", "list"]).status.success() {
            assert!(begun.elapsed().as_secs() < 20, "a viewer has access");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
    let there = path("there.tar.gz");
    let done = ask(&api, &["san", "support", "--output", &there]);
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(nodes(&there), [true, true]);

    // Whoever has no access gets nothing of the cluster.
    let stranger = path("stranger.tar.gz");
    let mut command = cluster.hosts().command(1, env!("CARGO_BIN_EXE_loadline"));
    let done = command
        .args(["san", "support", "--output", &stranger, "--api", &api])
        .output()
        .expect("the program is there");
    assert_eq!(done.status.code(), Some(3), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(nodes(&stranger), [false, false]);
    assert!(!content(Path::new(&stranger)).contains_key("status.json"));
}
