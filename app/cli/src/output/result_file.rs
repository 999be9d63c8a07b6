//! Where a result is written: nothing is overwritten but an earlier result, and that only by a whole one.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use loadline_load::{LoadError, Target};
use nix::unistd::{AccessFlags, eaccess};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The place that `--json` names.
pub(crate) enum Place {
    /// "-".
    Output,
    /// A pipe or a terminal, such as `/dev/stderr` or a shell's `>(...)`: written as it is.
    Stream(PathBuf),
    /// A regular file, or one that is not there yet. Links are resolved.
    File(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Output => f.write_str("standard output"),
            Place::Stream(path) | Place::File(path) => path.display().fmt(f),
        }
    }
}

/// What every result of ours has, whatever version wrote it.
#[derive(Deserialize)]
struct Ours {
    #[serde(rename = "format")]
    _format: u32,
    version: String,
    #[serde(rename = "targets")]
    _targets: IgnoredAny,
    #[serde(rename = "histograms")]
    _histograms: IgnoredAny,
}

impl Place {
    /// Checks, before the load, that a result can be written there, and that nothing else is lost by it: no target,
    /// no journal, no other file. `others` are the journals.
    pub(crate) fn check(name: &str, targets: &[Target], others: &[PathBuf]) -> Result<Place, LoadError> {
        let refuse = |why: &str| Err(LoadError::usage(format!("--json {name} {why}")));
        if name == "-" {
            return Ok(Place::Output);
        }
        let path = Path::new(name);
        if targets.iter().filter_map(Target::path).any(|target| is_same(path, target)) {
            return refuse("is one of the targets: name another file for the result");
        }
        if others.iter().any(|other| is_same(path, other)) {
            return refuse("is a journal of this run: name another file for the result");
        }
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if fs::symlink_metadata(path).is_ok() {
                    return refuse("is a link that leads nowhere: name a file");
                }
                if path.file_name().is_none() {
                    return refuse("names no file");
                }
                check_folder(name, folder_of(path))?;
                return Ok(Place::File(path.to_path_buf()));
            }
            Err(e) => return refuse(&format!("cannot be checked: {e}")),
        };
        let kind = metadata.file_type();
        if kind.is_dir() {
            return refuse("is a directory: name a file in it");
        }
        if kind.is_block_device() {
            return refuse("is a block device, and would be overwritten: name a file for the result");
        }
        if !kind.is_file() {
            return Ok(Place::Stream(path.to_path_buf()));
        }
        let path = match fs::canonicalize(path) {
            Ok(path) => path,
            Err(e) => return refuse(&format!("cannot be checked: {e}")),
        };
        check_folder(name, folder_of(&path))?;
        if metadata.len() > 0 && !is_ours(&path) {
            return refuse(
                "exists, and is not a result of loadline bench: it is not overwritten. Name another file, or move it \
                 away",
            );
        }
        Ok(Place::File(path))
    }

    /// Writes the result; the file is there as a whole or not at all.
    pub(crate) fn write(&self, text: &str) -> io::Result<()> {
        match self {
            Place::Output => {
                crate::output::document(text);
                Ok(())
            }
            Place::Stream(path) => {
                match OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes()) {
                    Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                    written => written,
                }
            }
            Place::File(path) => {
                // The load took its time: what came meanwhile is not overwritten either.
                let free = fs::symlink_metadata(path).map_or(true, |m| m.is_file() && m.len() == 0);
                if !free && !is_ours(path) {
                    return Err(io::Error::new(
                        io::ErrorKind::AlreadyExists,
                        "another program has put a file there since the load began",
                    ));
                }
                replace(path, text)
            }
        }
    }
}

/// Writes beside the file, and puts that in its place.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).open(&beside)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

fn check_folder(name: &str, folder: &Path) -> Result<(), LoadError> {
    let at = folder.display();
    let refuse = |why: String| Err(LoadError::usage(format!("--json {name}: {why}")));
    match fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return refuse(format!("{at} is not a folder")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return refuse(format!("the folder {at} does not exist: make it first"));
        }
        Err(e) => return refuse(format!("the folder {at} cannot be checked: {e}")),
    }
    match eaccess(folder, AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) => Ok(()),
        Err(e) => refuse(format!("no file can be made in {at}: {}; name another place", e.desc())),
    }
}

fn is_ours(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    serde_json::from_reader::<_, Ours>(BufReader::new(file))
        .is_ok_and(|result| result.version.starts_with("loadline "))
}

/// Whether two paths lead to the same file, also to one that is still to be made.
fn is_same(one: &Path, other: &Path) -> bool {
    if let (Ok(one), Ok(other)) = (fs::metadata(one), fs::metadata(other)) {
        let device = |m: &fs::Metadata| m.file_type().is_block_device().then(|| m.rdev());
        return match (device(&one), device(&other)) {
            (None, None) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
            (one, other) => one == other,
        };
    }
    let place = |path: &Path| Some((fs::canonicalize(folder_of(path)).ok()?, path.file_name()?.to_owned()));
    place(one).is_some_and(|one| place(other) == Some(one))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_earlier_result_or_nothing_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let ours = r#"{"format": 9, "version": "loadline 7.0", "targets": [], "histograms": {}, "more": 1}"#;
        for (name, text, allowed) in [
            ("empty.json", "", true),
            ("ours.json", ours, true),
            ("cut.json", &ours[..40], false),
            ("run.json", r#"{"format": 1, "version": "loadline 0.1.0", "study": {}}"#, false),
            ("other.json", r#"{"version": "fio-3"}"#, false),
            ("text", "precious", false),
        ] {
            fs::write(at(name), text).unwrap();
            let place = Place::check(at(name).to_str().unwrap(), &[], &[]);
            assert_eq!(place.is_ok(), allowed, "{name}");
        }
        let place = Place::check(at("new.json").to_str().unwrap(), &[], &[]).unwrap();
        place.write("first").unwrap();
        assert_eq!(fs::read_to_string(at("new.json")).unwrap(), "first");
        assert!(place.write("second").is_err(), "what came meanwhile stays");
        assert_eq!(fs::read_to_string(at("new.json")).unwrap(), "first");
        Place::check(at("ours.json").to_str().unwrap(), &[], &[]).unwrap().write("third").unwrap();
        assert_eq!(fs::read_to_string(at("ours.json")).unwrap(), "third");
        let hidden = fs::read_dir(folder.path()).unwrap().flatten();
        assert_eq!(hidden.filter(|e| e.file_name().to_string_lossy().starts_with('.')).count(), 0);
    }
}
