//! A session of an initiator that does nothing but what a test wants: it logs in, and sends single commands.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long an answer may take.
const ANSWERS: Duration = Duration::from_secs(10);
/// The length of a header.
const HEADER: usize = 48;
/// The sequence number of the first command.
const FIRST: u32 = 1;

/// A session. It ends when this is dropped.
pub(crate) struct Initiator {
    stream: TcpStream,
    /// Of the next command.
    number: u32,
    /// The number of the next answer.
    next_answer: u32,
}

impl Initiator {
    /// Logs in at a node, by this name, to this target.
    pub(crate) fn log_in(node: SocketAddr, name: &str, target: &str) -> Initiator {
        let stream = TcpStream::connect(node).expect("the node listens");
        stream.set_read_timeout(Some(ANSWERS)).expect("there is a limit");
        let mut this = Initiator { stream, number: FIRST, next_answer: 0 };
        let keys = format!("InitiatorName={name}\0TargetName={target}\0SessionType=Normal\0");
        let mut header = [0; HEADER];
        // From the negotiation of parameters to the full feature phase.
        (header[0], header[1]) = (0x43, 0x87);
        header[8..14].copy_from_slice(&[0x80, 0, 0, 1, 0x37, 0]);
        let answer = this.ask(header, keys.as_bytes());
        assert_eq!((answer[0] & 0x3f, answer[1] & 0x80, answer[36]), (0x23, 0x80, 0), "{answer:02x?}");
        this
    }

    /// Sends a command with parameters. Returns its status.
    pub(crate) fn command(&mut self, cdb: &[u8], parameters: &[u8]) -> u8 {
        let mut header = [0; HEADER];
        (header[0], header[1]) = (0x01, if parameters.is_empty() { 0x81 } else { 0xa1 });
        header[20..24].copy_from_slice(&(parameters.len() as u32).to_be_bytes());
        header[32..32 + cdb.len()].copy_from_slice(cdb);
        let answer = self.ask(header, parameters);
        self.number += 1;
        assert_eq!((answer[0] & 0x3f, answer[2]), (0x21, 0), "{answer:02x?}");
        answer[3]
    }

    /// PERSISTENT RESERVE OUT with a service action and a type. Returns its status.
    pub(crate) fn reserve_out(&mut self, action: u8, kind: u8, (own, service): (u64, u64)) -> u8 {
        let parameters = [&own.to_be_bytes()[..], &service.to_be_bytes(), &[0; 8]].concat();
        self.command(&[0x5f, action, kind, 0, 0, 0, 0, 0, parameters.len() as u8, 0], &parameters)
    }

    /// Sends a header with data, and returns the header of the answer.
    fn ask(&mut self, mut header: [u8; HEADER], data: &[u8]) -> [u8; HEADER] {
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        header[16..20].copy_from_slice(&self.number.to_be_bytes());
        header[24..28].copy_from_slice(&self.number.to_be_bytes());
        header[28..32].copy_from_slice(&self.next_answer.to_be_bytes());
        let mut bytes = [&header[..], data].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        self.stream.write_all(&bytes).expect("the node reads");
        loop {
            let mut answer = [0; HEADER];
            self.stream.read_exact(&mut answer).expect("the node answers in time");
            let length = u32::from_be_bytes([0, answer[5], answer[6], answer[7]]) as usize;
            let mut data = vec![0; length.next_multiple_of(4)];
            self.stream.read_exact(&mut data).expect("it has its data");
            // A NOP-In only asks whether this initiator is there.
            if answer[0] & 0x3f != 0x20 {
                let number = answer[24..28].try_into().expect("it has four bytes");
                self.next_answer = u32::from_be_bytes(number).wrapping_add(1);
                return answer;
            }
        }
    }
}
