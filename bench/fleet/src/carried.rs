//! The first program of virtual machines, carried to hosts at the end of the program that is copied there: so it comes by the same copy,
//! under the same checksum. What stands behind a program does not change how it runs.
//!
//! ```text
//! loadline ‖ first program ‖ its length, 8 bytes, little-endian ‖ 8 bytes that say so
//! ```

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

const MARK: [u8; 8] = *b"LLfirst1";
const TAIL: u64 = 16;
/// No first program is longer.
const LONGEST: u64 = 256 << 20;

/// A program with a first program at its end.
pub(crate) fn joined(mut program: Vec<u8>, first: &[u8]) -> Vec<u8> {
    program.extend_from_slice(first);
    program.extend_from_slice(&(first.len() as u64).to_le_bytes());
    program.extend_from_slice(&MARK);
    program
}

/// The first program that a program carries, as a file in the folder `cache`; `None` if it carries none.
pub(crate) fn unpacked(program: &Path, cache: &Path) -> io::Result<Option<PathBuf>> {
    let mut file = File::open(program)?;
    let length = file.metadata()?.len();
    if length < TAIL {
        return Ok(None);
    }
    let mut tail = [0; TAIL as usize];
    file.seek(SeekFrom::Start(length - TAIL))?;
    file.read_exact(&mut tail)?;
    let first = u64::from_le_bytes(tail[..8].try_into().expect("eight bytes"));
    if tail[8..] != MARK || first > LONGEST.min(length - TAIL) {
        return Ok(None);
    }
    file.seek(SeekFrom::Start(length - TAIL - first))?;
    let mut bytes = vec![0; first as usize];
    file.read_exact(&mut bytes)?;
    let digest = Sha256::digest(&bytes);
    let name: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    let path = cache.join(format!("guest-init-{name}"));
    loadline_guest::cache::make(cache).map_err(|e| io::Error::other(e.message))?;
    if fs::read(&path).is_ok_and(|found| found == bytes) {
        return Ok(Some(path));
    }
    // Whoever is last puts the same bytes there.
    let half = cache.join(format!("new-init.{}", std::process::id()));
    let mut new = File::options().write(true).create(true).truncate(true).mode(0o700).open(&half)?;
    new.write_all(&bytes).and_then(|()| fs::rename(&half, &path)).inspect_err(|_| {
        let _ = fs::remove_file(&half);
    })?;
    Ok(Some(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_carried_is_unpacked_and_a_program_that_carries_nothing_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let (program, cache) = (folder.path().join("loadline"), folder.path().join("cache"));
        fs::write(&program, joined(b"a program".to_vec(), b"the first")).unwrap();
        let path = unpacked(&program, &cache).unwrap().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"the first");
        assert_eq!(unpacked(&program, &cache).unwrap(), Some(path));
        for other in [&b"a program"[..], b"a program of more than sixteen bytes", b""] {
            fs::write(&program, other).unwrap();
            assert_eq!(unpacked(&program, &cache).unwrap(), None);
        }
        // A length that lies.
        let lie = [&b"short"[..], &u64::MAX.to_le_bytes(), &MARK].concat();
        fs::write(&program, lie).unwrap();
        assert_eq!(unpacked(&program, &cache).unwrap(), None);
    }
}
