//! How a store behaves: when it destages, what it keeps in memory, how fast it scrubs.

/// How a store behaves. None of it is on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Destaging begins when the log is filled to so many per cent and a round's bytes. Writers are slowed down from half of the way
    /// between that and `high` on.
    pub low: u8,
    /// It begins at the latest when the log has so many bytes and a round's: what is held by then need not be read again for it.
    /// And while nothing can be held, as soon as there are a few MiB.
    pub begin: u64,
    /// From so many per cent on writers get no more than what destaging frees.
    pub high: u8,
    /// Bytes of the log that are destaged together, at most; a quarter of the log, if that is less. The more there are, the
    /// more of them are written over meanwhile, or are adjacent.
    pub round: u64,
    /// What the device is asked to write at the same time while little is to be destaged. More keep appends waiting at it.
    pub at_once: u64,
    /// Bytes of data at most that are kept in memory until they are destaged, so that they need not be read again for it.
    pub held: u64,
    /// Bytes of data that are read from the log at once to be destaged, in the log's order, if they are not held: twice as much is
    /// in memory. 0: each extent's are read alone.
    pub recall: u64,
    /// Destaging begins also when nothing else is to be done.
    pub when_idle: bool,
    /// Free extents below which the replica reports that its device is full: as many as the writes that an owner has in flight
    /// may need, and the copies that a return may bring all the same. Not more than the extents that the volume has and this
    /// replica does not: a replica that got a place for each of its extents is never full.
    pub spare: u64,
    /// The device has room for a place for each extent of each of its replicas: it was not promised twice. Then places are taken as
    /// the volume is written, and the room that the device has left counts as free places. Otherwise `spare` places are taken
    /// before they are needed, since another replica could take them meanwhile.
    pub is_promised: bool,
    /// Extents that the volume has in this group, which may be fewer than the group has room for. A write beyond them raises
    /// this to the group's: a volume that grows may write there before this replica gets its new size.
    pub extents: u64,
    /// Bytes of the extents that a scrub checks in each tick; 0: none.
    pub scrub: u64,
    /// Appends that are written together, at most.
    pub together: usize,
    /// Ranges in one answer to `Changed`.
    pub ranges: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            low: 30,
            begin: 64 << 20,
            high: 70,
            round: 64 << 20,
            at_once: 4,
            held: 32 << 20,
            recall: 4 << 20,
            when_idle: true,
            spare: 2048,
            is_promised: false,
            extents: u64::MAX,
            // With ten ticks a second, a TiB in a day and a half.
            scrub: 800 << 10,
            together: 256,
            ranges: 1024,
        }
    }
}
