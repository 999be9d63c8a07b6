//! A session in a machine: a shell, a command, or a check of the disk; its order to the machine, and the machine's report.

use serde::{Deserialize, Serialize};

/// The connection whose bytes are the session's standard input; the keeper ends it with `HungUp`.
pub const INPUT: u32 = 0;
/// The connection whose bytes are the session's standard output; the machine ends it with `HungUp` when all processes have ended.
pub const OUTPUT: u32 = 1;
/// The connection whose bytes are the session's standard error.
pub const ERRORS: u32 = 2;
/// The name of the disk in the machine.
pub const DISK: &str = "vda";

/// The order that begins a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// Random bytes: a machine has no source of its own when it boots.
    pub seed: Vec<u8>,
    /// The machine's host name.
    pub name: String,
    /// Whether the machine may write to the disk.
    pub writable: bool,
    /// What is done.
    pub task: Task,
}

/// What is done in a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Task {
    /// A shell: at a terminal of this kind and size, or with commands from the session's input.
    Shell(Option<Terminal>),
    /// This program with these arguments.
    Command(Vec<String>),
    /// The file system of the disk is checked; the report is [`Ended::words`](crate::control::Ended), a [`CheckReport`] as JSON.
    Check,
}

/// A terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terminal {
    /// Its kind, as the environment variable TERM has it.
    pub kind: String,
    /// Its size.
    pub size: Size,
}

/// The size of a terminal, characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Characters of a line.
    pub columns: u16,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CheckReport {
    /// The disk cannot be checked, and why: it has no file system, an unknown one, or the machine lacks something.
    Refused(String),
    /// The check could not be carried out, and why.
    Failed(String),
    /// The file system was checked.
    Checked(Checked),
}

/// A file system that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checked {
    /// The number of the partition that has the file system; `None`: the whole disk.
    pub partition: Option<u32>,
    /// The file system whose superblock is at the start of the whole disk, if a partition was checked in its place: it is what is left of
    /// an older file system.
    pub not_checked: Option<String>,
    /// `ext4` or `xfs`. `ext4` includes its predecessors ext2 and ext3.
    pub file_system: String,
    /// Whether the file system was mounted writable, which replays its journal, and unmounted before the check.
    pub journal_replayed: bool,
    /// Whether the check found nothing wrong.
    pub clean: bool,
    /// The command that checked it, without the device.
    pub tool: String,
    /// The exit code of the command; `None`: a signal ended it, or it was not started since the file system cannot be mounted.
    pub exit_code: Option<i32>,
    /// What the kernel and the command said, at most 64 KiB of it.
    pub words: String,
}
