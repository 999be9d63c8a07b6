//! What can be seen of a store from outside, without asking it to do anything.

use std::ops::Range;

use loadline_san_core::ids::{Epoch, Position};
use loadline_san_core::message::Mention;
use loadline_san_protocol::slot::BlockState;

use crate::io::{Area, Data};
use crate::store::read::BlockSource;
use crate::store::scrub::Scrubbed;
use crate::store::throttle::WriteLimit;
use crate::store::{Current, Health, Identity, Store};

/// How full a store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Of these, what is not destaged and freed.
    pub log_used: u64,
    /// Bytes of the log that were destaged and freed, since it was opened.
    pub destaged: u64,
    /// What has slowed writers down in the last two ticks.
    pub limit: WriteLimit,
    /// Extents that have a place on the device.
    pub extents: u64,
    /// Places that the replica has and does not use.
    pub free_extents: u64,
    /// There is room for what an owner may have in flight, and the device has no more.
    pub full: bool,
}

impl<D: Data> Store<D> {
    /// Which replica it is.
    pub fn identity(&self) -> Identity {
        self.id
    }

    /// The random bits that it was made with.
    pub fn key(&self) -> u64 {
        self.meta.state.key
    }

    /// Blocks of its group, at most.
    pub fn blocks(&self) -> u64 {
        self.meta.state.blocks
    }

    /// Up to here all entries are acknowledged, as far as it knows.
    pub fn commit_point(&self) -> Position {
        self.known.commit_point
    }

    /// What is to be copied to it, in rising order.
    pub fn list(&self) -> impl Iterator<Item = Range<u64>> {
        self.meta.list().iter()
    }

    /// The entries of its log that count, in the order of the log.
    pub fn entries(&self) -> impl Iterator<Item = Mention> {
        self.log.iter().filter(|(_, record)| record.counts()).map(|(number, record)| record.mention(number))
    }

    /// Where on the log's device the header of a record that is in the log is, in bytes, and how long the record is.
    pub fn record_at(&self, number: u64) -> Option<(u64, u64)> {
        let record = self.log.get(number)?;
        Some((self.ring_at(record.at), self.log.length_of(number)))
    }

    /// A later durable record states that the records up to this number are durable. If one of them cannot be found, it
    /// was lost.
    pub fn covered(&self) -> u64 {
        self.covered
    }

    /// The epoch that the extent of a block is stamped with, or that it was freed under.
    pub fn stamp(&self, block: u64) -> Option<Epoch> {
        let extent = self.extents.locate(block).0;
        let stored = self.extents.place(extent).map(|place| self.extents.at(place));
        match stored.filter(|extent| extent.stored) {
            Some(extent) => Some(extent.slot.stamp),
            None => self.meta.tombstones().get(&extent).copied(),
        }
    }

    /// Where on the device the slot of a block's extent is, in bytes, if it has a place.
    pub fn slot_of(&self, block: u64) -> Option<u64> {
        let place = self.extents.place(self.extents.locate(block).0)?;
        Some(self.extents.slot_at(place))
    }

    /// What a block has now.
    pub fn look_up(&self, block: u64) -> BlockSource {
        self.find(block)
    }

    /// Blocks whose data is in extents, and not in the log too.
    pub fn destaged(&self) -> impl Iterator<Item = u64> {
        let has_data = |block: &u64| {
            self.index.newest(*block).is_none()
                && matches!(self.extents.block(*block), Some((_, BlockState::Data, _)))
        };
        (0..self.meta.state.blocks).filter(has_data)
    }

    /// The results of scrubbing the extents.
    pub fn scrubbed(&self) -> Scrubbed {
        self.scrub.scrubbed
    }

    /// How often blocks did not match their checksums when they were read, since it was opened.
    pub fn corrupt(&self) -> u64 {
        self.corrupt
    }

    /// How full it is.
    pub fn fill(&self) -> Fill {
        Fill {
            log_bytes: self.log.ring(),
            log_used: self.log.used(),
            destaged: self.destage.freed(),
            limit: self.throttle.limit(),
            extents: self.extents.mapped(),
            free_extents: self.extents.free(),
            full: self.growth.is_full(),
        }
    }

    /// A write waits because the log fills up.
    pub fn has_write_that_waits(&self) -> bool {
        self.throttle.waits()
    }

    /// Nothing that was asked of it is left to be done.
    pub fn is_idle(&self) -> bool {
        let changes = self.queue.is_empty() && matches!(self.current, Current::Nothing);
        self.health != Health::Well || changes && self.reads.are_idle()
    }

    /// Destaging goes on until the log has nothing that can be destaged. It goes on by itself only when the log is filled
    /// to some degree, or when nothing else is to be done.
    pub fn destage_soon(&mut self) {
        self.destage.hurry();
    }

    /// Why it has failed, if it has.
    pub fn why_failed(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// The device that has failed, if that is why.
    pub fn failed_area(&self) -> Option<Area> {
        self.failed_area
    }

    /// So many bytes of the extents are scrubbed in each tick from now on ([`Settings::scrub`](crate::store::Settings::scrub)): a caller with several stores
    /// on a device shares out what it can bear.
    pub fn scrub_at(&mut self, bytes: u64) {
        self.settings.scrub = bytes;
    }

    /// Whether the scrub checks what the log has of blocks too, where it is in the log: at first it does not.
    pub fn scrub_with_log(&mut self, with_log: bool) {
        self.scrub.with_log(with_log);
    }

    /// The scrub begins anew, at the first.
    pub fn scrub_anew(&mut self) {
        self.scrub.begin_anew();
    }

    /// Bytes of the extents that have a place on the device.
    pub fn extent_bytes(&self) -> u64 {
        self.extents.mapped() * self.extents.blocks() * loadline_san_core::layout::BLOCK
    }

    /// So much of what comes from now on is kept in memory until it is destaged
    /// ([`Settings::held`](crate::store::Settings::held)): without memory to spare, let it keep nothing.
    pub fn hold(&mut self, bytes: u64) {
        self.settings.held = bytes;
    }

    /// A round of destaging is under way.
    pub fn is_destaging(&self) -> bool {
        self.destage.is_active()
    }

    /// It was found damaged when it was opened, and it was not salvaged or emptied since.
    pub fn is_damaged(&self) -> bool {
        self.health == Health::Damaged
    }

    /// Where on the device the slots of all its places are, in bytes, used or not.
    pub fn slots(&self) -> impl Iterator<Item = u64> {
        self.extents.places().map(|place| self.extents.slot_at(place))
    }

    /// It has failed, and does nothing any more: see [`why_failed`](Self::why_failed).
    pub fn has_failed(&self) -> bool {
        self.health == Health::Failed
    }
}
