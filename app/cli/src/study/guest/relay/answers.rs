//! What a connection to a node still waits for: read from the bytes that pass in both directions. An answer counts when it is complete, so
//! that a node that sends a byte now and then does not count as one that answers.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use loadline_base::nbd::{
    CHUNK_BYTES, CHUNK_MAGIC, INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, REQUEST_MAGIC, Request,
    SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, chunk, command, get_u16, get_u32, get_u64, option, reply,
};

/// Bytes of what a server says first.
const GREETING_BYTES: usize = 18;
/// Bytes of a client's flags, which follow that.
const FLAGS_BYTES: usize = 4;
const OPTION_BYTES: usize = 16;
const OPTION_REPLY_BYTES: usize = 20;

/// The bytes are not those of NBD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nonsense;

/// How long a node may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// How long it may complete no answer at all while something waits for one.
    pub(super) any: Duration,
    /// How long it may take for each answer.
    pub(super) each: Duration,
}

/// What is to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Asked {
    Greeting,
    /// Options are answered in their order.
    Option(u64),
    /// A request with this cookie.
    Request(u64),
}

#[derive(Debug, Clone, Copy)]
struct Waits {
    since: Instant,
    /// Bytes of data in a simple reply.
    data: u32,
}

/// The requests of a connection that have no answer.
#[derive(Debug)]
pub(super) struct Answers {
    waiting: HashMap<Asked, Waits>,
    /// When an answer was complete last.
    answered: Instant,
    /// Options that were sent, and that were answered.
    options: (u64, u64),
    has_requested: bool,
    sent: Frames,
    received: Frames,
    /// What is answered when the frame that is being received is complete.
    completes: Option<Asked>,
}

impl Answers {
    /// Those of a connection that has been made now: the server speaks first.
    pub(super) fn of_new(now: Instant) -> Answers {
        Answers {
            waiting: HashMap::from([(Asked::Greeting, Waits { since: now, data: 0 })]),
            answered: now,
            options: (0, 0),
            has_requested: false,
            sent: Frames::default(),
            received: Frames::default(),
            completes: None,
        }
    }

    /// The client sends these bytes.
    pub(super) fn sends(&mut self, mut bytes: &[u8], now: Instant) -> Result<(), Nonsense> {
        let wait = |data| Waits { since: now, data };
        while let Some(head) = self.sent.next(&mut bytes, |start, is_first| match is_first {
            true => Some(FLAGS_BYTES),
            false if get_u32(start, 0) == (OPTION_MAGIC >> 32) as u32 => Some(OPTION_BYTES),
            false if get_u32(start, 0) == REQUEST_MAGIC => Some(Request::BYTES),
            false => None,
        })? {
            match head.len() {
                OPTION_BYTES => {
                    if get_u64(&head, 0) != OPTION_MAGIC || get_u32(&head, 8) == option::EXPORT_NAME {
                        return Err(Nonsense);
                    }
                    self.sent.skip(get_u32(&head, 12));
                    // Whether this is answered is up to the server.
                    if get_u32(&head, 8) != option::ABORT {
                        self.waiting.insert(Asked::Option(self.options.0), wait(0));
                        self.options.0 += 1;
                    }
                }
                Request::BYTES => {
                    self.has_requested = true;
                    let head: [u8; Request::BYTES] = head.try_into().expect("so many bytes");
                    let request = Request::decode(&head).ok_or(Nonsense)?;
                    let data = if request.command == command::READ { request.length } else { 0 };
                    match request.command {
                        command::WRITE => self.sent.skip(request.length),
                        command::DISC => continue,
                        _ => {}
                    }
                    self.waiting.insert(Asked::Request(request.cookie), wait(data));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The server has sent these bytes.
    pub(super) fn receives(&mut self, mut bytes: &[u8], now: Instant) -> Result<(), Nonsense> {
        loop {
            let head = self.received.next(&mut bytes, |start, is_first| match is_first {
                true => Some(GREETING_BYTES),
                false => match get_u32(start, 0) {
                    magic if magic == (OPTION_REPLY_MAGIC >> 32) as u32 => Some(OPTION_REPLY_BYTES),
                    SIMPLE_REPLY_MAGIC => Some(SIMPLE_REPLY_BYTES),
                    CHUNK_MAGIC => Some(CHUNK_BYTES),
                    _ => None,
                },
            })?;
            // A frame is complete when the bytes behind its head have been received.
            if self.received.is_complete()
                && let Some(answered) = self.completes.take()
            {
                self.waiting.remove(&answered);
                self.answered = now;
            }
            let Some(head) = head else { return Ok(()) };
            self.completes = self.begins(&head)?;
            if self.received.is_complete()
                && let Some(answered) = self.completes.take()
            {
                self.waiting.remove(&answered);
                self.answered = now;
            }
        }
    }

    /// The head of a frame was received. What is answered when the frame is complete.
    fn begins(&mut self, head: &[u8]) -> Result<Option<Asked>, Nonsense> {
        match (head.len(), get_u32(head, 0)) {
            (GREETING_BYTES, _) => match (get_u64(head, 0), get_u64(head, 8)) {
                (INIT_MAGIC, OPTION_MAGIC) => Ok(Some(Asked::Greeting)),
                _ => Err(Nonsense),
            },
            (SIMPLE_REPLY_BYTES, _) => {
                let asked = Asked::Request(get_u64(head, 8));
                let data = self.waiting.get(&asked).map_or(0, |waits| waits.data);
                if get_u32(head, 4) == 0 {
                    self.received.skip(data);
                }
                Ok(Some(asked))
            }
            (_, CHUNK_MAGIC) => {
                self.received.skip(get_u32(head, 16));
                let is_last = get_u16(head, 4) & chunk::DONE != 0;
                Ok(is_last.then(|| Asked::Request(get_u64(head, 8))))
            }
            _ => {
                if get_u64(head, 0) != OPTION_REPLY_MAGIC {
                    return Err(Nonsense);
                }
                self.received.skip(get_u32(head, 16));
                let kind = get_u32(head, 12);
                let is_last = kind == reply::ACK || kind & (1 << 31) != 0;
                let number = self.options.1;
                self.options.1 += u64::from(is_last);
                Ok(is_last.then_some(Asked::Option(number)))
            }
        }
    }

    /// Whether the node has taken too long.
    pub(super) fn are_late(&self, now: Instant, limits: Limits) -> bool {
        let Some(oldest) = self.waiting.values().map(|waits| waits.since).min() else { return false };
        let since = |at: Instant| now.saturating_duration_since(at);
        since(oldest) > limits.each || since(oldest.max(self.answered)) > limits.any
    }

    /// Whether the node may carry something out after the connection has ended.
    pub(super) fn have_requests(&self) -> bool {
        self.has_requested
    }
}

/// Frames of one direction: heads, and bytes behind them that are not read.
#[derive(Debug, Default)]
struct Frames {
    head: Vec<u8>,
    skips: u64,
    has_begun: bool,
}

impl Frames {
    /// The next head that is complete, taken from the start of `bytes`. `None`: more bytes are needed. `length`: that of a head which begins
    /// with these 4 bytes, and whether it is the first of the direction.
    fn next(
        &mut self,
        bytes: &mut &[u8],
        length: impl Fn(&[u8], bool) -> Option<usize>,
    ) -> Result<Option<Vec<u8>>, Nonsense> {
        let skipped = self.skips.min(bytes.len() as u64);
        *bytes = &bytes[skipped as usize..];
        self.skips -= skipped;
        loop {
            let wanted = match self.head.get(..4) {
                Some(start) => length(start, !self.has_begun).ok_or(Nonsense)?,
                None => 4,
            };
            if self.head.len() >= 4 && self.head.len() == wanted {
                self.has_begun = true;
                return Ok(Some(std::mem::take(&mut self.head)));
            }
            if bytes.is_empty() {
                return Ok(None);
            }
            let taken = (wanted - self.head.len()).min(bytes.len());
            self.head.extend_from_slice(&bytes[..taken]);
            *bytes = &bytes[taken..];
        }
    }

    /// So many bytes follow the head.
    fn skip(&mut self, bytes: u32) {
        self.skips += u64::from(bytes);
    }

    /// Whether all bytes behind the last head have come.
    fn is_complete(&self) -> bool {
        self.skips == 0
    }
}

#[cfg(test)]
mod tests {
    use loadline_base::nbd::{chunk_head, simple_reply};

    use super::*;

    const LIMITS: Limits = Limits { any: Duration::from_secs(10), each: Duration::from_secs(60) };

    fn request(command: u16, cookie: u64, length: u32) -> Vec<u8> {
        Request { flags: 0, command, cookie, offset: 0, length }.encode().to_vec()
    }

    fn greeting() -> Vec<u8> {
        [&INIT_MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &[0, 3]].concat()
    }

    fn go() -> Vec<u8> {
        [&OPTION_MAGIC.to_be_bytes()[..], &option::GO.to_be_bytes(), &3u32.to_be_bytes(), b"abc"].concat()
    }

    fn option_reply(kind: u32) -> Vec<u8> {
        let parts = [option::GO, kind, 2].map(u32::to_be_bytes).concat();
        [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &parts, b"xy"].concat()
    }

    /// A connection whose handshake is done, each byte on its own.
    fn connected(now: Instant) -> Answers {
        let mut answers = Answers::of_new(now);
        greeting().iter().for_each(|byte| answers.receives(&[*byte], now).unwrap());
        let sent = [&[0, 0, 0, 3][..], &go()].concat();
        sent.iter().for_each(|byte| answers.sends(&[*byte], now).unwrap());
        let received = [option_reply(reply::INFO), option_reply(reply::ACK)].concat();
        received.iter().for_each(|byte| answers.receives(&[*byte], now).unwrap());
        assert!(answers.waiting.is_empty() && !answers.have_requests());
        answers
    }

    #[test]
    fn every_step_of_the_handshake_has_a_limit() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut answers = Answers::of_new(begun);
        answers.receives(&greeting()[..17], at(9)).unwrap();
        assert!(!answers.are_late(at(10), LIMITS) && answers.are_late(at(11), LIMITS));
        answers.receives(&greeting()[17..], at(10)).unwrap();
        assert!(!answers.are_late(at(100), LIMITS), "it is the client's turn");
        answers.sends(&[&[0, 0, 0, 3][..], &go()].concat(), at(20)).unwrap();
        // This is not the last reply to the option.
        answers.receives(&option_reply(reply::INFO), at(29)).unwrap();
        assert!(!answers.are_late(at(30), LIMITS) && answers.are_late(at(31), LIMITS));
        answers.receives(&option_reply(reply::ACK), at(30)).unwrap();
        assert!(!answers.are_late(at(100), LIMITS));
    }

    #[test]
    fn an_answer_counts_when_it_is_complete_and_each_request_has_a_limit() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut answers = connected(begun);
        answers.sends(&request(command::READ, 1, 100), at(0)).unwrap();
        answers.sends(&[request(command::WRITE, 2, 3), b"abc".to_vec()].concat(), at(0)).unwrap();
        answers.sends(&request(command::DISC, 3, 0), at(0)).unwrap();
        assert!(answers.have_requests());
        let mut reply = simple_reply(0, 1).to_vec();
        reply.extend([7; 99]);
        for (second, byte) in reply.iter().take(20).enumerate() {
            answers.receives(&[*byte], at(second as u64)).unwrap();
        }
        assert!(answers.are_late(at(11), LIMITS), "bytes are no answer");
        answers.receives(&reply[20..], at(9)).unwrap();
        assert!(answers.are_late(at(11), LIMITS), "one byte is missing");
        answers.receives(&[7], at(9)).unwrap();
        assert!(!answers.are_late(at(11), LIMITS) && answers.are_late(at(20), LIMITS));
        // Others are answered all the time, and this one is not.
        for second in 10..=60 {
            let cookie = 1000 + second;
            answers.sends(&request(command::FLUSH, cookie, 0), at(second)).unwrap();
            answers.receives(&simple_reply(5, cookie), at(second)).unwrap();
            assert!(!answers.are_late(at(second), LIMITS));
        }
        assert!(answers.are_late(at(61), LIMITS));
        answers.receives(&simple_reply(0, 2), at(61)).unwrap();
        assert!(!answers.are_late(at(1000), LIMITS));
    }

    #[test]
    fn an_answer_in_chunks_is_complete_with_the_last_one() {
        let begun = Instant::now();
        let late = begun + LIMITS.each + LIMITS.any;
        let mut answers = connected(begun);
        answers.sends(&request(command::READ, 9, 4), begun).unwrap();
        let first = [&chunk_head(0, chunk::OFFSET_DATA, 9, 12)[..], &[0; 12]].concat();
        answers.receives(&first, begun).unwrap();
        assert!(answers.are_late(late, LIMITS));
        answers.receives(&chunk_head(chunk::DONE, chunk::NONE, 9, 0), begun).unwrap();
        assert!(!answers.are_late(late, LIMITS));
    }

    #[test]
    fn what_is_not_nbd_is_nonsense() {
        let now = Instant::now();
        assert_eq!(Answers::of_new(now).receives(&[b'x'; 18], now), Err(Nonsense));
        assert_eq!(connected(now).receives(b"HTTP/1.1", now), Err(Nonsense));
        assert_eq!(connected(now).sends(b"GET / ", now), Err(Nonsense));
    }
}
