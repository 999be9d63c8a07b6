//! Initiators of others against a portal: libiscsi's programs and QEMU's.

mod initiator;
mod portal;

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use loadline_san_export::login::{Credential, Initiator};
use portal::Portal;

/// Runs a program, for a minute at the most. `None` if it is not installed.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    let all = [&["60", program][..], arguments].concat();
    match Command::new(program).arg("--version").output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("{program} is not installed: nothing is shown");
            return None;
        }
        _ => {}
    }
    let output = Command::new("timeout").args(all).output().expect("it runs");
    eprintln!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(output)
}

#[test]
fn libiscsi_finds_the_volume() {
    let portal = Portal::new(Vec::new(), true);
    let Some(output) = run("iscsi-ls", &["-s", &format!("iscsi://{}", portal.address)]) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("iqn.2026-01.org.loadline:vol") && text.contains("Lun:0"), "{text}");
    let output = run("iscsi-inq", &[&portal.uri("")]).expect("it is of the same package");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("Peripheral Device Type:DIRECT_ACCESS"), "{text}");
}

#[test]
fn libiscsi_proves_its_name() {
    let credential = |user: &str, secret: &str| Some(Credential { user: user.into(), secret: secret.into() });
    let known = Initiator {
        name: "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-inq".into(),
        chap: credential("host", "0123456789ab"),
        mutual: credential("array", "ba9876543210"),
        naming: 0,
    };
    let portal = Portal::new(vec![known], false);
    let Some(output) = run("iscsi-inq", &[&portal.uri("host%0123456789ab")]) else { return };
    assert!(output.status.success());
    let mutual =
        format!("{}?target_user=array&target_password=ba9876543210", portal.uri("host%0123456789ab"));
    assert!(run("iscsi-inq", &[&mutual]).expect("it is there").status.success());
    for wrong in ["host%0123456789ac", "guest%0123456789ab", ""] {
        assert!(!run("iscsi-inq", &[&portal.uri(wrong)]).expect("it is there").status.success(), "{wrong}");
    }
    let mutual = format!("{}?target_user=array&target_password=wrong", portal.uri("host%0123456789ab"));
    assert!(!run("iscsi-inq", &[&mutual]).expect("it is there").status.success());
}

#[test]
fn qemu_writes_and_reads() {
    let portal = Portal::new(Vec::new(), true);
    for digest in ["none", "crc32c"] {
        let options = format!(
            "driver=raw,file.driver=iscsi,file.transport=tcp,file.portal={},file.target=iqn.2026-01.org.loadline:vol,file.lun=0,file.header-digest={digest}",
            portal.address
        );
        let script = ["-c", "write -P 7 0 1M", "-c", "write -P 9 4k 4k", "-c", "read -P 9 4k 4k"];
        let more =
            ["-c", "read -P 7 8k 1000k", "-c", "flush", "-c", "discard 0 64k", "-c", "read -P 0 0 64k"];
        let begun = Instant::now();
        let Some(output) = run("qemu-io", &[&script[..], &more, &["--image-opts", &options]].concat()) else {
            return;
        };
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && !text.contains("fail") && !text.contains("Pattern"), "{text}");
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}

/// The tests of libiscsi of this family fail nowhere. Two addresses of the volume are two paths.
fn passes(family: &str, paths: usize) {
    let portal = Portal::new(Vec::new(), true);
    let uris = vec![portal.uri(""); paths];
    let options = ["--dataloss", "-f", "-V", "-t", family];
    let uris: Vec<&str> = uris.iter().map(String::as_str).collect();
    let Some(output) = run("iscsi-test-cu", &[&options[..], &uris].concat()) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    // With a name that it does not know it runs nothing, and succeeds.
    let passed = text.matches("passed").count();
    assert!(output.status.success() && passed > 0 && !text.contains("FAILED\n"), "{text}");
}

#[test]
fn libiscsi_tests_numbers_of_commands_and_of_data() {
    passes("iSCSI.iSCSIcmdsn", 1);
    passes("iSCSI.iSCSIdatasn", 1);
}

#[test]
fn libiscsi_tests_task_management() {
    passes("iSCSI.iSCSITMF", 1);
}

#[test]
fn libiscsi_tests_two_paths() {
    passes("ALL.MultipathIO", 2);
}

/// A server for tests by hand: it prints its URI, and ends after `LOADLINE_PORTAL_SECONDS`.
#[test]
#[ignore = "it serves until it is ended"]
fn a_portal_for_other_programs() {
    let portal = Portal::new(Vec::new(), true);
    println!("{}", portal.uri(""));
    let seconds = std::env::var("LOADLINE_PORTAL_SECONDS").ok().and_then(|value| value.parse().ok());
    std::thread::sleep(Duration::from_secs(seconds.unwrap_or(60)));
}
