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

pub mod reservations;
pub mod task;
pub mod unit;

/// Bytes of a logical block.
pub const SECTOR: u32 = 512;
