//! Disks of an iSCSI target, which QEMU's initiator reaches.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::eventually;
use crate::{Place, checked, study};

const LIMIT: Duration = Duration::from_secs(30);
const NAME: &str = "iqn.2003-01.org.example:disk";

/// A target of somebody else: that of Linux's `tgt`, with one disk.
struct Target {
    process: Child,
    port: u16,
    control: String,
}

impl Target {
    fn start(disk: &std::path::Path) -> Target {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        // Its control sockets have numbers, below 2^15, and each process of tests has another.
        let control = (std::process::id() % 30_000 + 1).to_string();
        let portal = format!("portal=127.0.0.1:{port}");
        let mut command = Command::new("tgtd");
        command.args(["-f", "-C", &control, "--iscsi", &portal]).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().expect("./dev setup --tests installs tgt");
        let target = Target { process, port, control };
        eventually("the target listens", LIMIT, || TcpStream::connect(("127.0.0.1", port)).is_ok());
        let disk = disk.display().to_string();
        for words in [
            &["--op", "new", "--mode", "target", "--tid", "1", "-T", NAME][..],
            &["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", &disk],
            &["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"],
        ] {
            let done =
                Command::new("tgtadm").args(["-C", &target.control, "--lld", "iscsi"]).args(words).output();
            let done = done.expect("./dev setup --tests installs tgt");
            assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
        }
        target
    }

    fn uri(&self) -> String {
        format!("iscsi://127.0.0.1:{}/{NAME}/1", self.port)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // Files that it leaves if it is killed.
        for left in ["", ".lock"] {
            let _ = std::fs::remove_file(format!("/var/run/tgtd/socket.{}{left}", self.control));
        }
    }
}

#[test]
fn a_disk_of_an_iscsi_target_is_a_machines_and_no_processs() {
    let place = Place::new();
    let disk = place.path("disk");
    std::fs::File::create(&disk).unwrap().set_len(16 << 20).unwrap();
    let target = Target::start(&disk);
    let of = |fleet: &str| study(&format!("[fleet]\n{fleet}\n[target]\ndevices = [{:?}]", target.uri()));
    let said = place.run(&of("machine = {}"), &["--destroy-data"], &[]);
    assert!(matches!(said.code, Some(0 | 3)), "{:?}\n{}\n{}", said.code, said.out, said.err);
    let (blocks, bad) = checked(&place.report());
    assert!(blocks > 500 && bad == 0, "{blocks} checked, {bad} bad");
    std::fs::remove_dir_all(place.path("run")).unwrap();
    place.run(&of("machine = {}"), &[], &[]).refused(2, &["--destroy-data"]);
    place.run(&of(""), &["--destroy-data"], &[]).refused(2, &["is a disk of virtual machines", "iscsiadm"]);
    let _ = std::fs::remove_dir_all(place.path("run"));
    let gone = of("machine = {}");
    drop(target);
    place.run(&gone, &["--destroy-data"], &[]).refused(2, &["cannot be looked at", "onnect"]);
}
