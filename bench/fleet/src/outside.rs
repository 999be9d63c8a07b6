//! What a worker in a virtual machine asks of its keeper, which is outside of it: disks, the memory of journals, files.
//!
//! One line of JSON for each question and each answer, over a socket in the machine. A disk is attached while a job uses it and no
//! longer: a disk of a server that stayed would connect again, and cut off the server's next client.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use loadline_base::clock::Nanos;
use loadline_load::error::ErrorKind;
use loadline_load::host::{Inventory, MachineFacts};
use loadline_load::{Disk, FileIdentity, Job, LoadError, Target, WritePermission, verify_unit};
use loadline_measure::audit::Finding;
use serde::{Deserialize, Serialize};

use crate::wire::{FailureKind, FileToMake, FileToRemove};

/// How long an answer may take: the keeper may wait for the machine itself, which may be slow.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);
/// How long a device that was attached may take to appear.
const APPEAR_LIMIT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The folder of the machine in which each of its devices has a folder.
const DEVICES: &str = "/sys/bus/pci/devices";

/// A question to the keeper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// Make files of the host: `made`.
    MakeFiles(Vec<FileToMake>),
    /// Remove files of the host: `done`.
    RemoveFiles(Vec<FileToRemove>),
    /// Attach a disk, writable if it may be written to: `attached`.
    Attach(Disk),
    /// Attach a journal's file as memory: `attached`.
    Journal {
        /// The file on the host.
        path: PathBuf,
        /// The bytes of the disk for each entry, if it is made now.
        unit: usize,
        /// The size of its disk, bytes.
        size: u64,
    },
    /// Take a device away: `done`.
    Detach {
        /// Its address, as `attached` said it.
        address: String,
    },
}

/// The keeper's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Answer {
    /// The files that were made, in their order.
    Made(Vec<FileIdentity>),
    /// It is done.
    Done,
    /// A device is attached.
    Attached {
        /// Its PCI address in the machine.
        address: String,
        /// What a reader of figures of it should know.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        findings: Vec<Finding>,
    },
    /// It cannot be done.
    Refused {
        /// What kind of trouble it is.
        kind: FailureKind,
        /// What was attempted, on what, what happened, and what to do.
        message: String,
    },
}

impl Answer {
    /// A refusal that says this error.
    pub(crate) fn refused(error: LoadError) -> Answer {
        Answer::Refused { kind: error.kind.into(), message: error.message }
    }
}

/// How a worker that runs in a virtual machine reaches what is outside.
#[derive(Debug, Clone, PartialEq)]
pub struct Inside {
    /// The socket that leads to the controller.
    pub controller: PathBuf,
    /// The socket that leads to the keeper.
    pub keeper: PathBuf,
    /// When the keeper's message about the worker arrived, on the machine's monotonic clock, nanoseconds.
    pub told_at: Nanos,
    /// How long before that the machine was started, nanoseconds.
    pub since_start: Nanos,
    /// What runs the machine's instructions, in words.
    pub acceleration: String,
    /// The version of the libvirt that started the machine, if one did.
    pub libvirt: Option<String>,
}

/// A disk or a journal that is attached, in a job.
#[derive(Debug)]
struct Attached {
    address: String,
    /// As the job names it.
    outside: String,
    /// As the machine names it.
    inside: String,
}

/// The keeper, as the worker in its machine sees it.
#[derive(Debug)]
pub(crate) struct Outside {
    stream: BufReader<UnixStream>,
    attached: Vec<Attached>,
    /// What the keeper knows of the disks of the present job, and the machine cannot see.
    findings: Vec<Finding>,
    /// Whether an answer did not come, or came half.
    broken: bool,
    facts: MachineFacts,
}

impl Outside {
    /// Connects to the keeper. The worker is ready by now.
    pub(crate) fn connect(inside: &Inside) -> io::Result<Outside> {
        let stream = UnixStream::connect(&inside.keeper)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.set_write_timeout(Some(ANSWER_LIMIT))?;
        let facts = MachineFacts {
            acceleration: inside.acceleration.clone(),
            libvirt: inside.libvirt.clone(),
            start_to_worker_ns: inside.since_start.0.saturating_add(Nanos::now().since(inside.told_at).0),
            start_to_first_io_ns: None,
            worker_bytes: None,
        };
        Ok(Outside {
            stream: BufReader::new(stream),
            attached: Vec::new(),
            findings: Vec::new(),
            broken: false,
            facts,
        })
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, LoadError> {
        let mut line = serde_json::to_vec(request).expect("a request is JSON");
        line.push(b'\n');
        if self.broken {
            // A late answer would be taken for that to another question.
            return Err(LoadError::failed(
                "the keeper of this virtual machine did not answer before, and is asked nothing more",
            ));
        }
        self.broken = true;
        let gone = |e: io::Error| {
            LoadError::failed(format!("the keeper of this virtual machine does not answer: {e}"))
        };
        self.stream.get_mut().write_all(&line).map_err(gone)?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).map_err(gone)?;
        let answer = serde_json::from_str(&answer).map_err(|e| {
            LoadError::failed(format!("the keeper of this virtual machine answers half: {e}"))
        })?;
        self.broken = false;
        match answer {
            Answer::Refused { kind, message } => Err(LoadError { kind: kind.into(), message }),
            answer => Ok(answer),
        }
    }

    /// Has files of the host made.
    pub(crate) fn make_files(&mut self, files: Vec<FileToMake>) -> Result<Vec<FileIdentity>, LoadError> {
        match self.ask(&Request::MakeFiles(files))? {
            Answer::Made(made) => Ok(made),
            other => Err(unexpected(&other)),
        }
    }

    /// Has files of the host removed.
    pub(crate) fn remove_files(&mut self, files: Vec<FileToRemove>) -> Result<(), LoadError> {
        self.ask(&Request::RemoveFiles(files)).map(drop)
    }

    /// Has the disks and journals of a job attached. Returns the job as it is in this machine. After an error nothing is attached.
    pub(crate) fn enter(&mut self, job: &Job) -> Result<Job, LoadError> {
        self.leave()?;
        let entered = self.attach_all(job);
        if entered.is_err() {
            // The error says more than what follows from it.
            let _ = self.leave();
        }
        entered
    }

    /// What a reader of the job's figures should know.
    pub(crate) fn take_findings(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.findings)
    }

    fn attach_all(&mut self, job: &Job) -> Result<Job, LoadError> {
        self.findings.clear();
        if !job.profile.direct {
            return Err(LoadError::usage(
                "direct = false, and the worker is a virtual machine: its own memory would answer, and what is only there is lost with \
                 it; leave direct out, or use --fleet process",
            ));
        }
        let begun = Nanos::now();
        let mut inside = job.clone();
        for (index, disk) in job.disks.iter().enumerate() {
            if matches!(disk.target, Target::Null(_)) {
                continue;
            }
            let device = self.attach(disk)?;
            if self.facts.start_to_first_io_ns.is_none() {
                self.first_io(&device, begun)?;
            }
            if let Some(verify) = &mut inside.verify {
                let journal = Request::Journal {
                    path: verify.journals[index].clone(),
                    unit: verify_unit(job),
                    size: size_of(&device)?,
                };
                verify.journals[index] = self.attach_journal(journal)?;
            }
            let writes = match disk.writes {
                WritePermission::Refused => WritePermission::Refused,
                // The keeper has checked that it is the file that was made.
                WritePermission::Made(_) | WritePermission::Destroy => WritePermission::Destroy,
            };
            inside.disks[index] = Disk { target: Target::Path(device), writes };
        }
        Ok(inside)
    }

    fn attach(&mut self, disk: &Disk) -> Result<PathBuf, LoadError> {
        let address = self.attached_at(&Request::Attach(disk.clone()))?;
        let outside = disk.target.to_string();
        self.attached.push(Attached {
            address: address.clone(),
            outside: outside.clone(),
            inside: String::new(),
        });
        let device = appears(&format!("the disk {outside}"), || block_device(&address))?;
        if let Some(last) = self.attached.last_mut() {
            last.inside = device.display().to_string();
        }
        Ok(device)
    }

    fn attach_journal(&mut self, journal: Request) -> Result<PathBuf, LoadError> {
        let address = self.attached_at(&journal)?;
        self.attached.push(Attached {
            address: address.clone(),
            outside: String::new(),
            inside: String::new(),
        });
        let folder = Path::new(DEVICES).join(&address);
        let memory = folder.join("resource2");
        appears("the memory of a journal", || memory.exists().then(|| memory.clone()))?;
        // Without a driver, nothing else has enabled it.
        fs::write(folder.join("enable"), "1").map_err(|e| {
            LoadError::failed(format!(
                "the memory of a journal cannot be enabled in this virtual machine: {e}"
            ))
        })?;
        Ok(memory)
    }

    fn attached_at(&mut self, request: &Request) -> Result<String, LoadError> {
        match self.ask(request)? {
            Answer::Attached { address, findings } => {
                self.findings.extend(findings);
                Ok(address)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Reads a block from a disk, the first I/O of this machine. The time until then leaves out the time that the worker waited for
    /// its first order, which began at `begun`.
    fn first_io(&mut self, device: &Path, begun: Nanos) -> Result<(), LoadError> {
        let mut block = [0; 4096];
        File::open(device).and_then(|mut file| file.read(&mut block)).map_err(|e| {
            LoadError::failed(format!(
                "the first read of this virtual machine, from {}: {e}",
                device.display()
            ))
        })?;
        let took = Nanos::now().since(begun).0;
        self.facts.start_to_first_io_ns = Some(self.facts.start_to_worker_ns.saturating_add(took));
        Ok(())
    }

    /// Has everything taken away that is attached.
    pub(crate) fn leave(&mut self) -> Result<(), LoadError> {
        let mut result = Ok(());
        for attached in std::mem::take(&mut self.attached) {
            let detached = match self.ask(&Request::Detach { address: attached.address.clone() }) {
                Ok(Answer::Done) => Ok(()),
                Ok(other) => Err(unexpected(&other)),
                Err(error) => Err(error),
            };
            if detached.is_err() {
                // It is asked again before the next job.
                self.attached.push(attached);
            }
            result = result.and(detached);
        }
        result
    }

    /// The targets as they are in this machine, as far as they are attached.
    pub(crate) fn inside(&self, targets: &[Target]) -> Vec<Target> {
        let inside = |target: &Target| {
            let name = target.to_string();
            let attached = self.attached.iter().find(|attached| attached.outside == name);
            attached.map_or_else(|| target.clone(), |attached| Target::Path(attached.inside.clone().into()))
        };
        targets.iter().map(inside).collect()
    }

    /// What this machine is: with the names that its disks have outside.
    pub(crate) fn describe(&self, mut inventory: Inventory) -> Inventory {
        for disk in &mut inventory.disks {
            if let Some(attached) = self.attached.iter().find(|attached| attached.inside == disk.target) {
                disk.target.clone_from(&attached.outside);
            }
        }
        inventory.machine = Some(MachineFacts { worker_bytes: most_memory(), ..self.facts.clone() });
        inventory
    }
}

/// The most memory that this process has had, bytes.
pub(crate) fn most_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

fn unexpected(answer: &Answer) -> LoadError {
    LoadError::failed(format!(
        "the keeper of this virtual machine gave an answer to another question: {answer:?}"
    ))
}

/// Waits until a device is there.
fn appears<T>(what: &str, look: impl Fn() -> Option<T>) -> Result<T, LoadError> {
    let limit = Instant::now() + APPEAR_LIMIT;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if Instant::now() > limit {
            return Err(LoadError::failed(format!(
                "{what} did not appear in this virtual machine within {APPEAR_LIMIT:?}: its kernel has no driver for it, or takes no \
                 devices while it runs"
            )));
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// The block device of a disk by its PCI address, once it is there.
fn block_device(address: &str) -> Option<PathBuf> {
    let first = |folder: PathBuf, prefix: &str| {
        let mut entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
        entries.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
    };
    let driver = first(Path::new(DEVICES).join(address), "virtio")?;
    let device = Path::new("/dev").join(first(driver.join("block"), "")?.file_name()?);
    // Its name is there before it can be opened, and before its size is known.
    size_of(&device).is_ok_and(|size| size > 0).then_some(device)
}

fn size_of(device: &Path) -> Result<u64, LoadError> {
    use std::io::{Seek, SeekFrom};
    File::open(device)
        .and_then(|mut file| file.seek(SeekFrom::End(0)))
        .map_err(|e| LoadError::failed(format!("the size of {} cannot be read: {e}", device.display())))
}

impl From<FailureKind> for ErrorKind {
    fn from(kind: FailureKind) -> ErrorKind {
        match kind {
            FailureKind::Usage => ErrorKind::Usage,
            FailureKind::Failed => ErrorKind::Failed,
            FailureKind::Limit => ErrorKind::Limit,
            FailureKind::Interrupted => ErrorKind::Interrupted,
        }
    }
}
