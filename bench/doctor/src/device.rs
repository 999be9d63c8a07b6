//! One disk: what it is, and which of its settings cost something.

use loadline_base::figures::thousands;
use loadline_load::host::{DiskInventory, DiskSecond, settings_of};

use crate::check::Check;
use crate::devices::Device;
use crate::partitions;

/// Requests that the kernel should let wait for a disk at the least.
const REQUESTS: u64 = 32;
/// Share of a second in which others have I/O on it, from which on figures are worse.
const BUSY: f64 = 0.10;

/// Its settings, as results keep them.
pub(crate) fn inventory(device: &Device) -> DiskInventory {
    DiskInventory {
        target: format!("/dev/{}", device.name),
        kind: "block device".into(),
        file_system: None,
        device: Some(device.name.clone()),
        settings: settings_of(&device.folder),
        ..DiskInventory::default()
    }
}

/// Judges it: one check that says what it is, and one for each thing that costs something. `did`: what others did with it
/// in a second.
pub(crate) fn check(device: &Device, disk: &DiskInventory, did: Option<&DiskSecond>) -> Vec<Check> {
    let facts = Facts { device, disk, kind: kind(device, disk) };
    let misaligned = partitions::check(device, facts.number("physical_block_size"));
    let found = [facts.write_cache(), facts.scheduler(), facts.requests(), busy(device, did), facts.use_of()];
    [facts.summary()].into_iter().chain(misaligned).chain(found.into_iter().flatten()).collect()
}

struct Facts<'a> {
    device: &'a Device,
    disk: &'a DiskInventory,
    kind: &'static str,
}

/// What kind of disk it is, in a word.
fn kind(device: &Device, disk: &DiskInventory) -> &'static str {
    let is = |prefix: &str| device.name.starts_with(prefix);
    let layers = [
        ("dm-", "device mapper"),
        ("md", "md array"),
        ("loop", "loop device"),
        ("zram", "compressed memory"),
    ];
    if let Some((_, kind)) = layers.iter().find(|(prefix, _)| is(prefix)) {
        return kind;
    }
    let below_virtio = device.folder.components().any(|part| {
        let part = part.as_os_str().to_string_lossy();
        part.strip_prefix("virtio").is_some_and(|n| n.parse::<u32>().is_ok())
    });
    match disk.settings.get("rotational").map(String::as_str) {
        _ if is("nvme") => "NVMe",
        _ if is("vd") || below_virtio => "virtio",
        _ if is("xvd") => "Xen",
        _ if is("nbd") || is("rbd") => "network",
        _ if is("ram") || is("pmem") => "memory",
        Some("1") => "rotational",
        _ => "SSD",
    }
}

impl Facts<'_> {
    fn setting(&self, name: &str) -> Option<&str> {
        self.disk.settings.get(name).map(String::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.setting(name)?.parse().ok()
    }

    /// The scheduler that is chosen: of `none [mq-deadline]` the one in brackets.
    fn chosen_scheduler(&self) -> Option<&str> {
        let all = self.setting("scheduler")?;
        Some(all.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(all, |(chosen, _)| chosen))
    }

    fn line(&self, file: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.device.folder.join(file)).ok()?;
        Some(text.trim().to_string())
    }

    fn summary(&self) -> Check {
        let sectors = self.line("size").and_then(|sectors| sectors.parse::<u64>().ok());
        // Sectors of sysfs have 512 bytes whatever the disk's.
        let size = sectors.map(|sectors| format!("{:.1} GiB", sectors as f64 * 512.0 / f64::from(1 << 30)));
        let blocks = match (self.number("logical_block_size"), self.number("physical_block_size")) {
            (Some(logical), Some(physical)) if logical < physical => {
                Some(format!("blocks of {logical} on {physical} bytes: use I/Os of {physical} or more"))
            }
            (Some(logical), _) => Some(format!("blocks of {logical} bytes")),
            _ => None,
        };
        let parts = [
            Some(self.kind.to_string()),
            self.setting("model").map(Into::into),
            size,
            blocks,
            self.setting("write_cache").map(|cache| format!("cache: {cache}")),
            self.chosen_scheduler().map(|scheduler| format!("scheduler: {scheduler}")),
            self.number("nr_requests").map(|requests| format!("{} requests", thousands(requests as f64))),
            (self.line("ro").as_deref() == Some("1")).then(|| "read-only".into()),
        ];
        let found: Vec<String> = parts.into_iter().flatten().collect();
        Check::ok(format!("{}: disk", self.device.name), found.join(", "))
    }

    fn write_cache(&self) -> Option<Check> {
        if self.setting("write_cache") != Some("write back") {
            return None;
        }
        let by = match self.setting("fua") {
            Some("1") => "each durable write goes past its cache (FUA)",
            _ => "each durable write is followed by a flush of its cache",
        };
        let name = format!("{}: write cache", self.device.name);
        let check = Check::note(name, "write back: the disk can lose writes that it has completed")
            .expected("write through, which disks report if they keep completed writes through a loss of power")
            .costs(format!(
                "{by}, which takes milliseconds on many disks; writes that are not made durable are fast until the \
                 cache is full"
            ))
            .mend(
                "use disks with power-loss protection for the virtual SAN; measure what a durable write takes with \
                 --folder, in a folder on it",
            );
        Some(check)
    }

    fn scheduler(&self) -> Option<Check> {
        let scheduler = self.chosen_scheduler()?;
        let name = format!("{}: scheduler", self.device.name);
        let mend = |check: Check| {
            check
                .expected("none")
                .mend("choose none, until the next start of the host; a udev rule keeps it so")
                .run(format!("echo none | sudo tee /sys/block/{}/queue/scheduler", self.device.name))
        };
        let is_fast = matches!(self.kind, "NVMe" | "SSD" | "memory");
        match scheduler {
            "bfq" if self.kind != "rotational" => Some(mend(Check::slow(name, scheduler).costs(
                "the scheduler orders the I/Os of all processes on one CPU: a fast disk reaches a fraction of its IOPS",
            ))),
            "kyber" | "mq-deadline" if self.kind == "NVMe" => Some(mend(
                Check::note(name, scheduler).costs("some CPU for each I/O, for an order that a fast disk does not need"),
            )),
            "cfq" if is_fast => Some(mend(
                Check::slow(name, scheduler).costs("it waits for neighbouring I/Os, which a fast disk does not need"),
            )),
            _ => None,
        }
    }

    fn requests(&self) -> Option<Check> {
        let requests = self.number("nr_requests").filter(|requests| *requests < REQUESTS)?;
        let (name, device) = (format!("{}: requests", self.device.name), &self.device.name);
        let check = Check::slow(name, requests.to_string())
            .expected(format!("{REQUESTS} or more"))
            .costs("I/Os beyond this number wait in the kernel and not at the disk, which then reaches less than it could")
            .mend("allow more I/Os to wait for the disk, until the next start of the host")
            .run(format!("echo 128 | sudo tee /sys/block/{device}/queue/nr_requests"));
        Some(check)
    }

    fn use_of(&self) -> Option<Check> {
        let holder = self.device.holder.as_ref()?;
        let check = Check::note(format!("{}: in use", self.device.name), holder)
            .expected("a disk that no program uses, if the disk itself is to be measured")
            .costs("Loadline refuses to measure it, or to give it to a node; files on it can be measured")
            .mend("name a file on this disk (--create), or another disk; lsblk shows the use of each disk");
        Some(check.run(format!("lsblk /dev/{}", self.device.name)))
    }
}

fn busy(device: &Device, did: Option<&DiskSecond>) -> Option<Check> {
    let did = did.filter(|did| did.busy >= BUSY)?;
    let (reads, writes) = (thousands(did.reads as f64), thousands(did.writes as f64));
    let found = format!("busy for {:.0} % of a second: {reads} reads, {writes} writes", did.busy * 100.0);
    let check = Check::slow(format!("{}: others", device.name), found)
        .expected(format!("less than {:.0} %, with no load of ours", BUSY * 100.0))
        .costs("the other I/O delays ours, and the delay is measured as latency of the disk")
        .mend("stop the program, or measure when it has ended; this shows the program:")
        .run("sudo iotop -o -b -n 2");
    Some(check)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Severity;
    use crate::root::fixture;

    /// The checks of a disk with these files in its folder.
    fn checks(
        name: &str,
        files: &[(&str, &str)],
        holder: Option<&str>,
        did: Option<DiskSecond>,
    ) -> Vec<Check> {
        let (folder, _) = fixture(files);
        let device =
            Device { name: name.into(), folder: folder.path().into(), holder: holder.map(Into::into) };
        check(&device, &inventory(&device), did.as_ref())
    }

    const NVME: [(&str, &str); 8] = [
        ("size", "1875385008\n"),
        ("device/model", "FAST 960\n"),
        ("queue/rotational", "0\n"),
        ("queue/scheduler", "[none] mq-deadline\n"),
        ("queue/write_cache", "write through\n"),
        ("queue/nr_requests", "1023\n"),
        ("queue/logical_block_size", "512\n"),
        ("queue/physical_block_size", "4096\n"),
    ];

    fn with(name: &str, file: &'static str, text: &'static str) -> Vec<Check> {
        let mut files = NVME.to_vec();
        files.push((file, text));
        checks(name, &files, None, None)
    }

    #[test]
    fn a_disk_that_is_fine_is_one_line() {
        let found = checks("nvme0n1", &NVME, None, None);
        assert_eq!(found.len(), 1, "{found:?}");
        let Check { check, severity, found, .. } = &found[0];
        assert_eq!((check.as_str(), *severity), ("nvme0n1: disk", Severity::Ok));
        for word in ["NVMe", "FAST 960", "894.3 GiB", "512 on 4096", "write through", "none", "1,023"] {
            assert!(found.contains(word), "{word}: {found}");
        }
    }

    #[test]
    fn kinds_follow_from_name_place_and_rotation() {
        let summary = |name: &str, rotational: &'static str| {
            with(name, "queue/rotational", rotational)[0].found.split(',').next().unwrap().to_string()
        };
        let kinds = ["sda", "vdb", "xvdc", "dm-0", "nbd3", "md127"].map(|name| summary(name, "1"));
        assert_eq!(kinds, ["rotational", "virtio", "Xen", "device mapper", "network", "md array"]);
        assert_eq!(summary("sda", "0"), "SSD");
        let folder = "/sys/devices/pci0000:00/virtio1/host0/block/sda".into();
        let device = Device { name: "sda".into(), folder, holder: None };
        assert_eq!(kind(&device, &DiskInventory::default()), "virtio");
    }

    /// The only finding beside what the disk is.
    fn only(found: Vec<Check>) -> Check {
        assert_eq!(found.len(), 2, "{found:?}");
        found[1].clone()
    }

    #[test]
    fn a_cache_that_forgets_is_worth_a_note() {
        let cache = only(with("sda", "queue/write_cache", "write back\n"));
        assert_eq!((cache.severity, cache.check.as_str()), (Severity::Note, "sda: write cache"));
        assert!(cache.costs.unwrap().contains("flush"));
        let mut files = NVME.to_vec();
        files.extend([("queue/write_cache", "write back"), ("queue/fua", "1")]);
        assert!(only(checks("sda", &files, None, None)).costs.unwrap().contains("FUA"));
    }

    #[test]
    fn a_scheduler_that_costs_something_is_found() {
        let of = |name: &str, text| with(name, "queue/scheduler", text);
        let bfq = only(of("nvme0n1", "none mq-deadline [bfq]\n"));
        assert_eq!(bfq.severity, Severity::Slow);
        assert_eq!(bfq.run.as_deref(), Some("echo none | sudo tee /sys/block/nvme0n1/queue/scheduler"));
        assert_eq!(only(of("nvme0n1", "none [mq-deadline]\n")).severity, Severity::Note);
        assert_eq!(of("vda", "none [mq-deadline] bfq\n").len(), 1);
        let mut files = NVME.to_vec();
        files.extend([("queue/rotational", "1"), ("queue/scheduler", "[bfq] none")]);
        assert_eq!(checks("sda", &files, None, None).len(), 1, "it is made for these");
    }

    #[test]
    fn few_requests_use_and_others_are_found() {
        assert_eq!(only(with("sda", "queue/nr_requests", "4\n")).severity, Severity::Slow);
        let held = only(checks("nvme0n1", &NVME, Some("nvme0n1p1 is mounted on /"), None));
        assert_eq!((held.severity, held.found.as_str()), (Severity::Note, "nvme0n1p1 is mounted on /"));
        let did = |busy| Some(DiskSecond { reads: 1500, busy, ..DiskSecond::default() });
        assert_eq!(checks("sda", &NVME, None, did(0.05)).len(), 1);
        let busy = only(checks("sda", &NVME, None, did(0.5)));
        assert_eq!(busy.severity, Severity::Slow);
        assert!(busy.found.contains("50 %") && busy.found.contains("1,500 reads"), "{}", busy.found);
    }
}
