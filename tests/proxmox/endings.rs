//! How machines end when the end itself is disturbed: by Ctrl-C, by a kill, by locks, by slow tasks, by other users.

use std::fs;
use std::process::Child;
use std::time::Duration;

use serde_json::json;

use super::place::LIMIT;
use super::stand_in::Reply;
use super::support::{eventually, finish, signal};
use super::{BEFORE, Bench};

impl Bench {
    /// A run that goes on.
    fn begin(&self) -> Child {
        let _ = fs::remove_dir_all(self.path("run"));
        self.place.loadline(&self.folder, &["run", "study.toml", "--out", "run"]).spawn().unwrap()
    }

    fn measures(&self) {
        eventually("it measures", LIMIT, || self.events().contains("\"starting\""));
    }

    /// Begins a run and kills it while it measures.
    fn kill_one(&self) {
        let mut child = self.begin();
        self.measures();
        signal(child.id(), "KILL");
        child.wait().unwrap();
    }

    fn calls(&self, method: &str, part: &str) -> usize {
        self.api.cluster().calls(method, part).len()
    }
}

#[test]
fn ctrl_c_while_leftovers_are_deleted_aborts_no_deletion() {
    let Some(bench) = Bench::of(2) else { return };
    bench.study(2, 60, "at_once = 1");
    bench.kill_one();
    bench.api.cluster().troubles.slow = Some(("destroy", Duration::from_secs(3)));
    let child = bench.begin();
    eventually("one is being deleted", LIMIT, || bench.calls("DELETE", "/qemu/") == 1);
    signal(child.id(), "INT");
    let said = finish(child, LIMIT);
    assert_eq!(said.code, Some(130), "{}", said.err);
    assert!(said.err.contains("deleted VM 101 that run"), "{}", said.err);
    assert_eq!((bench.calls("DELETE", "/tasks/"), bench.calls("DELETE", "/qemu/")), (0, 1));
    // The other one is for the next time.
    let clean = bench.run(&["fleet", "clean", "study.toml"]);
    assert!(clean.code == Some(0) && clean.out.contains("deleted VM 102\n"), "{}{}", clean.out, clean.err);
    bench.is_clean();
}

#[test]
fn a_leftover_that_is_locked_is_named_and_deleted_once_it_is_not() {
    let Some(bench) = Bench::of(2) else { return };
    bench.study(1, 60, "");
    bench.kill_one();
    bench.study(1, 1, "");
    bench.api.cluster().lock(101, Some("backup"));
    let child = bench.begin();
    eventually("it was tried twice", LIMIT, || bench.calls("DELETE", "/qemu/101") == 2);
    bench.api.cluster().lock(101, None);
    let said = finish(child, LIMIT);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    for words in [
        "deleting what earlier runs have left in Proxmox VE: up to 1 machine(s), within 600 s",
        "cannot be deleted yet",
        "VM is locked (backup)",
        "deleted VM 101 that run",
    ] {
        assert!(said.err.contains(words), "{words}: {}", said.err);
    }
    bench.is_clean();
}

#[test]
fn a_machine_of_another_run_that_cannot_be_looked_at_is_named_and_stops_no_run() {
    let Some(bench) = Bench::of(1) else { return };
    bench.study(1, 1, "");
    for reply in [
        Reply::error(500, "unable to read the configuration"),
        Reply::error(403, "Permission check failed (/vms/105, VM.Audit)"),
    ] {
        let mut cluster = bench.api.cluster();
        cluster.add(105, "loadline-0a1b2c3d-vm-1");
        cluster.troubles.answers.push_back(("config", reply));
        drop(cluster);
        let said = bench.run(&["fleet", "clean", "study.toml", "--json"]);
        assert_eq!(said.code, Some(0), "{}", said.err);
        assert_eq!(said.json()["others"], json!({"0a1b2c3d": [105]}));
    }
    bench.api.cluster().troubles.unreadable = Some(105);
    let said = bench.measure();
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    bench.api.cluster().delete(105);
    bench.is_clean();
}

#[test]
fn a_clone_whose_run_was_killed_before_its_machine_was_there_is_ended() {
    let Some(bench) = Bench::of(1) else { return };
    bench.study(1, 60, "");
    for is_answered in [true, false] {
        {
            let troubles = &mut bench.api.cluster().troubles;
            (troubles.late, troubles.slow) = (true, Some(("clone", Duration::from_secs(6))));
            troubles.unanswered = (!is_answered).then_some("clone");
        }
        let before = (bench.calls("POST", "/clone"), bench.calls("GET", "/tasks/"));
        let mut child = bench.begin();
        let is_begun = || match is_answered {
            true => bench.calls("GET", "/tasks/") > before.1,
            false => bench.calls("POST", "/clone") > before.0,
        };
        eventually("it is being cloned", LIMIT, is_begun);
        signal(child.id(), "KILL");
        child.wait().unwrap();
        bench.has_only(&BEFORE);
        let clean = bench.run(&["fleet", "clean", "study.toml"]);
        assert_eq!(clean.code, Some(0), "{}", clean.err);
        // Without an answer its task is not known: the machine is deleted when it is there.
        assert_eq!(clean.out.contains("deleted VM 101"), !is_answered, "{}", clean.out);
        std::thread::sleep(Duration::from_secs(7));
        bench.run(&["fleet", "clean", "study.toml"]);
        bench.is_clean();
    }
}

#[test]
fn a_second_ctrl_c_names_the_machines_that_it_leaves() {
    let Some(bench) = Bench::of(2) else { return };
    bench.study(2, 60, "");
    let child = bench.begin();
    bench.measures();
    bench.api.cluster().troubles.slow = Some(("destroy", Duration::from_secs(600)));
    signal(child.id(), "INT");
    eventually("they are being deleted", LIMIT, || bench.calls("DELETE", "/qemu/") == 2);
    signal(child.id(), "INT");
    let said = finish(child, LIMIT);
    said.refused(130, &["leaves VM 101, 102 in Proxmox VE", "loadline fleet clean"]);
}

#[test]
fn a_deletion_that_takes_long_is_waited_for() {
    let Some(bench) = Bench::of(1) else { return };
    bench.study(1, 1, "");
    bench.api.cluster().troubles.slow = Some(("destroy", Duration::from_secs(125)));
    let said = bench.measure();
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    assert_eq!((bench.calls("DELETE", "/tasks/"), bench.calls("DELETE", "/qemu/")), (0, 1));
    bench.is_clean();
}

#[test]
fn a_machine_that_a_person_renames_while_it_is_stopped_is_kept() {
    let Some(bench) = Bench::of(1) else { return };
    bench.study(1, 1, "");
    bench.api.cluster().troubles.slow = Some(("stop", Duration::from_secs(3)));
    let child = bench.begin();
    eventually("it is being stopped", LIMIT, || bench.calls("POST", "/status/stop") == 1);
    bench.api.cluster().rename(101, "kept");
    let said = finish(child, LIMIT);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    bench.has_only(&[(100, "loadline-server"), (101, "kept"), (9000, "debian-12")]);
}

#[test]
fn a_token_with_rights_on_a_pool_alone_makes_and_deletes_machines() {
    let Some(bench) = Bench::of(2) else { return };
    bench.study(2, 1, "pool = \"load\"");
    bench.api.cluster().troubles.pool_only = true;
    let said = bench.measure();
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    assert!(!said.err.contains("VM 101 of run") && !said.err.contains("have left"), "{}", said.err);
    bench.is_clean();
    // A machine is in the pool when its clone is complete: before, the token may not see it.
    bench.api.cluster().troubles.endless = Some("clone");
    let before = bench.calls("POST", "/clone");
    let child = bench.begin();
    eventually("both are cloned", LIMIT, || bench.calls("POST", "/clone") == before + 2);
    signal(child.id(), "INT");
    let said = finish(child, LIMIT);
    assert_eq!(said.code, Some(130), "{}", said.err);
    assert!(!said.err.contains("VM 101 of run") && !said.err.contains("have left"), "{}", said.err);
    bench.is_clean();
}
