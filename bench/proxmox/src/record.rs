//! The record of a run on this machine: its id, its key, and which machines it made, so that a later run can delete what this one left if it
//! was killed.
//!
//! It is a folder that only its user can read: `api`, `machines` (a VMID and a node on each line, and the task
//! that clones the machine once it is known), `key`, `key.pub`, `known_hosts`. The
//! process of the run has the file `lock` locked as long as it lives.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use nix::fcntl::{Flock, FlockArg};

use crate::error::ProxmoxError;
use crate::ownership::is_run_id;
use crate::removal::{CloneState, Made};
use crate::task::Task;

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
    pub(crate) machines: Vec<Made>,
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

    /// Notes a machine before it is made, and once more with the task that clones it.
    pub(crate) fn note(&self, vmid: u32, node: &str, task: Option<&Task>) -> Result<(), ProxmoxError> {
        let task = task.map(|task| format!(" {}", task.name())).unwrap_or_default();
        let line = format!("{vmid} {node}{task}\n");
        let mut machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        // Whole or not at all.
        machines.write_all(line.as_bytes()).map_err(|e| failed("write to", &self.folder.join("machines"), &e))
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

/// The records of runs on this API that are over.
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
        let path = folder.join("machines");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let noted = fs::metadata(&path).and_then(|metadata| metadata.modified());
        let noted = noted.unwrap_or_else(|_| SystemTime::now());
        let machines = machines(&text, noted);
        Some(LeftRecord { run, machines, folder, _lock: lock })
    }

    pub(crate) fn remove(self) -> io::Result<()> {
        fs::remove_dir_all(&self.folder)
    }
}

/// The machines that the lines of a record name; the last line of a machine counts. The last one was noted at this moment.
fn machines(text: &str, noted: SystemTime) -> Vec<Made> {
    let mut machines = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let (Some(Ok(vmid)), Some(node)) = (words.next().map(str::parse), words.next()) else { continue };
        let task = words.next().and_then(|name| Task::of(&name.into()).ok().flatten());
        let clone = task.map_or(CloneState::Asked(noted), CloneState::Task);
        machines.insert(vmid, Made { vmid, node: node.into(), clone });
    }
    machines.into_values().collect()
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
        record.note(101, "pve1", None).unwrap();
        let left_of = |api: &str| left(records.path(), api);
        assert!(left_of("https://pve1:8006").is_empty(), "its run is alive");
        drop(record);
        assert!(left_of("https://pve2:8006").is_empty());
        let mut all = left_of("https://pve1:8006");
        let one = all.remove(0);
        assert_eq!((one.run.as_str(), one.machines.len()), ("0a1b2c3d", 1));
        assert_eq!((one.machines[0].vmid, one.machines[0].node.as_str()), (101, "pve1"));
        one.remove().unwrap();
        assert!(left_of("https://pve1:8006").is_empty());
    }

    #[test]
    fn the_last_line_of_a_machine_says_which_task_clones_it_and_half_a_line_says_nothing() {
        let upid = "UPID:pve1:001E2A3B:0A1B2C3D:68000000:qmclone:9000:bench@pve!load:";
        let text = format!("101 pve1\n102 pve2\n101 pve1 {upid}\n103 pve1 UPID:pv\n10");
        let machines = machines(&text, SystemTime::now());
        let task_of = |made: &Made| match &made.clone {
            CloneState::Task(task) => Some(task.name().to_string()),
            _ => None,
        };
        let found: Vec<_> = machines.iter().map(|made| (made.vmid, task_of(made))).collect();
        assert_eq!(found, [(101, Some(upid.into())), (102, None), (103, None)]);
    }
}
