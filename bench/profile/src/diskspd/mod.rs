//! DISKSPD command lines.
//!
//! Each flag means what it means to DISKSPD 2.2 (its usage text and its wiki, "Command line and parameters"):
//!
//! | flag | meaning |
//! | --- | --- |
//! | `-b` | block size, 64K by default |
//! | `-t`, `-F` | threads for each target, 1 by default; threads in all, each of which serves every target |
//! | `-o` | outstanding I/Os for each thread *and* target, 2 by default |
//! | `-w` | percent of writes, 0 by default |
//! | `-r`, `-rs`, `-rd` | random with its alignment; percent of random among sequential; distribution |
//! | `-s`, `-si` | sequential stride of each thread; of all threads of a target together |
//! | `-B`, `-f` | first byte used, and after a colon how many; end of what is used, counted from the beginning |
//! | `-g` | most bytes a millisecond, or with `i` IOPS, for each thread and target |
//! | `-S` | `u` no page cache, `w` write through, `h` both, `b` page cache; the cache is used by default |
//! | `-Z` | zeros; `-Zr` random in each I/O; `-Z<size>` from a random buffer; counting bytes by default |
//! | `-W`, `-d`, `-C` | seconds of warm-up (5 by default), measurement (10), cool-down (0) |
//! | `-c`, `-z` | size with which the targets are created; random seed |
//!
//! Sizes take `K`, `M`, `G`, `T` (binary) or `b` (blocks). Flags begin with `-`; the form with `/` is not read,
//! since on Linux it is a path.

mod print;
mod read;
mod words;

pub use print::print;
pub use read::{parse, parse_over};
pub(crate) use words::is_program;

/// Where DISKSPD's mix of random and sequential I/O differs from ours.
const RUNS: &str =
    "under -rs DISKSPD makes each sequential run all reads or all writes; Loadline decides for each I/O";
