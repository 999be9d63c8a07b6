//! Reads without a copy: the one thing that replicas know of clients. What a replica at the owner's node reads may go to the memory
//! of the client that waits for it.

use loadline_san_core::ids::Owner;
use loadline_san_core::message::Job;
use loadline_san_device::direct_read::DirectRead;
use loadline_san_export::session::Session as _;
use loadline_san_store::store::Identity;

use super::front_ends::FrontEnds;
use super::volumes::Volumes;

/// Where blocks that a replica reads are wanted.
pub(super) trait DirectReads {
    /// The memory of the client that waits for these blocks, which the owner's job (in this session of the owner's) has asked the
    /// replica for; `None` if they are to be read into a buffer.
    fn direct_read(
        &self,
        replica: Identity,
        asked_by: (Owner, u64),
        job: Job,
        block: u64,
        blocks: u32,
    ) -> Option<DirectRead>;
}

/// By the volumes of the same loop, and their clients.
pub(super) struct LocalReads<'a> {
    pub(super) volumes: &'a Volumes,
    pub(super) front_ends: &'a FrontEnds,
    pub(super) me: Owner,
}

impl DirectReads for LocalReads<'_> {
    fn direct_read(
        &self,
        replica: Identity,
        (owner, session): (Owner, u64),
        job: Job,
        block: u64,
        blocks: u32,
    ) -> Option<DirectRead> {
        let host = self.volumes.get(replica.volume).filter(|_| owner == self.me)?;
        let (request, at) = host.volume.awaited(replica.replica, session, job, block)?;
        let at_work = host.at_work.get(&request)?;
        self.front_ends.get(at_work.client)?.session.direct_read(at_work.slot, at, blocks)
    }
}
