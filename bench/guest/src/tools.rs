//! Programs of the host for the image of a shell: each with the shared libraries that it needs, at the same paths as on the host.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::GuestError;

/// Where programs of an administrator are, which users do not have in PATH.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
/// What a shell has where the host has it: a program, and further names of it.
const PROGRAMS: [(&str, &[&str]); 10] = [
    ("e2fsck", &["fsck.ext4"]),
    ("mke2fs", &["mkfs.ext4", "mkfs.ext3", "mkfs.ext2"]),
    ("dumpe2fs", &[]),
    ("debugfs", &[]),
    ("tune2fs", &[]),
    ("resize2fs", &[]),
    ("xfs_repair", &[]),
    ("mkfs.xfs", &[]),
    ("xfs_db", &[]),
    ("xfs_io", &[]),
];
/// What decides the features of a new ext4 file system.
const SETTINGS: &str = "etc/mke2fs.conf";

/// What the image of a shell has, as [`Contents::Shell`](crate::Contents) takes it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tools {
    /// Path in the machine, without the first slash, and the file of the host.
    pub files: Vec<(String, PathBuf)>,
    /// Path in the machine, and what it leads to.
    pub links: Vec<(String, String)>,
    programs: BTreeSet<String>,
}

impl Tools {
    /// Finds the programs of this host. Only busybox must be there: without it there is no shell. The error is of kind `Usage`.
    pub fn find() -> Result<Tools, GuestError> {
        let busybox = program("busybox").ok_or_else(|| {
            GuestError::usage(
                "a machine with a shell needs busybox, which is not here: apt install busybox-static",
            )
        })?;
        let list = Command::new(&busybox).arg("--list").stdin(Stdio::null()).output();
        let list = list.map_err(|e| {
            GuestError::usage(format!("{} cannot be started for a machine's shell: {e}", busybox.display()))
        })?;
        let mut files = BTreeMap::new();
        let mut tools = Tools::default();
        add(&mut files, "bin/busybox", &busybox);
        for name in String::from_utf8_lossy(&list.stdout).lines().filter(|name| *name != "busybox") {
            tools.links.push((format!("bin/{name}"), "busybox".into()));
        }
        for (name, others) in PROGRAMS {
            let Some(found) = program(name) else { continue };
            add(&mut files, &format!("usr/sbin/{name}"), &found);
            tools.programs.insert(name.into());
            tools.links.extend(others.iter().map(|other| (format!("usr/sbin/{other}"), name.into())));
        }
        let settings = Path::new("/").join(SETTINGS);
        if settings.is_file() {
            files.insert(SETTINGS.into(), settings);
        }
        tools.files = files.into_iter().collect();
        Ok(tools)
    }

    /// Whether this program is among them. Not busybox, which always is.
    pub fn has(&self, program: &str) -> bool {
        self.programs.contains(program)
    }
}

/// Where a program is on this host.
fn program(name: &str) -> Option<PathBuf> {
    let set = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&set).chain(FOLDERS.map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Adds a program at this path, and what it needs.
fn add(files: &mut BTreeMap<String, PathBuf>, at: &str, program: &Path) {
    files.insert(at.into(), program.into());
    let Some(loader) = fs::read(program).ok().and_then(|bytes| loader_of(&bytes)) else { return };
    // The loader lists what it would load, and starts nothing.
    let listed = Command::new(&loader).arg("--list").arg(program).stdin(Stdio::null()).output();
    let listed = listed.map(|output| output.stdout).unwrap_or_default();
    for library in libraries_in(&String::from_utf8_lossy(&listed)).into_iter().chain([loader]) {
        files.insert(library.trim_start_matches('/').into(), library.into());
    }
}

/// The program that loads a program's libraries (`PT_INTERP` of ELF-64, little-endian). `None` of a static program, and of what is none.
fn loader_of(program: &[u8]) -> Option<String> {
    const INTERPRETER: u32 = 3;
    let half = |at: usize| Some(u16::from_le_bytes(program.get(at..at + 2)?.try_into().ok()?) as usize);
    let word = |at: usize| Some(u32::from_le_bytes(program.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| {
        usize::try_from(u64::from_le_bytes(program.get(at..at.checked_add(8)?)?.try_into().ok()?)).ok()
    };
    if program.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (headers, size, count) = (long(32)?, half(54)?, half(56)?);
    for number in 0..count {
        let header = headers.checked_add(number.checked_mul(size)?)?;
        program.get(header..header.checked_add(56)?)?;
        if word(header)? == INTERPRETER {
            let (at, length) = (long(header + 8)?, long(header + 32)?);
            let name = program.get(at..at.checked_add(length)?)?;
            return Some(String::from_utf8_lossy(name).trim_end_matches('\0').to_string());
        }
    }
    None
}

/// The paths in what a loader lists: `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f…)`.
fn libraries_in(listed: &str) -> Vec<String> {
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_string);
    listed.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_comes_with_its_loader_and_its_libraries() {
        let own = std::env::current_exe().unwrap();
        let mut files = BTreeMap::new();
        add(&mut files, "bin/own", &own);
        assert_eq!(files["bin/own"], own);
        let names: Vec<&String> = files.keys().collect();
        assert!(names.iter().any(|name| name.contains("libc.so")), "{names:?}");
        assert!(names.iter().any(|name| name.contains("/ld-")), "{names:?}");
        assert!(files.values().all(|file| file.is_file()), "{files:?}");
    }

    #[test]
    fn what_is_no_program_or_is_cut_short_has_no_loader() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(loader_of(&own).unwrap().starts_with('/'));
        for bytes in [&b""[..], b"#!/bin/sh\n", b"\x7fELF\x02\x01", &own[..100]] {
            assert_eq!(loader_of(bytes), None);
        }
    }

    #[test]
    fn the_programs_of_this_host_are_found_without_a_path_to_them() {
        let tools = Tools::find().expect("./dev setup --tests installs busybox");
        assert!(tools.has("e2fsck") && !tools.has("no-such-tool"), "./dev setup --tests installs e2fsprogs");
        assert!(tools.files.iter().any(|(path, _)| path == "usr/sbin/e2fsck"));
        assert!(tools.links.contains(&("bin/sh".into(), "busybox".into())));
        assert!(tools.links.contains(&("usr/sbin/mkfs.ext4".into(), "mke2fs".into())));
    }
}
