//! A target that is not ours: that of Linux's `tgt`, with one disk, which several of them can serve at once as if they were portals of one
//! target.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::netns::{self, Network};

const LIMIT: Duration = Duration::from_secs(20);
const NAME: &str = "iqn.2026-01.org.example:disk";

/// A process of it on a host.
pub(crate) struct Target {
    process: Child,
    host: usize,
    disk: PathBuf,
}

impl Target {
    /// Starts one whose portal is the address of this host. Its disk says that it is a volume of Loadline, and is the same disk at each
    /// host.
    pub(crate) fn start(network: &Network, host: usize, disk: &Path) -> Target {
        let target = Target { process: process(network, host), host, disk: disk.to_owned() };
        target.set_up();
        target
    }

    /// Ends the process and starts another one: all its sessions are gone.
    pub(crate) fn restart(&mut self, network: &Network) {
        self.end();
        self.process = process(network, self.host);
        self.set_up();
    }

    fn set_up(&self) {
        let disk = self.disk.display().to_string();
        for words in [
            &["--op", "new", "--mode", "target", "--tid", "1", "-T", NAME][..],
            &["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", &disk],
            &[
                "--op",
                "update",
                "--mode",
                "logicalunit",
                "--tid",
                "1",
                "--lun",
                "1",
                "--params",
                "vendor_id=LOADLINE,product_id=VOLUME",
            ],
            &["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"],
        ] {
            self.administer(words);
        }
    }

    /// Carries out a command of its administrator, as soon as it can.
    fn administer(&self, words: &[&str]) {
        let until = Instant::now() + LIMIT;
        loop {
            let mut command = Command::new("tgtadm");
            let done = command.args(["-C", &control(self.host), "--lld", "iscsi"]).args(words).output();
            let done = done.expect("./dev setup --tests installs tgt");
            if done.status.success() {
                return;
            }
            assert!(Instant::now() < until, "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn end(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // Files that it leaves if it is killed.
        for left in ["", ".lock"] {
            let _ = std::fs::remove_file(format!("/var/run/tgtd/socket.{}{left}", control(self.host)));
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.end();
    }
}

/// The number of its control socket, below 2^15. Other tests take numbers up to 30,000.
fn control(host: usize) -> String {
    (30_001 + std::process::id() as usize % 1_380 * 2 + host).to_string()
}

fn process(network: &Network, host: usize) -> Child {
    let portal = format!("portal={}:3260", netns::address(host));
    let mut command = network.command(host, Path::new("tgtd"));
    command
        .args(["-f", "-C", &control(host), "--iscsi", &portal])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().expect("./dev setup --tests installs tgt")
}
