//! The number of each message. A number is never used again for another message.

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
#[expect(missing_docs, reason = "each is the message of that name in core; `ChangedIs` answers `Changed`")]
pub enum Kind {
    // To a replica.
    Hello = 1,
    Seal = 2,
    Entry = 3,
    OutOfBand = 4,
    Heartbeat = 5,
    Read = 6,
    Fetch = 7,
    Return = 8,
    Changed = 9,
    Joined = 10,
    Release = 11,
    Probe = 12,
    Map = 13,
    Remember = 14,
    // To an owner.
    Welcome = 257,
    Sealed = 258,
    Durable = 259,
    Alive = 260,
    Data = 261,
    Listed = 262,
    ChangedIs = 263,
    Refused = 264,
    Stranger = 265,
    Failed = 266,
    Probed = 267,
    Corrupt = 268,
    Damaged = 269,
    Mapped = 270,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 28] = [
        Kind::Hello,
        Kind::Seal,
        Kind::Entry,
        Kind::OutOfBand,
        Kind::Heartbeat,
        Kind::Read,
        Kind::Fetch,
        Kind::Return,
        Kind::Changed,
        Kind::Joined,
        Kind::Release,
        Kind::Probe,
        Kind::Map,
        Kind::Remember,
        Kind::Welcome,
        Kind::Sealed,
        Kind::Durable,
        Kind::Alive,
        Kind::Data,
        Kind::Listed,
        Kind::ChangedIs,
        Kind::Refused,
        Kind::Stranger,
        Kind::Failed,
        Kind::Probed,
        Kind::Corrupt,
        Kind::Damaged,
        Kind::Mapped,
    ];

    /// The number of the kind on the wire.
    pub fn code(self) -> u16 {
        self as u16
    }

    /// The one with this number.
    pub fn from_code(code: u16) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Whether an owner sends it; otherwise a replica does.
    pub fn is_to_replica(self) -> bool {
        self.code() < Kind::Welcome.code()
    }
}
