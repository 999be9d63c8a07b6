//! Disks that a server has: it is asked for them, and what speaks against a load on them is found before any I/O.

use std::path::Path;
use std::sync::Arc;

use loadline_base::units::ByteSize;
use loadline_profile::Profile;

use super::{OpenDisk, Transport, check_alignment};
use crate::error::LoadError;
use crate::iscsi;
use crate::iscsi::uri::IscsiUri;
use crate::nbd::connect;
use crate::nbd::uri::NbdUri;
use crate::rbd::disk::RbdDisk;
use crate::rbd::uri::RbdUri;
use crate::sweep;
use crate::target::{Disk, WritePermission};
use crate::vhost::{VhostDisk, Wanted};

/// Asks an NBD server for a disk. Its other users are not known.
pub(super) fn open_nbd(
    disk: &Disk,
    uri: &NbdUri,
    profile: &Profile,
    write: bool,
) -> Result<OpenDisk, LoadError> {
    let name = disk.target.to_string();
    may_write_to_server(disk, write)?;
    let (_socket, export) = connect::connect(uri)?;
    if let Some(why) = export.objection(write, profile.write_through, profile.threads) {
        return Err(LoadError::usage(format!("{name}: {why}")));
    }
    check_alignment(&name, profile, export.least.into())?;
    if profile.block_size.0 > export.most.into() {
        return Err(LoadError::usage(format!(
            "{name}: its server takes at most {} at once, and a block has {}: use a smaller one",
            ByteSize(export.most.into()),
            profile.block_size
        )));
    }
    let (transport, unwritten) = (Transport::Nbd(uri.clone()), ByteSize(0));
    Ok(OpenDisk { name, transport, size: ByteSize(export.bytes), in_memory: false, direct: true, unwritten })
}

/// Connects to a vhost-user-blk server. It has one front-end, so no other process uses the disk through it.
pub(super) fn open_vhost(
    disk: &Disk,
    socket: &Path,
    profile: &Profile,
    write: bool,
) -> Result<OpenDisk, LoadError> {
    let name = disk.target.to_string();
    may_write_to_server(disk, write)?;
    let (threads, slots) = (profile.threads as usize, (profile.outstanding as usize).max(sweep::DEPTH));
    let vhost = VhostDisk::connect(socket, Wanted { threads, slots, through: profile.write_through })?;
    if write && vhost.read_only {
        return Err(LoadError::usage(format!(
            "{name}: its server exports the disk read-only: use a profile that only reads (W0)"
        )));
    }
    check_alignment(&name, profile, vhost.least.into())?;
    let (size, unwritten) = (ByteSize(vhost.bytes), ByteSize(0));
    Ok(OpenDisk {
        name,
        transport: Transport::Vhost(Arc::new(vhost)),
        size,
        in_memory: false,
        direct: true,
        unwritten,
    })
}

/// Opens an image of a Ceph cluster. Without a cache, each write is durable when it is answered.
pub(super) fn open_rbd(
    disk: &Disk,
    uri: &RbdUri,
    profile: &Profile,
    write: bool,
) -> Result<OpenDisk, LoadError> {
    let name = disk.target.to_string();
    may_write_to_server(disk, write)?;
    check_alignment(&name, profile, 512)?;
    let rbd = RbdDisk::open(uri, write)?;
    let (size, unwritten) = (ByteSize(rbd.bytes), ByteSize(0));
    Ok(OpenDisk {
        name,
        transport: Transport::Rbd(Arc::new(rbd)),
        size,
        in_memory: false,
        direct: true,
        unwritten,
    })
}

/// Logs in to an iSCSI target. The other users of the unit are not known; one that has reserved it refuses this one.
pub(super) fn open_iscsi(
    disk: &Disk,
    uri: &IscsiUri,
    profile: &Profile,
    write: bool,
) -> Result<OpenDisk, LoadError> {
    let name = disk.target.to_string();
    may_write_to_server(disk, write)?;
    let unit = iscsi::connect(uri)?.into_unit();
    if let Some(why) = unit.objection(write, profile.write_through) {
        return Err(LoadError::usage(format!("{name}: {why}")));
    }
    check_alignment(&name, profile, unit.block.into())?;
    if profile.block_size.0 > unit.most {
        return Err(LoadError::usage(format!(
            "{name}: its target takes at most {} at once, and a block has {}: use a smaller one",
            ByteSize(unit.most),
            profile.block_size
        )));
    }
    let (transport, unwritten) = (Transport::Iscsi(uri.clone()), ByteSize(0));
    Ok(OpenDisk { name, transport, size: ByteSize(unit.bytes), in_memory: false, direct: true, unwritten })
}

/// What a server has was not made by us.
fn may_write_to_server(disk: &Disk, write: bool) -> Result<(), LoadError> {
    if !write || disk.writes == WritePermission::Destroy {
        return Ok(());
    }
    Err(LoadError::usage(format!(
        "{} is a disk that Loadline did not make, and this load would overwrite its data. To allow that, add --destroy-data; \
         or use a profile that only reads (W0)",
        disk.target
    )))
}
