//! A running machine that is migrated to another QEMU, of this host or of another one: by QEMU's own migration, which copies the machine's memory while the
//! machine runs, and stops it for the last part.
//!
//! | rule | what holds |
//! | --- | --- |
//! | one machine | the machine runs in one QEMU at a time: the destination continues only once the source has stopped for good |
//! | no byte lost | the bytes between the keeper and the machine are one stream, whichever QEMU runs the machine: the keeper writes nothing while the machine stands still |
//! | own memory | a file that is memory of the machine is copied by the keeper while the machine stands still: two QEMUs that had the same file as memory would write the past into it |
//! | own files | what only one host has does not move with a machine: to another host a machine goes without memory of files, and without disks that are files, devices or sockets of its present host |
//! | nothing happened | until the source has stopped for good, whatever fails leaves the machine where it was |

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{AT_FDCWD, Flock, FlockArg, RenameFlags, posix_fallocate, renameat2};
use serde_json::{Value, json};

use crate::attach::Devices;
use crate::control::{self, ToMachine};
use crate::disk::{MachineDisk, OpenFile};
use crate::elsewhere::{OtherHost, Wanted};
use crate::error::{ErrorKind, GuestError};
use crate::link::Link;
use crate::monitor::Monitor;
use crate::qemu::{Origin, Process};
use crate::qmp::{Qmp, QmpError};
use crate::remote::Remote;
use crate::running::Running;
use crate::shared::locked;

/// How long a machine's memory may take to be copied so far that the rest is copied while it stands still.
const COPY_LIMIT: Duration = Duration::from_secs(20);
/// How long all of it may take until the machine goes on: whoever ordered it waits longer.
const WHOLE_LIMIT: Duration = Duration::from_secs(60);
/// How long each part of the switch may take while the machine stands still: a worker that says nothing for 5 s is given up.
const SWITCH_LIMIT: Duration = Duration::from_secs(4);
/// How long a machine that stands still may have something unread.
const READ_LIMIT: Duration = Duration::from_millis(50);
/// Bytes a second: as fast as it goes.
const BANDWIDTH: u64 = 1 << 34;
/// How long the machine should stand still at most, milliseconds: then QEMU stops it.
const DOWNTIME_MS: u64 = 200;
/// How the name of the copy of a file that is memory ends until it is the file.
const COPY: &str = "migrated";
/// How the name of a file ends with which it is tried whether two files can exchange their names.
const OTHER: &str = "other";

/// What a migration was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Migrated {
    /// How long the machine stood still: by the host's clock; between two hosts to within the time that a message takes.
    pub downtime: Duration,
    /// How long all of it took, from the order until the machine ran again.
    pub took: Duration,
}

/// Where a machine is migrated to.
pub enum Whither<'a> {
    /// A QEMU of this host, which the calling thread starts, and which dies with it.
    Here,
    /// A QEMU of another host.
    There(&'a mut dyn OtherHost),
}

/// How the source gets the connection by which it sends the machine.
enum Departure {
    /// It is given this descriptor.
    Give(UnixStream),
    /// It has it.
    Has,
}

/// The other QEMU, before the machine runs there.
struct Destination {
    process: Box<dyn Running>,
    departure: Departure,
    /// Whether both QEMUs are on this host.
    has_our_clock: bool,
    qmp: Qmp,
    devices: Devices,
    /// The copies of files that are memory, by file: each with its lock.
    memory: BTreeMap<PathBuf, Copy>,
}

/// A copy of a file that is memory. The two exchange their names while the machine stands still, and back if it does not go on. Whatever
/// has the copy's name at the end is removed.
struct Copy {
    path: PathBuf,
    file: Option<Flock<File>>,
}

impl Drop for Copy {
    fn drop(&mut self) {
        // It is in the run's folder, where a file too many does no harm.
        let _ = fs::remove_file(&self.path);
    }
}

/// Why the machine has not moved.
enum Stopped {
    /// It can go on where it was.
    Here(GuestError),
    /// The same; it had not read something that its keeper said just before it stopped. It reads that as soon as it goes on.
    Unread(GuestError),
    /// It may have run elsewhere.
    Gone(GuestError),
}

impl From<GuestError> for Stopped {
    fn from(error: GuestError) -> Stopped {
        Stopped::Here(error)
    }
}

impl Remote {
    /// Migrates the machine to another QEMU. There the machine has the second disk of each pair of `disks` in place of the first. If the
    /// migration fails, the machine goes on where it was, unless QEMU died after the copy was whole. An error of kind
    /// [`Again`](ErrorKind::Again) if the next attempt should succeed: the server of a vhost-user disk must be told of that first, since one
    /// that waits for a machine to start waits for one QEMU.
    pub fn migrate(
        &mut self,
        mut to: Whither<'_>,
        disks: &[(MachineDisk, MachineDisk)],
    ) -> Result<Migrated, GuestError> {
        self.attempt(&mut to, disks).map_err(|stopped| match stopped {
            Stopped::Here(error) | Stopped::Gone(error) => error,
            Stopped::Unread(error) => GuestError { kind: ErrorKind::Again, ..error },
        })
    }

    fn attempt(
        &mut self,
        to: &mut Whither<'_>,
        disks: &[(MachineDisk, MachineDisk)],
    ) -> Result<Migrated, Stopped> {
        let begun = Instant::now();
        let shared = self.shared.clone();
        let Some(origin) = &shared.origin else {
            return Err(Stopped::Here(failed(
                &"libvirt has started it, and machines are migrated that are started without libvirt",
            )));
        };
        // Nothing comes and goes meanwhile.
        let mut devices = locked(&shared.devices);
        let from = locked(&shared.running).link();
        let mut destination = destination(origin, &devices, (from, to), disks)?;
        let migrated = match self.switch(&mut destination, begun) {
            Ok(migrated) => migrated,
            Err(stopped) => {
                match stopped {
                    // The destination does not run, and its end may take a while.
                    Stopped::Here(_) | Stopped::Unread(_) => self.go_on(),
                    Stopped::Gone(_) => locked(&shared.running).end(),
                }
                drop(destination);
                return Err(stopped);
            }
        };
        let Destination { process, qmp, devices: new, memory, .. } = destination;
        self.monitor = Monitor::Qmp(qmp);
        *devices = new;
        for (path, mut copy) in memory {
            devices.rename(&copy.path, &path, copy.file.take());
        }
        let source = std::mem::replace(&mut *locked(&shared.running), process);
        // Only its end lets the reader go on. On another host that may take a while.
        match source.link() {
            None => drop(source),
            Some(_) => drop(thread::Builder::new().name("source".into()).spawn(move || drop(source))),
        }
        Ok(migrated)
    }

    /// Copies the machine, and lets it go on at the destination.
    fn switch(&mut self, destination: &mut Destination, begun: Instant) -> Result<Migrated, Stopped> {
        let Monitor::Qmp(source) = &mut self.monitor else {
            return Err(Stopped::Here(failed(&"libvirt has started it")));
        };
        // What is left of an earlier attempt tells nothing of this one.
        source.forget_events();
        let copied = capable(source, &["events", "pause-before-switchover"])
            .and_then(|()| {
                let limits = json!({ "max-bandwidth": BANDWIDTH, "downtime-limit": DOWNTIME_MS });
                source.command("migrate-set-parameters", limits)
            })
            .and_then(|_| match &destination.departure {
                Departure::Give(stream) => source.give("migration", stream.as_fd()),
                Departure::Has => source.command("getfd", json!({ "fdname": "migration" })).map(drop),
            })
            .and_then(|()| source.command("migrate", json!({ "uri": "fd:migration" })))
            .and_then(|_| {
                // The source alone has it from now on.
                destination.departure = Departure::Has;
                becomes(source, "pre-switchover", COPY_LIMIT)
            });
        copied.map_err(|e| failed(&e))?;
        // It stands still. Whoever has something to say to it waits.
        let mut out = soon_locked(&self.shared.out)?;
        all_is_read(&**locked(&self.shared.running))?;
        all_are_connected(source)?;
        let stopped = source
            .command("migrate-continue", json!({ "state": "pre-switchover" }))
            .and_then(|_| becomes(source, "completed", SWITCH_LIMIT))
            .and_then(|event| {
                let completed = (Instant::now(), moment(&event));
                // The clock stopped before the event of that: a disk may take its time to end what was begun.
                let said = source.command("query-migrate", json!({}))?;
                Ok((completed, Duration::from_millis(said["downtime"].as_u64().unwrap_or_default())))
            });
        let ((completed, at), stood) = stopped.map_err(|e| failed(&e))?;
        becomes(&mut destination.qmp, "completed", SWITCH_LIMIT)
            .map_err(|e| refused(&mut *destination.process, &e))?;
        for (path, copy) in &destination.memory {
            copy.fill(path)?;
        }
        let control = destination.process.control().try_clone().map_err(|e| failed(&e))?;
        let next = control.try_clone().map_err(|e| failed(&e))?;
        if begun.elapsed() > WHOLE_LIMIT {
            return Err(Stopped::Here(failed(&format!("it took longer than {} s", WHOLE_LIMIT.as_secs()))));
        }
        // A waiting attachment ends if another command attaches the volume. The machine would have no disk at the destination.
        all_are_connected(&mut destination.qmp)?;
        exchange(&destination.memory)?;
        match destination.qmp.command_within("cont", json!({}), SWITCH_LIMIT) {
            Ok(_) => {}
            Err(error @ QmpError::Refused(_)) => {
                let error = refused(&mut *destination.process, &error);
                return Err(match exchange(&destination.memory) {
                    Ok(()) => Stopped::Here(error),
                    Err(_) => Stopped::Gone(error),
                });
            }
            Err(error) => return Err(Stopped::Gone(refused(&mut *destination.process, &error))),
        }
        let gone = |error: GuestError| Stopped::Gone(error);
        let continued = destination.qmp.event_that(SWITCH_LIMIT, |event| event["event"] == "RESUME");
        let continued = continued.map_err(|e| gone(refused(&mut *destination.process, &e)))?;
        let took = begun.elapsed();
        // Two hosts need not have the same time: between them it is the keeper's clock, from the message of the one to that of the other.
        let between = match destination.has_our_clock {
            true => moment(&continued).saturating_sub(at),
            false => completed.elapsed(),
        };
        // A host whose clock was set meanwhile is not believed beyond what passed.
        let downtime = (stood + between).min(took);
        *out = control;
        *locked(&self.shared.continues) = Some(next);
        let lost = u64::try_from(downtime.as_nanos()).unwrap_or(u64::MAX);
        control::say(&mut *out, &ToMachine::StoodStill(lost)).map_err(|e| gone(failed(&e)))?;
        Ok(Migrated { downtime, took })
    }

    /// Whatever was begun is ended, and the machine runs, if it is still there.
    fn go_on(&mut self) {
        let is_over = |qmp: &mut Qmp| {
            let status = qmp.command("query-migrate", json!({}));
            status.is_ok_and(|status| {
                matches!(
                    status["status"].as_str(),
                    None | Some("none" | "completed" | "failed" | "cancelled")
                )
            })
        };
        let Monitor::Qmp(source) = &mut self.monitor else { return };
        // Each fails if there is nothing to do, or the machine is gone, which its reader says.
        let _ = source.command("migrate_cancel", json!({}));
        let limit = Instant::now() + SWITCH_LIMIT;
        while !is_over(source) && Instant::now() < limit {
            thread::sleep(Duration::from_millis(5));
        }
        // QEMU refuses to go on until it has put the migration away.
        let runs =
            |qmp: &mut Qmp| qmp.command("query-status", json!({})).map(|status| status["running"] == true);
        while matches!(runs(source), Ok(false)) && Instant::now() < limit {
            let _ = source.command("cont", json!({}));
            thread::sleep(Duration::from_millis(5));
        }
        let stopped = source.event_that(Duration::ZERO, |event| event["event"] == "STOP");
        let resumed = source.event_that(Duration::ZERO, |event| event["event"] == "RESUME");
        if let (Ok(stopped), Ok(resumed)) = (stopped, resumed) {
            let stood = moment(&resumed).saturating_sub(moment(&stopped));
            let stood = u64::try_from(stood.as_nanos()).unwrap_or(u64::MAX);
            // If its port is gone, so is the machine, which its reader says.
            let _ = control::say(&mut *locked(&self.shared.out), &ToMachine::StoodStill(stood));
        }
    }
}

/// Starts the other QEMU, with the same devices. `from` is the way to the source if that is on another host.
fn destination(
    origin: &Origin,
    devices: &Devices,
    (from, to): (Option<Arc<dyn Link>>, &mut Whither<'_>),
    disks: &[(MachineDisk, MachineDisk)],
) -> Result<Destination, GuestError> {
    if from.is_some() || matches!(to, Whither::There(_)) {
        devices.can_leave_the_host(disks).map_err(|e| failed(&e))?;
    }
    let has_our_clock = from.is_none() && matches!(to, Whither::Here);
    // What the source sends comes out here.
    let (departure, sent) = match from {
        None => {
            let (source, sent) = UnixStream::pair().map_err(|e| failed(&e))?;
            (Departure::Give(source), sent)
        }
        Some(link) => (Departure::Has, link.departure().map_err(|e| failed(&e))?),
    };
    let (mut process, number): (Box<dyn Running>, RawFd) = match to {
        Whither::Here => {
            let process = Process::start(origin, Some(OwnedFd::from(sent))).map_err(|e| failed(&e))?;
            let number = process.incoming.unwrap_or_default();
            (Box::new(process), number)
        }
        Whither::There(host) => {
            let mut other = host.wait_for(&Wanted::of(origin)).map_err(|e| failed(&e))?;
            let (incoming, number) =
                other.incoming.take().ok_or_else(|| failed(&"it has no stream to come by"))?;
            pass_on(sent, incoming).map_err(|e| failed(&e))?;
            (Box::new(other), number)
        }
    };
    let memory = devices.shared_files().map(|(path, length)| Copy::of(path, length));
    let memory = memory.collect::<Result<BTreeMap<_, _>, _>>()?;
    let qmp = process.monitor().map_err(|e| failed(&e))?;
    let Monitor::Qmp(mut qmp) = qmp else { unreachable!("its QEMU takes our orders") };
    let bus = process.bus(&origin.machine).map_err(|e| refused(&mut *process, &e))?;
    let copies = memory.iter().map(|(path, copy)| {
        let open = copy.file.as_ref().map(|file| OpenFile::of(file)).transpose().map_err(|e| failed(&e))?;
        Ok(open.map(|open| (path.clone(), (copy.path.clone(), open))))
    });
    let copies = copies.filter_map(Result::transpose).collect::<Result<BTreeMap<_, _>, GuestError>>()?;
    let devices = devices.copied_to(bus, disks, &copies)?;
    let ready = capable(&mut qmp, &["events"])
        .and_then(|()| qmp.command("migrate-incoming", json!({ "uri": format!("fd:{number}") })));
    ready.map_err(|e| refused(&mut *process, &e))?;
    Ok(Destination { process, departure, has_our_clock, qmp, devices, memory })
}

/// Passes on what comes out of one stream, in a thread that ends with either.
fn pass_on(mut from: UnixStream, mut to: UnixStream) -> io::Result<()> {
    let pass = move || {
        // Both QEMUs say what is wrong.
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    };
    thread::Builder::new().name("migration".into()).spawn(pass).map(drop)
}

impl Copy {
    /// An empty file beside the one that it is to replace.
    fn of(path: &Path, length: u64) -> Result<(PathBuf, Copy), GuestError> {
        let failed = |e: io::Error| {
            GuestError::failed(format!("{} cannot be copied for the migration: {e}", path.display()))
        };
        let mut copy = Copy { path: path.with_extension(COPY), file: None };
        // A keeper that was killed has left one; and whatever else has that name is not written to.
        let _ = fs::remove_file(&copy.path);
        let new = |path: &Path| {
            File::options().read(true).write(true).create_new(true).mode(0o600).open(path).map_err(failed)
        };
        let file = new(&copy.path)?;
        // Memory that a disk has no room for would kill QEMU.
        let bytes = i64::try_from(length).unwrap_or(i64::MAX);
        posix_fallocate(&file, 0, bytes).map_err(|e| failed(e.into()))?;
        // A file system that cannot exchange two names is found out while the machine runs.
        let other = Copy { path: copy.path.with_extension(OTHER), file: None };
        let _ = fs::remove_file(&other.path);
        drop(new(&other.path)?);
        for _ in 0..2 {
            swap(&copy.path, &other.path).map_err(|e| failed(e.into()))?;
        }
        drop(other);
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, e)| failed(e.into()))?;
        copy.file = Some(file);
        Ok((path.into(), copy))
    }

    /// Takes over what the file holds. The machine stands still.
    fn fill(&self, path: &Path) -> Result<(), GuestError> {
        let failed = |e: io::Error| {
            GuestError::failed(format!("{} cannot be copied for the migration: {e}", path.display()))
        };
        let mut from = File::open(path).map_err(failed)?;
        let Some(file) = &self.file else { return Ok(()) };
        let mut to: &File = file;
        io::Seek::rewind(&mut to).map_err(failed)?;
        io::copy(&mut from, &mut to).map(drop).map_err(failed)
    }
}

/// Removes what a keeper has left in this folder that was killed while its machine was migrated: files of this user that are called as copies
/// of memory, and which no process has locked, as a migration in progress has.
pub fn remove_left_copies(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_named = path.extension().is_some_and(|end| end == COPY || end == OTHER);
        let found = entry.metadata();
        let is_ours =
            found.is_ok_and(|found| found.is_file() && found.uid() == nix::unistd::geteuid().as_raw());
        if !is_named || !is_ours {
            continue;
        }
        let open = File::options().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(&path);
        if open.is_ok_and(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok()) {
            // The next sweep tries it again.
            let _ = fs::remove_file(&path);
        }
    }
}

/// Two files exchange their names.
fn swap(one: &Path, other: &Path) -> nix::Result<()> {
    renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE)
}

/// Files and their copies exchange their names: all, or none, unless the machine is to end.
fn exchange(memory: &BTreeMap<PathBuf, Copy>) -> Result<(), Stopped> {
    for (at, (path, copy)) in memory.iter().enumerate() {
        if let Err(why) = swap(path, &copy.path) {
            let back = memory.iter().take(at).try_for_each(|(path, copy)| swap(path, &copy.path));
            let error = failed(&format!("{} cannot be replaced by its copy: {why}", path.display()));
            return Err(if back.is_ok() { Stopped::Here(error) } else { Stopped::Gone(error) });
        }
    }
    Ok(())
}

fn failed(why: &dyn std::fmt::Display) -> GuestError {
    GuestError::failed(format!("the virtual machine was not migrated: {why}"))
}

/// The destination did something else.
fn refused(destination: &mut dyn Running, why: &QmpError) -> GuestError {
    let words = destination.last_words();
    let said = if words.is_empty() { String::new() } else { format!("; its last lines: {words}") };
    failed(&format!("its destination: {why}{said}"))
}

fn capable(qmp: &mut Qmp, names: &[&str]) -> Result<(), QmpError> {
    let capabilities: Vec<Value> =
        names.iter().map(|name| json!({ "capability": name, "state": true })).collect();
    qmp.command("migrate-set-capabilities", json!({ "capabilities": capabilities })).map(drop)
}

/// Waits until a migration is in this state; an error if it comes to another end.
fn becomes(qmp: &mut Qmp, state: &str, limit: Duration) -> Result<Value, QmpError> {
    let ends = ["completed", "failed", "cancelled", state];
    let event = qmp.event_that(limit, |event| {
        event["event"] == "MIGRATION"
            && event["data"]["status"].as_str().is_some_and(|now| ends.contains(&now))
    })?;
    let now = event["data"]["status"].as_str().unwrap_or_default();
    if now == state {
        return Ok(event);
    }
    let said = qmp.command("query-migrate", json!({}))?;
    let why = said["error-desc"].as_str().map_or_else(String::new, |why| format!(": {why}"));
    Err(QmpError::Refused(format!("the migration has {now}{why}")))
}

/// Locks the port of a machine that stands still. A thread that holds the lock may wait in a write until the machine runs again, so that this
/// has a limit.
fn soon_locked(out: &Mutex<UnixStream>) -> Result<MutexGuard<'_, UnixStream>, Stopped> {
    let limit = Instant::now() + READ_LIMIT;
    loop {
        match out.try_lock() {
            Ok(out) => return Ok(out),
            Err(TryLockError::Poisoned(out)) => return Ok(out.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() > limit => {
                return Err(Stopped::Unread(failed(
                    &"it has not read all messages of its keeper yet; try again",
                )));
            }
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// That each server of a vhost-user disk is there. Of one that was gone at the source it is not known which requests it has carried out, and
/// the destination would carry out some of them twice, or never.
fn all_are_connected(qmp: &mut Qmp) -> Result<(), GuestError> {
    let sockets = qmp.command("query-chardev", json!({})).map_err(|e| failed(&e))?;
    let gone = sockets.as_array().into_iter().flatten().find(|socket| {
        let is_disk = socket["label"].as_str().is_some_and(|label| label.starts_with("node"));
        is_disk && socket["filename"].as_str().is_none_or(|name| name.starts_with("disconnected"))
    });
    match gone {
        None => Ok(()),
        Some(socket) => Err(failed(&format!(
            "the server of a disk of it is gone ({})",
            socket["filename"].as_str().unwrap_or_default()
        ))),
    }
}

/// Waits until QEMU has read all bytes of the port. They are in the memory of the machine then, and move with it.
fn all_is_read(machine: &dyn Running) -> Result<(), Stopped> {
    let limit = Instant::now() + READ_LIMIT;
    loop {
        if machine.has_read().map_err(|e| failed(&e))? {
            return Ok(());
        }
        if Instant::now() > limit {
            return Err(Stopped::Unread(failed(
                &"it has not read all messages of its keeper yet; try again",
            )));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// When an event was, by the host's clock.
fn moment(event: &Value) -> Duration {
    let of = |name: &str| event["timestamp"][name].as_u64().unwrap_or_default();
    Duration::from_secs(of("seconds")) + Duration::from_micros(of("microseconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_a_killed_keeper_has_left_are_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["a-0.journal", "a-0.migrated", "a-0.other", "b-0.migrated", "migrated", "notes.txt"] {
            fs::write(at(name), name).unwrap();
        }
        std::os::unix::fs::symlink(at("notes.txt"), at("c-0.migrated")).unwrap();
        fs::create_dir(at("d-0.migrated")).unwrap();
        let used = File::open(at("b-0.migrated")).unwrap();
        let used = Flock::lock(used, FlockArg::LockExclusiveNonblock).unwrap();
        let left = || {
            let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
            names.sort();
            names
        };
        remove_left_copies(folder.path());
        let kept = ["a-0.journal", "b-0.migrated", "c-0.migrated", "d-0.migrated", "migrated", "notes.txt"];
        assert_eq!(left(), kept);
        drop(used);
        remove_left_copies(folder.path());
        assert!(!at("b-0.migrated").exists());
        remove_left_copies(&at("no-folder"));
    }
}
