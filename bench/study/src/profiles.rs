//! How a study writes down its loads as tables.

use loadline_base::units::ByteSize;
use loadline_profile::{Data, HotSpot, OfferedRate, Pattern, Profile, WorkingSet};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::{Name, ProfileName};

/// A load as a table: begin with the load that `use` names (or a random read of 4 KiB, one thread with 32
/// outstanding), and change what is given.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProfileEntry {
    /// The name in the report. [default: a name made of the values]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// The load that this one begins with, by its name.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub base: Option<ProfileName>,
    /// Bytes in each I/O: 512 B to 64 MiB, a multiple of 512.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<ByteSize>,
    /// Threads on each disk, 1 to 1024.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// I/Os that each thread keeps outstanding; with a rate, the most I/Os that each thread has outstanding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outstanding: Option<u32>,
    /// Percent of the I/Os that are writes, 0 to 100; the others are reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_percent: Option<u8>,
    /// Where one I/O goes after another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<Pattern>,
    /// Random offsets are multiples of this size, and sequential ones advance by it. Not given, it is the block size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alignment: Option<ByteSize>,
    /// How much of each disk is used, such as `10%` or `4GiB`. Not given, all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set: Option<WorkingSet>,
    /// Where on the disk the working set begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_offset: Option<ByteSize>,
    /// Parts of the working set that receive their own share of the I/O, one after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hot_spots: Option<Vec<HotSpot>>,
    /// The rate that each worker offers over all its disks, such as `2000iops` or `100MB/s poisson`. Not given,
    /// each completed I/O is followed by the next at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<OfferedRate>,
    /// The content of written blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Data>,
    /// Bypass the page cache (`O_DIRECT`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<bool>,
    /// A write completes only when it is durable (`O_DSYNC`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_through: Option<bool>,
    /// After this many writes a thread makes them durable with `fdatasync`. Not given, it never does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flush_every: Option<u32>,
}

impl ProfileEntry {
    /// The load that the table describes.
    pub(crate) fn profile(&self) -> Profile {
        let base = self.base.as_ref().map(|name| name.profile().clone()).unwrap_or_default();
        // Every field by name: a new one in a profile must be thought of here.
        Profile {
            block_size: self.block_size.unwrap_or(base.block_size),
            threads: self.threads.unwrap_or(base.threads),
            outstanding: self.outstanding.unwrap_or(base.outstanding),
            write_percent: self.write_percent.unwrap_or(base.write_percent),
            pattern: self.pattern.unwrap_or(base.pattern),
            alignment: self.alignment.or(base.alignment),
            working_set: self.working_set.or(base.working_set),
            base_offset: self.base_offset.unwrap_or(base.base_offset),
            hot_spots: self.hot_spots.clone().unwrap_or(base.hot_spots),
            rate: self.rate.or(base.rate),
            data: self.data.unwrap_or(base.data),
            direct: self.direct.unwrap_or(base.direct),
            write_through: self.write_through.unwrap_or(base.write_through),
            flush_every: self.flush_every.or(base.flush_every),
        }
    }
}
