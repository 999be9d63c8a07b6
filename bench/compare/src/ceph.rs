//! A small Ceph cluster on this machine: a monitor, a manager, three OSDs on files, two copies, images in one pool.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs until it is dropped.
pub(crate) struct Ceph {
    folder: PathBuf,
}

/// What starts and stops it.
const SCRIPT: &str = include_str!("../../../tests/peers/ceph-mini.sh");

impl Ceph {
    /// Starts it in this folder, with an image `disk0` of so many MiB in the pool `bench`.
    pub(crate) fn start(folder: &Path, mib: u64) -> Result<Ceph, String> {
        let ceph = Ceph { folder: folder.into() };
        ceph.script(&["up", "3", "2", &mib.to_string()])?;
        Ok(ceph)
    }

    /// Makes another image.
    pub(crate) fn make_image(&self, name: &str, mib: u64) -> Result<(), String> {
        self.script(&["image", name, &mib.to_string()])
    }

    /// An image, as a disk is named.
    pub(crate) fn image(&self, name: &str) -> String {
        format!("rbd:bench/{name}?conf={}", self.conf().display())
    }

    pub(crate) fn conf(&self) -> PathBuf {
        self.folder.join("ceph.conf")
    }

    /// Where the processes' numbers are: `osd.0.pid`, and so on.
    pub(crate) fn run_folder(&self) -> PathBuf {
        self.folder.join("run")
    }

    pub(crate) fn processes(&self) -> Vec<u32> {
        let files = std::fs::read_dir(self.run_folder()).into_iter().flatten().flatten();
        let pids = files.filter(|file| file.path().extension().is_some_and(|end| end == "pid"));
        pids.filter_map(|file| std::fs::read_to_string(file.path()).ok()?.trim().parse().ok()).collect()
    }

    fn script(&self, arguments: &[&str]) -> Result<(), String> {
        let output = Command::new("bash")
            .args(["-c", SCRIPT, "ceph", arguments[0]])
            .arg(&self.folder)
            .args(&arguments[1..])
            .output()
            .map_err(|e| format!("bash: {e}"))?;
        let text = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(()) } else { Err(format!("Ceph, {}: {text}", arguments[0])) }
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        let _ = self.script(&["down"]);
    }
}
