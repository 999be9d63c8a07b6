//! A libvirt daemon of a test's own, with its real QEMU as another user.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::{eventually, signal};

/// How long the daemon may take to answer: it asks QEMU first what it can.
const LIMIT: Duration = Duration::from_secs(60);

/// The daemon, and all of its machines. Dropping it ends them.
pub(crate) struct Daemon {
    folder: PathBuf,
    namespace: Child,
}

impl Daemon {
    /// Starts one in this folder, and waits until it answers.
    pub(crate) fn start(folder: &Path) -> Daemon {
        assert!(
            nix::unistd::geteuid().is_root(),
            "this test needs root: its libvirt is started in namespaces of its own, and has its QEMU run as another user. Run it as root, \
             or only the tests of an ordinary user's libvirt: cargo test --test machines_libvirt session"
        );
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/machines_libvirt/daemon.sh");
        let namespace = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"])
            .arg(script)
            .arg(folder)
            .stdin(Stdio::null())
            .spawn()
            .expect("./dev setup --tests installs unshare");
        let daemon = Daemon { folder: folder.into(), namespace };
        daemon.answers();
        daemon
    }

    fn answers(&self) {
        eventually("libvirt answers", LIMIT, || self.virsh(&["version"]).is_ok());
    }

    /// As studies and `virsh` name it.
    pub(crate) fn uri(&self) -> String {
        format!("qemu:///system?socket={}", self.folder.join("socket/libvirt-sock").display())
    }

    /// What `virsh` says, or its error.
    pub(crate) fn virsh(&self, words: &[&str]) -> Result<String, String> {
        let output = Command::new("virsh").args(["-q", "-c", &self.uri()]).args(words).output();
        let output = output.expect("./dev setup --tests installs virsh");
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// The names of all domains, in their order.
    pub(crate) fn domains(&self) -> Vec<String> {
        let listed = self.virsh(&["list", "--all", "--name"]).expect("libvirt answers");
        let mut names: Vec<String> =
            listed.lines().filter(|line| !line.is_empty()).map(str::to_string).collect();
        names.sort();
        names
    }

    /// The processes of its machines, also while it is gone.
    pub(crate) fn machines(&self) -> Vec<u32> {
        // Their keepers' folders differ; the QEMUs of this daemon are in its namespace.
        let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
        let here = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.namespace.id()));
        let here = here.unwrap_or_default();
        let here = namespace(here.trim());
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_machine = |process: &u32| {
            let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains("guest=loadline-")
                && namespace(&process.to_string()) == here
        };
        processes.filter(is_machine).collect()
    }

    /// Ends the daemon alone, by a signal.
    pub(crate) fn end(&self, how: &str) {
        let line = format!("{}", self.folder.join("libvirtd.conf").display());
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_daemon = |process: &u32| {
            let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).into_owned();
            words.starts_with("libvirtd\0") && words.contains(&line)
        };
        let processes: Vec<u32> = processes.filter(is_daemon).collect();
        assert!(!processes.is_empty(), "the daemon runs");
        processes.into_iter().for_each(|process| signal(process, how));
        eventually("the daemon is gone", LIMIT, || self.virsh(&["version"]).is_err());
    }

    /// Starts the daemon again.
    pub(crate) fn begin_again(&self) {
        fs::write(self.folder.join("again"), "").unwrap();
        self.answers();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // With it, the first process of the namespace is killed, and so all in it.
        let _ = self.namespace.kill();
        let _ = self.namespace.wait();
    }
}
