//! Fleets of machines of Proxmox VE, against a stand-in for its API that keeps to a recorded contract (`proxmox/contract`). Its machines are
//! hosts in network namespaces, with real servers of OpenSSH while they run. These tests need root, `ip` and `sshd`
//! (`./dev setup --tests`). None of them is a test against a real Proxmox VE.

#[path = "proxmox/cluster.rs"]
mod cluster;
#[path = "proxmox/contract.rs"]
mod contract;
#[path = "proxmox/endings.rs"]
mod endings;
#[allow(dead_code, reason = "the fault scripts use the rest")]
#[path = "hosts/netns.rs"]
mod netns;
#[path = "proxmox/place.rs"]
mod place;
#[path = "proxmox/stand_in.rs"]
mod stand_in;
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cluster::TOKEN;
use place::{LIMIT, Place, Share, place};
use serde_json::{Value, json};
use stand_in::{Reply, StandIn};
use support::{Said, eventually, finish, signal};

/// A cluster, and a user's folder.
struct Bench {
    place: Arc<Place>,
    api: StandIn,
    folder: PathBuf,
    /// Dropped last, when the machines are gone.
    _share: Share,
}

/// What is in the cluster before a run, and has to be there after it.
const BEFORE: [(u32, &str); 2] = [(100, "loadline-server"), (9000, "debian-12")];

impl Bench {
    /// For a test that runs so many machines at the same time.
    fn of(machines: usize) -> Option<Bench> {
        let place = place()?;
        let share = place.share(machines);
        let api = StandIn::start(&place);
        // What is in this folder is for ssh too.
        let folder = place.folder.join(place.name("a user %d"));
        fs::create_dir(&folder).unwrap();
        let bench = Bench { place, api, folder, _share: share };
        let token = bench.path("token");
        fs::write(&token, TOKEN).unwrap();
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
        Some(bench)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes a study of so many machines; `fleet` are further lines of [fleet.proxmox].
    fn study(&self, machines: u32, seconds: u32, fleet: &str) {
        self.write(
            &format!("nodes = {machines}"),
            seconds,
            &format!("disk = {{ storage = \"ceph\", size = \"8MiB\" }}\n{fleet}"),
            "",
        );
    }

    fn write(&self, fleet: &str, seconds: u32, cluster: &str, rest: &str) {
        let text = format!(
            "name = \"machines\"\n{rest}\n[[profile]]\nuse = \"B4-T1-O4-W50-PR\"\nrate = \"300iops\"\n[phases]\nwarm_up = \"0s\"\nmeasure = \"{seconds}s\"\ncool_down = \"0s\"\n\
             [run]\nrepeats = 1\n[fleet]\n{fleet}\n[fleet.proxmox]\napi = \"https://{}\"\ntoken_file = \"token\"\nfingerprint = \"{}\"\n\
             template = \"debian-12\"\nmemory = \"512MiB\"\nwait = \"30s\"\n{cluster}\n",
            self.api.address, self.api.fingerprint
        );
        fs::write(self.path("study.toml"), text).unwrap();
    }

    fn run(&self, words: &[&str]) -> Said {
        self.place.run(&self.folder, words)
    }

    fn measure(&self) -> Said {
        self.run(&["run", "study.toml", "--out", "run"])
    }

    fn events(&self) -> String {
        fs::read_to_string(self.path("run/events.jsonl")).unwrap_or_default()
    }

    /// That the cluster and this machine are as they were before.
    fn is_clean(&self) {
        self.has_only(&BEFORE);
        assert_eq!(self.api.cluster().running(), 0);
        let records = self.path("loadline/proxmox");
        let left: Vec<_> =
            fs::read_dir(&records).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "{left:?}");
    }

    fn has_only(&self, machines: &[(u32, &str)]) {
        let names = self.api.cluster().names();
        let names: Vec<(u32, &str)> = names.iter().map(|(vmid, name)| (*vmid, name.as_str())).collect();
        assert_eq!(names, machines);
    }
}

fn files(folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() { files(&entry.path(), all) } else { all.push(entry.path()) }
    }
}

#[test]
fn a_study_measures_disks_of_machines_that_are_made_for_it_and_deleted_at_its_end() {
    let Some(bench) = Bench::of(2) else { return };
    bench.study(2, 1, "pool = \"load\"");
    let plan = bench.run(&["run", "study.toml", "--plan"]);
    assert_eq!(plan.code, Some(0), "{}", plan.err);
    assert!(plan.out.contains("Proxmox VE 9.1-1: 2 machines, 1 on pve1, 1 on pve2"), "{}", plan.out);
    assert!(bench.api.cluster().calls("POST", "").is_empty(), "a plan makes nothing");

    let said = bench.measure();
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    assert!(
        said.err.contains("machine 2 of 2 is there: vm-") && said.err.contains("deleting 2 machines"),
        "{}",
        said.err
    );
    let report: Value =
        serde_json::from_slice(&fs::read(bench.path("run/report/report.json")).unwrap()).unwrap();
    let starts = report["machines"].as_array().unwrap();
    assert_eq!(starts.len(), 2, "{starts:?}");
    for start in starts {
        assert_eq!(start["acceleration"], "Proxmox VE 9.1-1");
        let (ready, first) = (start["start_to_worker_s"].as_f64(), start["start_to_first_io_s"].as_f64());
        assert!(ready > Some(0.25) && first > ready, "later than the task that starts it, {start}");
    }
    assert!(said.out.contains("The workers were 2 virtual machines run by Proxmox VE 9.1-1"), "{}", said.out);
    let step = fs::read_dir(bench.path("run/steps")).unwrap().flatten().next().unwrap().path();
    let result: Value = serde_json::from_slice(&fs::read(step.join("result.json")).unwrap()).unwrap();
    for worker in result["workers"].as_array().unwrap() {
        assert!(
            worker["lost"].is_null() && worker["figures"]["total"]["iops"].as_f64() > Some(0.0),
            "{worker}"
        );
    }

    bench.is_clean();
    let cluster = bench.api.cluster();
    for clone in cluster.calls("POST", "/clone") {
        let form = &clone.parameters;
        assert_eq!((form["pool"].as_str(), form["full"].as_str()), ("load", "0"));
        assert!(form["description"].starts_with("loadline run "), "{form:?}");
    }
    let configured = cluster.calls("POST", "/config")[0];
    let tags = configured.parameters["tags"].clone();
    assert!(
        configured.parameters["scsi1"].starts_with("ceph:0.0078125,wwn=0x5525400000000000"),
        "{configured:?}"
    );
    assert!(tags.starts_with("loadline;loadline-"), "{tags}");
    let purged = cluster.calls("DELETE", "/qemu/");
    assert!(purged.len() == 2 && purged.iter().all(|call| call.parameters["purge"] == "1"), "{purged:?}");
    assert!(
        cluster.requests.iter().all(|request| !request.path.contains("/qemu/100")),
        "that one is not ours"
    );
    drop(cluster);

    // The token is nowhere but in its file.
    let secret = TOKEN.split('=').nth(1).unwrap();
    let mut all = Vec::new();
    files(&bench.folder, &mut all);
    all.retain(|path| fs::read(path).unwrap().windows(secret.len()).any(|part| part == secret.as_bytes()));
    assert_eq!(all, [bench.path("token")]);
    assert!(!said.out.contains(secret) && !said.err.contains(secret));
}

#[test]
fn files_in_the_machines_are_measured_too_and_a_run_that_was_stopped_is_resumed_with_new_machines() {
    let Some(bench) = Bench::of(2) else { return };
    // The hosts that stand in for machines have this machine's folders.
    let data = bench.path("data");
    fs::create_dir(&data).unwrap();
    let fleet = "nodes = 2\ndisk_size = \"4MiB\"";
    bench.write(fleet, 4, "", &format!("target = {{ folder = {data:?} }}"));
    let child = bench.place.loadline(&bench.folder, &["run", "study.toml", "--out", "run"]).spawn().unwrap();
    eventually("it measures", LIMIT, || bench.events().contains("\"starting\""));
    signal(child.id(), "INT");
    let said = finish(child, LIMIT);
    said.refused(130, &["deleting 2 machines", "to go on: loadline run --resume"]);
    bench.is_clean();
    // What was on the machines went with them; here it is left, and has the names of the files that are made anew.
    fs::remove_dir_all(&data).unwrap();
    fs::create_dir(&data).unwrap();
    let said = bench.run(&["run", "--resume", "run"]);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    assert_eq!(bench.api.cluster().calls("POST", "/clone").len(), 4);
    bench.is_clean();
}

#[test]
fn each_privilege_that_the_token_lacks_is_named_with_its_path_and_nothing_is_left() {
    let Some(bench) = Bench::of(1) else { return };
    bench.study(1, 1, "");
    for (privilege, path) in [
        ("VM.Audit", "/vms/9000"),
        ("VM.Clone", "/vms/9000"),
        ("VM.Allocate", "/vms/101"),
        ("Datastore.AllocateSpace", "/storage/ceph"),
        ("VM.Config.CPU", "/vms/101"),
        ("VM.Config.Memory", "/vms/101"),
        ("VM.Config.Disk", "/vms/101"),
        ("VM.Config.Cloudinit", "/vms/101"),
        ("VM.Config.Options", "/vms/101"),
        ("VM.GuestAgent.Audit", "/vms/101"),
        ("VM.GuestAgent.FileRead", "/vms/101"),
    ] {
        bench.api.cluster().troubles.lacks = Some(privilege.into());
        let said = bench.measure();
        said.refused(2, &[&format!("lacks the privilege {privilege} on {path}"), "pveum role modify"]);
        // A machine that may not be deleted is named.
        bench.api.cluster().troubles.lacks = None;
        let _ = fs::remove_dir_all(bench.path("run"));
        bench.is_clean();
    }
    bench.api.cluster().troubles.lacks = Some("VM.PowerMgmt".into());
    bench.measure().refused(2, &["lacks the privilege VM.PowerMgmt on /vms/101"]);
    bench.is_clean();
}

#[test]
fn answers_that_are_half_or_wrong_are_told_as_what_they_are() {
    let Some(bench) = Bench::of(0) else { return };
    bench.study(1, 1, "");
    let plan = |answers: Vec<Reply>| {
        let mut cluster = bench.api.cluster();
        cluster.troubles.answers = answers.into_iter().map(|answer| ("version", answer)).collect();
        drop(cluster);
        bench.run(&["run", "study.toml", "--plan"])
    };
    let half = || Reply::Half(json!({"data": {"version": "9.1-1"}}).to_string());
    let page = || Reply::Whole(200, "OK".into(), "<html>Welcome".into());
    let away = || Reply::error(596, "Connection timed out");
    assert_eq!(plan(vec![half(), half()]).code, Some(0), "a question is asked again");
    plan(vec![half(), half(), half()]).refused(1, &["GET /version", "the answer is not whole", "bytes of"]);
    plan(vec![page(), page(), page()]).refused(1, &["not that of Proxmox VE", "<html>Welcome"]);
    plan(vec![away(), away(), away()])
        .refused(1, &["Connection timed out", "does not answer", "pvecm status"]);
    plan(vec![Reply::error(401, "permission denied - invalid token")])
        .refused(2, &["the token is not accepted", "pveum user token list"]);
    plan(vec![Reply::error(500, "cfs-lock 'x' error: got lock timeout")])
        .refused(1, &["500 cfs-lock 'x' error: got lock timeout"]);
    bench.is_clean();
}

#[test]
fn a_task_that_fails_is_told_with_the_end_of_its_log_and_all_machines_are_deleted() {
    let Some(bench) = Bench::of(3) else { return };
    bench.study(3, 1, "at_once = 3");
    for (call, end) in [
        ("clone", "clone failed: no space left on device"),
        ("start", "start failed: QEMU exited with code 1"),
    ] {
        bench.api.cluster().troubles.task_end = Some((call, end));
        let said = bench.measure();
        said.refused(
            1,
            &[&format!("failed: {end}"), "the end of its log: ", &format!("TASK ERROR: {end}"), "vm-"],
        );
        bench.is_clean();
        let _ = fs::remove_dir_all(bench.path("run"));
    }
    bench.api.cluster().troubles.task_end = None;
    bench.api.cluster().troubles.lost = Some("start");
    bench.measure().refused(1, &["is lost", "no such task"]);
    bench.is_clean();
}

#[test]
fn a_vmid_that_another_user_takes_first_is_left_to_that_user() {
    let Some(bench) = Bench::of(2) else { return };
    bench.study(2, 1, "");
    (bench.api.cluster().troubles.taken, bench.api.cluster().troubles.taken_elsewhere) = (1, 1);
    let said = bench.measure();
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    bench.has_only(&[
        (100, "loadline-server"),
        (101, "somebody-elses"),
        (102, "somebody-elses"),
        (9000, "debian-12"),
    ]);
}

#[test]
fn ctrl_c_while_machines_are_cloned_ends_the_clones() {
    let Some(bench) = Bench::of(2) else { return };
    bench.study(2, 1, "");
    bench.api.cluster().troubles.endless = Some("clone");
    let child = bench.place.loadline(&bench.folder, &["run", "study.toml", "--out", "run"]).spawn().unwrap();
    eventually("both are cloned", LIMIT, || bench.api.cluster().calls("POST", "/clone").len() == 2);
    signal(child.id(), "INT");
    assert_eq!(finish(child, LIMIT).code, Some(130));
    bench.is_clean();
}

#[test]
fn what_a_killed_run_left_is_deleted_by_the_next_run_or_by_hand_and_nothing_else() {
    let Some(bench) = Bench::of(4) else { return };
    bench.study(2, 60, "");
    let killed = || {
        let _ = fs::remove_dir_all(bench.path("run"));
        let mut child =
            bench.place.loadline(&bench.folder, &["run", "study.toml", "--out", "run"]).spawn().unwrap();
        eventually("it measures", LIMIT, || bench.events().contains("\"starting\""));
        let clean = bench.run(&["fleet", "clean", "study.toml", "--json"]);
        assert_eq!(clean.code, Some(0), "{}", clean.err);
        assert_eq!(clean.json()["deleted"], json!({}), "its run goes on");
        assert_eq!(clean.json()["others"].as_object().unwrap().len(), 1);
        signal(child.id(), "KILL");
        child.wait().unwrap();
        assert_eq!(bench.api.cluster().names().len(), 4);
    };
    killed();
    let clean = bench.run(&["fleet", "clean", "study.toml", "--json"]);
    assert_eq!(clean.code, Some(0), "{}", clean.err);
    let deleted = clean.json()["deleted"].clone();
    let (run, ids) = deleted.as_object().unwrap().iter().next().unwrap();
    assert_eq!(ids, &json!([101, 102]), "{deleted}");
    bench.is_clean();

    // A machine that a person has given another name is not ours any more.
    killed();
    bench.api.cluster().rename(102, "kept");
    bench.study(1, 1, "");
    let _ = fs::remove_dir_all(bench.path("run"));
    let said = bench.measure();
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    assert!(said.err.contains("had left in Proxmox VE"), "{}", said.err);
    bench.has_only(&[(100, "loadline-server"), (102, "kept"), (9000, "debian-12")]);
    assert_eq!(bench.run(&["fleet", "clean", "study.toml", "--run", "no-run"]).code, Some(2));
    assert_eq!(bench.run(&["fleet", "clean", "study.toml", "--run", run]).out, "no run has left a machine\n");
}

#[test]
fn a_machine_that_cannot_be_deleted_is_named_and_fleet_clean_deletes_it_later() {
    let Some(bench) = Bench::of(1) else { return };
    bench.study(1, 1, "");
    let refusal = || Reply::error(403, "Permission check failed (/vms/101, VM.Allocate)");
    bench.api.cluster().troubles.answers.push_back(("destroy", refusal()));
    let said = bench.measure();
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    for words in
        ["VM 101 of run", "is left", "lacks the privilege VM.Allocate on /vms/101", "loadline fleet clean"]
    {
        assert!(said.err.contains(words), "{words}: {}", said.err);
    }
    assert_eq!(bench.api.cluster().names().len(), 3);
    let clean = bench.run(&["fleet", "clean", "study.toml"]);
    assert!(clean.code == Some(0) && clean.out.contains("deleted VM 101"), "{}{}", clean.out, clean.err);
    bench.is_clean();
}

#[test]
fn machines_that_do_not_fit_are_refused_before_any_is_made_with_how_many_would() {
    let Some(bench) = Bench::of(0) else { return };
    let refused = |words: &[&str]| bench.measure().refused(2, words);
    bench.write("nodes = 200", 1, "", "target = { folder = \"/data\" }");
    refused(&[
        "of 200 machines, 165 fit",
        "each needs 512MiB of memory",
        "pve1 has memory for 118",
        "pve3: it is offline",
    ]);
    bench.study(4, 1, "nodes = [\"pve3\"]");
    refused(&["node pve3: it is offline"]);
    bench.write("nodes = 4", 1, "disk = { storage = \"ceph\", size = \"300GiB\" }", "");
    refused(&["of 4 machines, 2 fit", "storage for 2 on all nodes together"]);
    bench.write("nodes = 1", 1, "disk = { storage = \"local\", size = \"1GiB\" }", "");
    refused(&["its storage local takes no disks of machines"]);
    bench.write("nodes = 1", 1, "disk = { storage = \"none\", size = \"1GiB\" }", "");
    refused(&["no storage none"]);
    bench.write(
        "nodes = 1",
        1,
        "disk = { storage = \"ceph\", size = \"1GiB\" }",
        "[[fleet.node]]\nname = \"a\"\nssh = \"a\"",
    );
    refused(&["[fleet.proxmox] makes the nodes"]);
    assert!(bench.api.cluster().calls("POST", "").is_empty());
    bench.is_clean();
}

#[test]
fn a_certificate_with_another_fingerprint_gets_no_token() {
    let Some(bench) = Bench::of(0) else { return };
    bench.study(1, 1, "");
    let text = fs::read_to_string(bench.path("study.toml")).unwrap();
    let found: String = bench.api.fingerprint.to_uppercase();
    let found: Vec<&str> =
        found.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap()).collect();
    let found = found.join(":");
    for (change, words) in [
        (text.replace(&bench.api.fingerprint, &"ab".repeat(32)), "and the study pins AB:AB"),
        (
            text.replace(&format!("fingerprint = \"{}\"\n", bench.api.fingerprint), ""),
            "certificate is not trusted by this system",
        ),
    ] {
        assert_ne!(change, text);
        fs::write(bench.path("study.toml"), change).unwrap();
        bench.run(&["run", "study.toml", "--plan"]).refused(2, &[words, &found]);
    }
    assert!(bench.api.cluster().requests.is_empty(), "nothing was sent");
}

#[test]
fn a_machine_that_is_gone_in_the_middle_is_lost_and_the_others_are_measured() {
    let Some(bench) = Bench::of(2) else { return };
    bench.study(2, 4, "");
    let child = bench.place.loadline(&bench.folder, &["run", "study.toml", "--out", "run"]).spawn().unwrap();
    eventually("it measures", LIMIT, || bench.events().contains("\"starting\""));
    bench.api.cluster().power_off(102);
    let said = finish(child, LIMIT);
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    assert!(said.err.contains("is lost"), "{}", said.err);
    bench.is_clean();
}

#[test]
fn the_study_of_the_how_to_is_planned() {
    let Some(bench) = Bench::of(0) else { return };
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/how-to/run-on-proxmox.md");
    let page = fs::read_to_string(page).unwrap();
    let study = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let mut text = study.to_string();
    for (of_the_page, here) in [
        ("https://pve1:8006", format!("https://{}", bench.api.address)),
        ("AB:CD:...", bench.api.fingerprint.clone()),
        ("loadline-debian-12", "debian-12".into()),
        ("proxmox.token", "token".into()),
    ] {
        assert!(text.contains(of_the_page), "{of_the_page}");
        text = text.replace(of_the_page, &here);
    }
    fs::write(bench.path("pve.toml"), text).unwrap();
    let plan = bench.run(&["run", "pve.toml", "--plan"]);
    assert_eq!(plan.code, Some(0), "{}{}", plan.out, plan.err);
    assert!(plan.out.contains("6 machines, 3 on pve1, 3 on pve2"), "{}", plan.out);
}

#[test]
fn the_start_of_a_machine_takes_no_longer_because_another_one_is_slow() {
    let Some(bench) = Bench::of(2) else { return };
    bench.study(2, 1, "");
    bench.api.cluster().troubles.slow_agent = Some((102, 12));
    let said = bench.measure();
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    let report: Value =
        serde_json::from_slice(&fs::read(bench.path("run/report/report.json")).unwrap()).unwrap();
    let starts = report["machines"].as_array().unwrap().iter();
    let mut starts: Vec<f64> = starts.map(|start| start["start_to_worker_s"].as_f64().unwrap()).collect();
    starts.sort_by(f64::total_cmp);
    assert!(starts[1] > 11.0 && starts[0] < starts[1] - 7.0, "{starts:?}");
}

#[test]
fn the_configuration_of_a_machine_may_take_as_long_as_wait_says() {
    let Some(bench) = Bench::of(1) else { return };
    bench.study(1, 1, "");
    let text =
        fs::read_to_string(bench.path("study.toml")).unwrap().replace("wait = \"30s\"", "wait = \"10s\"");
    fs::write(bench.path("study.toml"), text).unwrap();
    bench.api.cluster().troubles.endless = Some("configure");
    bench.measure().refused(1, &["did not end within 10s (wait in [fleet.proxmox])"]);
    bench.is_clean();
}

#[test]
fn a_token_in_the_environment_reaches_no_program_that_the_run_starts() {
    let Some(bench) = Bench::of(1) else { return };
    bench.study(1, 1, "");
    let text = fs::read_to_string(bench.path("study.toml")).unwrap().replace("token_file = \"token\"\n", "");
    fs::write(bench.path("study.toml"), text).unwrap();
    let tools = bench.path("tools");
    fs::create_dir(&tools).unwrap();
    for tool in ["ssh", "ssh-keygen"] {
        let script = format!(
            "#!/bin/sh\nenv >> '{}'\nPATH=${{PATH#*:}}\nexec {tool} \"$@\"\n",
            bench.path("seen").display()
        );
        fs::write(tools.join(tool), script).unwrap();
        fs::set_permissions(tools.join(tool), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let mut command = bench.place.loadline(&bench.folder, &["run", "study.toml", "--out", "run"]);
    command.env("PATH", path).env("LOADLINE_PROXMOX_TOKEN", TOKEN);
    let said = finish(command.spawn().unwrap(), LIMIT);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    let seen = fs::read_to_string(bench.path("seen")).unwrap();
    assert!(seen.contains("XDG_STATE_HOME=") && !seen.contains("11111111"), "{seen}");
    bench.is_clean();
}

#[test]
fn an_agent_that_never_runs_is_told_after_the_wait_and_a_silent_api_ends_within_its_limit() {
    let Some(bench) = Bench::of(1) else { return };
    bench.study(1, 1, "");
    let text =
        fs::read_to_string(bench.path("study.toml")).unwrap().replace("wait = \"30s\"", "wait = \"10s\"");
    fs::write(bench.path("study.toml"), text).unwrap();
    bench.api.cluster().troubles.agent_after = u32::MAX;
    bench.measure().refused(
        1,
        &["SSH did not reach it within 10s", "QEMU guest agent is not running", "qemu-guest-agent"],
    );
    bench.is_clean();
    let _ = fs::remove_dir_all(bench.path("run"));
    bench.api.cluster().troubles.agent_after = 0;
    bench.api.cluster().troubles.answers.push_back(("start", Reply::Slow(Duration::from_secs(50))));
    bench.measure().refused(1, &["/status/start", "no whole answer within 45s"]);
    bench.is_clean();
}
