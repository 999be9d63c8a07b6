//! Which process has opened a block device.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// A process that has opened the block device with this number (`st_rdev`), in words; `None` if no process is found. Processes of other
/// users, and those in other namespaces, may not be visible.
pub fn opener_of_device(number: u64) -> Option<String> {
    fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let id: u32 = process.file_name().to_str()?.parse().ok()?;
        // What a link of this folder leads to is the open file itself, whatever its name is now.
        let mut opened = fs::read_dir(process.path().join("fd")).ok()?.flatten();
        opened.find(|file| {
            // To look at a file of another machine may take for ever, if that machine is gone.
            let is_device = fs::read_link(file.path()).is_ok_and(|path| path.starts_with("/dev/"));
            let metadata = || fs::metadata(file.path());
            is_device && metadata().is_ok_and(|of| of.file_type().is_block_device() && of.rdev() == number)
        })?;
        let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        Some(format!("process {id} ({}) has opened it", name.trim()))
    })
}
