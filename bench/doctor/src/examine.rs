//! One host, from first to last: in the order in which what is wrong is usually found.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use loadline_load::error::ErrorKind;
use loadline_load::host::{HostSampler, HostSecond, Inventory};
use loadline_load::{LoadError, try_io_uring};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::Check;
use crate::devices::{self, Device};
use crate::limits::Limits;
use crate::root::Root;
use crate::scratch::{Removed, Scratch};
use crate::sync_write::{self, SyncWrite};
use crate::{clock, cpu, device, io_uring, kernel, memory, others};

/// For how long it is watched what others do.
const WATCHED: Duration = Duration::from_secs(1);
/// How often the examination checks whether to stop.
const TICK: Duration = Duration::from_millis(50);

/// The devices and the folder to examine.
#[derive(Debug, Clone, Default)]
pub struct ExamineOptions {
    /// Disks, by their paths; none: every whole disk.
    pub devices: Vec<PathBuf>,
    /// A file made to be written to, in the folder whose durable writes are measured.
    pub scratch: Option<Scratch>,
}

/// What was found on a host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Examination {
    /// What the host is.
    pub inventory: Inventory,
    /// Every check, in the order in which they were made.
    pub checks: Vec<Check>,
    /// What durable writes took; `null` if that was not requested, or could not be measured.
    pub sync_write: Option<SyncWrite>,
}

/// Examines this host, for some one to five seconds. A disk that is not there is a finding. Set `stop` to end it early:
/// then it is an error of kind `Interrupted`.
pub fn examine(options: &ExamineOptions, stop: &AtomicBool) -> Result<Examination, LoadError> {
    let root = Root::host();
    let mut inventory = Inventory::collect(&[]);
    let (disks, missing) = disks(&options.devices, &root);
    inventory.disks = disks.iter().map(device::inventory).collect();
    let second = watch(&inventory, stop)?;

    let mut checks =
        vec![kernel::check(inventory.kernel.as_deref()), io_uring::check(&try_io_uring(), &root)];
    checks.extend(Limits::now(&root, &inventory).check());
    checks.extend(cpu::check(&root, &inventory));
    checks.extend(others::check(&second, inventory.cpus));
    checks.extend(clock::check(&root, clock::is_synchronised()));
    checks.extend(memory::check(&root));
    checks.extend(missing);
    for (disk, known) in disks.iter().zip(&inventory.disks) {
        checks.extend(device::check(disk, known, second.disks.get(&disk.name)));
    }
    let mut measured = None;
    match options.scratch.as_ref().map(|scratch| sync_write::measure(scratch, stop)) {
        None => checks.push(sync_write::not_done()),
        Some(Ok(found)) => {
            checks.push(sync_write::check(&found));
            measured = Some(found);
        }
        Some(Err(error)) if error.kind == ErrorKind::Interrupted => return Err(error),
        Some(Err(error)) => checks.push(not_measured(&error)),
    }
    Ok(Examination { inventory, checks, sync_write: measured })
}

/// The same, on a host that a controller examines: a folder in which no file can be made is a finding too. The file is removed
/// at the end.
pub fn examine_with_folder(
    devices: Vec<PathBuf>,
    folder: Option<&Path>,
    stop: &AtomicBool,
) -> Result<Examination, LoadError> {
    let made = folder.map(Removed::make).transpose();
    let (made, why) = match made {
        Ok(made) => (made, None),
        Err(why) => (None, Some(why)),
    };
    let scratch = made.as_ref().map(|made| made.scratch().clone());
    let mut examined = examine(&ExamineOptions { devices, scratch }, stop)?;
    if let Some(why) = why {
        examined.checks.retain(|check| check.check != sync_write::CHECK);
        examined.checks.push(not_measured(&why));
    }
    Ok(examined)
}

/// The disks to check, and findings about those that do not exist.
fn disks(paths: &[PathBuf], root: &Root) -> (Vec<Device>, Vec<Check>) {
    if paths.is_empty() {
        return (devices::whole_disks(root), Vec::new());
    }
    let mut disks: Vec<Device> = Vec::new();
    let mut missing = Vec::new();
    for path in paths {
        match devices::named(path) {
            Ok(disk) if disks.iter().any(|known| known.name == disk.name) => {}
            Ok(disk) => disks.push(disk),
            Err(why) => missing.push(
                Check::bad(format!("{}: disk", path.display()), why)
                    .expected("a block device of this name on this host")
                    .costs("what is to be measured on it is refused")
                    .mend("name the disk as this host calls it")
                    .run("lsblk"),
            ),
        }
    }
    (disks, missing)
}

/// What the host and its disks do in a second in which nothing is asked of them.
fn watch(inventory: &Inventory, stop: &AtomicBool) -> Result<HostSecond, LoadError> {
    let mut sampler = HostSampler::new(inventory);
    let until = Instant::now() + WATCHED;
    while Instant::now() < until {
        if stop.load(Ordering::Relaxed) {
            return Err(LoadError::interrupted());
        }
        sleep(TICK.min(until.saturating_duration_since(Instant::now())));
    }
    Ok(sampler.sample(0))
}

fn not_measured(why: &LoadError) -> Check {
    Check::bad(sync_write::CHECK, format!("it could not be measured: {why}"))
        .expected("a folder in which a file of 32 MiB can be made and written to")
        .costs("the duration of a durable write limits the speed of a virtual SAN, and is not known")
        .mend("name another folder, on the disk that is to be used")
        .run("loadline doctor --folder /path/on/the/disk")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Severity;

    #[test]
    fn this_host_is_examined_in_order_and_what_is_not_there_is_a_finding() {
        let stop = AtomicBool::new(false);
        let nowhere = Some(Path::new("/nowhere/at/all"));
        let found = examine_with_folder(vec!["/dev/none".into()], nowhere, &stop).unwrap();
        let names: Vec<&str> = found.checks.iter().map(|check| check.check.as_str()).collect();
        let place = |name: &str| {
            names.iter().position(|known| *known == name).unwrap_or_else(|| panic!("{name}: {names:?}"))
        };
        let order = [
            "kernel",
            "io_uring",
            "limit: CPU",
            "CPU: governor",
            "CPU: steal",
            "clock: source",
            "memory: swap",
        ];
        assert!(order.windows(2).all(|pair| place(pair[0]) < place(pair[1])), "{names:?}");
        for (name, word) in [("/dev/none: disk", "does not exist"), ("durable write", "/nowhere/at/all")] {
            let check = &found.checks[place(name)];
            assert_eq!(check.severity, Severity::Bad);
            assert!(check.found.contains(word), "{}", check.found);
        }
        assert!(found.inventory.kernel.is_some() && found.sync_write.is_none());
    }

    #[test]
    fn every_finding_says_what_it_costs_and_how_to_mend_it() {
        let found = examine(&ExamineOptions::default(), &AtomicBool::new(false)).unwrap();
        for check in found.checks.iter().filter(|check| check.severity > Severity::Ok) {
            assert!(check.expected.is_some() && check.costs.is_some() && check.mend.is_some(), "{check:?}");
        }
    }

    #[test]
    fn it_ends_when_it_is_told_to() {
        let error = examine(&ExamineOptions::default(), &AtomicBool::new(true)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Interrupted);
    }
}
