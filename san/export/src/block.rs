//! What a client requests of a volume, whatever its protocol.

use loadline_san_device::pool::BlocksMut;

/// What a request does.
#[derive(Debug)]
pub enum Operation {
    /// Reads data.
    Read,
    /// Reads which blocks hold data, zeroes or nothing, without their data.
    Map,
    /// Writes this data, from the request's first sector on.
    Write(BlocksMut),
    /// Writes zeroes.
    WriteZeroes,
    /// Gives space back.
    Trim,
    /// Is complete when every write that was acknowledged before is durable.
    Flush,
}

/// A request of a client.
#[derive(Debug)]
pub struct BlockRequest {
    /// The request's place in its session, which the session chooses, and which each answer names. The session uses it again once the
    /// request is complete.
    pub slot: u32,
    /// What the request does.
    pub operation: Operation,
    /// The first sector of 512 bytes.
    pub sector: u64,
    /// The number of sectors.
    pub sectors: u32,
}
