//! What goes over the wire between nodes, and onto disks: to bytes and back.
//!
//! Everything is little-endian, without alignment, versioned, and protected by CRC32C. Bytes are read where they are:
//! what is decoded borrows from the buffer. Data never passes through here, only the checksums of its blocks.
//!
//! Bytes are not trusted. No bytes make a decoder panic, overflow, or allocate more than they are long; and what one
//! refuses to read, its encoder refuses to write, since both ask the same check. What is decoded encodes to the same
//! bytes.
//!
//! | module | idea |
//! | --- | --- |
//! | [`header`] | what each message begins with, its checksum, what is refused |
//! | [`frame`] | a message as bytes |
//! | [`kind`] | the number of each message |
//! | [`to_replica`] | the messages of an owner |
//! | [`to_owner`] | the messages of a replica |
//! | [`record`] | a volume's record in the configuration store |
//! | [`log`] | the header of a record in a replica's log |
//! | [`device`] | what a device begins with, and where everything on it is |
//! | [`state`] | the metadata of a replica |
//! | [`slot`] | what an extent has |
//! | [`part`] | what several of these are made of |
//! | [`field`] | values that cannot be |
//!
//! `docs/reference/protocol.md` has the formats as tables.

pub mod device;
pub mod field;
pub mod frame;
pub mod header;
pub mod kind;
pub mod log;
pub mod part;
pub mod record;
pub mod slot;
pub mod state;
pub mod to_owner;
pub mod to_replica;

pub use device::{DeviceId, DiskFault};
pub use field::FieldError;
pub use frame::{Body, Frame, decode, needed};
pub use header::{ClusterId, DecodeError};
pub use to_owner::encode_to_owner;
pub use to_replica::encode_to_replica;
