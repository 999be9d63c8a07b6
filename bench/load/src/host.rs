//! What the host is, and what it was doing: the circumstances without which a figure means little.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use nix::libc;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::target::Target;
use layers::Layers;

mod layers;

/// What the host is. What could not be found out is `null`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Inventory {
    /// Its name.
    pub host: Option<String>,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// The CPU's model.
    pub cpu: Option<String>,
    /// CPUs that are online.
    pub cpus: u32,
    /// How the first CPU's frequency is governed.
    pub governor: Option<String>,
    /// Memory, bytes.
    pub memory: Option<u64>,
    /// What is below each target, in their order.
    pub disks: Vec<DiskInventory>,
    /// What is known of it as a virtual machine that was started for this fleet; missing if it is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineFacts>,
}

/// A virtual machine that was started to be a worker.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MachineFacts {
    /// What runs its instructions, such as `KVM` or `TCG` (software).
    pub acceleration: String,
    /// The version of the libvirt that started it; missing: QEMU was started without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub libvirt: Option<String>,
    /// From the start of the machine until its worker was ready, nanoseconds.
    pub start_to_worker_ns: u64,
    /// From the start of the machine until its first I/O, without the time that the worker waited for an order, nanoseconds; `null`:
    /// there was none yet.
    pub start_to_first_io_ns: Option<u64>,
    /// The most memory that the worker has had so far, bytes; `null` if the machine does not say.
    pub worker_bytes: Option<u64>,
}

/// What is below a target.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskInventory {
    /// The target, as it was named.
    pub target: String,
    /// `file`, `block device`, `NBD`, `vhost-user`, `Ceph RBD` or `null`.
    pub kind: String,
    /// The file system that holds it, and its mount options.
    pub file_system: Option<String>,
    /// The block device's name.
    pub device: Option<String>,
    /// The device's settings in the kernel: model, scheduler, rotational, nr_requests, write_cache, block sizes.
    pub settings: BTreeMap<String, String>,
    /// Its size, bytes; missing if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The layers from the target down to memory, such as `loop0 over tmpfs`; missing if no layer is known to be memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
}

const QUEUE_SETTINGS: [&str; 8] = [
    "scheduler",
    "rotational",
    "nr_requests",
    "write_cache",
    "fua",
    "logical_block_size",
    "physical_block_size",
    "max_sectors_kb",
];

impl Inventory {
    /// This host, with these targets.
    pub fn collect(targets: &[Target]) -> Inventory {
        Inventory::collect_below(Path::new("/"), targets)
    }

    /// The same, of a host whose `/proc` and `/sys` lie below a folder.
    pub fn collect_below(root: &Path, targets: &[Target]) -> Inventory {
        let cpuinfo = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
        let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let memory = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"));
        let layers = Layers::read(root);
        Inventory {
            host: line(root.join("proc/sys/kernel/hostname")),
            kernel: line(root.join("proc/sys/kernel/osrelease")),
            cpu: model.map(|(_, name)| name.trim().to_string()),
            cpus: online_cpus(root),
            governor: line(root.join("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
            memory: memory.and_then(|kib| kib.trim().parse::<u64>().ok()).map(|kib| kib * 1024),
            disks: targets.iter().map(|target| DiskInventory::collect(target, &layers)).collect(),
            machine: None,
        }
    }
}

impl Inventory {
    /// Adds the sizes of targets, bytes, as they were found when the targets were opened: a server reports its disk's size only then.
    pub fn with_sizes(mut self, sizes: &[(String, u64)]) -> Inventory {
        for disk in &mut self.disks {
            let size = sizes.iter().find(|(target, _)| *target == disk.target).map(|(_, bytes)| *bytes);
            disk.bytes = size.or(disk.bytes);
        }
        self
    }
}

impl DiskInventory {
    /// What is below a folder's files, for devices that are made in it.
    pub fn of_folder(folder: &Path) -> DiskInventory {
        let target = Target::Path(folder.to_path_buf());
        DiskInventory::collect(&target, &Layers::read(Path::new("/")))
    }

    fn collect(target: &Target, layers: &Layers) -> DiskInventory {
        let mut found = DiskInventory { target: target.to_string(), ..DiskInventory::default() };
        let path = match target {
            Target::Path(path) => path,
            Target::Nbd(_) => {
                found.kind = "NBD".into();
                return found;
            }
            Target::Vhost(_) => {
                found.kind = "vhost-user".into();
                return found;
            }
            Target::Rbd(_) => {
                found.kind = "Ceph RBD".into();
                return found;
            }
            Target::Iscsi(_) => {
                found.kind = "iSCSI".into();
                return found;
            }
            Target::Null(_) => {
                found.kind = "null".into();
                return found;
            }
        };
        let Ok(metadata) = fs::metadata(path) else { return found };
        let device = if metadata.file_type().is_block_device() {
            found.kind = "block device".into();
            let number = metadata.rdev();
            let device = layers.device(&format!("{}:{}", libc::major(number), libc::minor(number)));
            found.memory = device.as_ref().and_then(|device| layers.memory_of_device(device));
            // A partition is smaller than its disk; the end of an open device is its size.
            found.bytes = fs::File::open(path).and_then(|mut device| device.seek(SeekFrom::End(0))).ok();
            device
        } else {
            found.kind = "file".into();
            found.file_system = layers.file_system(path);
            found.memory = layers.memory_of_file(path);
            found.bytes = metadata.is_file().then_some(metadata.len());
            layers.device_of_file(path)
        };
        if let Some(folder) = device {
            found.device = folder.file_name().map(|n| n.to_string_lossy().into_owned());
            found.settings = settings_of(&folder);
        }
        found
    }
}

/// A whole disk's settings in the kernel, from its folder in sysfs.
pub fn settings_of(folder: &Path) -> BTreeMap<String, String> {
    let queue = QUEUE_SETTINGS.iter().map(|name| (*name, folder.join("queue").join(name)));
    let files = queue.chain([("model", folder.join("device/model"))]);
    files.filter_map(|(name, path)| Some((name.to_string(), line(path)?))).collect()
}

/// CPUs of the host that are online, whatever this process may use of them.
fn online_cpus(root: &Path) -> u32 {
    let counted = line(root.join("sys/devices/system/cpu/online")).and_then(|list| count_of_list(&list));
    counted.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u32))
}

/// How many numbers a list as the kernel prints it has, such as `0-3,6`.
fn count_of_list(list: &str) -> Option<u32> {
    let count = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.split(',').try_fold(0u32, |sum, part| sum.checked_add(count(part)?))
}

/// How many CPUs' time this process may use: those that it is bound to, or less by the quota of a control group.
pub fn allowed_cpus() -> f64 {
    let whole = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
    let bound = bound_cpus().map_or(whole, f64::from);
    match quota() {
        Some(quota) => bound.min(quota),
        // The standard library knows quotas of older control groups too, but rounds them down.
        None => bound.min(whole),
    }
}

/// How many CPUs this process is bound to (`taskset`, a cpuset), whatever quota of their time it has; `None` if the kernel
/// does not tell.
pub fn bound_cpus() -> Option<u32> {
    let set = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).ok()?;
    let count = (0..nix::sched::CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).count();
    u32::try_from(count).ok()
}

/// The smallest quota of the process's control group (version 2) and those above it, in CPUs.
fn quota() -> Option<f64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|l| l.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let folder = root.join(group);
    let quotas = folder.ancestors().take_while(|f| f.starts_with(root)).filter_map(|f| {
        let (quota, period) =
            line(f.join("cpu.max"))?.split_once(' ').map(|(q, p)| (q.parse(), p.parse()))?;
        let (quota, period): (f64, f64) = (quota.ok()?, period.ok()?);
        (quota > 0.0 && period > 0.0).then_some(quota / period)
    });
    quotas.reduce(f64::min)
}

fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_string())
}

/// What the whole host did in one second.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostSecond {
    /// The second, counted from the beginning of the measured window; negative in warm-up.
    pub second: i64,
    /// Shares of all CPU time, 0 to 1.
    pub cpu: CpuShares,
    /// Shares of the second in which tasks waited (pressure stall information), 0 to 1; `null` where the kernel
    /// keeps none.
    pub pressure: Option<Pressure>,
    /// What each block device below the targets did.
    pub disks: BTreeMap<String, DiskSecond>,
}

/// Where the host's CPU time went, as shares of all of it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CpuShares {
    /// User space.
    pub user: f64,
    /// The kernel, interrupts included.
    pub system: f64,
    /// Idle while I/O was outstanding.
    pub iowait: f64,
    /// Given to other virtual machines by the hypervisor.
    pub steal: f64,
    /// Idle.
    pub idle: f64,
}

/// Pressure stall information of one second.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pressure {
    /// Some task waited for a CPU.
    pub cpu_some: f64,
    /// Some task waited for I/O.
    pub io_some: f64,
    /// All tasks waited for I/O.
    pub io_full: f64,
    /// Some task waited for memory.
    pub memory_some: f64,
}

/// What a block device did in one second, for all processes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskSecond {
    /// Reads completed.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// I/Os in flight at the second's end.
    pub in_flight: u64,
    /// Share of the second in which it had I/O, 0 to 1.
    pub busy: f64,
}

/// Raw counters of `/proc`, as they stand.
#[derive(Debug, Clone, Default)]
struct Counters {
    /// user, nice, system, idle, iowait, irq, softirq, steal: clock ticks.
    cpu: Vec<u64>,
    /// cpu some, io some, io full, memory some: microseconds.
    pressure: Option<[u64; 4]>,
    /// By name: the fields of `/proc/diskstats` after the name.
    disks: BTreeMap<String, Vec<u64>>,
}

/// Reads the host's counters each second and reports the difference.
#[derive(Debug)]
pub struct HostSampler {
    devices: Vec<String>,
    last: Counters,
    last_at: std::time::Instant,
}

impl HostSampler {
    /// Watches the host and the devices below these targets, from now on.
    pub fn new(inventory: &Inventory) -> HostSampler {
        let mut devices: Vec<String> = inventory.disks.iter().filter_map(|d| d.device.clone()).collect();
        devices.sort();
        devices.dedup();
        let last = Counters::read(&devices);
        HostSampler { devices, last, last_at: std::time::Instant::now() }
    }

    /// What happened since the last call.
    pub fn sample(&mut self, second: i64) -> HostSecond {
        let (now, at) = (Counters::read(&self.devices), std::time::Instant::now());
        let elapsed = at.duration_since(self.last_at).as_secs_f64().max(1e-3);
        let result = now.since(&self.last, second, elapsed);
        (self.last, self.last_at) = (now, at);
        result
    }
}

impl Counters {
    fn read(devices: &[String]) -> Counters {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let numbers =
            |text: &str| text.split_whitespace().filter_map(|n| n.parse().ok()).collect::<Vec<u64>>();
        let diskstats = fs::read_to_string("/proc/diskstats").unwrap_or_default();
        let disks = diskstats
            .lines()
            .filter_map(|line| {
                let name = line.split_whitespace().nth(2)?;
                let rest = line.split_whitespace().skip(3).filter_map(|n| n.parse().ok()).collect();
                devices.iter().any(|d| d == name).then(|| (name.to_string(), rest))
            })
            .collect();
        Counters { cpu: stat.lines().next().map(numbers).unwrap_or_default(), pressure: pressure(), disks }
    }

    fn since(&self, before: &Counters, second: i64, elapsed: f64) -> HostSecond {
        let ticks = |i: usize| {
            let (now, then) = (self.cpu.get(i).copied(), before.cpu.get(i).copied());
            now.unwrap_or(0).saturating_sub(then.unwrap_or(0)) as f64
        };
        let all: f64 = (0..8).map(ticks).sum::<f64>().max(1.0);
        let cpu = CpuShares {
            user: (ticks(0) + ticks(1)) / all,
            system: (ticks(2) + ticks(5) + ticks(6)) / all,
            iowait: ticks(4) / all,
            steal: ticks(7) / all,
            idle: ticks(3) / all,
        };
        let pressure = self.pressure.zip(before.pressure).map(|(now, then)| {
            let share = |i: usize| (now[i].saturating_sub(then[i]) as f64 / 1e6 / elapsed).min(1.0);
            Pressure { cpu_some: share(0), io_some: share(1), io_full: share(2), memory_some: share(3) }
        });
        let disks = self
            .disks
            .iter()
            .map(|(name, now)| {
                let then = before.disks.get(name);
                let at = |i: usize| now.get(i).copied().unwrap_or(0);
                let gone = |i: usize| at(i).saturating_sub(then.and_then(|t| t.get(i).copied()).unwrap_or(0));
                // Fields of /proc/diskstats; sectors there have 512 bytes whatever the device's.
                let did = DiskSecond {
                    reads: gone(0),
                    read_bytes: gone(2) * 512,
                    writes: gone(4),
                    written_bytes: gone(6) * 512,
                    in_flight: at(8),
                    busy: (gone(9) as f64 / 1e3 / elapsed).min(1.0),
                };
                (name.clone(), did)
            })
            .collect();
        HostSecond { second, cpu, pressure, disks }
    }
}

fn pressure() -> Option<[u64; 4]> {
    let total = |file: &str, kind: &str| {
        let text = fs::read_to_string(format!("/proc/pressure/{file}")).ok()?;
        let line = text.lines().find(|l| l.starts_with(kind))?;
        line.rsplit_once("total=")?.1.trim().parse().ok()
    };
    Some([total("cpu", "some")?, total("io", "some")?, total("io", "full")?, total("memory", "some")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_known() {
        let inventory =
            Inventory::collect(&["/proc/self/exe".parse().unwrap(), "null:1GiB".parse().unwrap()]);
        assert!(inventory.kernel.is_some() && inventory.cpus > 0);
        assert_eq!(inventory.disks[0].kind, "file");
        assert!(inventory.disks[0].file_system.is_some() || inventory.disks[0].device.is_some());
        assert_eq!(inventory.disks[1].kind, "null");
    }

    #[test]
    fn cpus_are_counted_as_the_kernel_lists_them() {
        for (list, count) in [("0", Some(1)), ("0-3,6", Some(5)), ("0-7", Some(8)), ("", None), ("3-1", None)]
        {
            assert_eq!(count_of_list(list), count, "{list}");
        }
        let allowed = allowed_cpus();
        assert!(allowed > 0.0 && allowed <= f64::from(online_cpus(Path::new("/"))), "{allowed}");
    }

    #[test]
    fn a_second_is_the_difference_of_two_readings() {
        let before = Counters {
            cpu: vec![100, 0, 50, 1000, 10, 0, 0, 5],
            pressure: Some([0, 1_000_000, 0, 0]),
            disks: [("sda".to_string(), vec![10, 0, 80, 0, 20, 0, 160, 0, 3, 500])].into(),
        };
        let after = Counters {
            cpu: vec![150, 0, 75, 1100, 15, 0, 0, 25],
            pressure: Some([0, 1_500_000, 0, 0]),
            disks: [("sda".to_string(), vec![110, 0, 880, 0, 20, 0, 160, 0, 7, 1400])].into(),
        };
        let second = after.since(&before, 3, 1.0);
        assert_eq!(second.cpu, CpuShares { user: 0.25, system: 0.125, iowait: 0.025, steal: 0.1, idle: 0.5 });
        assert_eq!(second.pressure.unwrap().io_some, 0.5);
        let disk = second.disks["sda"];
        assert_eq!((disk.reads, disk.read_bytes, disk.writes, disk.in_flight), (100, 800 * 512, 0, 7));
        assert!((disk.busy - 0.9).abs() < 1e-9);
    }
}
