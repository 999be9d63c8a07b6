//! The record of a run on this machine: its id, its key, and which machines it made, so that a later run can delete what this one left if it
//! was killed.
//!
//! It is a folder that only its user can read: `api`, `machines` (a VMID and a node on each line), `key`, `key.pub`, `known_hosts`. The
//! process of the run has the file `lock` locked as long as it lives.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use nix::fcntl::{Flock, FlockArg};

use crate::error::ProxmoxError;
use crate::ownership::is_run_id;

/// The record of a run. The run is alive as long as the value is.
#[derive(Debug)]
pub struct Record {
    run: String,
    folder: PathBuf,
    public_key: String,
    machines: Mutex<File>,
    _lock: Flock<File>,
}

/// The record of a run that is over, which has left it.
#[derive(Debug)]
pub(crate) struct LeftRecord {
    pub(crate) run: String,
    folder: PathBuf,
    /// VMIDs with the nodes on which the machines were made.
    pub(crate) machines: Vec<(u32, String)>,
    _lock: Flock<File>,
}

/// The folder of all records: of the user's state.
pub fn records_folder() -> Result<PathBuf, ProxmoxError> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
    state.map(|state| state.join("loadline/proxmox")).ok_or_else(|| {
        ProxmoxError::usage(
            "the record of the machines has no place: set XDG_STATE_HOME or HOME to a folder of yours",
        )
    })
}

fn failed(what: &str, path: &Path, error: &dyn std::fmt::Display) -> ProxmoxError {
    ProxmoxError::failed(format!("cannot {what} {}: {error}", path.display()))
}

impl Record {
    /// Begins the record of a run with this id, and makes its key. `api` is where its machines will be.
    pub fn begin(run: &str, api: &str) -> Result<Record, ProxmoxError> {
        Record::begin_in(&records_folder()?, run, api)
    }

    fn begin_in(records: &Path, run: &str, api: &str) -> Result<Record, ProxmoxError> {
        assert!(is_run_id(run), "{run} is the id of a run");
        let folder = records.join(run);
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(records).map_err(|e| failed("make", records, &e))?;
        builder.recursive(false).create(&folder).map_err(|e| failed("make", &folder, &e))?;
        let file = |name: &str| {
            let path = folder.join(name);
            let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
            opened.map_err(|e| failed("make", &path, &e))
        };
        let lock = Flock::lock(file("lock")?, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, e)| failed("lock", &folder, &e))?;
        writeln!(file("api")?, "{api}").map_err(|e| failed("write to", &folder, &e))?;
        let public_key = make_key(&folder, run)?;
        Ok(Record {
            run: run.into(),
            machines: Mutex::new(file("machines")?),
            folder,
            public_key,
            _lock: lock,
        })
    }

    /// The id of the run.
    pub fn run(&self) -> &str {
        &self.run
    }

    /// The file of the private key that the machines let in.
    pub fn key(&self) -> PathBuf {
        self.folder.join("key")
    }

    /// The public key, as `authorized_keys` has it.
    pub fn public_key(&self) -> &str {
        &self.public_key
    }

    /// The file with the keys of the machines' SSH servers, as `known_hosts`.
    pub fn known_hosts(&self) -> PathBuf {
        self.folder.join("known_hosts")
    }

    /// Notes a machine before it is made.
    pub(crate) fn note(&self, vmid: u32, node: &str) -> Result<(), ProxmoxError> {
        let mut machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(machines, "{vmid} {node}").map_err(|e| failed("write to", &self.folder.join("machines"), &e))
    }

    /// Removes the record: the run has left nothing.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Makes the key of a run, and returns its public part.
fn make_key(folder: &Path, run: &str) -> Result<String, ProxmoxError> {
    let path = folder.join("key");
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", &format!("loadline-{run}"), "-f"])
        .arg(&path)
        .stdin(Stdio::null())
        .output();
    match made {
        Ok(output) if output.status.success() => {
            let public = path.with_extension("pub");
            fs::read_to_string(&public).map_err(|e| failed("read", &public, &e))
        }
        Ok(output) => Err(ProxmoxError::failed(format!(
            "ssh-keygen cannot make the key of the run: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
        Err(e) => Err(ProxmoxError::usage(format!(
            "ssh-keygen cannot be started: {e}; install the OpenSSH client (openssh-client)"
        ))),
    }
}

/// The records of runs on this API that are over, without those of the runs in `but`.
pub(crate) fn left(records: &Path, api: &str) -> Vec<LeftRecord> {
    let folders = fs::read_dir(records).into_iter().flatten().flatten().map(|entry| entry.path());
    folders.filter_map(|folder| LeftRecord::open(folder, api)).collect()
}

impl LeftRecord {
    fn open(folder: PathBuf, api: &str) -> Option<LeftRecord> {
        let run = folder.file_name()?.to_str().filter(|name| is_run_id(name))?.to_string();
        let known = fs::read_to_string(folder.join("api")).ok()?;
        if known.trim() != api {
            return None;
        }
        let lock = File::open(folder.join("lock")).ok()?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).ok()?;
        let text = fs::read_to_string(folder.join("machines")).unwrap_or_default();
        let machine = |line: &str| {
            let (vmid, node) = line.split_once(' ')?;
            Some((vmid.parse().ok()?, node.to_string()))
        };
        Some(LeftRecord { run, machines: text.lines().filter_map(machine).collect(), folder, _lock: lock })
    }

    pub(crate) fn remove(self) -> io::Result<()> {
        fs::remove_dir_all(&self.folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_record_is_left_only_by_a_run_that_is_over_and_only_its_user_can_read_it() {
        let records = tempfile::tempdir().unwrap();
        let record = Record::begin_in(records.path(), "0a1b2c3d", "https://pve1:8006").unwrap();
        assert!(record.public_key().starts_with("ssh-ed25519 "));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&records.path().join("0a1b2c3d")), mode(&record.key())), (0o700, 0o600));
        record.note(101, "pve1").unwrap();
        let left_of = |api: &str| left(records.path(), api);
        assert!(left_of("https://pve1:8006").is_empty(), "its run is alive");
        drop(record);
        assert!(left_of("https://pve2:8006").is_empty());
        let mut all = left_of("https://pve1:8006");
        let one = all.remove(0);
        assert_eq!((one.run.as_str(), one.machines.clone()), ("0a1b2c3d", vec![(101, "pve1".to_string())]));
        one.remove().unwrap();
        assert!(left_of("https://pve1:8006").is_empty());
    }
}
