//! Machines of the libvirt of another host (`qemu+ssh://`): real servers of OpenSSH, each in a network namespace, and a real libvirt.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::ssh_hosts::{Hosts, hosts};
use crate::support::finish;
use crate::{Place, study};

/// The study's nodes are this host, whose workers are machines of the libvirt there.
fn on_host(place: &Place, host: &str) -> String {
    let uri = place.daemon.uri().replace("qemu:///", &format!("qemu+ssh://{host}/"));
    let target = format!("folder = {:?}", place.path("data"));
    study(&uri, 2, "", &target, 3).replace("verify = true", "verify = false")
}

fn out(hosts: &Hosts) -> String {
    hosts.folder.join(hosts.name("run")).display().to_string()
}

#[test]
fn machines_of_the_libvirt_of_another_host_measure_there_and_what_speaks_against_them_is_said() {
    let place = Place::new();
    let hosts = hosts().expect("the libvirt before needs root too");
    // Its cache is where libvirt's QEMU may not go, as a user's cache is.
    fs::set_permissions(&hosts.folder, fs::Permissions::from_mode(0o700)).unwrap();
    let run = out(&hosts);
    let study_file = hosts.study(&on_host(&place, "h2"));
    let running = hosts.loadline(&["run", &study_file, "--out", &run]).spawn().unwrap();
    crate::support::eventually("two machines run", crate::LIMIT, || place.daemon.domains().len() == 2);
    let keepers = hosts.processes(2);
    assert!(keepers.iter().any(|line| line.contains(" worker ")), "{keepers:?}");
    let said = finish(running, crate::LIMIT);
    assert!(matches!(said.code, Some(0 | 3)), "{:?}\n{}\n{}", said.code, said.out, said.err);
    let report = fs::read(hosts.folder.join(run).join("report/report.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    let machines = report["machines"].as_array().unwrap();
    assert!(machines.len() == 2 && machines.iter().all(|start| start["libvirt"].is_string()), "{machines:?}");
    assert_eq!(place.daemon.domains(), [""; 0]);
    hosts.is_left_clean(2);
    // One host refuses the login, and one has no libvirt.
    let refused = |text: &str, code, words: &[&str]| {
        hosts.run(&["run", &hosts.study(text), "--out", &out(&hosts)]).refused(code, words);
    };
    refused(&on_host(&place, "wrong-key"), 1, &["wrong-key", "ssh-copy-id wrong-key"]);
    let nowhere = on_host(&place, "h3").replace("libvirt-sock", "no-sock");
    refused(
        &nowhere,
        2,
        &["node-1/0", "of the host h3 cannot be used: failed to connect", "systemctl start libvirtd"],
    );
    let verified = on_host(&place, "h3").replace("verify = false", "verify = true");
    refused(&verified, 2, &["verify", "this machine"]);
    hosts.is_left_clean(3);
}
