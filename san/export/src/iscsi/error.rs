//! Why sessions end.

use thiserror::Error;

/// Why an initiator is disconnected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum SessionError {
    /// A header is not as its digest says: where the next one begins is not known.
    #[error("a header that it has sent does not match its digest")]
    HeaderDigest,
    /// It sends more data at once than was agreed on.
    #[error("it sends {bytes} bytes of data at once; {most} are the most")]
    TooLong {
        /// Bytes that it sends.
        bytes: usize,
        /// Bytes that were agreed on.
        most: u32,
    },
    /// The system has no memory.
    #[error("there is no memory for {0} bytes that it writes")]
    Memory(usize),
    /// A command is missing that cannot come any more.
    #[error("it sends command {came}, and has left out number {expected}")]
    Gap {
        /// The number of the command.
        came: u32,
        /// The number that was expected.
        expected: u32,
    },
    /// Its name and its identifier are those of another session, which has come later.
    #[error("another session of initiator {0} with the same identifier takes its place")]
    Displaced(String),
    /// Nothing comes of it.
    #[error("the initiator has sent nothing for {0} s, and has not answered a ping")]
    Silent(u64),
    /// It takes nothing of what it is sent.
    #[error("the initiator has read nothing of what it is sent for {0} s")]
    NotRead(u64),
    /// A command waits for too long.
    #[error("a command of the initiator has waited for {0} s: the volume cannot carry it out")]
    Late(u64),
}
