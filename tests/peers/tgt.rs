//! An iSCSI target of somebody else: that of Linux's `tgt`, with one disk, a file. It ends with the test.

#![allow(dead_code, reason = "each test program uses its own part")]

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);
/// The name of the target. Its disk is LUN 1; LUN 0 is the target's own controller.
pub(crate) const NAME: &str = "iqn.2003-01.org.example:disk";

pub(crate) struct Tgt {
    process: Child,
    pub(crate) port: u16,
    /// Where its control socket is.
    folder: tempfile::TempDir,
}

impl Tgt {
    /// Starts one with this file as its disk.
    pub(crate) fn start(disk: &Path) -> Tgt {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        let portal = format!("portal=127.0.0.1:{port}");
        let mut command = Command::new("tgtd");
        command.env("TGT_IPC_SOCKET", folder.path().join("tgtd")).args(["-f", "--iscsi", &portal]);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let process = process.expect("tgt is installed: './dev setup --tests' does that");
        let tgt = Tgt { process, port, folder };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < LIMIT, "the target listens soon");
            std::thread::sleep(Duration::from_millis(10));
        }
        tgt.admin(&["--op", "new", "--mode", "target", "--tid", "1", "-T", NAME]);
        let disk = disk.display().to_string();
        tgt.admin(&["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", &disk]);
        tgt.admin(&["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"]);
        tgt
    }

    /// Changes its settings.
    pub(crate) fn admin(&self, words: &[&str]) {
        let mut command = Command::new("tgtadm");
        command.env("TGT_IPC_SOCKET", self.folder.path().join("tgtd")).args(["--lld", "iscsi"]).args(words);
        let done = command.output().expect("tgt is installed: './dev setup --tests' does that");
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// The name of its disk.
    pub(crate) fn uri(&self) -> String {
        format!("iscsi://127.0.0.1:{}/{NAME}/1", self.port)
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
