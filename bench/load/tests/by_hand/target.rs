//! The target's end of a connection, made by hand: it keeps to the protocol as far as the test has it, and checks that the initiator does.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;

use loadline_base::iscsi::{HEADER, Header, NO_TAG, digest, field, flag, keys, opcode, padding};
use loadline_base::scsi::operation;
use rand_core::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;

/// Bytes of the disk.
pub(crate) const SIZE: usize = 4 << 20;
const BLOCK: usize = 512;

/// What a target declares, and how it behaves within that.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) digest: bool,
    /// The most bytes of a data segment that it takes.
    segment: u32,
    immediate: bool,
    asks_first: bool,
    first_burst: u32,
    burst: u32,
    /// Bytes that it asks for at once.
    asks: u32,
    /// Bytes that it sends in one PDU.
    sends: usize,
    /// The status of a read comes in a PDU of its own.
    status_apart: bool,
    window: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            digest: false,
            segment: 8192,
            immediate: true,
            asks_first: true,
            first_burst: 64 << 10,
            burst: 256 << 10,
            asks: 256 << 10,
            sends: 8192,
            status_apart: false,
            window: 32,
        }
    }
}

impl Limits {
    pub(crate) fn random(rng: &mut Xoshiro256PlusPlus, digest: bool) -> Limits {
        let mut between = |least: u32, most: u32| least + rng.next_u32() % (most - least + 1);
        let burst = between(512, 300_000);
        Limits {
            digest,
            segment: [512, 515, 8192, 262_144][between(0, 3) as usize],
            immediate: between(0, 1) > 0,
            asks_first: between(0, 1) > 0,
            first_burst: between(512, burst.min(256 << 10)),
            burst,
            asks: between(500, burst),
            sends: between(1000, 100_000) as usize,
            status_apart: between(0, 1) > 0,
            window: between(1, 20),
        }
    }

    fn text(&self) -> String {
        let Limits { segment, first_burst, burst, .. } = self;
        let digest = if self.digest { "CRC32C" } else { "None" };
        let yes = |is: bool| if is { "Yes" } else { "No" };
        let (immediate, asks_first) = (yes(self.immediate), yes(self.asks_first));
        format!(
            "HeaderDigest={digest}\0DataDigest={digest}\0MaxRecvDataSegmentLength={segment}\0ImmediateData={immediate}\0\
             InitialR2T={asks_first}\0FirstBurstLength={first_burst}\0MaxBurstLength={burst}\0MaxOutstandingR2T=1\0"
        )
    }
}

/// The target's end of a connection.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    /// Commands that the initiator may have sent and not seen answered.
    pub(crate) window: u32,
    /// A byte of all that it sends, by its number, which arrives with this bit changed.
    pub(crate) flip: Option<(usize, u8)>,
    /// Bytes that it has sent.
    sent: usize,
    /// Pings that were answered.
    pub(crate) pongs: u32,
    digest: bool,
    /// Of the next status, and the next command.
    status: u32,
    expected: u32,
    /// Commands that were received and not answered.
    open: u32,
    /// What was received while something else was waited for.
    aside: VecDeque<(Header, Vec<u8>)>,
}

impl Peer {
    pub(crate) fn new(stream: TcpStream) -> Peer {
        Peer {
            stream,
            window: 32,
            flip: None,
            sent: 0,
            pongs: 0,
            digest: false,
            status: 7,
            expected: 0,
            open: 0,
            aside: VecDeque::new(),
        }
    }

    /// The next PDU.
    pub(crate) fn read(&mut self) -> io::Result<(Header, Vec<u8>)> {
        let mut header = Header([0; HEADER]);
        self.stream.read_exact(&mut header.0)?;
        self.check_digest(&header.0.clone())?;
        assert_eq!(header.additional_bytes(), 0);
        let mut data = vec![0; header.data_bytes()];
        self.stream.read_exact(&mut data)?;
        let mut pad = vec![0; padding(data.len())];
        self.stream.read_exact(&mut pad)?;
        if !data.is_empty() {
            self.check_digest(&data)?;
        }
        if header.opcode() == opcode::SCSI_COMMAND {
            assert_eq!(header.u32(field::COMMAND_NUMBER), self.expected, "commands come in their order");
            self.expected = self.expected.wrapping_add(1);
            self.open += 1;
            assert!(self.open <= self.window, "no more than the window");
        }
        if header.opcode() == opcode::NOP_OUT {
            assert!(header.is_immediate() && header.task_tag() == NO_TAG);
            self.pongs += 1;
        }
        Ok((header, data))
    }

    fn check_digest(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.digest {
            let mut sent = [0; 4];
            self.stream.read_exact(&mut sent)?;
            assert_eq!(sent, digest(bytes), "the digest of what was sent");
        }
        Ok(())
    }

    /// The bytes of a PDU with this data.
    pub(crate) fn framed(&mut self, mut header: Header, data: &[u8]) -> Vec<u8> {
        header.set_data_bytes(data.len());
        header.set_u32(field::EXPECTED_COMMAND_NUMBER, self.expected);
        let last = self.expected.wrapping_sub(1).wrapping_add(self.window - self.open.min(self.window));
        header.set_u32(field::LAST_COMMAND_NUMBER, last);
        header.set_u32(field::STATUS_NUMBER, self.status);
        let mut bytes = header.0.to_vec();
        if self.digest {
            bytes.extend(digest(&header.0));
        }
        bytes.extend(data);
        bytes.resize(bytes.len() + padding(data.len()), 0);
        if self.digest && !data.is_empty() {
            bytes.extend(digest(data));
        }
        bytes
    }

    fn write(&mut self, header: Header, data: &[u8]) -> io::Result<()> {
        let mut bytes = self.framed(header, data);
        if let Some((at, bit)) = self.flip
            && let Some(byte) = at.checked_sub(self.sent).and_then(|at| bytes.get_mut(at))
        {
            *byte ^= bit;
        }
        self.sent += bytes.len();
        self.stream.write_all(&bytes)
    }

    /// The same, of a PDU that has a status of its own.
    fn write_status(&mut self, header: Header, data: &[u8]) -> io::Result<()> {
        self.write(header, data)?;
        self.status = self.status.wrapping_add(1);
        Ok(())
    }

    /// Answers one PDU of a login.
    fn login(&mut self, status: (u8, u8), text: &dyn Fn(u8) -> Vec<u8>) -> io::Result<u8> {
        let (request, said) = self.read()?;
        assert_eq!(request.opcode(), opcode::LOGIN);
        assert!(request.is_immediate());
        let said = keys(&said).expect("keys");
        let now = request.flags() >> 2 & 3;
        assert!(now != 0 || said.iter().any(|(key, _)| *key == "InitiatorName"));
        self.expected = request.u32(field::COMMAND_NUMBER);
        let mut header = Header::new(opcode::LOGIN_RESPONSE, request.flags());
        header.0[8..16].copy_from_slice(&request.0[8..16]);
        header.set_u32(field::TASK_TAG, request.task_tag());
        (header.0[36], header.0[37]) = status;
        self.write_status(header, &text(now))?;
        Ok(request.flags())
    }

    /// Lets an initiator in, with these answers to what it offers.
    pub(crate) fn let_in(&mut self, answers: &str) -> io::Result<()> {
        loop {
            let flags = self.login((0, 0), &|now| match now {
                0 => b"AuthMethod=None\0TargetPortalGroupTag=1\0".to_vec(),
                _ => answers.as_bytes().to_vec(),
            })?;
            if flags & (flag::TRANSIT | 3) == flag::TRANSIT | 3 {
                self.digest = answers.contains("=CRC32C");
                return Ok(());
            }
        }
    }

    /// Refuses a login.
    pub(crate) fn turn_away(&mut self, class: u8, detail: u8, text: &[u8]) -> io::Result<()> {
        self.login((class, detail), &|_| text.to_vec()).map(drop)
    }

    /// Answers questions of what the unit is, until the first other command.
    pub(crate) fn describe(&mut self) -> io::Result<Header> {
        loop {
            let (header, _) = self.read()?;
            if header.opcode() == opcode::SCSI_COMMAND && !self.answer_question(&header)? {
                return Ok(header);
            }
        }
    }

    /// Answers a command if it is a question of what the unit is, or whether all is durable.
    pub(crate) fn answer_question(&mut self, header: &Header) -> io::Result<bool> {
        let (tag, cdb) = (header.task_tag(), header.cdb());
        match cdb[0] {
            operation::TEST_UNIT_READY | operation::SYNCHRONIZE_CACHE_16 => self.answer(tag, 0, &[])?,
            operation::INQUIRY if cdb[1] == 0 => self.data(tag, 0, &[0; 36], true)?,
            operation::INQUIRY => self.answer(tag, 2, &[0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0])?,
            operation::MODE_SENSE_6 => self.data(tag, 0, &[3, 0, 0x10, 0], true)?,
            operation::SERVICE_ACTION_IN_16 => {
                let mut capacity = [0; 32];
                capacity[..8].copy_from_slice(&((SIZE / BLOCK - 1) as u64).to_be_bytes());
                capacity[8..12].copy_from_slice(&(BLOCK as u32).to_be_bytes());
                self.data(tag, 0, &capacity, true)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Answers a command with a status, and sense data if there are any.
    pub(crate) fn answer(&mut self, tag: u32, status: u8, sense: &[u8]) -> io::Result<()> {
        let mut header = Header::new(opcode::SCSI_RESPONSE, flag::FINAL);
        header.0[3] = status;
        header.set_u32(field::TASK_TAG, tag);
        let mut data = Vec::new();
        if !sense.is_empty() {
            data.extend((sense.len() as u16).to_be_bytes());
            data.extend(sense);
        }
        self.open = self.open.saturating_sub(1);
        self.write_status(header, &data)
    }

    /// Sends data of a read; `is_last`: with its status, which is good.
    pub(crate) fn data(&mut self, tag: u32, at: u32, data: &[u8], is_last: bool) -> io::Result<()> {
        let flags = if is_last { flag::FINAL | flag::STATUS } else { 0 };
        let mut header = Header::new(opcode::DATA_IN, flags);
        header.set_u32(field::TASK_TAG, tag);
        header.set_u32(field::TRANSFER_TAG, NO_TAG);
        header.set_u32(field::OFFSET, at);
        if !is_last {
            return self.write(header, data);
        }
        self.open = self.open.saturating_sub(1);
        self.write_status(header, data)
    }

    /// Asks for data of a write.
    pub(crate) fn ask(&mut self, tag: u32, transfer: u32, at: u32, bytes: u32) -> io::Result<()> {
        let mut header = Header::new(opcode::R2T, flag::FINAL);
        header.set_u32(field::TASK_TAG, tag);
        header.set_u32(field::TRANSFER_TAG, transfer);
        header.set_u32(field::OFFSET, at);
        header.set_u32(field::DESIRED_LENGTH, bytes);
        self.write(header, &[])
    }

    /// Asks for a sign of life.
    pub(crate) fn ping(&mut self, transfer: u32) -> io::Result<()> {
        let mut header = Header::new(opcode::NOP_IN, flag::FINAL);
        header.set_u32(field::TASK_TAG, NO_TAG);
        header.set_u32(field::TRANSFER_TAG, transfer);
        self.write(header, &[])
    }

    /// Sends a header that announces so many bytes of data, which never come.
    pub(crate) fn announce(&mut self, code: u8, bytes: usize) -> io::Result<()> {
        let mut header = Header::new(code, flag::FINAL);
        header.set_u32(field::TASK_TAG, NO_TAG);
        header.set_u32(field::TRANSFER_TAG, NO_TAG);
        header.set_data_bytes(bytes);
        self.stream.write_all(&header.0)
    }

    /// The same, of data of a read.
    pub(crate) fn announce_data(&mut self, tag: u32, bytes: usize) -> io::Result<()> {
        let mut header = Header::new(opcode::DATA_IN, 0);
        header.set_u32(field::TASK_TAG, tag);
        header.set_data_bytes(bytes);
        self.stream.write_all(&header.0)
    }

    /// Calls a request wrong.
    pub(crate) fn reject(&mut self, reason: u8) -> io::Result<()> {
        let mut header = Header::new(opcode::REJECT, flag::FINAL);
        header.0[2] = reason;
        header.set_u32(field::TASK_TAG, NO_TAG);
        self.write_status(header, &[0; HEADER])
    }

    /// Reports an event.
    pub(crate) fn event(&mut self, event: u8) -> io::Result<()> {
        let mut header = Header::new(opcode::ASYNC, flag::FINAL);
        header.0[36] = event;
        header.set_u32(field::TASK_TAG, NO_TAG);
        self.write_status(header, &[])
    }

    /// The next data of this write.
    fn data_of(&mut self, tag: u32) -> io::Result<(Header, Vec<u8>)> {
        let is_it =
            |(header, _): &(Header, Vec<u8>)| header.opcode() == opcode::DATA_OUT && header.task_tag() == tag;
        if let Some(at) = self.aside.iter().position(is_it) {
            return Ok(self.aside.remove(at).expect("it is there"));
        }
        loop {
            let read = self.read()?;
            if is_it(&read) {
                return Ok(read);
            }
            self.aside.push_back(read);
        }
    }

    /// Receives a sequence of a write's data, up to its end. They are those that follow.
    fn sequence(
        &mut self,
        tag: u32,
        transfer: u32,
        into: &mut Vec<u8>,
        limits: &Limits,
    ) -> io::Result<usize> {
        let begun = into.len();
        for number in 0.. {
            let (header, data) = self.data_of(tag)?;
            assert_eq!(header.u32(field::TRANSFER_TAG), transfer);
            assert_eq!(header.u32(field::DATA_NUMBER), number);
            assert_eq!(header.u32(field::OFFSET) as usize, into.len());
            assert!(!data.is_empty() && data.len() <= limits.segment as usize);
            into.extend(data);
            if header.has(flag::FINAL) {
                break;
            }
        }
        Ok(into.len() - begun)
    }
}

/// Serves this disk within these limits, until the initiator logs out.
pub(crate) fn serve_disk(mut peer: Peer, limits: &Limits, disk: &Mutex<Vec<u8>>) -> io::Result<()> {
    peer.window = limits.window;
    peer.let_in(&limits.text())?;
    loop {
        let (header, data) = match peer.aside.pop_front() {
            Some(aside) => aside,
            None => peer.read()?,
        };
        match header.opcode() {
            opcode::SCSI_COMMAND => {}
            opcode::LOGOUT => return Ok(()),
            opcode::NOP_OUT => continue,
            other => panic!("a PDU {other:02x} that belongs to nothing"),
        }
        if peer.answer_question(&header)? {
            continue;
        }
        let (tag, cdb) = (header.task_tag(), header.cdb());
        let lba = u64::from_be_bytes(cdb[2..10].try_into().unwrap()) as usize;
        let length = u32::from_be_bytes(cdb[10..14].try_into().unwrap()) as usize * BLOCK;
        assert_eq!(header.u32(field::EXPECTED_LENGTH) as usize, length);
        let range = lba * BLOCK..lba * BLOCK + length;
        match cdb[0] {
            operation::READ_16 => {
                let bytes = disk.lock().unwrap()[range].to_vec();
                for (number, part) in bytes.chunks(limits.sends).enumerate() {
                    let at = number * limits.sends;
                    let is_last = at + part.len() == length && !limits.status_apart;
                    peer.data(tag, at as u32, part, is_last)?;
                }
                if limits.status_apart {
                    peer.answer(tag, 0, &[])?;
                }
            }
            operation::WRITE_16 => {
                let unasked = limits.first_burst as usize;
                assert!(
                    data.len() <= if limits.immediate { unasked.min(limits.segment as usize) } else { 0 }
                );
                let mut bytes = data;
                if !header.has(flag::FINAL) {
                    assert!(!limits.asks_first, "the target asks for it first");
                    peer.sequence(tag, NO_TAG, &mut bytes, limits)?;
                    assert_eq!(bytes.len(), unasked.min(length));
                }
                while bytes.len() < length {
                    let asked = (limits.asks as usize).min(length - bytes.len());
                    peer.ask(tag, 77, bytes.len() as u32, asked as u32)?;
                    assert_eq!(peer.sequence(tag, 77, &mut bytes, limits)?, asked);
                }
                disk.lock().unwrap()[range].copy_from_slice(&bytes);
                peer.answer(tag, 0, &[])?;
            }
            other => panic!("a command {other:02x} that no load needs"),
        }
    }
}
