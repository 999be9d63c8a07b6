//! A JSON file that knows whether it is whole: its last key is a checksum of everything before it. It comes into
//! being by a rename, so that a crash leaves the old one or the new one.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::StudyError;
use crate::folder::regular;

/// A sealed file beyond this was not written by us.
const LONGEST_FILE: u64 = 1 << 30;
/// The key of the checksum.
pub const KEY: &str = "crc32c";
const SEAL: &str = ",\n  \"crc32c\": \"";

/// Which kind of file it is, and which version of it this program reads and writes.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    /// The value of its key `format`.
    pub name: &'static str,
    /// The value of its key `version`.
    pub version: u64,
}

/// Writes `value`, which must be an object with at least one key.
pub fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), StudyError> {
    let broken = |e: serde_json::Error| StudyError::failed(format!("cannot write {}: {e}", path.display()));
    write_durably(path, text(value).map_err(broken)?.as_bytes())
}

/// The text of a sealed file. `value` must be an object with at least one key.
pub fn text<T: Serialize>(value: &T) -> Result<String, serde_json::Error> {
    let text = serde_json::to_string_pretty(value)?;
    let body = text.strip_suffix("\n}").expect("an object with keys");
    Ok(format!("{body}{SEAL}{:08x}\"\n}}\n", loadline_base::crc::crc32c(body.as_bytes())))
}

/// Reads a sealed file. `None` if there is none. A truncated or changed file is an error that says so and what to do
/// (`advice`). A file of another version is whole: its error names the version, and does not give that advice.
pub fn read<T: DeserializeOwned>(path: &Path, format: Format, advice: &str) -> Result<Option<T>, StudyError> {
    let fault = |what: &str| StudyError::usage(format!("{} {what}. {advice}", path.display()));
    let mut file = match regular::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(fault(&format!("cannot be read: {e}"))),
    };
    let length = file.metadata().map_err(|e| fault(&format!("cannot be read: {e}")))?.len();
    if length > LONGEST_FILE {
        return Err(fault("is far too long: Loadline did not write it"));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|e| fault(&format!("cannot be read: {e}")))?;
    parse(path, text, format, advice).map(Some)
}

/// Reads the text of a sealed file; `path` is its name in errors, which are those of [`read`].
pub fn parse<T: DeserializeOwned>(
    path: &Path,
    mut text: String,
    format: Format,
    advice: &str,
) -> Result<T, StudyError> {
    let fault = |what: &str| StudyError::usage(format!("{} {what}. {advice}", path.display()));
    let bytes = text.len();
    let cut = || fault(&format!("is truncated or was changed ({bytes} bytes)"));
    let head: Head = serde_json::from_str(&text).map_err(|_| cut())?;
    // Before the seal: another version may seal otherwise.
    let (name, version) = (head.format.as_str().unwrap_or_default(), &head.version);
    if name != format.name {
        return Err(fault(&format!("is no {} file", format.name)));
    }
    if version.as_u64() != Some(format.version) {
        return Err(StudyError::usage(format!(
            "{} has version {version} of its format, and this Loadline ({}) reads version {}: read it with the version of Loadline that wrote it. Do not remove it",
            path.display(),
            env!("CARGO_PKG_VERSION"),
            format.version
        )));
    }
    let (body, seal) = text.rsplit_once(SEAL).ok_or_else(cut)?;
    if seal.trim_end() != format!("{:08x}\"\n}}", loadline_base::crc::crc32c(body.as_bytes())) {
        return Err(cut());
    }
    // What was sealed, without the seal.
    let sealed = body.len();
    text.truncate(sealed);
    text.push_str("\n}");
    // It is whole, so that another version wrote it: nothing is to be moved or made anew.
    serde_json::from_str(&text).map_err(|e| {
        let path = path.display();
        StudyError::usage(format!(
            "{path} is complete but cannot be parsed ({e}): read it with the version of Loadline that wrote it. Do not remove it"
        ))
    })
}

/// What is read of a file before it is trusted.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    format: Value,
    #[serde(default)]
    version: Value,
}

/// Writes a file so that after a crash it is there as a whole, or as it was before.
pub fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), StudyError> {
    let temporary = path.with_extension("new");
    let failed = |e: std::io::Error| StudyError::io("write", path, &e);
    let mut file = regular::create(&temporary).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    fs::rename(&temporary, path).map_err(failed)?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// Makes durable which names are in a folder.
pub fn sync_folder(path: &Path) -> Result<(), StudyError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(|e| StudyError::io("sync", path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FORMAT: Format = Format { name: "loadline-test", version: 3 };

    fn reading(path: &Path) -> Result<Option<Value>, StudyError> {
        read(path, FORMAT, "Do that.")
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        let value = json!({ "format": "loadline-test", "version": 3, "text": "}\n,\n  \"crc32c\": \"" });
        assert_eq!(reading(&path).unwrap(), None);
        write(&path, &value).unwrap();
        assert_eq!(reading(&path).unwrap(), Some(value));
        assert!(!folder.path().join("x.new").exists());
    }

    #[test]
    fn a_file_cut_off_at_any_byte_or_changed_in_any_byte_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        write(&path, &json!({ "format": "loadline-test", "version": 3, "iops": 1234.5 })).unwrap();
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() - 1 {
            fs::write(&path, &whole[..length]).unwrap();
            let error = reading(&path).unwrap_err();
            assert!(error.message.ends_with("Do that."), "{}", error.message);
        }
        // The last byte is the line feed after the object: without it, it is still whole.
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(reading(&path).unwrap().is_some());
        for at in 0..whole.len() - 1 {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, &changed).unwrap();
            assert!(reading(&path).is_err(), "byte {at}");
        }
    }

    #[test]
    fn another_version_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        write(&path, &json!({ "format": "loadline-test", "version": 4 })).unwrap();
        let message = reading(&path).unwrap_err().message;
        assert!(
            message.contains("has version 4 of its format") && message.contains("reads version 3"),
            "{message}"
        );
        assert!(!message.contains("Do that."), "the file is whole, so nothing is to be mended: {message}");
    }
}
