//! An initiator that is idle: it logs in, makes sure that the disk is ready, and then does nothing but answer pings.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use loadline_base::iscsi::{HEADER, Header, IMMEDIATE, NO_TAG, add_key, field, flag, opcode, padding, stage};
use loadline_load::iscsi::uri::IscsiUri;

/// How long anything is waited for. Pings come far more often.
const LIMIT: Duration = Duration::from_secs(30);
/// How many unit attentions a new session may get before the disk is ready.
const MOST_TRIES: u32 = 8;

/// A session, whose pings a thread of its own answers until it is ended.
pub(super) struct Idle {
    stream: TcpStream,
    thread: JoinHandle<io::Error>,
    pings: Arc<AtomicU64>,
}

impl Idle {
    /// Logs in as the initiator with this number.
    pub(super) fn log_in(uri: &IscsiUri, number: u16) -> io::Result<Idle> {
        let stream = TcpStream::connect((&*uri.host, uri.port))?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        stream.set_nodelay(true)?;
        let mut session = Session { stream: stream.try_clone()?, next: 1 };
        session.log_in(&uri.target, number)?;
        session.get_ready()?;
        let pings = Arc::new(AtomicU64::new(0));
        let counted = pings.clone();
        let thread = std::thread::spawn(move || {
            loop {
                match session.answer_ping() {
                    Ok(()) => counted.fetch_add(1, Ordering::Relaxed),
                    Err(error) => return error,
                };
            }
        });
        Ok(Idle { stream, thread, pings })
    }

    /// Ends it. How many pings it has answered, or why it had ended before.
    pub(super) fn end(self) -> io::Result<u64> {
        let lives = !self.thread.is_finished();
        let _ = self.stream.shutdown(Shutdown::Both);
        let why = self.thread.join().map_err(|_| io::Error::other("its thread has panicked"))?;
        if lives { Ok(self.pings.load(Ordering::Relaxed)) } else { Err(why) }
    }
}

/// The connection of a session.
struct Session {
    stream: TcpStream,
    /// The number of the next command.
    next: u32,
}

impl Session {
    fn log_in(&mut self, target: &str, number: u16) -> io::Result<()> {
        let mut header = Header::new(
            opcode::LOGIN | IMMEDIATE,
            stage::OPERATIONAL << 2 | flag::TRANSIT | stage::FULL_FEATURE,
        );
        // An ISID that is random by its kind. Sessions differ by the names of their initiators already.
        header.0[8] = 0x80;
        header.set_u32(field::TASK_TAG, 1);
        let mut text = Vec::new();
        add_key(&mut text, "InitiatorName", &format!("iqn.2026-01.org.example:idle-{number}"));
        add_key(&mut text, "TargetName", target);
        self.send(header, &text)?;
        let response = self.receive()?;
        match (response.opcode(), response.0[36], response.0[37]) {
            (opcode::LOGIN_RESPONSE, 0, 0) => Ok(()),
            ended => Err(io::Error::other(format!("the login ended with {ended:02x?}"))),
        }
    }

    /// Asks whether the disk is ready, until it is: a new session gets its unit attentions first.
    fn get_ready(&mut self) -> io::Result<()> {
        for _ in 0..MOST_TRIES {
            // All zeroes is TEST UNIT READY.
            let mut header = Header::new(opcode::SCSI_COMMAND, flag::FINAL | 1);
            header.set_u32(field::TASK_TAG, self.next);
            self.next += 1;
            self.send(header, &[])?;
            let answer = self.receive()?;
            if answer.opcode() == opcode::SCSI_RESPONSE && answer.0[3] == 0 {
                return Ok(());
            }
        }
        Err(io::Error::other("the disk is not ready"))
    }

    /// Waits for a ping, and answers it.
    fn answer_ping(&mut self) -> io::Result<()> {
        let ping = self.receive()?;
        if ping.opcode() != opcode::NOP_IN {
            return Err(io::Error::other(format!(
                "operation code {:#04x} comes, and no ping",
                ping.opcode()
            )));
        }
        let mut header = Header::new(opcode::NOP_OUT | IMMEDIATE, flag::FINAL);
        header.set_u32(field::TASK_TAG, NO_TAG);
        header.set_u32(field::TRANSFER_TAG, ping.u32(field::TRANSFER_TAG));
        self.send(header, &[])
    }

    fn send(&mut self, mut header: Header, data: &[u8]) -> io::Result<()> {
        header.set_data_bytes(data.len());
        // A command has taken its number already, and what is sent at once has that of the next one.
        let number = if header.is_immediate() { self.next } else { self.next - 1 };
        header.set_u32(field::COMMAND_NUMBER, number);
        let mut bytes = [&header.0, data].concat();
        bytes.resize(bytes.len() + padding(data.len()), 0);
        self.stream.write_all(&bytes)
    }

    /// Receives a PDU, of which its header is of use here.
    fn receive(&mut self) -> io::Result<Header> {
        let mut header = Header([0; HEADER]);
        self.stream.read_exact(&mut header.0)?;
        let data = header.data_bytes();
        self.stream.read_exact(&mut vec![0; data + padding(data)])?;
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Instant;

    use super::*;

    fn wait_until(holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < LIMIT, "what is waited for does not come");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Takes a PDU that has this operation code, and answers it.
    fn serve(stream: &mut Session, wanted: u8, answer: Header) -> Header {
        let came = stream.receive().expect("it comes");
        assert_eq!(came.opcode(), wanted);
        stream.send(answer, &[]).expect("it is taken");
        came
    }

    /// A target that lets an initiator in, and the session that it has then.
    fn let_in() -> (Session, Idle) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let uri = IscsiUri::new("127.0.0.1", listener.local_addr().expect("it has one").port(), "iqn.a", 0);
        let initiator = std::thread::spawn(move || Idle::log_in(&uri, 7).expect("it is let in"));
        let (stream, _) = listener.accept().expect("it connects");
        stream.set_read_timeout(Some(LIMIT)).expect("it is TCP");
        let mut target = Session { stream, next: 1 };
        serve(&mut target, opcode::LOGIN, Header::new(opcode::LOGIN_RESPONSE, 0));
        let mut news = Header::new(opcode::SCSI_RESPONSE, 0);
        news.0[3] = 2;
        serve(&mut target, opcode::SCSI_COMMAND, news);
        serve(&mut target, opcode::SCSI_COMMAND, Header::new(opcode::SCSI_RESPONSE, 0));
        (target, initiator.join().expect("it is let in"))
    }

    #[test]
    fn an_idle_initiator_answers_pings_by_their_tags_and_counts_them() {
        let (mut target, initiator) = let_in();
        for tag in [11, 12] {
            let mut ping = Header::new(opcode::NOP_IN, flag::FINAL);
            ping.set_u32(field::TRANSFER_TAG, tag);
            target.send(ping, &[]).expect("it is taken");
            let pong = target.receive().expect("it is answered");
            assert_eq!((pong.opcode(), pong.u32(field::TRANSFER_TAG)), (opcode::NOP_OUT, tag));
            assert_eq!(pong.u32(field::COMMAND_NUMBER), 3, "two commands have come");
        }
        // The second one is counted after it was sent.
        wait_until(|| initiator.pings.load(Ordering::Relaxed) == 2);
        assert_eq!(initiator.end().expect("it lives"), 2);
    }

    #[test]
    fn an_idle_initiator_whose_session_the_target_has_ended_says_so() {
        let (target, initiator) = let_in();
        drop(target);
        wait_until(|| initiator.thread.is_finished());
        assert!(initiator.end().is_err());
    }
}
