//! What a machine and its keeper say to each other, over one serial port of the machine.
//!
//! A frame is one byte of kind, four bytes of length (little-endian), and so many bytes: a message in JSON (kind 1), or four bytes of a
//! connection's number and bytes of it (kind 2). The machine's worker has one connection to its controller at a time. Each has
//! a number of its own, so that what is late is of no other one.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::session::{Session, Size};

/// The name of the serial port in the machine.
pub const PORT: &str = "loadline";
/// The longest content of a frame, bytes.
pub const LONGEST: usize = 1 << 20;
const MESSAGE: u8 = 1;
const DATA: u8 = 2;

/// A message of the machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToKeeper {
    /// The machine has booted.
    Hello,
    /// The worker wants a connection to its controller, with this number.
    Dial(u32),
    /// A connection of the worker has ended.
    HungUp(u32),
    /// A question of the worker, which gets one answer.
    Ask(Value),
    /// The worker has ended, and the machine is about to.
    Ended(Ended),
    /// The machine of a session lives. It is sent every few seconds.
    Alive,
    /// The session has ended, and the machine unmounts its file systems. So many sectors were written to its disk since the machine was
    /// started. It is sent every few seconds.
    Written(u64),
}

/// How a worker ended in its machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ended {
    /// Its exit code; `None`: a signal.
    pub code: Option<i32>,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// The last that it printed.
    pub words: String,
}

/// A message of the keeper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToMachine {
    /// Start the worker.
    Start {
        /// What it is told.
        worker: Value,
        /// How long ago the machine was started, nanoseconds.
        since_start_ns: u64,
        /// Random bytes: a machine has no source of its own when it boots.
        seed: Vec<u8>,
    },
    /// A connection to the controller has ended, or there could be none.
    HungUp(u32),
    /// The answer to the worker's question.
    Answer(Value),
    /// The machine, and with it its clock, has stood still for so long while it was migrated: nanoseconds.
    StoodStill(u64),
    /// Start a session, in place of a worker.
    Session(Session),
    /// The terminal of the session has this size now.
    Resize(Size),
    /// End the session: its processes get SIGTERM, and two seconds later SIGKILL.
    End,
}

/// A frame that was read.
#[derive(Debug, PartialEq)]
pub enum Frame<M> {
    /// A message.
    Message(M),
    /// Bytes of a connection.
    Data(u32, Vec<u8>),
}

/// Reads the next frame; `None`: the other side has ended. A frame that lies about itself is an error.
pub fn read<M: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<Frame<M>>> {
    let mut head = [0; 5];
    if from.read(&mut head[..1])? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut head[1..])?;
    let length = u32::from_le_bytes(head[1..].try_into().expect("four bytes")) as usize;
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    if length > LONGEST {
        return Err(wrong(format!("a frame of {length} bytes, and {LONGEST} are the most")));
    }
    let mut content = vec![0; length];
    from.read_exact(&mut content)?;
    match head[0] {
        MESSAGE => {
            let message = serde_json::from_slice(&content);
            message
                .map(|message| Some(Frame::Message(message)))
                .map_err(|e| wrong(format!("no message: {e}")))
        }
        DATA => {
            let (number, bytes) =
                content.split_first_chunk().ok_or_else(|| wrong("data of no connection".into()))?;
            Ok(Some(Frame::Data(u32::from_le_bytes(*number), bytes.to_vec())))
        }
        kind => Err(wrong(format!("a frame of kind {kind}"))),
    }
}

/// Sends a message.
pub fn say<M: Serialize>(to: &mut impl Write, message: &M) -> io::Result<()> {
    send(to, MESSAGE, &[], &serde_json::to_vec(message)?)
}

/// Sends bytes of a connection, at most [`LONGEST`] less four.
pub fn pass(to: &mut impl Write, connection: u32, bytes: &[u8]) -> io::Result<()> {
    send(to, DATA, &connection.to_le_bytes(), bytes)
}

fn send(to: &mut impl Write, kind: u8, before: &[u8], content: &[u8]) -> io::Result<()> {
    let length = before.len() + content.len();
    if length > LONGEST {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a message of {length} bytes is too long"),
        ));
    }
    // One write, so that frames of several threads behind one lock are whole.
    let mut frame = Vec::with_capacity(5 + length);
    frame.push(kind);
    frame.extend_from_slice(&(length as u32).to_le_bytes());
    frame.extend_from_slice(before);
    frame.extend_from_slice(content);
    to.write_all(&frame)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_as_they_were_sent_and_the_end_is_an_end() {
        let mut bytes = Vec::new();
        say(&mut bytes, &ToKeeper::Dial(7)).unwrap();
        pass(&mut bytes, 7, b"hello").unwrap();
        let mut from = bytes.as_slice();
        assert_eq!(read(&mut from).unwrap(), Some(Frame::Message(ToKeeper::Dial(7))));
        assert_eq!(read::<ToKeeper>(&mut from).unwrap(), Some(Frame::Data(7, b"hello".to_vec())));
        assert_eq!(read::<ToKeeper>(&mut from).unwrap(), None);
        assert!(read::<ToKeeper>(&mut &bytes[..3]).is_err(), "half a frame");
    }

    #[test]
    fn a_frame_that_lies_about_itself_is_refused() {
        for (bytes, word) in [
            (&[1, 0xff, 0xff, 0xff, 0xff][..], "are the most"),
            (&[2, 1, 0, 0, 0, 9], "no connection"),
            (&[3, 0, 0, 0, 0], "kind 3"),
            (&[1, 2, 0, 0, 0, b'{', b'}'], "no message"),
        ] {
            let error = read::<ToKeeper>(&mut &*bytes).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(pass(&mut Vec::new(), 1, &vec![0; LONGEST]).is_err());
    }
}
