//! An initiator for tests. It sends what the test says: a part of a PDU too, and no answer to a ping unless the test wants it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use loadline_base::iscsi::{HEADER, Header, IMMEDIATE, NO_TAG, PORT, add_key, field, flag, opcode, padding};
use loadline_base::scsi::{operation, service_action};

/// How long anything is waited for.
const LIMIT: Duration = Duration::from_secs(20);

/// A connection of an initiator.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    number: u32,
}

/// A PDU of a login. `transit`: the stage to go on to.
fn login(isid: u16, stage: u8, transit: Option<u8>, keys: &[(&str, &str)]) -> Vec<u8> {
    let flags = stage << 2 | transit.map_or(0, |next| flag::TRANSIT | next);
    let mut header = Header::new(opcode::LOGIN | IMMEDIATE, flags);
    header.0[8] = 0x80;
    header.0[12..14].copy_from_slice(&isid.to_be_bytes());
    header.set_u32(field::TASK_TAG, 1);
    header.set_u32(field::COMMAND_NUMBER, 1);
    let mut text = Vec::new();
    keys.iter().for_each(|(key, value)| add_key(&mut text, key, value));
    pdu(header, &text)
}

fn pdu(mut header: Header, data: &[u8]) -> Vec<u8> {
    header.set_data_bytes(data.len());
    let mut bytes = [&header.0, data].concat();
    bytes.resize(bytes.len() + padding(data.len()), 0);
    bytes
}

/// The keys of the first request of a login: to this target, or to look for targets.
fn names<'a>(initiator: &'a str, target: Option<&'a str>) -> Vec<(&'a str, &'a str)> {
    match target {
        Some(target) => vec![("InitiatorName", initiator), ("TargetName", target)],
        None => vec![("InitiatorName", initiator), ("SessionType", "Discovery")],
    }
}

/// MAINTENANCE IN or OUT with a service action, of so many bytes.
fn maintenance(operation: u8, action: u8, bytes: u8) -> [u8; 12] {
    let mut cdb = [0; 12];
    (cdb[0], cdb[1], cdb[9]) = (operation, action, bytes);
    cdb
}

impl Raw {
    /// Connects, and says nothing.
    pub(crate) fn connect(address: Ipv4Addr) -> Raw {
        let stream = TcpStream::connect((address, PORT)).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("it may be so long");
        stream.set_nodelay(true).expect("it is TCP");
        Raw { stream, number: 1 }
    }

    /// Sends half of the header of a login.
    pub(crate) fn begin_header(&mut self) {
        self.stream.write_all(&[opcode::LOGIN | IMMEDIATE; HEADER / 2]).expect("it is taken");
    }

    /// Names a target, and stays in the stage of security.
    pub(crate) fn begin_login(&mut self, target: &str) {
        let keys =
            [names("iqn.2026-01.org.example:half", Some(target)), vec![("AuthMethod", "None")]].concat();
        self.stream.write_all(&login(1, 0, None, &keys)).expect("it is taken");
    }

    /// Sends a request of the same login, which goes on to no other stage.
    pub(crate) fn repeat_login(&mut self) -> io::Result<()> {
        self.stream.write_all(&login(1, 0, None, &[]))
    }

    /// Logs in to this target, or to look for targets.
    pub(crate) fn log_in(address: Ipv4Addr, isid: u16, target: Option<&str>) -> io::Result<Raw> {
        Raw::log_in_as("iqn.2026-01.org.example:raw", address, isid, target)
    }

    /// The same, by this name.
    pub(crate) fn log_in_as(
        name: &str,
        address: Ipv4Addr,
        isid: u16,
        target: Option<&str>,
    ) -> io::Result<Raw> {
        let mut this = Raw::connect(address);
        this.stream.write_all(&login(isid, 1, Some(3), &names(name, target)))?;
        let (response, _) = this.receive()?;
        let ended = (response.opcode(), response.0[36], response.0[37]);
        if ended != (opcode::LOGIN_RESPONSE, 0, 0) {
            return Err(io::Error::other(format!("its login ended with {ended:02x?}")));
        }
        Ok(this)
    }

    /// Receives a PDU.
    pub(crate) fn receive(&mut self) -> io::Result<(Header, Vec<u8>)> {
        let mut header = Header([0; HEADER]);
        self.stream.read_exact(&mut header.0)?;
        let mut data = vec![0; header.data_bytes() + padding(header.data_bytes())];
        self.stream.read_exact(&mut data)?;
        data.truncate(header.data_bytes());
        Ok((header, data))
    }

    /// The same, for what is not to come later than this: pings come for ever.
    fn receive_until(&mut self, end: Instant) -> io::Result<(Header, Vec<u8>)> {
        assert!(Instant::now() < end, "what is waited for does not come");
        self.receive()
    }

    /// Sends a command; this many bytes of its data come with it.
    pub(crate) fn send_command(&mut self, cdb: &[u8], flags: u8, expected: u32, data: &[u8]) -> u32 {
        let number = self.number;
        self.number += 1;
        let mut header = Header::new(opcode::SCSI_COMMAND, flag::FINAL | flags | 1);
        header.set_u32(field::TASK_TAG, number);
        header.set_u32(field::EXPECTED_LENGTH, expected);
        header.set_u32(field::COMMAND_NUMBER, number);
        header.0[32..32 + cdb.len()].copy_from_slice(cdb);
        self.stream.write_all(&pdu(header, data)).expect("it is taken");
        number
    }

    /// The status of this command, and what it reads, or its sense. Pings are answered meanwhile, and answers to other commands dropped.
    pub(crate) fn answer(&mut self, number: u32) -> io::Result<(u8, Vec<u8>)> {
        let (begun, mut read) = (Instant::now(), Vec::new());
        loop {
            let (header, data) = self.receive_until(begun + LIMIT)?;
            match header.opcode() {
                opcode::NOP_IN => self.pong(&header)?,
                opcode::DATA_IN if header.task_tag() == number => {
                    read.extend(data);
                    if header.has(flag::STATUS) {
                        return Ok((header.0[3], read));
                    }
                }
                opcode::SCSI_RESPONSE if header.task_tag() == number => {
                    // If it has failed, its sense has come.
                    return Ok((header.0[3], if data.is_empty() { read } else { data }));
                }
                // Those of other commands.
                opcode::DATA_IN | opcode::SCSI_RESPONSE => {}
                other => panic!("operation code {other:#04x} comes"),
            }
        }
    }

    /// The tag by which this command is asked for its data. Pings are answered meanwhile.
    pub(crate) fn asked_for(&mut self, number: u32) -> io::Result<u32> {
        let begun = Instant::now();
        loop {
            let (header, _) = self.receive_until(begun + LIMIT)?;
            match header.opcode() {
                opcode::NOP_IN => self.pong(&header)?,
                opcode::R2T if header.task_tag() == number => return Ok(header.u32(field::TRANSFER_TAG)),
                other => panic!("operation code {other:#04x} comes"),
            }
        }
    }

    /// Sends all data that this command was asked for.
    pub(crate) fn send_data(&mut self, number: u32, transfer: u32, data: &[u8]) -> io::Result<()> {
        let mut header = Header::new(opcode::DATA_OUT, flag::FINAL);
        header.set_u32(field::TASK_TAG, number);
        header.set_u32(field::TRANSFER_TAG, transfer);
        self.stream.write_all(&pdu(header, data))
    }

    /// The status of PERSISTENT RESERVE OUT with a service action, a type and two keys: that of the initiator, and the other one.
    pub(crate) fn reserve_out(&mut self, action: u8, kind: u8, (own, service): (u64, u64)) -> io::Result<u8> {
        let parameters = [&own.to_be_bytes()[..], &service.to_be_bytes(), &[0; 8]].concat();
        let bytes = parameters.len() as u8;
        let cdb = [operation::PERSISTENT_RESERVE_OUT, action, kind, 0, 0, 0, 0, 0, bytes, 0];
        let number = self.send_command(&cdb, flag::WRITE, bytes.into(), &parameters);
        Ok(self.answer(number)?.0)
    }

    /// Makes the first port that stands by the active one: SET TARGET PORT GROUPS. The error is the key and the code of its sense.
    pub(crate) fn activate_standby(&mut self) -> io::Result<Result<(), (u8, u8, u8)>> {
        const STANDBY: u8 = 2;
        let cdb = maintenance(operation::MAINTENANCE_IN, service_action::REPORT_TARGET_PORT_GROUPS, 255);
        let report = self.send_command(&cdb, flag::READ, 255, &[]);
        let (status, states) = self.answer(report)?;
        assert_eq!(status, 0, "the states of ports are reported");
        // Each group has one port.
        let mut groups = states[4..].chunks_exact(12);
        let group = groups.find(|group| group[0] & 0x0f == STANDBY).expect("one stands by");
        let list = [0, 0, 0, 0, 0, 0, group[2], group[3]];
        let bytes = list.len() as u8;
        let cdb = maintenance(operation::MAINTENANCE_OUT, service_action::SET_TARGET_PORT_GROUPS, bytes);
        let set = self.send_command(&cdb, flag::WRITE, bytes.into(), &list);
        let (status, sense) = self.answer(set)?;
        // Two bytes of length come before the sense.
        Ok(if status == 0 { Ok(()) } else { Err((sense[4] & 0x0f, sense[14], sense[15])) })
    }

    /// The next answer to a command without data: its number, and its status. Pings are answered meanwhile.
    pub(crate) fn any_answer(&mut self) -> io::Result<(u32, u8)> {
        let begun = Instant::now();
        loop {
            let (header, _) = self.receive_until(begun + LIMIT)?;
            match header.opcode() {
                opcode::NOP_IN => self.pong(&header)?,
                opcode::SCSI_RESPONSE => return Ok((header.task_tag(), header.0[3])),
                other => panic!("operation code {other:#04x} comes"),
            }
        }
    }

    /// Answers a ping.
    pub(crate) fn pong(&mut self, ping: &Header) -> io::Result<()> {
        let mut header = Header::new(opcode::NOP_OUT | IMMEDIATE, flag::FINAL);
        header.set_u32(field::TASK_TAG, NO_TAG);
        header.set_u32(field::TRANSFER_TAG, ping.u32(field::TRANSFER_TAG));
        header.set_u32(field::COMMAND_NUMBER, self.number);
        self.stream.write_all(&pdu(header, &[]))
    }

    /// Whether the unit is ready, once it has said what is new to a session.
    pub(crate) fn is_ready(&mut self) -> io::Result<bool> {
        for _ in 0..8 {
            let number = self.send_command(&[0; 6], 0, 0, &[]);
            if self.answer(number)?.0 == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits until the unit is ready.
    pub(crate) fn get_ready(&mut self) {
        let begun = Instant::now();
        while !self.is_ready().expect("the session goes on") {
            assert!(begun.elapsed() < LIMIT, "the unit is not ready");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks which targets there are.
    pub(crate) fn ask_for_targets(&mut self) -> io::Result<()> {
        let mut header = Header::new(opcode::TEXT, flag::FINAL);
        header.set_u32(field::TASK_TAG, self.number);
        header.set_u32(field::TRANSFER_TAG, NO_TAG);
        header.set_u32(field::COMMAND_NUMBER, self.number);
        self.number += 1;
        self.stream.write_all(&pdu(header, b"SendTargets=All\0"))?;
        self.receive().map(drop)
    }

    /// Answers nothing until the target ends the connection: the operation codes that came. Panics if it does not end within the limit.
    pub(crate) fn await_end(&mut self) -> Vec<u8> {
        let begun = Instant::now();
        let mut came = Vec::new();
        loop {
            assert!(begun.elapsed() < LIMIT, "the target does not end the connection");
            match self.receive() {
                Ok((header, _)) => came.push(header.opcode()),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    panic!("the target does not end the connection")
                }
                Err(_) => return came,
            }
        }
    }
}
