//! Who holds a device or a file, so that it must be left alone.

use std::fs;
use std::path::Path;

/// Who uses the block device with this number (`major:minor`), or a part of it; `None` if nobody that the kernel
/// tells of. An exclusive open tells of the rest.
pub(crate) fn holder_of_device(major: u64, minor: u64) -> Option<String> {
    let own = format!("/sys/dev/block/{major}:{minor}");
    let own = Path::new(&own);
    let mut parts = vec![own.to_path_buf()];
    // A disk's partitions are folders of its own, with a file "partition" in them.
    for entry in fs::read_dir(own).into_iter().flatten().flatten() {
        if entry.path().join("partition").exists() {
            parts.push(entry.path());
        }
    }
    parts.iter().find_map(|part| {
        let number = fs::read_to_string(part.join("dev")).ok()?;
        let name = fs::canonicalize(part).ok()?.file_name()?.to_string_lossy().into_owned();
        mount_of(number.trim())
            .map(|place| format!("{name} is mounted on {place}"))
            .or_else(|| is_swap(Path::new(&format!("/dev/{name}"))).then(|| format!("{name} is swap space")))
            .or_else(|| {
                let holder = fs::read_dir(part.join("holders")).ok()?.flatten().next()?;
                let holder = holder.file_name().to_string_lossy().into_owned();
                Some(format!("{name} is part of {holder} (LVM, md, a crypt volume or a multipath device)"))
            })
    })
}

/// Who uses this regular file as a disk: swap, or a loop device.
pub(crate) fn holder_of_file(path: &Path) -> Option<String> {
    let path = fs::canonicalize(path).ok()?;
    if is_swap(&path) {
        return Some("it is swap space".into());
    }
    fs::read_dir("/sys/block").ok()?.flatten().find_map(|device| {
        let backing = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        (Path::new(backing.trim_end()) == path)
            .then(|| format!("it is behind /dev/{}", device.file_name().to_string_lossy()))
    })
}

fn mount_of(number: &str) -> Option<String> {
    // Fields of a line: id, parent, major:minor, root, mount point, ...
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        (fields.next()? == number).then(|| fields.nth(1).unwrap_or("?").to_string())
    })
}

fn is_swap(path: &Path) -> bool {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).any(|p| Path::new(p) == path)
}
