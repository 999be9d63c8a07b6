//! Any bytes, to the whole of the target: from an initiator's first login request to its commands, in any portions, while the volume completes
//! in any order and fails now and then. It never panics, takes no more memory than it may, and what it sends can be read; each command is
//! answered once at the most, and none after it was aborted.
//!
//! `LOADLINE_FUZZ_SECONDS` (2) says how long it goes on, and `LOADLINE_FUZZ_SEED` (1) where it begins; the same seed makes the same inputs in
//! the same order. Most inputs are what initiators send, changed in a few places.

mod initiator;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use initiator::{
    BYTES, FAILS, Target, UNSOLICITED, Volume, cdb16, command, data_out, decode, encode, management, unit,
};
use loadline_base::iscsi::{Header, IMMEDIATE, NO_TAG, field, flag, opcode, stage};
use loadline_base::scsi::operation;
use loadline_san_export::iscsi::login::TargetLogin;
use loadline_san_export::iscsi::parameters::Parameters;
use loadline_san_export::login::{Credential, Export, Initiator, Login as _, LoginStep, Refusal};
use loadline_san_export::session::Session as _;

/// As many inputs at least, however slow the machine is.
const LEAST: u64 = 300;
/// What a session may take: commands, one that always begins, and what comes with commands that wait.
const MOST_TAKEN: usize = (32 << 20) + (4 << 20) + 256 * (256 << 10);

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below this; 0 if that is 0.
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % (limit.max(1) as u64)) as usize
    }

    fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// Changes a few places.
fn mutate(random: &mut Random, said: &mut Vec<u8>) {
    for _ in 0..random.below(4) {
        if said.is_empty() {
            return;
        }
        let at = random.below(said.len());
        match random.below(5) {
            0 => said[at] ^= 1 << random.below(8),
            1 => said[at] = random.next() as u8,
            2 => said.truncate(at),
            3 => {
                let end = (at + random.below(60)).min(said.len());
                let copy = said[at..end].to_vec();
                said.splice(at..at, copy);
            }
            _ => _ = said.drain(at..(at + random.below(9)).min(said.len())),
        }
    }
}

// ---- logins --------------------------------------------------------------------------------------------

fn login_requests(random: &mut Random) -> Vec<u8> {
    let mut said = Vec::new();
    let is_discovery = random.one_in(3);
    for _ in 0..1 + random.below(5) {
        let flags = match random.below(5) {
            0 => random.next() as u8,
            1 => flag::TRANSIT | stage::OPERATIONAL,
            2 => stage::OPERATIONAL << 2 | flag::CONTINUE,
            _ => flag::TRANSIT | stage::OPERATIONAL << 2 | stage::FULL_FEATURE,
        };
        let mut header = Header::new(opcode::LOGIN | IMMEDIATE, flags);
        header.set_u32(field::TASK_TAG, 7);
        let mut text = Vec::new();
        let names = ["InitiatorName=iqn.x", "TargetName=iqn.2026-01.org.loadline:vol"];
        names.iter().for_each(|key| text.extend([key.as_bytes(), b"\0"].concat()));
        text.extend(if is_discovery { &b"SessionType=Discovery\0"[..] } else { b"SessionType=Normal\0" });
        for _ in 0..random.below(8) {
            let key = random.one_of(&[
                "AuthMethod=CHAP,None",
                "AuthMethod=None",
                "CHAP_A=5",
                "CHAP_N=user",
                "CHAP_R=0x00112233445566778899aabbccddeeff",
                "CHAP_I=1",
                "CHAP_C=0b////",
                "HeaderDigest=CRC32C,None",
                "MaxRecvDataSegmentLength=512",
                "MaxBurstLength=0x200",
                "InitialR2T=No",
                "FirstBurstLength=99999999999999",
                "TargetName=iqn.2026-01.org.loadline::zz",
                "X=",
                "=",
                "é=1",
            ]);
            text.extend([key.as_bytes(), b"\0"].concat());
        }
        said.extend(encode(&Parameters::default(), header, &text));
    }
    for number in 0..random.below(6) as u32 {
        let code = random.one_of(&[opcode::TEXT, opcode::NOP_OUT, opcode::LOGOUT, opcode::SCSI_COMMAND]);
        let mut header = Header::new(code, random.one_of(&[flag::FINAL, flag::CONTINUE, 0]));
        header.set_u32(field::TRANSFER_TAG, random.one_of(&[NO_TAG, 1, 0]));
        header.set_u32(field::COMMAND_NUMBER, number);
        let text = random.one_of(&["SendTargets=All\0", "SendTargets=\0", "", "x"]);
        said.extend(encode(&Parameters::default(), header, text.as_bytes()));
    }
    mutate(random, &mut said);
    said
}

fn log_in(random: &mut Random) {
    let said = login_requests(random);
    let mut login = TargetLogin::new(random.one_in(2));
    let chap = Some(Credential { user: "user".into(), secret: "secret".into() });
    let known = Initiator { name: "iqn.x".into(), chap: chap.clone(), mutual: chap, naming: 0 };
    let initiators = if random.one_in(2) { vec![known] } else { Vec::new() };
    let export = Export { bytes: 1 << 30, most: 4096, group: 1, initiators, ..Export::default() };
    let (mut left, mut sent) = (&said[..], Vec::new());
    loop {
        let step = login.step();
        sent.extend(login.take_output());
        match step {
            Ok(LoginStep::Bytes) if left.is_empty() => break,
            Ok(LoginStep::Bytes) => {
                let (some, rest) = left.split_at(1 + random.below(left.len().min(200)));
                login.feed(some);
                left = rest;
            }
            Ok(LoginStep::List) => login.list(&[("vol".into(), export.clone())]),
            Ok(LoginStep::Export(name)) => {
                let found = match name.as_str() {
                    "vol" => Ok(&export),
                    _ => Err(Refusal::Unknown("there is none".into())),
                };
                login.export(found).expect("an initiator reads why");
            }
            Ok(LoginStep::StartTls) => panic!("iSCSI has no TLS"),
            Ok(LoginStep::Chosen(_) | LoginStep::Gone) | Err(_) => break,
        }
    }
    decode(&Parameters { sends: 8192, ..Parameters::default() }, &mut sent);
    assert!(sent.is_empty(), "what is sent is whole");
}

// ---- sessions ------------------------------------------------------------------------------------------

/// A command that a disk may get, with what it sends.
fn any_command(random: &mut Random, tag: u32, number: u32) -> (Header, u32) {
    let sectors = random.one_of(&[0, 1, 8, 8, 16, 64, 100, 8192, u32::MAX]);
    let sector = match random.below(6) {
        0 => random.next(),
        1 => (BYTES as u64 / 512).wrapping_sub(u64::from(sectors)),
        _ => random.below(512) as u64,
    };
    let code = random.one_of(&[
        operation::READ_16,
        operation::READ_16,
        operation::WRITE_16,
        operation::WRITE_16,
        operation::WRITE_16,
        operation::COMPARE_AND_WRITE,
        operation::WRITE_SAME_16,
        operation::SYNCHRONIZE_CACHE_16,
        operation::INQUIRY,
        operation::PERSISTENT_RESERVE_OUT,
        operation::REPORT_LUNS,
        operation::TEST_UNIT_READY,
        operation::UNMAP,
        0xff,
    ]);
    let mut cdb = cdb16(code, sector, sectors);
    if code == operation::COMPARE_AND_WRITE {
        (cdb[10], cdb[13]) = (0, 1);
    }
    let bytes = match random.below(5) {
        0 => random.one_of(&[0, 1, 511, 4096, 65536, u32::MAX]),
        _ => sectors.saturating_mul(512),
    };
    let flags = match code {
        operation::WRITE_16
        | operation::COMPARE_AND_WRITE
        | operation::WRITE_SAME_16
        | operation::PERSISTENT_RESERVE_OUT
        | operation::UNMAP => flag::WRITE,
        _ => flag::READ,
    };
    let mut header = command(&cdb, if random.one_in(20) { 0x60 } else { flags }, tag, number, bytes);
    header.0[1] = header.0[1] & !7 | random.below(5) as u8;
    if random.one_in(30) {
        header.0[9] = 1;
    }
    (header, bytes)
}

/// What an initiator sends next.
fn next_pdus(random: &mut Random, target: &mut Target, transfers: &[(u32, u32, u32, u32)]) -> Vec<u8> {
    let parameters = target.parameters.clone();
    let number = target.number;
    match random.below(12) {
        0 | 1 if !transfers.is_empty() => {
            // What was asked for, more or less.
            let (tag, transfer, offset, bytes) = random.one_of(transfers);
            let some = (bytes as usize).min(parameters.receives as usize);
            let data = vec![tag as u8; if random.one_in(8) { random.below(some) } else { some }];
            let is_final = some == bytes as usize || random.one_in(4);
            encode(&parameters, data_out(tag, transfer, 0, offset, is_final), &data)
        }
        2 => {
            let transfer = random.one_of(&[UNSOLICITED, 0, 1, 2, 77]);
            let data = vec![1; random.one_of(&[0, 1, 512, 4096])];
            let header = data_out(random.below(40) as u32, transfer, 0, 512, random.one_in(2));
            encode(&parameters, header, &data)
        }
        3 => {
            let header = management(random.below(10) as u8, 1000, random.below(60) as u32, number);
            encode(&parameters, header, &[])
        }
        4 => {
            let code = random.one_of(&[
                opcode::NOP_OUT,
                opcode::TEXT,
                opcode::SNACK,
                opcode::LOGIN,
                opcode::LOGOUT,
                0x2f,
            ]);
            let mut header = Header::new(code | IMMEDIATE, flag::FINAL);
            header.set_u32(field::TASK_TAG, random.one_of(&[3, NO_TAG]));
            header.set_u32(field::TRANSFER_TAG, random.one_of(&[NO_TAG, 1]));
            header.set_u32(field::COMMAND_NUMBER, number);
            encode(&parameters, header, &vec![b'='; random.below(600)])
        }
        _ => {
            target.number = number.wrapping_add(1);
            let (mut header, bytes) = any_command(random, number % 50, number);
            if random.one_in(10) {
                header.0[0] |= IMMEDIATE;
                target.number = number;
            }
            let most = bytes.min(parameters.first_burst).min(parameters.receives) as usize;
            let few = random.below(1000);
            let with = match header.has(flag::WRITE) {
                true => random.one_of(&[0, most, most, few]).min(parameters.receives as usize),
                false => 0,
            };
            let mut said = Vec::new();
            if header.has(flag::WRITE) && random.one_in(4) {
                header.0[1] &= !flag::FINAL;
                let data = vec![2; (bytes as usize).saturating_sub(with).min(2048)];
                let behind = data_out(number % 50, UNSOLICITED, 0, with as u32, !random.one_in(5));
                said = encode(&parameters, behind, &data);
            }
            [encode(&parameters, header, &vec![3; with]), said].concat()
        }
    }
}

/// How many commands were answered.
fn converse(random: &mut Random) -> u64 {
    let digests = random.one_in(6);
    let parameters = Parameters {
        header_digest: digests,
        data_digest: digests || random.one_in(6),
        sends: random.one_of(&[512, 8192, 262_144]),
        receives: random.one_of(&[512, 8192, 262_144]),
        immediate_data: !random.one_in(4),
        initial_r2t: random.one_in(3),
        first_burst: random.one_of(&[512, 65536, 262_144]),
        burst: random.one_of(&[512, 65536, 1 << 20]),
        outstanding: 1 + random.below(3) as u32,
    };
    let unit = unit();
    let mut targets = vec![Target::of(&unit, parameters.clone(), 1), Target::of(&unit, parameters, 2)];
    let mut volume = Volume::new(&targets[0].pool);
    let mut transfers = [Vec::new(), Vec::new()];
    targets[0].get_ready(&mut volume);
    let spoils = random.one_in(2);
    // By session and tag: commands that may be answered.
    let (mut asked, mut answered) = (HashMap::<(usize, u32), u32>::new(), 0);
    for _ in 0..random.below(120) {
        let which = random.below(targets.len());
        let target = &mut targets[which];
        if target.connection.is_none() {
            continue;
        }
        let mut said = next_pdus(random, target, &transfers[which]);
        if spoils && random.one_in(6) {
            mutate(random, &mut said);
        }
        if said.len() >= 20 && said[0] & 0x3f == opcode::SCSI_COMMAND {
            let tag = u32::from_be_bytes(said[16..20].try_into().unwrap());
            *asked.entry((which, tag)).or_default() += 1;
        }
        target.send_bytes(&said);
        let _ = target.turn();
        for pdu in target.received() {
            if pdu.opcode() == opcode::SCSI_RESPONSE
                || pdu.header.has(flag::STATUS) && pdu.opcode() == opcode::DATA_IN
            {
                answered += 1;
                let left = asked.entry((which, pdu.header.task_tag())).or_default();
                assert!(*left > 0 || spoils, "command {:#x} is answered twice", pdu.header.task_tag());
                *left = left.saturating_sub(1);
            }
            match pdu.opcode() {
                opcode::R2T => transfers[which].push((
                    pdu.header.task_tag(),
                    pdu.header.u32(field::TRANSFER_TAG),
                    pdu.header.u32(field::OFFSET),
                    pdu.header.u32(field::DESIRED_LENGTH),
                )),
                opcode::SCSI_RESPONSE => transfers[which].retain(|(tag, ..)| *tag != pdu.header.task_tag()),
                opcode::DATA_IN
                | opcode::LOGOUT_RESPONSE
                | opcode::NOP_IN
                | opcode::REJECT
                | opcode::TEXT_RESPONSE
                | opcode::TASK_MANAGEMENT_RESPONSE => {}
                other => panic!("operation code {other:#x} is sent"),
            }
        }
        // The volume does some of what is requested.
        while !target.requests.is_empty() && random.one_in(2) {
            let at = random.below(target.requests.len());
            work(random, target, &mut volume, at);
        }
        if let Some(connection) = &target.connection {
            assert!(connection.bytes() <= MOST_TAKEN, "{} bytes are taken", connection.bytes());
        }
        if random.one_in(8) {
            let passed = Duration::from_millis(random.below(1500) as u64);
            for target in &mut targets {
                target.connection.take_if(|connection| connection.pass_time(passed).is_err());
            }
        }
        // Others get a turn, as the loop gives it to them.
        for target in &mut targets {
            let _ = target.turn();
        }
    }
    for target in &mut targets {
        while !target.requests.is_empty() {
            work(random, target, &mut volume, 0);
        }
    }
    for _ in 0..3 {
        targets.iter_mut().for_each(|target| _ = target.turn());
    }
    targets.clear();
    // Nothing is left in the way of others.
    assert!(!unit.borrow().is_ending());
    let mut last = Target::of(&unit, Parameters::default(), 3);
    last.get_ready(&mut volume);
    let received = last.ask(&mut volume, &cdb16(operation::READ_16, 0, 1024), flag::READ, 1024 * 512);
    assert!(received.last().is_some_and(|pdu| pdu.header.has(flag::FINAL)), "a read goes on");
    answered
}

/// The volume carries out a request, or fails.
fn work(random: &mut Random, target: &mut Target, volume: &mut Volume, at: usize) {
    let request = target.requests.swap_remove(at);
    let Some(connection) = &mut target.connection else { return };
    for (ticket, _) in target.changes.drain(..) {
        connection.changed(ticket, Ok(()));
    }
    let done = match random.one_in(10) {
        true => connection.complete(request.slot, Err(FAILS)),
        false => volume.carry_out(connection, request, 1 + random.below(20)),
    };
    if done.is_err() {
        target.connection = None;
        return;
    }
    let _ = target.turn();
}

#[test]
fn any_bytes_are_handled() {
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
    };
    let (seconds, first) = (number("LOADLINE_FUZZ_SECONDS", 2), number("LOADLINE_FUZZ_SEED", 1));
    let until = Instant::now() + Duration::from_secs(seconds);
    let (mut seed, mut answered) = (first, 0);
    while seed < first + LEAST || Instant::now() < until {
        let done = catch_unwind(AssertUnwindSafe(|| {
            let mut random = Random(seed);
            for _ in 0..10 {
                log_in(&mut random);
            }
            converse(&mut random)
        }));
        match done {
            Ok(commands) => answered += commands,
            Err(why) => {
                eprintln!("LOADLINE_FUZZ_SEED={seed} does it again at once");
                resume_unwind(why);
            }
        }
        seed += 1;
    }
    eprintln!("seeds {first} to {}, {answered} commands were answered", seed - 1);
    assert!(answered > 10 * (seed - first), "most inputs come far");
}
