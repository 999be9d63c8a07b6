//! What a client asks of a volume, by whatever way.

use loadline_san_device::pool::BlocksMut;

/// What a client asks for.
#[derive(Debug)]
pub enum What {
    /// Data.
    Read,
    /// What the blocks hold, without their data.
    Map,
    /// To write this, from the first sector on.
    Write(BlocksMut),
    /// To write zeroes.
    WriteZeroes,
    /// To give space back.
    Trim,
    /// That all it was told to be written is durable.
    Flush,
}

/// A request for the volume.
#[derive(Debug)]
pub struct Asked {
    /// Its place in the session, to be told with its answers. It is used again when this request is complete.
    pub slot: u32,
    /// What.
    pub what: What,
    /// The first sector of 512 bytes.
    pub sector: u64,
    /// How many.
    pub sectors: u32,
}
