//! Machines of `qemu:///session`: the libvirt of an ordinary user, which its client starts. No test of it needs root: as root, they are run
//! as the user `nobody`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::{eventually, finish, folder, signal};
use crate::{LIMIT, checked, study};

/// A user's folders, and the libvirt that is started for that user.
struct Session {
    folder: tempfile::TempDir,
    is_root: bool,
}

impl Session {
    fn new() -> Session {
        let session = Session { folder: folder(), is_root: nix::unistd::geteuid().is_root() };
        let program = Path::new(env!("CARGO_BIN_EXE_loadline"));
        let programs = program.parent().expect("a folder");
        let kernel = programs.parent().expect("cargo's folder").join("guest");
        for name in ["home", "run", "cache", "data", "temporary", "bin"] {
            fs::create_dir(session.path(name)).unwrap();
        }
        // Another user may not enter the folder of what is built.
        let mut copy = Command::new("cp");
        copy.args(["-r", "--reflink=auto"]).args([program, &programs.join("guest-init")]);
        done(copy.arg(session.path("bin")));
        done(Command::new("cp").args(["-r", "--reflink=auto"]).arg(kernel).arg(session.path("guest")));
        done(Command::new("chmod").arg("700").arg(session.path("run")));
        if session.is_root {
            done(Command::new("chown").args(["-R", "nobody"]).arg(session.folder.path()));
        }
        session
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A program of the user.
    fn command(&self, program: &Path) -> Command {
        let mut command = match self.is_root {
            true => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]).arg(program);
                command
            }
            false => Command::new(program),
        };
        command
            .env("HOME", self.path("home"))
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("XDG_CONFIG_HOME", self.path("home"))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("TMPDIR", self.path("temporary"))
            .env("LOADLINE_GUEST_KERNEL", self.path("guest"))
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn begin(&self, target: &str, nodes: u32, seconds: u32) -> Child {
        let _ = fs::remove_dir_all(self.path("results"));
        fs::write(self.path("study.toml"), study("qemu:///session", nodes, "", target, seconds)).unwrap();
        let mut command = self.command(&self.path("bin/loadline"));
        command.args(["run", "study.toml", "--out", "results"]).spawn().unwrap()
    }

    /// The domains of the user.
    fn domains(&self) -> Vec<String> {
        let mut command = self.command(Path::new("virsh"));
        let listed = finish(
            command.args(["-q", "-c", "qemu:///session", "list", "--all", "--name"]).spawn().unwrap(),
            LIMIT,
        );
        assert_eq!(listed.code, Some(0), "{}", listed.err);
        listed.out.lines().filter(|line| !line.is_empty()).map(str::to_string).collect()
    }

    /// The user of each process of a machine.
    fn users_of_machines(&self) -> Vec<u32> {
        use std::os::unix::fs::MetadataExt;
        let folder = self.folder.path().display().to_string();
        let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let is_machine = |process: &PathBuf| {
            let line = fs::read(process.join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            line.contains("guest=loadline-") && line.contains(&folder)
        };
        processes.filter(is_machine).filter_map(|process| Some(fs::metadata(process).ok()?.uid())).collect()
    }

    fn is_clean(&self) -> bool {
        self.users_of_machines().is_empty() && fs::read_dir(self.path("temporary")).unwrap().next().is_none()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // They end by themselves two minutes after their last client.
        for daemon in ["libvirtd", "virtlogd"] {
            let file = self.path("run/libvirt").join(format!("{daemon}.pid"));
            if let Some(process) = fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()) {
                signal(process, "TERM");
            }
        }
    }
}

fn done(command: &mut Command) {
    let output = command.output().expect("it is part of every system");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn an_ordinary_user_has_machines_of_its_own_libvirt_that_lose_no_write_and_leave_nothing() {
    let session = Session::new();
    let run = session.begin(&format!("folder = {:?}", session.path("data")), 2, 3);
    eventually("two machines run", LIMIT, || session.users_of_machines().len() == 2);
    let user = if session.is_root { 65534 } else { nix::unistd::geteuid().as_raw() };
    assert!(session.users_of_machines().iter().all(|owner| *owner == user));
    let names = session.domains();
    assert!(names.len() == 2 && names.iter().all(|name| name.starts_with("loadline-")), "{names:?}");
    let said = finish(run, LIMIT);
    assert!(matches!(said.code, Some(0 | 3)), "{:?}\n{}\n{}", said.code, said.out, said.err);
    let report = fs::read(session.path("results/report/report.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    let (blocks, bad) = checked(&report);
    assert!(blocks > 1000 && bad == 0, "{blocks} checked, {bad} bad");
    assert!(said.out.contains("started by libvirt"), "{}", said.out);
    assert!(session.is_clean() && session.domains().is_empty());
    // Volumes of a cluster, whose sockets are the same user's; and an end without a word.
    let run = session.begin("san = { copies = 2 }", 2, 300);
    let log = || fs::read_to_string(session.path("results/events.jsonl")).unwrap_or_default();
    eventually("machines measure", LIMIT, || {
        log().contains("step_began") && session.users_of_machines().len() == 2
    });
    let program = session.path("bin/loadline").display().to_string();
    // As root, the process that was started has become the program.
    let line = fs::read(format!("/proc/{}/cmdline", run.id())).unwrap();
    assert!(String::from_utf8_lossy(&line).starts_with(&program));
    signal(run.id(), "KILL");
    finish(run, LIMIT);
    eventually("the machines end with the run", Duration::from_secs(60), || session.is_clean());
    eventually("libvirt forgets them", LIMIT, || session.domains().is_empty());
}
