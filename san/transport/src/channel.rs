//! A connection of an event loop: calls that never wait, whether it is protected or not.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use loadline_san_device::outbox::Outbox;
use nix::errno::Errno;

use crate::keys::Protection;
use crate::records::{RecordError, Records};
use crate::socket::{self, Received, receive, receive_to, send};

/// Bytes that are sealed at once: while the rest of them is sealed, the other side opens the first.
const SEALED_AT_ONCE: usize = 64 << 10;
/// Slices that are sealed together at most.
const SLICES: usize = 128;

/// A connection, with its records if it is protected.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    records: Option<Box<Records>>,
    /// Why records are not opened any more.
    refused: Option<RecordError>,
}

impl Channel {
    /// A connection that is not protected: on this machine, or of a client that need not be.
    pub fn plain(socket: OwnedFd) -> Channel {
        Channel { socket, records: None, refused: None }
    }

    /// A connection after its handshake.
    pub fn protected(socket: OwnedFd, records: Records) -> Channel {
        Channel { socket, records: Some(Box::new(records)), refused: None }
    }

    /// The connection itself, to be watched, or shut down.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The connection itself, if it is not protected.
    ///
    /// # Panics
    /// If it is protected: without its records nothing can be read from it.
    pub fn into_socket(self) -> OwnedFd {
        assert!(self.records.is_none(), "a protected connection has records");
        self.socket
    }

    /// How it is protected, if it is.
    pub fn protection(&self) -> Option<Protection> {
        self.records.as_ref().map(|records| records.protection())
    }

    /// Why what was received is refused, after [`Received::Broken`].
    pub fn refused(&self) -> Option<&RecordError> {
        self.refused.as_ref()
    }

    /// Whether something is sealed and not sent.
    pub fn has_unsent(&self) -> bool {
        self.records.as_ref().is_some_and(|records| !records.unsent().is_empty())
    }

    /// Whether there are data that were received from the socket and not from this: the socket does not say so.
    pub fn has_data(&self) -> bool {
        self.refused.is_some() || self.records.as_ref().is_some_and(|records| records.has_data())
    }

    /// Sends what is there to be sent. Whether the socket has room for more. Fails if it is broken.
    pub fn send_all(&mut self, out: &mut Outbox) -> io::Result<bool> {
        let Some(records) = &mut self.records else { return socket::send_all(&self.socket, out) };
        loop {
            while !records.unsent().is_empty() {
                match send(&self.socket, &[IoSlice::new(records.unsent())]) {
                    Ok(sent) => records.sent(sent),
                    Err(error) => match error.kind() {
                        io::ErrorKind::WouldBlock => return Ok(false),
                        io::ErrorKind::Interrupted => {}
                        _ => return Err(error),
                    },
                }
            }
            if out.bytes() == 0 {
                return Ok(true);
            }
            let mut slices = [IoSlice::new(&[]); SLICES];
            let used = out.slices(&mut slices);
            let mut parts = [IoSlice::new(&[]); SLICES];
            let (mut bytes, mut few) = (0, 0);
            for (part, slice) in parts.iter_mut().zip(&slices[..used]) {
                if bytes == SEALED_AT_ONCE {
                    break;
                }
                let some = slice.len().min(SEALED_AT_ONCE - bytes);
                *part = IoSlice::new(&slice[..some]);
                (bytes, few) = (bytes + some, few + 1);
            }
            records.seal(&parts[..few]);
            out.sent(bytes);
        }
    }

    /// Receives what is there to several places, one after the other, as far as there is room.
    pub fn receive_to(&mut self, spaces: &mut [IoSliceMut]) -> Received {
        let Some(records) = &mut self.records else { return receive_to(&self.socket, spaces) };
        if self.refused.is_some() {
            return Received::Broken(Errno::EBADMSG);
        }
        let mut was_received = false;
        loop {
            let mut done = 0;
            for space in spaces.iter_mut() {
                match records.read(space) {
                    Ok(bytes) => {
                        done += bytes;
                        if bytes < space.len() {
                            break;
                        }
                    }
                    Err(why) => {
                        self.refused = Some(why);
                        // What came before it is good, and is handled first.
                        return if done > 0 {
                            Received::Some(done)
                        } else {
                            Received::Broken(Errno::EBADMSG)
                        };
                    }
                }
            }
            if done > 0 {
                return Received::Some(done);
            }
            if records.is_closed() {
                return Received::End;
            }
            // Once is enough: if more is there, the socket says so.
            if was_received {
                return Received::Nothing;
            }
            match receive(&self.socket, records.space()) {
                Received::Some(bytes) => records.received(bytes),
                other => return other,
            }
            was_received = true;
        }
    }

    /// Receives what is there, as far as there is room.
    pub fn receive(&mut self, into: &mut [u8]) -> Received {
        self.receive_to(&mut [IoSliceMut::new(into)])
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
