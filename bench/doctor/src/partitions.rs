//! Whether partitions begin where the disk's blocks do.

use std::fs;
use std::path::Path;

use crate::check::Check;
use crate::devices::Device;

/// Flash writes pages of at least so many bytes, whatever a disk says of its blocks.
const PAGE: u64 = 4096;
/// Bytes of a sector in sysfs, whatever the disk's.
const SECTOR: u64 = 512;

/// Judges each partition of a disk whose physical blocks have this many bytes.
pub(crate) fn check(device: &Device, physical: Option<u64>) -> Vec<Check> {
    let block = physical.unwrap_or(PAGE).max(PAGE);
    let entries = fs::read_dir(&device.folder).into_iter().flatten().flatten();
    let mut partitions: Vec<_> =
        entries.map(|entry| entry.path()).filter(|path| path.join("partition").exists()).collect();
    partitions.sort();
    let number = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let misaligned = |partition: &std::path::PathBuf| {
        let start = number(&partition.join("start"))?.saturating_mul(SECTOR);
        let name = partition.file_name()?.to_string_lossy().into_owned();
        (!start.is_multiple_of(block)).then(|| judged(device, &name, start, block))
    };
    partitions.iter().filter_map(misaligned).collect()
}

fn judged(device: &Device, name: &str, start: u64, block: u64) -> Check {
    Check::slow(format!("{name}: alignment"), format!("it begins at byte {start}"))
        .expected(format!("a multiple of {block}"))
        .costs("every block of a file system spans two blocks of the disk, and the disk reads and writes both for one write")
        .mend(
            "move its data away, and make it anew where it belongs: parted, with 'mkpart' and '-a optimal', begins at a \
             whole MiB; this shows where all of them begin:",
        )
        .run(format!("sudo parted /dev/{} unit B print", device.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::fixture;

    #[test]
    fn a_partition_that_lies_across_blocks_is_found() {
        let files = [
            ("sda1/partition", "1"),
            ("sda1/start", "2048\n"),
            ("sda2/partition", "2"),
            ("sda2/start", "63\n"),
            ("queue/scheduler", "none"),
        ];
        let (folder, _root) = fixture(&files);
        let device = Device { name: "sda".into(), folder: folder.path().into(), holder: None };
        let names = |physical| -> Vec<String> {
            check(&device, physical).into_iter().map(|check| check.check).collect()
        };
        assert_eq!(names(Some(512)), ["sda2: alignment"]);
        assert_eq!(names(None), ["sda2: alignment"]);
        assert_eq!(names(Some(2 << 20)), ["sda1: alignment", "sda2: alignment"]);
        assert!(check(&device, None)[0].found.contains("32256"));
    }
}
