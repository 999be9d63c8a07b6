//! The archive that a kernel unpacks as its first file system: cpio, format `newc` (Documentation/driver-api/early-userspace/buffer-format
//! of Linux). The same files in the same order give the same bytes.

/// An archive that is being written.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    files: u32,
}

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

impl Archive {
    /// Adds a folder; its parents are there already.
    pub(crate) fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER, &[]);
    }

    /// Adds a file that can be run.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, PROGRAM, content);
    }

    /// Adds a symbolic link.
    pub(crate) fn link(&mut self, path: &str, to: &str) {
        self.entry(path, LINK, to.as_bytes());
    }

    /// The whole archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.files += 1;
        let length = u32::try_from(content.len()).expect("files of an image are small");
        let name = u32::try_from(path.len() + 1).expect("names are short");
        // inode, mode, owner, group, links, time, length, device, device of a device file, length of the name, checksum
        let fields = [self.files, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn another_program_unpacks_what_was_packed() {
        let mut archive = Archive::default();
        archive.folder("bin");
        archive.file("bin/tool", b"12345");
        archive.link("bin/sh", "tool");
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new("busybox")
            .args(["cpio", "-i", "-d"])
            .current_dir(&folder)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("./dev setup --tests installs busybox");
        child.stdin.take().unwrap().write_all(&archive.finish()).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(std::fs::read(folder.path().join("bin/sh")).unwrap(), b"12345");
    }
}
