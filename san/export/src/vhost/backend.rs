//! What a front-end's messages have set: features, memory, queues. The vhost crate reads the messages, and calls this.

use std::cell::RefCell;
use std::fs::File;

use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures as Protocol, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddrFlags,
    VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result as Handled, VhostUserBackendReqHandler};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use super::answer::Notes;
use super::dirty::DirtyLog;
use super::inflight::InFlight;
use super::memory::{MOST_REGIONS, Memory, Place, Reason};
use super::queue::{Places, Queue};
use super::request::MOST_ZEROED;
use crate::session::Attachment;

/// Queues that are offered.
pub(super) const MOST_QUEUES: u16 = 16;
/// Segments of a request's data that are asked for; with the header and the result they fill QEMU's smallest queues.
const SEGMENTS: u32 = 126;
/// 2 to the power of this are the sectors of a physical block: 4 KiB.
const BLOCK_EXPONENT: u8 = 3;

const FEATURES: u64 = 1 << VIRTIO_F_VERSION_1
    | 1 << VIRTIO_RING_F_INDIRECT_DESC
    | 1 << VIRTIO_RING_F_EVENT_IDX
    | 1 << VIRTIO_BLK_F_SEG_MAX
    | 1 << VIRTIO_BLK_F_BLK_SIZE
    | 1 << VIRTIO_BLK_F_FLUSH
    | 1 << VIRTIO_BLK_F_TOPOLOGY
    | 1 << VIRTIO_BLK_F_MQ
    | 1 << VIRTIO_BLK_F_DISCARD
    | 1 << VIRTIO_BLK_F_WRITE_ZEROES
    | VhostUserVirtioFeatures::LOG_ALL.bits()
    | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

fn protocol_features() -> Protocol {
    Protocol::MQ
        | Protocol::LOG_SHMFD
        | Protocol::REPLY_ACK
        | Protocol::CONFIG
        | Protocol::INFLIGHT_SHMFD
        | Protocol::RESET_DEVICE
        | Protocol::CONFIGURE_MEM_SLOTS
}

/// All that messages set.
#[derive(Debug)]
pub(super) struct BackendState {
    /// Bytes of the disk.
    bytes: u64,
    attachment: Attachment,
    features: u64,
    pub(super) memory: Memory,
    pub(super) queues: Vec<Queue>,
    pub(super) kept: Option<InFlight>,
    log: Option<DirtyLog>,
    /// The eventfd by which the front-end wants to be notified of bits that are set in the log.
    pub(super) log_bell: Option<File>,
    /// Messages that ask for an answer get one, also those that need none.
    pub(super) answers_all: bool,
    /// Why the last message was refused, for people.
    pub(super) refused: Option<Reason>,
}

/// The state of one front-end's connection, which the vhost crate changes through a shared reference. It belongs to one thread.
#[derive(Debug)]
pub(super) struct Backend(pub(super) RefCell<BackendState>);

impl BackendState {
    fn has(&self, feature: u32) -> bool {
        self.features & 1 << feature != 0
    }

    /// What was begun, and is begun from now on, belongs to this attachment.
    pub(super) fn attached(&mut self, attachment: Attachment) {
        self.attachment = attachment;
        if let Some(kept) = &self.kept {
            kept.stamp(&attachment);
        }
    }

    /// Begins the queues for which all settings have arrived.
    fn begin(&mut self) -> Result<(), Reason> {
        let event_index = self.has(VIRTIO_RING_F_EVENT_IDX);
        let Some(mapped) = self.memory.mapped().cloned() else { return Ok(()) };
        for (number, queue) in (0..).zip(&mut self.queues) {
            queue.begin(number, event_index, &mapped, self.kept.as_ref())?;
        }
        self.mark_rings()
    }

    /// The queues, and where answers to their requests are noted.
    pub(super) fn split(&mut self) -> (&mut [Queue], Notes<'_>) {
        let log = if self.logs() { self.log.as_ref() } else { None };
        (&mut self.queues, Notes { kept: self.kept.as_ref(), log })
    }

    /// Whether the front-end wants to know what is written of its guest's memory.
    pub(super) fn logs(&self) -> bool {
        self.features & VhostUserVirtioFeatures::LOG_ALL.bits() != 0
    }

    /// Whether the front-end wants a log, and has not shared the memory for it yet: nothing may be written until it has (rule H3).
    pub(super) fn lacks_log(&self) -> bool {
        self.logs() && self.log.is_none()
    }

    /// Where what is written of the guest's memory is logged; `None` if the front-end wants no log.
    pub(super) fn log(&self) -> Option<&DirtyLog> {
        self.log.as_ref().filter(|_| self.logs())
    }

    /// The log begins, or a queue does: what was written of used rings before may be in no log. A former process may have written it
    /// and have ended before it set the bits.
    fn mark_rings(&self) -> Result<(), Reason> {
        let Some(log) = self.log() else { return Ok(()) };
        let marked = self.queues.iter().try_for_each(|queue| queue.mark_all_used(log));
        marked.map_err(|_| "its log has no room for the memory in which there are queues".into())
    }

    /// As if it had just come; but what it keeps of requests in flight stays as it is.
    fn reset(&mut self) {
        for queue in &mut self.queues {
            queue.reset();
        }
        (self.features, self.log, self.log_bell) = (0, None, None);
    }

    fn queue(&mut self, index: u32) -> Result<&mut Queue, Reason> {
        self.queues.get_mut(index as usize).ok_or_else(|| format!("there are only {MOST_QUEUES} queues"))
    }

    /// The configuration space (virtio 1.2, 5.2.4).
    fn config(&self) -> Vec<u8> {
        let mut config = Vec::with_capacity(60);
        config.extend((self.bytes / 512).to_le_bytes());
        config.extend(0_u32.to_le_bytes()); // the longest segment: not offered
        config.extend(SEGMENTS.to_le_bytes());
        config.extend([0; 4]); // geometry: not offered
        config.extend(512_u32.to_le_bytes());
        config.extend([BLOCK_EXPONENT, 0]);
        config.extend((1_u16 << BLOCK_EXPONENT).to_le_bytes()); // the least that is written as it is
        config.extend(0_u32.to_le_bytes()); // the best length: any
        config.extend([0, 0]); // the cache's mode: not offered
        config.extend(MOST_QUEUES.to_le_bytes());
        config.extend(MOST_ZEROED.to_le_bytes()); // discard: the most sectors, segments, and their alignment
        config.extend(1_u32.to_le_bytes());
        config.extend((1_u32 << BLOCK_EXPONENT).to_le_bytes());
        config.extend(MOST_ZEROED.to_le_bytes()); // write zeroes: the most sectors, segments; and it may unmap
        config.extend(1_u32.to_le_bytes());
        config.extend([1, 0, 0, 0]);
        config
    }
}

impl Backend {
    pub(super) fn new(bytes: u64, attachment: Attachment) -> Backend {
        let state = BackendState {
            bytes,
            attachment,
            features: 0,
            memory: Memory::default(),
            queues: (0..MOST_QUEUES).map(|_| Queue::new()).collect(),
            kept: None,
            log: None,
            log_bell: None,
            answers_all: false,
            refused: None,
        };
        Backend(RefCell::new(state))
    }

    /// Sets something. Why it is refused is kept for people.
    fn set(&self, set: impl FnOnce(&mut BackendState) -> Result<(), Reason>) -> Handled<()> {
        let mut state = self.0.borrow_mut();
        set(&mut state).map_err(|reason| {
            state.refused = Some(reason);
            Error::InvalidParam
        })
    }
}

fn place(region: &VhostUserMemoryRegion) -> Place {
    Place {
        guest: region.guest_phys_addr,
        user: region.user_addr,
        bytes: region.memory_size,
        offset: region.mmap_offset,
    }
}

const NOT_OFFERED: Error = Error::InvalidOperation("it was not offered");

impl VhostUserBackendReqHandler for Backend {
    fn set_owner(&self) -> Handled<()> {
        Ok(())
    }

    fn reset_owner(&self) -> Handled<()> {
        self.reset_device()
    }

    fn reset_device(&self) -> Handled<()> {
        self.0.borrow_mut().reset();
        Ok(())
    }

    fn get_features(&self) -> Handled<u64> {
        Ok(FEATURES)
    }

    fn set_features(&self, features: u64) -> Handled<()> {
        self.set(|state| {
            if features & !FEATURES != 0 {
                return Err(format!("it wants features that were not offered: {:#x}", features & !FEATURES));
            }
            state.features = features;
            if !state.logs() {
                state.log = None;
            }
            // A front-end that does not begin queues one by one has them at once.
            if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
                state.queues.iter_mut().for_each(|queue| queue.enabled = true);
            }
            state.mark_rings()
        })
    }

    fn set_mem_table(
        &self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Handled<Option<Vec<VhostUserMemoryRegionBase>>> {
        self.set(|state| {
            state.memory.replace(regions.iter().map(place).zip(files).collect())?;
            state.begin()
        })?;
        Ok(None)
    }

    fn set_vring_num(&self, index: u32, num: u32) -> Handled<()> {
        self.set(|state| {
            let queue = state.queue(index)?;
            not_running(queue)?;
            queue.set_size(num)
        })
    }

    fn set_vring_addr(
        &self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Handled<()> {
        self.set(|state| {
            let BackendState { memory, queues, .. } = state;
            let queue = queues.get_mut(index as usize);
            let queue = queue.ok_or_else(|| format!("there are only {MOST_QUEUES} queues"))?;
            let used_log = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG).then_some(log);
            queue.set_places(Places { descriptors, available, used }, used_log, memory)?;
            state.mark_rings()
        })
    }

    fn set_vring_base(&self, index: u32, base: u32) -> Handled<()> {
        self.set(|state| {
            let queue = state.queue(index)?;
            not_running(queue)?;
            let base = u16::try_from(base).map_err(|_| "a queue's index has 16 bits")?;
            queue.set_base(base);
            Ok(())
        })
    }

    fn get_vring_base(&self, index: u32) -> Handled<VhostUserVringState> {
        let mut base = 0;
        self.set(|state| {
            base = state.queue(index)?.end();
            Ok(())
        })?;
        Ok(VhostUserVringState::new(index, base.into()))
    }

    fn set_vring_kick(&self, index: u8, fd: Option<File>) -> Handled<()> {
        self.set(|state| {
            state.queue(index.into())?.set_kick(fd)?;
            state.begin()
        })
    }

    fn set_vring_call(&self, index: u8, fd: Option<File>) -> Handled<()> {
        self.set(|state| state.queue(index.into())?.set_call(fd))
    }

    fn set_vring_err(&self, index: u8, _: Option<File>) -> Handled<()> {
        // A queue that is broken ends the connection.
        self.set(|state| state.queue(index.into()).map(|_| ()))
    }

    fn get_protocol_features(&self) -> Handled<Protocol> {
        Ok(protocol_features())
    }

    fn set_protocol_features(&self, features: u64) -> Handled<()> {
        self.set(|state| match features & !protocol_features().bits() {
            0 => {
                state.answers_all = features & Protocol::REPLY_ACK.bits() != 0;
                Ok(())
            }
            unknown => Err(format!("it wants features of the protocol that were not offered: {unknown:#x}")),
        })
    }

    fn get_queue_num(&self) -> Handled<u64> {
        Ok(MOST_QUEUES.into())
    }

    fn set_vring_enable(&self, index: u32, enable: bool) -> Handled<()> {
        self.set(|state| {
            state.queue(index)?.enabled = enable;
            state.begin()
        })
    }

    fn get_config(&self, offset: u32, size: u32, _: VhostUserConfigFlags) -> Handled<Vec<u8>> {
        let mut config = self.0.borrow().config();
        let (offset, size) = (offset as usize, size as usize);
        // Fields that this device does not have read as nothing.
        let end = offset.checked_add(size).filter(|end| *end <= 256).ok_or(Error::InvalidParam)?;
        config.resize(256, 0);
        Ok(config[offset..end].to_vec())
    }

    fn set_config(&self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Handled<()> {
        self.set(|_| Err("nothing of the configuration can be changed".into()))
    }

    fn set_gpu_socket(&self, _: GpuBackend) -> Handled<()> {
        Err(NOT_OFFERED)
    }

    fn get_shared_object(&self, _: VhostUserSharedMsg) -> Handled<File> {
        Err(NOT_OFFERED)
    }

    fn get_inflight_fd(&self, wanted: &VhostUserInflight) -> Handled<(VhostUserInflight, File)> {
        let VhostUserInflight { num_queues, queue_size, .. } = *wanted;
        let mut made = None;
        self.set(|_| {
            if !(1..=MOST_QUEUES).contains(&num_queues)
                || !(1..=super::queue::MOST_DESCRIPTORS).contains(&queue_size)
            {
                return Err(
                    "it wants to keep requests of more queues than are offered, or longer ones".into()
                );
            }
            let file = InFlight::file(num_queues, queue_size)
                .map_err(|error| format!("there is no memory to keep requests in flight: {error}"))?;
            made = Some(file);
            Ok(())
        })?;
        let bytes = InFlight::bytes(num_queues, queue_size) as u64;
        let file = made.ok_or(Error::BackendInternalError)?;
        Ok((VhostUserInflight::new(bytes, 0, num_queues, queue_size), file))
    }

    fn set_inflight_fd(&self, kept: &VhostUserInflight, file: File) -> Handled<()> {
        let VhostUserInflight { mmap_offset, num_queues, queue_size, .. } = *kept;
        self.set(|state| {
            if state.queues.iter().any(|queue| queue.running) {
                return Err("it changes where requests in flight are kept while its queues run".into());
            }
            if num_queues > MOST_QUEUES || queue_size > super::queue::MOST_DESCRIPTORS {
                return Err("it keeps requests of more queues than are offered, or longer ones".into());
            }
            let mapped = InFlight::map(file, mmap_offset, num_queues, queue_size, &state.attachment);
            state.kept =
                Some(mapped.map_err(|error| format!("what it keeps of requests in flight: {error}"))?);
            Ok(())
        })
    }

    fn get_max_mem_slots(&self) -> Handled<u64> {
        Ok(MOST_REGIONS as u64)
    }

    fn add_mem_region(
        &self,
        region: &VhostUserSingleMemoryRegion,
        fd: File,
        _: Option<bool>,
    ) -> Handled<Option<VhostUserMemoryRegionBase>> {
        self.set(|state| {
            state.memory.add(place(region), fd)?;
            state.begin()
        })?;
        Ok(None)
    }

    fn remove_mem_region(&self, region: &VhostUserSingleMemoryRegion) -> Handled<()> {
        self.set(|state| state.memory.remove(place(region)))
    }

    fn set_device_state_fd(
        &self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Handled<Option<File>> {
        Err(NOT_OFFERED)
    }

    fn check_device_state(&self) -> Handled<()> {
        Err(NOT_OFFERED)
    }

    fn get_shmem_config(&self) -> Handled<VhostUserShMemConfig> {
        Err(NOT_OFFERED)
    }

    fn set_log_base(&self, log: &VhostUserLog, file: File) -> Handled<()> {
        self.set(|state| {
            state.log = Some(DirtyLog::map(&file, log.mmap_offset, log.mmap_size)?);
            state.mark_rings()
        })
    }
}

fn not_running(queue: &Queue) -> Result<(), Reason> {
    if queue.running { Err("it moves a queue that is in use".into()) } else { Ok(()) }
}
