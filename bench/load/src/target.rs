//! What a disk is: where, and what may be done to it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use loadline_base::units::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::LoadError;
use crate::iscsi::uri::IscsiUri;
pub use crate::made::{FileIdentity, check_room, free_space, make_file, remove_file};
use crate::nbd::uri::NbdUri;
use crate::rbd::uri::RbdUri;

/// Where a disk is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("examples" = ["/dev/nvme1n1", "disk.img", "nbd://node-1/vm-1", "nbd+unix:///vm-1?socket=/run/nbd.sock", "vhost-user:/run/vm-1.sock", "rbd:vms/disk-1?user=bench", "iscsi://10.0.0.5/iqn.2003-01.org.example:disk/0", "iscsi://bench@10.0.0.5/iqn.2003-01.org.example:disk/0?secret=/etc/loadline/chap", "null:1GiB"]))]
pub enum Target {
    /// A regular file or a block device.
    Path(PathBuf),
    /// A disk that an NBD server has.
    Nbd(NbdUri),
    /// A disk that a vhost-user-blk server has, by its socket.
    Vhost(PathBuf),
    /// An image of a Ceph cluster.
    Rbd(RbdUri),
    /// A logical unit of an iSCSI target.
    Iscsi(IscsiUri),
    /// A disk of this size that completes everything at once: it measures the generator itself.
    Null(ByteSize),
}

/// Whether a disk may be written to, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WritePermission {
    /// It may not: a job that writes is refused.
    Refused,
    /// It is a file that Loadline made for this run, with this identity; any other file in its place is refused.
    Made(FileIdentity),
    /// Its owner gave it up (`--destroy-data`). A device in use is refused all the same.
    Destroy,
}

/// One disk of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Where it is.
    pub target: Target,
    /// Whether it may be written to.
    pub writes: WritePermission,
}

impl Target {
    /// Where it is; `None` of one that is nowhere.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Target::Path(path) => Some(path),
            Target::Nbd(_) | Target::Vhost(_) | Target::Rbd(_) | Target::Iscsi(_) | Target::Null(_) => None,
        }
    }
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
            Some(("vhost-user", socket)) => {
                let path = socket.strip_prefix("//").unwrap_or(socket);
                if path.is_empty() {
                    return Err(LoadError::usage(format!(
                        "target \"{text}\" names no socket: write vhost-user:/run/disk.sock"
                    )));
                }
                Ok(Target::Vhost(PathBuf::from(path)))
            }
            Some(("iscsi", rest)) if rest.starts_with("//") => text.parse().map(Target::Iscsi),
            Some(("rbd", _)) => text.parse().map(Target::Rbd),
            Some((scheme, rest)) if scheme.starts_with("nbd") && rest.starts_with("//") => {
                text.parse().map(Target::Nbd)
            }
            Some((scheme, rest)) if rest.starts_with("//") => Err(LoadError::usage(format!(
                "target \"{text}\": nothing here opens {scheme}://; give a file, a block device, nbd://HOST/EXPORT, \
                 nbd+unix:///EXPORT?socket=PATH, vhost-user:SOCKET, rbd:POOL/IMAGE, iscsi://HOST/TARGET/LUN, or null:SIZE"
            ))),
            _ if text.is_empty() => {
                Err(LoadError::usage("a target without a name: give a file or a block device"))
            }
            _ => Ok(Target::Path(PathBuf::from(text))),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Path(path) => path.display().fmt(f),
            Target::Nbd(uri) => uri.fmt(f),
            Target::Vhost(socket) => write!(f, "vhost-user:{}", socket.display()),
            Target::Rbd(uri) => uri.fmt(f),
            Target::Iscsi(uri) => uri.fmt(f),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_and_printed() {
        for text in [
            "/dev/sdb",
            "disk.img",
            "null:1GiB",
            "nbd://host:10809/x",
            "nbd+unix:///x?socket=/s",
            "vhost-user:/run/s",
            "rbd:pool/x",
            "rbd:pool/x?user=u&conf=/c",
            "iscsi://u@h:3261/iqn.2003-01.a:b/0?secret=/s&digest=crc32c",
        ] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for text in
            ["", "vhost-user:", "null:", "null:0", "null:x", "nbds://host/x", "rbd:pool", "iscsi://host/x"]
        {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}
