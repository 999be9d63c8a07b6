//! Checks the file system of the disk: mounts it, which replays its journal, unmounts it, and runs its checker without repairs.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use loadline_guest::control::Ended;
use loadline_guest::session::{CheckReport, Checked, DISK};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

use crate::partitions;
use crate::program::program;
use crate::unmount::unmount;

/// Bytes at the start of a disk in which file systems name themselves.
const START: usize = 68 << 10;
/// How long the kernel may take to find the partitions of a disk that has some.
const PARTITIONS: Duration = Duration::from_secs(5);
/// Where a file system is mounted once.
const MOUNTED: &str = "/mnt";
/// How long a file system may be in use after it was mounted.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(5);
/// Where the image has the tools of the host.
const TOOLS: &str = "/usr/sbin";
/// Bytes of what the kernel and a tool said that are reported.
const WORDS: usize = 64 << 10;
/// Lines of the kernel that are reported.
const KERNEL_LINES: usize = 50;

/// A file system that can be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ext4,
    Xfs,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
        }
    }

    /// The command that checks it and changes nothing.
    fn tool(self) -> [&'static str; 2] {
        match self {
            Kind::Ext4 => ["e2fsck", "-fn"],
            Kind::Xfs => ["xfs_repair", "-n"],
        }
    }

    /// The package of that command.
    fn package(self) -> &'static str {
        match self {
            Kind::Ext4 => "e2fsprogs",
            Kind::Xfs => "xfsprogs",
        }
    }

    /// What this exit code of the tool means: whether the file system is clean; `None`: the tool could not check it.
    fn is_clean(self, code: Option<i32>) -> Option<bool> {
        match (self, code) {
            (_, Some(0)) => Some(true),
            // fsck(8): errors that were left, also where they could have been corrected.
            (Kind::Ext4, Some(code)) if code & 7 != 0 && code & !15 == 0 => Some(false),
            // xfs_repair(8): corruption was detected.
            (Kind::Xfs, Some(1)) => Some(false),
            _ => None,
        }
    }
}

/// Checks the disk. The exit code is 0 for a clean file system, 1 for one that is not or a check that failed, 2 for a disk that cannot be
/// checked. The words are the report.
pub(crate) fn run(writable: bool) -> Ended {
    let report = match find() {
        Err(why) => CheckReport::Refused(why),
        Ok(found) => check(&found, writable),
    };
    let code = match &report {
        CheckReport::Checked(checked) if checked.clean => 0,
        CheckReport::Checked(_) | CheckReport::Failed(_) => 1,
        CheckReport::Refused(_) => 2,
    };
    let words = serde_json::to_string(&report).expect("a report is JSON");
    Ended { code: Some(code), signal: None, words }
}

fn device(partition: Option<u32>) -> String {
    partition.map_or(format!("/dev/{DISK}"), |number| format!("/dev/{DISK}{number}"))
}

/// A file system that was found.
struct Found {
    /// `None`: the whole disk.
    partition: Option<u32>,
    kind: Kind,
    /// What is at the start of the whole disk beside it.
    not_checked: Option<Kind>,
}

/// The file system of the first partition, or of the whole disk if there is none. Programs that make a file system on the whole disk clear
/// its table of partitions, and those that make a table leave what follows it. So the table is newer. The error is for people.
fn find() -> Result<Found, String> {
    let whole = start_of(&device(None))?;
    let on_whole = recognise(&whole);
    let mut on_first = None;
    if partitions::has_first(&whole) {
        let first = device(Some(1));
        let limit = Instant::now() + PARTITIONS;
        while !Path::new(&first).exists() && Instant::now() < limit {
            thread::sleep(Duration::from_millis(20));
        }
        if Path::new(&first).exists() {
            on_first = Some(recognise(&start_of(&first)?));
        }
    }
    let whole = |kind| Found { partition: None, kind, not_checked: None };
    match (on_first, on_whole) {
        (Some(Ok(kind)), on_whole) => {
            Ok(Found { partition: Some(1), kind, not_checked: on_whole.ok() })
        }
        (Some(Err(Some(other))), _) => Err(unknown("the first partition of the disk", other)),
        (_, Ok(kind)) => Ok(whole(kind)),
        (Some(Err(None)), Err(_)) => {
            Err("the first partition of the disk has no file system that is known: ext4 and xfs are checked"
                .into())
        }
        (None, Err(Some(other))) => Err(unknown("the disk", other)),
        (None, Err(None)) => {
            Err("the disk has no file system that is known, and no first partition: make a file system with 'mkfs.ext4 /dev/vda' or \
                 'mkfs.xfs /dev/vda' in the machine's shell"
                .into())
        }
    }
}

fn unknown(place: &str, name: &str) -> String {
    format!("{place} has {name}: ext4 and xfs are checked, and nothing else")
}

fn start_of(device: &str) -> Result<Vec<u8>, String> {
    let failed = |e: std::io::Error| format!("{device} cannot be read: {e}");
    let mut bytes = vec![0; START];
    let file = File::open(device).map_err(failed)?;
    let mut read = 0;
    while read < START {
        match file.read_at(&mut bytes[read..], read as u64).map_err(failed)? {
            0 => break,
            more => read += more,
        }
    }
    bytes.truncate(read);
    Ok(bytes)
}

/// Which file system begins so. The error is what else is there, if that is known.
fn recognise(start: &[u8]) -> Result<Kind, Option<&'static str>> {
    let has = |at: usize, magic: &[u8]| start.get(at..at + magic.len()) == Some(magic);
    if has(0, b"XFSB") {
        return Ok(Kind::Xfs);
    }
    if has(1024 + 56, &[0x53, 0xef]) {
        return Ok(Kind::Ext4);
    }
    let others = [
        (65_600, &b"_BHRfS_M"[..], "a btrfs file system"),
        (0, b"LUKS\xba\xbe", "encrypted data (LUKS)"),
        (512, b"LABELONE", "a physical volume of LVM"),
        (4086, b"SWAPSPACE2", "swap space"),
        (3, b"NTFS    ", "an NTFS file system"),
        (82, b"FAT32   ", "a FAT file system"),
    ];
    Err(others.into_iter().find(|(at, magic, _)| has(*at, magic)).map(|(_, _, name)| name))
}

fn check(found: &Found, writable: bool) -> CheckReport {
    let Found { partition, kind, not_checked } = *found;
    let name = kind.name();
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !known.lines().any(|line| line.trim_start() == name) {
        return CheckReport::Refused(format!(
            "the disk has an {name} file system, and the kernel of the machine has no module {name}: use another kernel, such as \
             Debian's linux-image-cloud-amd64"
        ));
    }
    let device = device(partition);
    let [tool, option] = kind.tool();
    if !Path::new(TOOLS).join(tool).exists() {
        return CheckReport::Refused(format!(
            "the disk has an {name} file system, and this host has no {tool}, which checks it: apt install {}",
            kind.package()
        ));
    }
    let mut checked = Checked {
        partition,
        not_checked: not_checked.map(|kind| kind.name().into()),
        file_system: name.into(),
        journal_replayed: false,
        clean: false,
        tool: format!("{tool} {option}"),
        exit_code: None,
        words: String::new(),
    };
    if writable {
        match mounted_once(&device, name) {
            Ok(()) => checked.journal_replayed = true,
            Err(NotDone::Mount(e)) => {
                checked.words =
                    format!("the {name} file system cannot be mounted: {}\n{}", e.desc(), kernel_lines());
            }
            // The tools do not check what is mounted.
            Err(NotDone::Unmount(e)) => return CheckReport::Failed(not_unmounted(name, e)),
        }
    }
    let mounted = checked.journal_replayed || !writable;
    let ran = program(tool).arg(option).arg(&device).stdin(Stdio::null()).output();
    match ran {
        Err(e) => CheckReport::Failed(format!("{tool} cannot be started: {e}")),
        Ok(output) => {
            let code = output.status.code();
            for part in [&output.stdout, &output.stderr] {
                checked.words.push_str(&String::from_utf8_lossy(part));
            }
            let Some(clean) = kind.is_clean(code) else {
                let last = checked.words.trim_end().lines().next_back().unwrap_or_default();
                return CheckReport::Failed(format!(
                    "{tool} {option} could not check {device} ({}): {last}",
                    output.status
                ));
            };
            (checked.clean, checked.exit_code) = (clean && mounted, code);
            let mut end = checked.words.len().min(WORDS);
            while !checked.words.is_char_boundary(end) {
                end -= 1;
            }
            checked.words.truncate(end);
            CheckReport::Checked(checked)
        }
    }
}

/// What could not be done with a file system.
#[derive(Debug, PartialEq, Eq)]
enum NotDone {
    Mount(Errno),
    Unmount(Errno),
}

/// Mounts a device and unmounts it again.
fn mounted_once(device: &str, kind: &str) -> Result<(), NotDone> {
    mount(Some(device), MOUNTED, Some(kind), MsFlags::empty(), None::<&str>).map_err(NotDone::Mount)?;
    let limit = Instant::now() + UNMOUNT_LIMIT;
    loop {
        match unmount(MOUNTED) {
            Err(Errno::EBUSY) if Instant::now() < limit => thread::sleep(Duration::from_millis(50)),
            other => return other.map_err(NotDone::Unmount),
        }
    }
}

/// That a file system could not be unmounted, for people.
fn not_unmounted(name: &str, e: Errno) -> String {
    format!(
        "the {name} file system was mounted, which has replayed its journal, and cannot be unmounted: {}",
        e.desc()
    )
}

/// What the kernel said last.
fn kernel_lines() -> String {
    let output = program("/bin/dmesg").stdin(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let is_of_it =
        |line: &&str| ["EXT4-fs", "JBD2", "XFS", "I/O error", "vda"].iter().any(|word| line.contains(word));
    let lines: Vec<&str> = text.lines().filter(is_of_it).collect();
    let from = lines.len().saturating_sub(KERNEL_LINES);
    lines[from..].iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_cannot_be_unmounted_is_no_file_system_that_cannot_be_mounted() {
        let words = not_unmounted("xfs", Errno::EBUSY);
        assert!(words.contains("cannot be unmounted") && !words.contains("be mounted"), "{words}");
        assert_eq!(
            mounted_once("/no/such/device", "ext4").map_err(|of| matches!(of, NotDone::Mount(_))),
            Err(true)
        );
    }
}
