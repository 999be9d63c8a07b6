//! A disk that a virtual machine uses: it is opened and checked as a load would, and kept locked while the machine has it.

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;

use loadline_measure::audit::Finding;
use loadline_profile::Profile;

use crate::error::LoadError;
use crate::open::{Transport, open_whole};
use crate::prepare::not_direct;
use crate::target::{Disk, Target, WritePermission};

/// A disk that is lent to a virtual machine. Dropping it unlocks the disk.
#[derive(Debug)]
pub struct Lent {
    /// The open and locked file or device; `None` of a disk that a server has.
    pub file: Option<Arc<OwnedFd>>,
    /// Whether I/O on it bypasses the page cache.
    pub direct: bool,
    /// Whether the machine may write to it.
    pub writable: bool,
    /// What a reader of figures of it should know, and what the machine itself cannot see.
    pub findings: Vec<Finding>,
}

/// Checks a disk as a load that opens it would, and locks it for a virtual machine of this host. Writable: as its permission says. A
/// disk that a server has is not opened here, since some servers take one client: the machine is its client.
pub fn lend(disk: &Disk) -> Result<Lent, LoadError> {
    let writable = disk.writes != WritePermission::Refused;
    if let Target::Vhost(socket) = &disk.target {
        let kind = std::fs::metadata(socket).map(|found| found.file_type().is_socket());
        if !kind.is_ok_and(|is_socket| is_socket) {
            // QEMU would wait for it, and stop the machine meanwhile.
            return Err(LoadError::usage(format!(
                "there is no socket {}: is the volume attached to this host, and does its server run?",
                socket.display()
            )));
        }
    }
    if !matches!(disk.target, Target::Path(_)) {
        return Ok(Lent { file: None, direct: true, writable, findings: Vec::new() });
    }
    let profile = Profile { direct: true, write_through: false, ..Profile::default() };
    let open = open_whole(disk, &profile, writable)?;
    let file = match open.transport {
        Transport::File(file) => Some(file),
        Transport::Null
        | Transport::Nbd(_)
        | Transport::Vhost(_)
        | Transport::Rbd(_)
        | Transport::Iscsi(_) => None,
    };
    let mut findings = Vec::new();
    if !open.direct {
        findings.push(not_direct(&open.name));
    }
    Ok(Lent { file, direct: open.direct, writable, findings })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::make_file;
    use loadline_base::units::ByteSize;

    #[test]
    fn a_lent_file_is_the_one_that_was_made_and_no_load_gets_it_meanwhile() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().join("disk");
        let made = make_file(&path, ByteSize::MIB).unwrap();
        let disk = |writes| Disk { target: Target::Path(path.clone()), writes };
        let lent = lend(&disk(WritePermission::Made(made))).unwrap();
        assert!(lent.writable && lent.file.is_some());
        let error = lend(&disk(WritePermission::Made(made))).unwrap_err();
        assert!(error.message.contains("in use"), "{error}");
        drop(lent);
        std::fs::rename(&path, folder.path().join("aside")).unwrap();
        make_file(&path, ByteSize::MIB).unwrap();
        let error = lend(&disk(WritePermission::Made(made))).unwrap_err();
        assert!(error.message.contains("replaced"), "{error}");
        assert!(!lend(&disk(WritePermission::Refused)).unwrap().writable);
    }
}
