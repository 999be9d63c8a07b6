//! The type: everything that makes up a load, and what it is when nothing is said.

use loadline_base::units::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Data, HotSpot, OfferedRate, Pattern, WorkingSet};

/// A load on each disk of a worker. It says what is asked of the storage, not of which storage or how long.
///
/// As a table in a study every field may be left out; what is left out is as in [`Profile::default`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    /// Bytes in each I/O: 512 B to 64 MiB, a multiple of 512.
    pub block_size: ByteSize,
    /// Threads on each disk, 1 to 1024.
    pub threads: u32,
    /// I/Os that each thread keeps outstanding, 1 to 65536. With a rate, the most I/Os that each thread has outstanding.
    pub outstanding: u32,
    /// Percent of the I/Os that are writes, 0 to 100; the others are reads. It is decided for each I/O anew.
    pub write_percent: u8,
    /// Where one I/O goes after another.
    pub pattern: Pattern,
    /// Counted from the base offset, random offsets are multiples of it, and sequential ones advance by it. Not
    /// given, it is the block size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alignment: Option<ByteSize>,
    /// How much of the disk is used, from the base offset on. Not given, it is all the rest of the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set: Option<WorkingSet>,
    /// Where on the disk the working set begins, in bytes.
    pub base_offset: ByteSize,
    /// Parts of the working set that receive their own share of the I/O, one after the other from its beginning.
    /// The rest of the I/O goes to the rest of the working set. Empty: all of it is equally likely.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hot_spots: Vec<HotSpot>,
    /// The rate at which I/Os are due. Not given, each completed I/O is followed by the next at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<OfferedRate>,
    /// The content of written blocks.
    pub data: Data,
    /// Bypass the page cache (`O_DIRECT`).
    pub direct: bool,
    /// A write completes only when it is durable (`O_DSYNC`, `FILE_FLAG_WRITE_THROUGH`).
    pub write_through: bool,
    /// After this many writes a thread makes them durable with `fdatasync`. Not given, it never does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flush_every: Option<u32>,
}

impl Default for Profile {
    /// Random reads of 4 KiB, one thread with 32 outstanding on the whole disk, past the page cache.
    fn default() -> Profile {
        Profile {
            block_size: ByteSize::kib(4),
            threads: 1,
            outstanding: 32,
            write_percent: 0,
            pattern: Pattern::Random,
            alignment: None,
            working_set: None,
            base_offset: ByteSize(0),
            hot_spots: Vec::new(),
            rate: None,
            data: Data::Random,
            direct: true,
            write_through: false,
            flush_every: None,
        }
    }
}
