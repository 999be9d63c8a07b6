//! What the NBD protocol calls its parts, for both ends: numbers, the request, the heads of replies.
//!
//! Everything is big-endian. The protocol is `doc/proto.md` of <https://github.com/NetworkBlockDevice/nbd>; names are
//! those of that document without their `NBD_`.

/// The port that IANA gave the protocol.
pub const PORT: u16 = 10809;
/// The most bytes of a name, a query or any other string.
pub const MOST_STRING: usize = 4096;
/// The most bytes of a request's data: what clients assume if the server names no other.
pub const MOST_DATA: u32 = 32 << 20;

/// What a server says first.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// The second magic number of a server, with which each option of a client begins too.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// What each reply to an option begins with.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// What each request begins with.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// What each simple reply begins with.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// What each chunk of a structured reply begins with.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Flags of the handshake, of server and client alike.
pub mod handshake {
    /// Unknown options are answered, and do not end the connection.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No 124 zeroes after the answer to the old way of choosing an export.
    pub const NO_ZEROES: u16 = 2;
}

/// Numbers of the options that a client sends in the handshake.
pub mod option {
    /// Choose an export, the old way: it has no error reply.
    pub const EXPORT_NAME: u32 = 1;
    /// Go away.
    pub const ABORT: u32 = 2;
    /// Which exports are there?
    pub const LIST: u32 = 3;
    /// Go on with TLS.
    pub const STARTTLS: u32 = 5;
    /// What is this export like?
    pub const INFO: u32 = 6;
    /// Choose an export.
    pub const GO: u32 = 7;
    /// Replies in chunks from now on.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Which of these contexts are there?
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose contexts for block status.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options.
pub mod reply {
    /// The server has carried out the option.
    pub const ACK: u32 = 1;
    /// An export.
    pub const SERVER: u32 = 2;
    /// What an export is like.
    pub const INFO: u32 = 3;
    /// A context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is not known here.
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    /// The option is not made as it must be.
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    /// The server accepts only TLS.
    pub const ERR_TLS_REQD: u32 = 1 << 31 | 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    /// The server cannot serve now.
    pub const ERR_SHUTDOWN: u32 = 1 << 31 | 7;
    /// The option is too long.
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

/// Kinds of information about an export.
pub mod info {
    /// Size and flags.
    pub const EXPORT: u16 = 0;
    /// The name of the export, as UTF-8.
    pub const NAME: u16 = 1;
    /// For people.
    pub const DESCRIPTION: u16 = 2;
    /// Least, preferred and greatest length of requests.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Flags of an export.
pub mod transmission {
    /// There are flags.
    pub const HAS_FLAGS: u16 = 1;
    /// Nothing may be written.
    pub const READ_ONLY: u16 = 2;
    /// There is [`FLUSH`](super::command::FLUSH).
    pub const SEND_FLUSH: u16 = 4;
    /// There is [`FUA`](super::command_flag::FUA).
    pub const SEND_FUA: u16 = 8;
    /// There is [`TRIM`](super::command::TRIM).
    pub const SEND_TRIM: u16 = 32;
    /// There is [`WRITE_ZEROES`](super::command::WRITE_ZEROES).
    pub const SEND_WRITE_ZEROES: u16 = 64;
    /// There is [`DF`](super::command_flag::DF).
    pub const SEND_DF: u16 = 128;
    /// A write that was acknowledged on one connection is seen, and flushed, by all others.
    pub const CAN_MULTI_CONN: u16 = 256;
}

/// Numbers of the commands in the transmission phase.
pub mod command {
    /// The server sends the data of the range.
    pub const READ: u16 = 0;
    /// The client sends data for the range.
    pub const WRITE: u16 = 1;
    /// Good-bye.
    pub const DISC: u16 = 2;
    /// All that was answered is to be durable.
    pub const FLUSH: u16 = 3;
    /// This is not needed any more.
    pub const TRIM: u16 = 4;
    /// This is to be zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// What is where?
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub mod command_flag {
    /// It is to be durable when it is answered.
    pub const FUA: u16 = 1;
    /// Space is to stay.
    pub const NO_HOLE: u16 = 2;
    /// The answer is to be in one chunk.
    pub const DF: u16 = 4;
    /// One extent is enough.
    pub const REQ_ONE: u16 = 8;
}

/// Chunks of structured replies.
pub mod chunk {
    /// The last of its reply: a flag.
    pub const DONE: u16 = 1;
    /// Nothing more.
    pub const NONE: u16 = 0;
    /// Data at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// A range that reads as zeroes, at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// What is where.
    pub const BLOCK_STATUS: u16 = 5;
    /// It failed.
    pub const ERROR: u16 = 1 << 15 | 1;
}

/// The context in which block status reports what is allocated.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// What block status says of a range in [`BASE_ALLOCATION`].
pub mod state {
    /// It has no space of its own.
    pub const HOLE: u32 = 1;
    /// It reads as zeroes.
    pub const ZERO: u32 = 2;
}

/// Error numbers in replies.
pub mod error {
    /// Not allowed.
    pub const PERM: u32 = 1;
    /// It could not be read or written.
    pub const IO: u32 = 5;
    /// The request is not made as it must be.
    pub const INVAL: u32 = 22;
    /// No room, or behind the end.
    pub const NOSPC: u32 = 28;
    /// The server is going.
    pub const SHUTDOWN: u32 = 108;
}

/// A request of the transmission phase, without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// [`command_flag`]s.
    pub flags: u16,
    /// A [`command`].
    pub command: u16,
    /// The client's name for it, which the reply repeats.
    pub cookie: u64,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u32,
}

impl Request {
    /// Bytes of a request.
    pub const BYTES: usize = 28;

    /// As it goes over the wire.
    pub fn encode(&self) -> [u8; Request::BYTES] {
        let mut bytes = [0; Request::BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// From the wire. `None` if these bytes are no request: what follows them cannot be understood either.
    pub fn decode(bytes: &[u8; Request::BYTES]) -> Option<Request> {
        (get_u32(bytes, 0) == REQUEST_MAGIC).then(|| Request {
            flags: get_u16(bytes, 4),
            command: get_u16(bytes, 6),
            cookie: get_u64(bytes, 8),
            offset: get_u64(bytes, 16),
            length: get_u32(bytes, 24),
        })
    }
}

/// Bytes of the head of a simple reply.
pub const SIMPLE_REPLY_BYTES: usize = 16;

/// The head of a simple reply: an [`error`] or 0.
pub fn simple_reply(error: u32, cookie: u64) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut bytes = [0; SIMPLE_REPLY_BYTES];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// Bytes of the head of a chunk.
pub const CHUNK_BYTES: usize = 20;

/// The head of a [`chunk`] with so many bytes behind it.
pub fn chunk_head(flags: u16, kind: u16, cookie: u64, length: u32) -> [u8; CHUNK_BYTES] {
    let mut bytes = [0; CHUNK_BYTES];
    bytes[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// The number at this byte. Panics if the bytes end before.
pub fn get_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

/// The number at this byte. Panics if the bytes end before.
pub fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The number at this byte. Panics if the bytes end before.
pub fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
