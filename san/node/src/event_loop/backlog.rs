//! A client that has many answers to read can wait for the next ones.
//!
//! A client that sends each request by itself (fio, QEMU) wakes the loop for each two or three, and is itself held up by waking
//! it. While the client has enough unread answers, the loop sleeps for a short time, whatever arrives ([`GATHER`]): the
//! requests of that time cost one wake-up, one receive and one send. A client with few requests at once never has so many
//! unread, nor one that takes its answers as soon as they come: if such a client was answered too, the loop does not wait. A
//! client that is not in that list, and sends a request meanwhile, waits for as long.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::libc::{self, c_int};
use nix::sys::socket::{AddressFamily, SockaddrLike, SockaddrStorage, getsockname};

/// How long it sleeps then. Of fio's 32 reads, longer sleeps (30 us) made fewer, and shorter ones (10 us) cost more.
pub(super) const GATHER: Duration = Duration::from_micros(15);
/// Answers that a client is to have not read, at the least: fio takes some 5 us to read one and ask again. Of a client with 16 reads
/// at once that was held to be behind sooner, a tenth fewer were done.
const ANSWERS: f32 = 20.0;
/// So many messages they are sent in, each for what came together: two or three, of a client that sends each by itself.
const MESSAGES: f32 = 7.0;
/// Memory that the kernel takes for each message, besides its bytes.
const MESSAGE: f32 = 768.0;
/// Where more clients are answered between two waits, their requests arrive together anyway.
const MOST_CLIENTS: usize = 8;

/// Answers that one client was sent and has not read.
#[derive(Debug, Default)]
pub(super) struct ReplyBacklog {
    /// The kernel knows what the other side has not read: of unix sockets. Of others it knows what has not arrived.
    is_known: bool,
    /// Bytes of an answer, on average of late.
    answer: f32,
}

impl ReplyBacklog {
    /// Of a client at this socket.
    pub(super) fn new(socket: &OwnedFd) -> ReplyBacklog {
        let address = getsockname::<SockaddrStorage>(socket.as_raw_fd());
        let is_known = address.is_ok_and(|address| address.family() == Some(AddressFamily::Unix));
        ReplyBacklog { is_known, answer: 0.0 }
    }

    /// Whether it is a client at a unix socket.
    pub(super) fn is_local(&self) -> bool {
        self.is_known
    }

    /// So many answers are sent, of so many bytes together.
    pub(super) fn sent(&mut self, answers: usize, bytes: usize) {
        if answers > 0 {
            self.answer = (self.answer * 7.0 + bytes as f32 / answers as f32) / 8.0;
        }
    }

    /// Whether the client has so many unread answers that they last for a while.
    fn are_many(&self, socket: &OwnedFd) -> bool {
        self.is_known && unread_memory(socket) as f32 >= ANSWERS * self.answer + MESSAGES * MESSAGE
    }
}

/// Clients that were sent answers since the loop has waited.
#[derive(Debug, Default)]
pub(super) struct Answered {
    keys: Vec<u32>,
    too_many: bool,
}

impl Answered {
    /// This one was.
    pub(super) fn note(&mut self, key: u32) {
        if self.keys.contains(&key) {
            return;
        }
        match self.keys.len() < MOST_CLIENTS {
            true => self.keys.push(key),
            false => self.too_many = true,
        }
    }

    /// Whether all noted clients have many answers to read. No client is noted afterwards.
    pub(super) fn all_have_backlogs<'a>(
        &mut self,
        of: impl Fn(u32) -> Option<(&'a ReplyBacklog, &'a OwnedFd)>,
    ) -> bool {
        let all = !self.keys.is_empty()
            && !std::mem::take(&mut self.too_many)
            && self.keys.iter().all(|key| of(*key).is_some_and(|(unread, socket)| unread.are_many(socket)));
        self.keys.clear();
        all
    }
}

/// Bytes of the kernel's memory that hold what was sent and not read, whole messages each (`SIOCOUTQ`, unix(7)).
fn unread_memory(socket: &OwnedFd) -> c_int {
    let mut bytes: c_int = 0;
    // SAFETY: the request writes one int, which is borrowed for the call; TIOCOUTQ is another name of SIOCOUTQ.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { bytes } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A client that was sent so many answers of so many bytes, each by itself, and has read some.
    fn client(answers: usize, bytes: usize, read: usize) -> (ReplyBacklog, OwnedFd, UnixStream) {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let mut unread = ReplyBacklog::new(&ours.try_clone().unwrap().into());
        for _ in 0..answers {
            ours.write_all(&vec![1; bytes]).unwrap();
            unread.sent(1, bytes);
        }
        theirs.read_exact(&mut vec![0; read * bytes]).unwrap();
        (unread, ours.into(), theirs)
    }

    #[test]
    fn a_client_with_many_unread_answers_can_wait() {
        for bytes in [16, 28, 528, 4112] {
            for (answers, read, are_many) in [(32, 0, true), (32, 28, false), (6, 0, false), (0, 0, false)] {
                let (unread, socket, _theirs) = client(answers, bytes, read);
                assert_eq!(unread.are_many(&socket), are_many, "{answers} of {bytes} bytes, {read} read");
            }
        }
    }

    #[test]
    fn one_client_that_has_read_all_is_enough_to_hurry() {
        let (behind, ready) = (client(40, 16, 0), client(40, 16, 40));
        let of = |key| Some(if key == 1 { (&behind.0, &behind.1) } else { (&ready.0, &ready.1) });
        let mut answered = Answered::default();
        assert!(!answered.all_have_backlogs(of), "no client was answered");
        answered.note(1);
        answered.note(1);
        assert!(answered.all_have_backlogs(of));
        assert!(!answered.all_have_backlogs(of), "no client was answered since");
        answered.note(1);
        answered.note(2);
        assert!(!answered.all_have_backlogs(of));
        (0..100).for_each(|key| answered.note(key * 2 + 1));
        assert!(!answered.all_have_backlogs(|_| of(1)), "more than are checked");
        answered.note(1);
        assert!(answered.all_have_backlogs(of), "as before");
        answered.note(7);
        assert!(!answered.all_have_backlogs(|_| None), "it is gone");
    }

    #[test]
    fn what_a_client_over_the_network_has_read_is_not_known() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _theirs = listener.accept().unwrap();
        let mut unread = ReplyBacklog::new(&ours.try_clone().unwrap().into());
        for _ in 0..40 {
            ours.write_all(&[1; 4096]).unwrap();
            unread.sent(1, 4096);
        }
        assert!(!unread.are_many(&ours.into()));
    }
}
