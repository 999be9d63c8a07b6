//! Limits of the process: raised where they may be, and each that is too low is said, with an exit code and no signal.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

const LOADLINE: &str = env!("CARGO_BIN_EXE_loadline");

/// The program with these options of prlimit.
fn limited(limits: &[&str]) -> Command {
    let mut command = Command::new("prlimit");
    command.args(limits).arg(LOADLINE);
    command
}

/// Its exit code and all that it says. It ends within a minute.
fn ended(command: &mut Command) -> (Option<i32>, String) {
    let mut all = Command::new("timeout");
    all.arg("60").arg(command.get_program()).args(command.get_args());
    let output = all.output().expect("timeout is part of coreutils");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code(), format!("{out}{err}"))
}

/// A cluster of one node in a folder, which does not run. Its own address in 127.0.0.0/8, by test and process.
fn cluster(folder: &Path, number: u8) -> (String, String) {
    let process = std::process::id();
    let address = format!("127.{}.{}.{number}", (process >> 8) as u8 | 1, process as u8);
    let text = |name: &str| folder.join(name).to_str().expect("it is text").to_owned();
    let run = |args: &[&str]| {
        let (code, text) = ended(Command::new(LOADLINE).args(args));
        assert_eq!(code, Some(0), "{text}");
    };
    run(&["san", "init", &text("cluster.db")]);
    let (file, node) = (text("cluster.db"), text("node"));
    run(&["san", "join", &file, "--name", "node-1", "--folder", &node, "--address", &address]);
    (text("node/node.toml"), format!("{address}:7400"))
}

/// Starts a node that serves, lets something be done with it, and ends it.
fn serves(command: &mut Command, config: &str, with: impl FnOnce()) {
    let mut all = Command::new("timeout");
    all.args(["-s", "KILL", "60"]).arg(command.get_program()).args(command.get_args());
    all.args(["san", "serve", "--config", config]);
    for (name, value) in command.get_envs() {
        all.env(name, value.expect("it is set"));
    }
    let mut child = all.stdout(Stdio::piped()).spawn().expect("timeout is part of coreutils");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("it is text");
    let served = line.contains("node-1 serves");
    if served {
        with();
    }
    // timeout passes it on.
    let _ = Command::new("kill").arg(child.id().to_string()).status();
    child.wait().expect("it is ours");
    assert!(served, "{line}");
}

#[test]
fn too_few_open_files_are_named_and_a_thousand_are_enough() {
    let folder = tempfile::tempdir().expect("there is room");
    let (config, api) = cluster(folder.path(), 1);
    let (code, said) = ended(limited(&["--nofile=64:64"]).args(["san", "serve", "--config", &config]));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("64 open files (RLIMIT_NOFILE)") && said.contains("needs 256"), "{said}");
    assert!(!said.contains("sysctl"), "{said}");
    serves(&mut limited(&["--nofile=1024:1024"]), &config, || {
        let disk = folder.path().join("disk");
        let disk = disk.to_str().expect("it is text");
        let add = ["device", "add", disk, "--create", "256MiB", "--api", &api];
        let (code, said) = ended(Command::new(LOADLINE).args(add));
        assert_eq!(code, Some(0), "{said}");
    });
}

#[test]
fn a_small_stack_is_raised_or_named_and_threads_have_their_own() {
    let (code, said) = ended(limited(&["--stack=65536:65536"]).arg("--version"));
    assert!(code == Some(2) && said.contains("64KiB of stack (RLIMIT_STACK)"), "{code:?}: {said}");
    let (code, said) = ended(limited(&["--stack=65536:67108864"]).arg("--version"));
    assert_eq!(code, Some(0), "{said}");
    let folder = tempfile::tempdir().expect("there is room");
    let (config, _) = cluster(folder.path(), 2);
    serves(limited(&["--stack=65536:67108864"]).env("RUST_MIN_STACK", "16384"), &config, || {});
}

#[test]
fn too_few_addresses_are_named() {
    let folder = tempfile::tempdir().expect("there is room");
    let (config, _) = cluster(folder.path(), 3);
    for limit in ["--as=209715200", "--as=524288000"] {
        let limit = format!("{limit}:{}", limit.trim_start_matches("--as="));
        let (code, said) = ended(limited(&[&limit]).args(["san", "serve", "--config", &config]));
        assert!(code == Some(2) && said.contains("address space (RLIMIT_AS)"), "{code:?}: {said}");
    }
    // Only the soft limit: it is raised.
    serves(&mut limited(&["--as=524288000:unlimited"]), &config, || {});
}

#[test]
fn files_that_may_not_be_so_long_are_named() {
    let folder = tempfile::tempdir().expect("there is room");
    let disk = folder.path().join("disk");
    File::create(&disk).and_then(|file| file.set_len(64 << 20)).expect("there is room");
    let path = disk.to_str().expect("it is text");
    let bench = ["bench", path, "-p", "B4-T1-O1-W100-PR", "--warm-up", "0s", "--for", "1s"];
    let new = folder.path().join("new");
    let new = ["bench", new.to_str().expect("it is text"), "-p", "B4-T1-O1-W0-PR", "--create", "64MiB"];
    for args in [&[&bench[..], &["--destroy-data"]].concat(), &new[..]] {
        let (code, said) = ended(limited(&["--fsize=1048576:1048576"]).args(args));
        assert!(code == Some(2) && said.contains("files of 1MiB only (RLIMIT_FSIZE)"), "{code:?}: {said}");
    }
    // A write beyond it, here of a result, is an error and no signal.
    let bench = ["bench", "null:1GiB", "-p", "B4-T1-O1-W0-PR", "--warm-up", "0s", "--for", "1s", "--json"];
    let result = folder.path().join("result");
    let mut small = limited(&["--fsize=512:512"]);
    let (code, said) = ended(small.args(bench).arg(result.to_str().expect("it is text")));
    assert!(code == Some(1) && said.to_lowercase().contains("file too large"), "{code:?}: {said}");
    let (config, api) = cluster(folder.path(), 4);
    serves(&mut limited(&["--fsize=16777216:16777216"]), &config, || {
        for create in [&["--create", "256MiB"][..], &[]] {
            let name = if create.is_empty() { path.to_owned() } else { format!("{path}-new") };
            let add = [&["device", "add", &name, "--api", &api], create].concat();
            let (code, said) = ended(Command::new(LOADLINE).args(add));
            assert!(
                code == Some(2) && said.contains("files of 16MiB only (RLIMIT_FSIZE)"),
                "{code:?}: {said}"
            );
        }
    });
}
