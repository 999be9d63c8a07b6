//! A protected connection for asynchronous code.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::records::{RecordError, Records};

/// Sealed bytes that are not sent: more is sealed only when these are gone.
const MOST_UNSENT: usize = 64 << 10;

/// A connection with its records.
#[derive(Debug)]
pub struct Stream<T> {
    io: T,
    records: Records,
}

impl<T> Stream<T> {
    pub(crate) fn new(io: T, records: Records) -> Stream<T> {
        Stream { io, records }
    }

    /// The connection, and its records, in which data may wait that were received already.
    pub fn into_parts(self) -> (T, Records) {
        (self.io, self.records)
    }

    /// The connection below.
    pub fn io(&self) -> &T {
        &self.io
    }
}

impl<T: AsFd> AsFd for Stream<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.io.as_fd()
    }
}

/// The error of I/O for a record that cannot be opened.
fn refused(error: RecordError) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

impl<T: AsyncRead + Unpin> AsyncRead for Stream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Stream { io, records } = &mut *self;
        loop {
            let read = records.read(into.initialize_unfilled()).map_err(refused)?;
            if read > 0 || into.remaining() == 0 || records.is_closed() {
                into.advance(read);
                return Poll::Ready(Ok(()));
            }
            let mut space = ReadBuf::new(records.space());
            ready!(Pin::new(&mut *io).poll_read(cx, &mut space))?;
            match space.filled().len() {
                // The end was not said: it may be cut off. Whatever is carried here says itself where it ends.
                0 => return Poll::Ready(Ok(())),
                bytes => records.received(bytes),
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> Stream<T> {
    /// Sends what is sealed.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.records.unsent().is_empty() {
            let sent = ready!(Pin::new(&mut self.io).poll_write(cx, self.records.unsent()))?;
            if sent == 0 {
                return Poll::Ready(Err(ErrorKind::WriteZero.into()));
            }
            self.records.sent(sent);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Stream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.records.unsent().len() >= MOST_UNSENT {
            ready!(self.poll_send(cx))?;
        }
        let some = &bytes[..bytes.len().min(MOST_UNSENT)];
        self.records.seal(&[IoSlice::new(some)]);
        // What cannot be sent now is sent by the next write, or flush.
        let _ = self.poll_send(cx)?;
        Poll::Ready(Ok(some.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.records.close();
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
