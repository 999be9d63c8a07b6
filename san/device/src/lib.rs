//! The devices of replicas: opened for exclusive use, and what stores ask of them carried out.
//!
//! | module | idea |
//! | --- | --- |
//! | [`pool`] | memory for blocks, aligned for direct I/O, each block with its checksum; nothing is allocated for each |
//! | [`mod@file`] | a device: opened, locked, checked, and read and written at once |
//! | [`direct`] | carries out requests at once: for files that live in memory |
//! | `mapping` | such a file, mapped |
//! | `huge` | makes huge pages of it, on a thread of its own |
//! | [`uring`] | carries out requests by io_uring: for disks |
//! | [`model`] | a device that behaves as a data sheet says: its completions are held back |
//! | [`direct_read`] | memory of others, into which such a file is read without a copy between |
//! | [`shape`] | the lengths of a message: head and data |
//! | [`receive_buffer`] | what is received: small heads, and data put where it stays |
//! | `receive_ahead` | room for messages that are likely to come next |
//! | [`outbox`] | what is to be sent: small heads, and data where it lies |
//!
//! All of it but `huge` and `model` belongs to one thread.

pub mod direct;
pub mod direct_read;
pub mod file;
mod huge;
mod mapping;
pub mod model;
pub mod outbox;
pub mod pool;
mod receive_ahead;
pub mod receive_buffer;
pub mod shape;
pub mod uring;
mod vectors;
