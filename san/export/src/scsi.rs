//! The SCSI disk that a volume is, without a transport: commands in, block requests out; data and statuses are the answers.
//!
//! ```text
//!   command ─▶ Task::begin ─▶ Step ─┬─ Data   ─▶ the transport receives  ─▶ Task::data        ─┐
//!                              ▲    ├─ Block  ─▶ the volume carries out  ─▶ Task::carried_out ─┤
//!                              │    ├─ Change ─▶ the configuration       ─▶ Task::changed     ─┤
//!                              │    ├─ Wait   ─▶ another task has ended  ─▶ Task::resume      ─┤
//!                              │    └─ Done   ─▶ the answer                                    │
//!                              └───────────────────────────────────────────────────────────────┘
//! ```
//!
//! | module | idea |
//! | --- | --- |
//! | [`mod@unit`] | what all sessions of a volume share: who is there, what is locked, what each is to be told |
//! | [`task`] | a command that is carried out, step by step |
//! | [`reservations`] | persistent reservations: the state that the configuration keeps, and its rules |
//! | [`inquiry`] | what the unit says that it is |
//! | `about`, `attention`, `locks` | its names and ports; unit attentions; blocks that a task has for itself |
//! | `cdb`, `start`, `step`, `work` | which commands there are; from a command to its first step; what passes to and fro meanwhile |
//! | `write`, `compare`, `write_same` | commands that take several steps |
//! | `capacity`, `modes`, `opcodes`, `ports`, `reserve_in`, `reserve_out` | the data of one family of commands each |
//!
//! There is one unit, LUN 0. A logical block has 512 bytes, a physical one 4 KiB. Nothing is cached: what is acknowledged is durable. The
//! standards are SAM-5, SPC-4 and SBC-3 of INCITS T10.

mod about;
mod attention;
mod capacity;
mod cdb;
mod compare;
pub mod inquiry;
mod locks;
mod modes;
mod opcodes;
mod ports;
pub mod reservations;
mod reserve_in;
mod reserve_out;
mod start;
mod step;
pub mod task;
#[cfg(test)]
mod testing;
pub mod unit;
mod work;
mod write;
mod write_same;

/// Bytes of a logical block.
pub const SECTOR: u32 = 512;

/// The most blocks of a COMPARE AND WRITE.
const MOST_COMPARED: u8 = 1;
/// The most blocks of an UNMAP: 512 MiB.
const MOST_UNMAPPED: u32 = 1 << 20;
/// The most ranges of an UNMAP.
const MOST_UNMAP_RANGES: u32 = 256;
/// The most blocks of a WRITE SAME: 16 MiB.
const MOST_SAME: u32 = 1 << 15;
