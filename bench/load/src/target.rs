//! What a disk is, and opening it without ever harming what is not ours.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use loadline_base::units::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::LoadError;

/// Where a disk is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("examples" = ["/dev/nvme1n1", "disk.img", "null:1GiB"]))]
pub enum Target {
    /// A regular file or a block device.
    Path(PathBuf),
    /// A disk of this size that completes everything at once: it measures the generator itself.
    Null(ByteSize),
}

impl FromStr for Target {
    type Err = LoadError;

    fn from_str(text: &str) -> Result<Self, LoadError> {
        match text.split_once(':') {
            Some(("null", size)) => {
                let size: ByteSize =
                    size.parse().map_err(|e| LoadError::usage(format!("target \"{text}\": {e}")))?;
                if size.0 == 0 {
                    return Err(LoadError::usage(format!("target \"{text}\" has no size: write null:1GiB")));
                }
                Ok(Target::Null(size))
            }
            Some((scheme, rest)) if rest.starts_with("//") => Err(LoadError::usage(format!(
                "target \"{text}\": nothing here opens {scheme}://; give a file, a block device, or null:SIZE"
            ))),
            _ if text.is_empty() => Err(LoadError::usage("a target without a name: give a file or a block device")),
            _ => Ok(Target::Path(PathBuf::from(text))),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Path(path) => path.display().fmt(f),
            Target::Null(size) => write!(f, "null:{size}"),
        }
    }
}

impl TryFrom<String> for Target {
    type Error = LoadError;

    fn try_from(text: String) -> Result<Self, LoadError> {
        text.parse()
    }
}

impl From<Target> for String {
    fn from(target: Target) -> String {
        target.to_string()
    }
}

/// Which file a path led to when Loadline made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileIdentity {
    /// The device that holds it (`st_dev`).
    pub device: u64,
    /// Its inode (`st_ino`).
    pub inode: u64,
}

/// Makes a file of this size for a run, sparse, where nothing is yet, and says which file it is. The folder must
/// exist. Refused if anything is there, or if the file system has no room for it once it is filled.
pub fn make_file(_path: &std::path::Path, _size: ByteSize) -> Result<FileIdentity, LoadError> {
    Err(LoadError::failed("being written"))
}

/// Removes a file that [`make_file`] made, if it is still that file; what else is there stays.
pub fn remove_file(_path: &std::path::Path, _identity: FileIdentity) -> Result<(), LoadError> {
    Err(LoadError::failed("being written"))
}
