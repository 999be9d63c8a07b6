//! Files that Loadline makes for a run, and removes again: those, and no others.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::UNIX_EPOCH;

use loadline_base::limits;
use loadline_base::units::ByteSize;
use nix::errno::Errno;
use nix::sys::statvfs::statvfs;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::LoadError;

/// Which file a path led to when Loadline made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileIdentity {
    /// The device that holds it (`st_dev`).
    pub device: u64,
    /// Its inode (`st_ino`).
    pub inode: u64,
    /// When it was made, nanoseconds since 1970, where the file system knows: an inode's number is given away again
    /// as soon as its file is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub born_ns: Option<u64>,
}

impl FileIdentity {
    /// The identity of the file that this was read from.
    pub fn of(metadata: &Metadata) -> FileIdentity {
        let born = metadata.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        FileIdentity {
            device: metadata.dev(),
            inode: metadata.ino(),
            born_ns: born.and_then(|at| u64::try_from(at.as_nanos()).ok()),
        }
    }

    /// Whether both are the same file, as far as it is known of both.
    pub fn is_same_file(&self, other: &FileIdentity) -> bool {
        let born = self.born_ns.is_none() || other.born_ns.is_none() || self.born_ns == other.born_ns;
        self.device == other.device && self.inode == other.inode && born
    }
}

/// Whether files of these sizes fit, all together, once they are filled. Ask before the first is made: it is
/// sparse, and takes nothing away from the next.
pub fn check_room<'a>(files: impl IntoIterator<Item = (&'a Path, ByteSize)>) -> Result<(), LoadError> {
    // For each file system: the first folder in it, how many files, and how large they are together.
    let mut systems: BTreeMap<u64, (&Path, u32, u64)> = BTreeMap::new();
    for (path, size) in files {
        let folder = folder_of(path);
        let metadata = fs::metadata(folder).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => no_folder(folder),
            _ => LoadError::usage(format!("the folder {} cannot be checked: {e}", folder.display())),
        })?;
        let (_, files, bytes) = systems.entry(metadata.dev()).or_insert((folder, 0, 0));
        *files += 1;
        *bytes = bytes.saturating_add(size.0);
    }
    for (folder, files, bytes) in systems.into_values() {
        let free = free_space(folder)?;
        if free.0 < bytes {
            let what = if files == 1 { "a file".into() } else { format!("{files} files") };
            return Err(LoadError::usage(format!(
                "{what} of {} MiB in all does not fit into the file system of {}, which has {} MiB free: make \
                 it smaller, or free some space",
                bytes >> 20,
                folder.display(),
                free.0 >> 20
            )));
        }
    }
    Ok(())
}

/// Refuses a file of so many bytes if this process may not write to all of it.
pub(crate) fn may_be_written(name: &str, bytes: u64) -> Result<(), LoadError> {
    match limits::file_size() {
        Some(limit) if limit < bytes => Err(LoadError::usage(format!(
            "{name} has {}, and this process may write files of {} only (RLIMIT_FSIZE): raise the limit (ulimit -f unlimited, \
             or LimitFSIZE= of a service), or use a smaller file",
            ByteSize(bytes).rounded(),
            ByteSize(limit).rounded()
        ))),
        _ => Ok(()),
    }
}

/// Makes a file of this size for a run, sparse, where nothing is yet, and says which file it is. The folder must
/// exist. Refused if anything is there, or if the file system has no room for it once it is filled.
pub fn make_file(path: &Path, size: ByteSize) -> Result<FileIdentity, LoadError> {
    let name = path.display();
    may_be_written(&name.to_string(), size.0)?;
    check_room([(path, size)])?;
    let file =
        fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path).map_err(
            |e| match e.kind() {
                io::ErrorKind::AlreadyExists => LoadError::usage(format!(
                    "{name} exists already, and is not overwritten: name a new file, or move it away"
                )),
                _ => LoadError::usage(format!("{name} cannot be made: {e}")),
            },
        )?;
    let made = file.set_len(size.0).and_then(|()| file.metadata());
    made.map(|m| FileIdentity::of(&m)).map_err(|e| {
        // It is ours, and of no use.
        let _ = fs::remove_file(path);
        LoadError::failed(format!("{name} cannot be given its size of {size}: {e}"))
    })
}

/// Removes a file that [`make_file`] made, if it is still that file; what else is there stays.
pub fn remove_file(path: &Path, identity: FileIdentity) -> Result<(), LoadError> {
    let error = |e: io::Error| LoadError::failed(format!("{} cannot be removed: {e}", path.display()));
    match fs::symlink_metadata(path) {
        Ok(metadata) if FileIdentity::of(&metadata).is_same_file(&identity) => {
            fs::remove_file(path).map_err(error)
        }
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(error(e)),
    }
}

/// What an unprivileged user may still write in this folder's file system.
pub fn free_space(folder: &Path) -> Result<ByteSize, LoadError> {
    let found = statvfs(folder).map_err(|e| match e {
        Errno::ENOENT => no_folder(folder),
        _ => LoadError::usage(format!("the folder {} cannot be checked: {}", folder.display(), e.desc())),
    })?;
    #[allow(clippy::unnecessary_cast)] // 32 bits wide on some architectures
    Ok(ByteSize(found.blocks_available() as u64 * found.fragment_size() as u64))
}

fn no_folder(folder: &Path) -> LoadError {
    LoadError::usage(format!("the folder {} does not exist: make it first", folder.display()))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_file_is_new_and_only_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let made = make_file(&path, ByteSize::MIB).unwrap();
        assert!(make_file(&path, ByteSize::MIB).unwrap_err().message.contains("not overwritten"));
        let other = FileIdentity { inode: made.inode + 1, ..made };
        remove_file(&path, other).unwrap();
        assert!(path.exists(), "another file at that place stays");
        remove_file(&path, made).unwrap();
        assert!(!path.exists());
        remove_file(&path, made).unwrap();
        let error = make_file(&path, ByteSize(1 << 60)).unwrap_err().message;
        assert!(error.contains("does not fit"), "{error}");
    }

    #[test]
    fn a_file_that_got_the_inode_of_a_made_one_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let made = make_file(&path, ByteSize::MIB).unwrap();
        let Some(born) = made.born_ns else {
            eprintln!("this file system does not know when a file was made: not tested");
            return;
        };
        let earlier = FileIdentity { born_ns: Some(born - 1), ..made };
        remove_file(&path, earlier).unwrap();
        assert!(path.exists(), "it carries the inode of a file made earlier, and is another");
        // Written down by a program, or for a file system, that knew no time.
        let text = format!("{{\"device\": {}, \"inode\": {}}}", made.device, made.inode);
        let timeless: FileIdentity = serde_json::from_str(&text).unwrap();
        assert!(!serde_json::to_string(&timeless).unwrap().contains("born"));
        remove_file(&path, timeless).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn files_need_room_together() {
        let folder = tempfile::tempdir().unwrap();
        let free = free_space(folder.path()).unwrap();
        let most = ByteSize(free.0 / 3 * 2);
        let (first, second) = (folder.path().join("1"), folder.path().join("2"));
        check_room([(first.as_path(), most)]).unwrap();
        let error = check_room([(first.as_path(), most), (second.as_path(), most)]).unwrap_err();
        assert!(error.message.contains("2 files") && error.message.contains("does not fit"), "{error}");
        let nowhere = check_room([(Path::new("/nowhere/at/all"), most)]).unwrap_err();
        assert!(nowhere.message.contains("/nowhere/at does not exist"), "{nowhere}");
    }
}
