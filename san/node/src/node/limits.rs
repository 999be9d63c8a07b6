//! Limits of the process that a node needs, checked before it has a new life: one that is missing would end the process in the
//! middle of something.

use loadline_base::limits;
use loadline_base::units::ByteSize;

use super::NodeError;

/// Open files that a node needs: its configuration, its rings, its listeners, some devices, nodes and clients.
const OPEN_FILES: u64 = 256;
/// Bytes of addresses that each loop maps: its buffers (88 MiB, and 224 MiB in reserve), its stack, its ring, and what its
/// thread allocates.
const LOOP_ADDRESSES: u64 = 448 << 20;
/// Bytes of addresses for the rest of the process.
const ADDRESSES: u64 = 256 << 20;

/// An error if this process may use too little for a node with so many loops.
pub(super) fn check(loops: u32) -> Result<(), NodeError> {
    let files = limits::open_files();
    if files < OPEN_FILES {
        return Err(NodeError::Limit(format!(
            "this process may have {files} open files (RLIMIT_NOFILE), and a node needs {OPEN_FILES} at least, with one more for each \
             client: raise the hard limit, with `ulimit -Hn 65536` as root, in /etc/security/limits.conf, or with LimitNOFILE= for a \
             service"
        )));
    }
    let needed = u64::from(loops) * LOOP_ADDRESSES + ADDRESSES;
    if let Some(left) = limits::addresses_left().filter(|left| *left < needed) {
        return Err(NodeError::Limit(format!(
            "the limit of address space (RLIMIT_AS) leaves {} to this process, but a node with {loops} loops needs {}: raise \
             the limit (ulimit -v unlimited, or LimitAS= for a service)",
            ByteSize(left).rounded(),
            ByteSize(needed).rounded()
        )));
    }
    Ok(())
}
