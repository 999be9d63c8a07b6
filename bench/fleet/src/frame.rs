//! Frames on a byte stream: a length, and so many bytes of JSON. Nothing read is trusted.

use std::io::ErrorKind;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::tls;
use crate::wire::{LONGEST_FRAME, SILENCE_LIMIT};

/// Bytes of the length in front of a frame.
const HEADER: usize = 4;
/// What is read at once at the most, beside the rest of a frame whose length is known.
const READ_AT_ONCE: usize = 16 << 10;
/// A frame that the other side does not take within this time will not be taken: it has long been given up.
const WRITE_LIMIT: Duration = SILENCE_LIMIT;

/// Why a stream gives no more frames.
#[derive(Debug, Error)]
pub(crate) enum FrameError {
    /// The bytes are no frame of ours, or were changed on the way.
    #[error("{0}")]
    Garbage(String),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(std::io::Error),
}

impl From<std::io::Error> for FrameError {
    fn from(error: std::io::Error) -> FrameError {
        match tls::meaning(&error) {
            Some(why) => FrameError::Garbage(why),
            None => FrameError::Broken(error),
        }
    }
}

/// Takes the first whole frame off the buffer. `None`: there is none yet. Of a frame whose length is out of bounds
/// nothing is waited for.
fn take_frame(buffer: &mut Vec<u8>, longest: usize) -> Result<Option<Vec<u8>>, FrameError> {
    let Some(header) = buffer.first_chunk::<HEADER>() else { return Ok(None) };
    let len = u32::from_be_bytes(*header) as usize;
    if len == 0 || len > longest {
        return Err(FrameError::Garbage(format!(
            "it does not speak Loadline's protocol ({})",
            looks_like(header)
        )));
    }
    if buffer.len() < HEADER + len {
        return Ok(None);
    }
    let rest = buffer.split_off(HEADER + len);
    let mut frame = std::mem::replace(buffer, rest);
    frame.drain(..HEADER);
    Ok(Some(frame))
}

/// What the first bytes of a new connection show.
fn looks_like(header: &[u8; HEADER]) -> String {
    match header {
        b"GET " | b"POST" | b"HEAD" | b"PUT " | b"OPTI" | b"CONN" | b"PRI " => {
            "it looks like HTTP".to_string()
        }
        b"SSH-" => "it looks like SSH".to_string(),
        other => format!("a length of {} bytes is out of bounds", u32::from_be_bytes(*other)),
    }
}

/// The message in a frame.
pub(crate) fn parse<T: DeserializeOwned>(frame: &[u8]) -> Result<T, FrameError> {
    // serde_json bounds the depth itself; what it says never repeats the input at length.
    serde_json::from_slice(frame).map_err(|e| FrameError::Garbage(format!("its message cannot be read: {e}")))
}

/// Reads frames from a stream.
#[derive(Debug)]
pub(crate) struct FrameReader<R> {
    stream: R,
    buffer: Vec<u8>,
    longest: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads frames of at most `longest` bytes.
    pub(crate) fn new(stream: R, longest: usize) -> Self {
        FrameReader { stream, buffer: Vec::new(), longest }
    }

    /// From now on frames of at most `longest` bytes.
    pub(crate) fn allow(&mut self, longest: usize) {
        self.longest = longest;
    }

    /// The stream, and what was read of it already.
    pub(crate) fn into_parts(self) -> (R, Vec<u8>) {
        (self.stream, self.buffer)
    }

    /// The next frame; `None` where the other side closed the connection between two. Nothing is lost if the
    /// future is dropped.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        loop {
            if let Some(frame) = take_frame(&mut self.buffer, self.longest)? {
                return Ok(Some(frame));
            }
            self.buffer.reserve(READ_AT_ONCE);
            let read = match self.stream.read_buf(&mut self.buffer).await {
                // TLS reports in this way an end that the other side did not announce: its process was killed, or the connection
                // was cut. An end is never a message: what is complete is said by a frame.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => 0,
                read => read?,
            };
            if read == 0 {
                return match self.buffer.len() {
                    0 => Ok(None),
                    n => Err(FrameError::Garbage(format!(
                        "the connection ended within a message, after {n} bytes"
                    ))),
                };
            }
        }
    }
}

/// Sends one message, as a whole or not at all within a limit.
pub(crate) async fn send<W: AsyncWrite + Unpin>(
    stream: &mut W,
    message: &impl Serialize,
) -> Result<(), FrameError> {
    let mut bytes = vec![0; HEADER];
    serde_json::to_writer(&mut bytes, message)
        .map_err(|e| FrameError::Garbage(format!("a message cannot be written as JSON: {e}")))?;
    let len = bytes.len() - HEADER;
    if len > LONGEST_FRAME {
        return Err(FrameError::Garbage(format!("a message of {len} bytes is longer than {LONGEST_FRAME}")));
    }
    bytes[..HEADER].copy_from_slice(&(len as u32).to_be_bytes());
    let late = || std::io::Error::new(ErrorKind::TimedOut, format!("nothing is taken for {WRITE_LIMIT:?}"));
    let write = async {
        stream.write_all(&bytes).await?;
        // An encrypted stream may keep what the socket had no room for.
        stream.flush().await
    };
    timeout(WRITE_LIMIT, write).await.map_err(|_| late())??;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{LONGEST_HELLO, ToController, ToWorker};
    use loadline_base::clock::Nanos;
    use proptest::prelude::*;

    fn framed(body: &[u8]) -> Vec<u8> {
        [&(body.len() as u32).to_be_bytes(), body].concat()
    }

    fn all_frames(mut stream: &[u8], longest: usize) -> Result<Vec<Vec<u8>>, FrameError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut reader = FrameReader::new(&mut stream, longest);
            let mut frames = Vec::new();
            while let Some(frame) = reader.next().await? {
                frames.push(frame);
            }
            Ok(frames)
        })
    }

    #[test]
    fn a_message_comes_back_from_the_wire_as_it_was() {
        let message = ToWorker::Pong { sent: Nanos(u64::MAX), at: Nanos(7) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut bytes = Vec::new();
        runtime.block_on(send(&mut bytes, &message)).unwrap();
        let frames = all_frames(&bytes, LONGEST_HELLO).unwrap();
        assert_eq!(parse::<ToWorker>(&frames[0]).unwrap(), message);
    }

    #[test]
    fn a_stranger_is_recognised_by_its_first_bytes_and_not_waited_for() {
        for (bytes, word) in [
            (&b"GET / HTTP/1.1\r\n"[..], "HTTP"),
            (b"SSH-2.0-OpenSSH", "SSH"),
            (b"\xff\xff\xff\xff", "4294967295"),
            (b"\0\0\0\0", "a length of 0"),
        ] {
            let error = all_frames(bytes, LONGEST_FRAME).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_frame_longer_than_allowed_is_refused_before_it_has_come() {
        let bytes = (LONGEST_HELLO as u32 + 1).to_be_bytes();
        assert!(all_frames(&bytes, LONGEST_HELLO).is_err());
        assert!(all_frames(&framed(&[b' '; LONGEST_HELLO]), LONGEST_HELLO).is_ok());
    }

    #[test]
    fn a_connection_that_ends_within_a_message_is_not_taken_for_a_goodbye() {
        let whole = framed(b"\"heartbeat\"");
        assert_eq!(all_frames(&whole, 100).unwrap().len(), 1);
        assert!(all_frames(&whole[..whole.len() - 1], 100).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic_the_decoder(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            for frame in all_frames(&bytes, LONGEST_FRAME).unwrap_or_default() {
                let _ = parse::<ToController>(&frame);
            }
        }

        #[test]
        fn no_frame_panics_the_parser(body in prop::collection::vec(any::<u8>(), 1..300), json in "[\\[{\"a-z:0-9}\\],]{1,80}") {
            for body in [&body[..], json.as_bytes()] {
                let frames = all_frames(&framed(body), 1000).unwrap();
                prop_assert_eq!(&frames[..], &[body.to_vec()]);
                let _ = parse::<ToController>(&frames[0]);
                let _ = parse::<ToWorker>(&frames[0]);
            }
        }
    }
}
