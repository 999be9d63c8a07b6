//! A new archive (`.tar.gz`, POSIX ustar) of files of text, which only its owner can read.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use flate2::Compression;
use flate2::write::GzEncoder;

/// Bytes of a block of tar.
const BLOCK: usize = 512;

/// An archive that is being written.
pub(crate) struct Archive {
    out: GzEncoder<File>,
    /// The folder in the archive in which all is.
    folder: String,
    /// Bytes of its files that may still be added.
    left: u64,
    now: u64,
}

impl Archive {
    /// Makes the file, which must not exist. `most`: bytes of all files in it, before they are compressed.
    pub(crate) fn create(path: &Path, folder: &str, most: u64) -> io::Result<Archive> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let now = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        let out = GzEncoder::new(file, Compression::default());
        Ok(Archive { out, folder: folder.into(), left: most, now })
    }

    /// Adds a file. Returns whether there was room for it.
    pub(crate) fn add(&mut self, name: &str, content: &[u8]) -> io::Result<bool> {
        let Some(left) = self.left.checked_sub(content.len() as u64) else { return Ok(false) };
        self.left = left;
        self.out.write_all(&header(&format!("{}/{name}", self.folder), content.len(), self.now)?)?;
        self.out.write_all(content)?;
        let rest = content.len().next_multiple_of(BLOCK) - content.len();
        self.out.write_all(&[0; BLOCK][..rest])?;
        Ok(true)
    }

    /// Ends the archive. It is on the disk then.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.finish()?.sync_all()
    }
}

/// The block before a file's content.
fn header(path: &str, bytes: usize, time: u64) -> io::Result<[u8; BLOCK]> {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    if name.len() > 100 || folder.len() > 155 || bytes as u64 >= 1 << 33 {
        return Err(io::Error::other(format!("{path} does not fit into an archive")));
    }
    let mut block = [0; BLOCK];
    let mut put = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000600\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{bytes:011o}\0"));
    put(136, &format!("{time:011o}\0"));
    // While the sum is computed, its own field has spaces.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    put(345, folder);
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn tar_reads_it_and_it_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar.gz");
        let mut archive = Archive::create(&path, "top", 1 << 20).unwrap();
        let long = format!("nodes/{}/log.txt", "n".repeat(64));
        let big = vec![b'x'; 1000];
        for (name, content) in [("empty", &[][..]), (&long, b"a\n"), ("full", &[7; 512]), ("big", &big)] {
            assert!(archive.add(name, content).unwrap());
        }
        assert!(!archive.add("too-big", &vec![0; 1 << 20]).unwrap(), "there is a bound");
        archive.finish().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let done = Command::new("tar").arg("-xzf").arg(&path).arg("-C").arg(folder.path()).output().unwrap();
        assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
        let read = |name: &str| std::fs::read(folder.path().join("top").join(name)).unwrap();
        assert_eq!((read("empty"), read(&long), read("full")), (vec![], b"a\n".to_vec(), vec![7; 512]));
        assert_eq!(read("big"), big);
        let again = Archive::create(&path, "top", 1).err().map(|why| why.kind());
        assert_eq!(again, Some(io::ErrorKind::AlreadyExists));
    }
}
