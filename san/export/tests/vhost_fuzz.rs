//! Any memory and any messages, to the server's side of vhost-user-blk: it never panics, never waits, and answers nothing twice.
//!
//! `LOADLINE_FUZZ_SECONDS` (2) says how long each goes on, and `LOADLINE_FUZZ_SEED` (1) where it begins; the same seed makes the
//! same inputs in the same order. Most inputs are what drivers do, changed in a few places.

mod guest;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use guest::{
    AVAILABLE, BYTES, DATA, Descriptor, EVENT_IDX, GUEST, Guest, HEADERS, INDIRECT, Memory, NEXT, SIZE,
    STATUS, TABLE, TABLES, USED, USER, WRITE, attachment, inflight, message, one_region, places, region, say,
    state,
};
use loadline_san_core::lease::Moment;
use loadline_san_core::volume::Failure;
use loadline_san_export::session::Session as _;
use loadline_san_export::vhost::session::Listened;

/// As many inputs at least, however slow the machine is.
const LEAST: u64 = 500;
/// No input takes longer.
const LIMIT: Duration = Duration::from_secs(5);

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

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

fn for_a_while(name: &str, mut input: impl FnMut(&mut Random)) {
    let number = |name: &str, default: u64| {
        std::env::var(name).ok().map_or(default, |text| text.parse().expect("it is a number"))
    };
    let (seconds, first) = (number("LOADLINE_FUZZ_SECONDS", 2), number("LOADLINE_FUZZ_SEED", 1));
    let begun = Instant::now();
    let mut seed = first;
    while seed < first + LEAST || begun.elapsed() < Duration::from_secs(seconds) {
        let since = Instant::now();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| input(&mut Random(seed)))) {
            eprintln!("{name}: seed {seed}: LOADLINE_FUZZ_SEED={seed} begins with it");
            resume_unwind(panic);
        }
        assert!(since.elapsed() < LIMIT, "{name}: seed {seed} took {:?}", since.elapsed());
        seed += 1;
    }
    println!("{name}: {} inputs", seed - first);
}

/// Something that may be an address, or a length.
fn odd(random: &mut Random) -> u64 {
    let near = random.one_of(&[
        0,
        GUEST,
        GUEST + BYTES as u64,
        USER,
        USER + BYTES as u64,
        u64::MAX,
        1 << 32,
        1 << 31,
    ]);
    let below: u64 = random.one_of(&[0, 0, 1, 15, 16, 512, 4096]);
    near.wrapping_sub(below).wrapping_add(random.below(3))
}

fn descriptor(random: &mut Random) -> Descriptor {
    let at = match random.below(8) {
        0 => odd(random),
        1 => GUEST + TABLES as u64 + 16 * random.below(20),
        2 => GUEST + random.below(BYTES as u64),
        _ => GUEST + DATA as u64 + 512 * random.below(1000),
    };
    let bytes = match random.below(6) {
        0 => odd(random) as u32,
        1 => random.below(40) as u32,
        _ => random.one_of(&[1, 16, 512, 4096, 8192]),
    };
    let flags = match random.below(10) {
        0 => random.next() as u16,
        1 => INDIRECT,
        _ => random.one_of(&[0, NEXT, WRITE, NEXT | WRITE]),
    };
    Descriptor { at, bytes, flags, next: random.below(u64::from(SIZE) + 2) as u16 }
}

/// Tables, headers and rings, more or less as drivers make them.
fn fill(random: &mut Random, memory: &mut Memory) {
    for index in 0..SIZE {
        let table = random.one_of(&[TABLE, TABLES]);
        let is = descriptor(random);
        memory.describe(table, index, is);
    }
    for number in 0..8 {
        let kind = random.one_of(&[0, 1, 4, 8, 11, 13, 77]);
        let sector = if random.one_in(4) { odd(random) } else { random.below(300) };
        memory.header(HEADERS + 16 * number, kind, sector);
    }
    for number in 0..random.below(6) as u16 {
        let first = number * 8;
        let write = random.one_in(2);
        let header = (HEADERS + 16 * random.below(8) as usize, 16, false);
        let length = 512 * random.below(20) as u32;
        let pieces =
            [header, (DATA + 4096 * random.below(100) as usize, length, write), (STATUS + 64, 1, true)];
        let table = if random.one_in(4) { TABLES } else { TABLE };
        memory.chain(table, first, &pieces);
        if table == TABLES {
            let at = GUEST + (TABLES + 16 * usize::from(first)) as u64;
            memory.describe(TABLE, first, Descriptor { at, bytes: 48, flags: INDIRECT, next: 0 });
        }
        // A few places are changed.
        if random.one_in(15) {
            let is = descriptor(random);
            memory.describe(TABLE, first + random.below(3) as u16, is);
        }
        memory.offer(first);
    }
    if random.one_in(15) {
        memory.offer(random.below(u64::from(SIZE) + 2) as u16);
    }
    if random.one_in(40) {
        memory.put(AVAILABLE + 2, &(random.next() as u16).to_le_bytes());
    }
    if random.one_in(40) {
        memory.put(USED + 2, &(random.next() as u16).to_le_bytes());
    }
}

#[test]
fn any_memory_is_borne() {
    let (mut inputs, mut answered) = (0, 0);
    for_a_while("memory", |random| {
        inputs += 1;
        let mut guest = Guest::new(random.one_of(&[0, EVENT_IDX]));
        let mut at_work = BTreeSet::new();
        for _ in 0..1 + random.below(4) {
            fill(random, &mut guest.memory);
            let mut asked = Vec::new();
            let taken = guest.session.take(&guest.pool, &mut asked);
            for asked in asked {
                assert!(at_work.insert(asked.slot), "a slot has one request at a time");
                let end = asked.sector + u64::from(asked.sectors);
                assert!(end <= (guest::DISK / 512) as u64, "all of it is on the disk");
                let _ = guest.session.direct_read(asked.slot, 0, asked.sectors.div_ceil(8));
                if !matches!(asked.operation, loadline_san_export::block::Operation::Write(_))
                    || asked.sectors > 0
                {
                    guest.carry_out(&asked);
                }
            }
            if taken.is_err() {
                return;
            }
            assert_eq!(guest.session.in_flight(), at_work.len());
            while let Some(slot) = at_work.iter().nth(random.below(at_work.len() as u64) as usize).copied() {
                if random.one_in(8) {
                    break;
                }
                at_work.remove(&slot);
                let result = if random.one_in(4) { Err(Failure::NoSpace) } else { Ok(()) };
                if guest.session.complete(slot, result).is_err() {
                    return;
                }
            }
            answered += guest.memory.answered().len().min(SIZE.into());
            guest.tell_all();
            let _ = (guest.session.has_queued(), guest.session.arm_queues());
        }
    });
    assert!(answered > inputs, "most inputs come far: {answered} requests of {inputs}");
}

/// A message, more or less as front-ends send it.
fn random_message(random: &mut Random, guest: &Guest) -> (Vec<u8>, Vec<RawFd>) {
    let what = match random.below(60) {
        0 => random.below(50) as u32,
        _ => random.one_of(&[
            say::SET_FEATURES,
            say::SET_MEM_TABLE,
            say::ADD_MEM_REG,
            say::REM_MEM_REG,
            say::SET_VRING_NUM,
            say::SET_VRING_ADDR,
            say::SET_VRING_BASE,
            say::GET_VRING_BASE,
            say::SET_VRING_KICK,
            say::SET_VRING_CALL,
            say::SET_VRING_ENABLE,
            say::SET_INFLIGHT_FD,
            say::GET_INFLIGHT_FD,
            say::SET_LOG_BASE,
            say::SET_LOG_FD,
            say::RESET_DEVICE,
            say::GET_CONFIG,
        ]),
    };
    let address = |random: &mut Random| match random.below(20) {
        0 => odd(random),
        _ => USER + random.one_of(&[TABLE, AVAILABLE, USED]) as u64,
    };
    let place = |random: &mut Random| match random.below(20) {
        0 => [odd(random), odd(random), odd(random), odd(random)],
        1..10 => [GUEST + BYTES as u64, 4096, USER + BYTES as u64, 4096 * random.below(3)],
        _ => [GUEST, BYTES as u64, USER, 0],
    };
    // The first one runs, mostly.
    let index = |random: &mut Random| if random.one_in(20) { 0 } else { 1 + random.below(16) as u32 };
    let mut body = match what {
        say::SET_MEM_TABLE => {
            let count = random.below(3);
            let mut body = count.to_le_bytes().to_vec();
            for _ in 0..count {
                let [a, b, c, d] = place(random);
                body.extend(region(a, b, c, d));
            }
            body
        }
        say::ADD_MEM_REG | say::REM_MEM_REG => {
            let [a, b, c, d] = place(random);
            one_region(a, b, c, d)
        }
        say::SET_VRING_NUM | say::SET_VRING_BASE | say::GET_VRING_BASE | say::SET_VRING_ENABLE => {
            let number =
                if random.one_in(20) { random.one_of(&[0, 65, 70_000]) } else { random.one_of(&[1, 1, 64]) };
            let number = if what == say::SET_VRING_ENABLE { number % 2 } else { number };
            state(index(random), number)
        }
        say::SET_VRING_ADDR => {
            let (a, b, c) = (address(random), address(random), address(random));
            let mut body = places(index(random), a, b, c);
            if random.one_in(2) {
                // What is written to the used ring is logged.
                body[4] |= 1;
                let log = if random.one_in(8) { odd(random) } else { GUEST + USED as u64 };
                body[32..40].copy_from_slice(&log.to_le_bytes());
            }
            body
        }
        say::SET_VRING_KICK | say::SET_VRING_CALL => {
            (u64::from(index(random)) | if random.one_in(30) { 0x100 } else { 0 }).to_le_bytes().to_vec()
        }
        say::GET_CONFIG => {
            let bytes = random.below(300) as u32;
            [
                random.one_of(&[0, 8, 250, u32::MAX]).to_le_bytes().to_vec(),
                bytes.to_le_bytes().to_vec(),
                vec![0; 4 + bytes as usize],
            ]
            .concat()
        }
        say::GET_INFLIGHT_FD | say::SET_INFLIGHT_FD => {
            let mut body = odd(random).to_le_bytes().to_vec();
            body.extend((if random.one_in(3) { odd(random) } else { 0 }).to_le_bytes());
            body.extend((1 + random.below(16) as u16).to_le_bytes());
            body.extend(random.one_of(&[1_u16, 64, 64, 1024, 2048]).to_le_bytes());
            body.extend([0; 4]);
            body
        }
        say::SET_LOG_BASE => {
            let bytes = if random.one_in(4) { odd(random) } else { random.one_of(&[1, 40, 4096]) };
            let offset = if random.one_in(4) { odd(random) } else { 0 };
            [bytes.to_le_bytes(), offset.to_le_bytes()].concat()
        }
        say::RESET_DEVICE => Vec::new(),
        _ => random
            .one_of(&[guest::FEATURES, guest::FEATURES, guest::FEATURES | 1 << 26, u64::MAX])
            .to_le_bytes()
            .to_vec(),
    };
    if random.one_in(40) && !body.is_empty() {
        let at = random.below(body.len() as u64) as usize;
        body[at] = random.next() as u8;
    }
    if random.one_in(80) {
        body.truncate(random.below(body.len() as u64 + 1) as usize);
    }
    let memory = guest.memory.file.as_raw_fd();
    let (kick, call) = (guest.kick.as_fd().as_raw_fd(), guest.call.as_fd().as_raw_fd());
    let wanted = match what {
        say::SET_MEM_TABLE => vec![memory; body.first().copied().unwrap_or(0).min(3).into()],
        say::ADD_MEM_REG | say::SET_INFLIGHT_FD | say::SET_LOG_BASE => vec![memory],
        say::SET_VRING_KICK => vec![kick],
        say::SET_VRING_CALL | say::SET_LOG_FD => vec![call],
        _ => Vec::new(),
    };
    let files = if random.one_in(60) {
        vec![random.one_of(&[memory, kick, call]); random.below(4) as usize]
    } else {
        wanted
    };
    let mut bytes = message(what, &body);
    if random.one_in(80) {
        bytes[random.one_of(&[4, 5, 8, 9, 11])] ^= 1 << random.below(8);
    }
    (bytes, files)
}

#[test]
fn any_messages_are_borne() {
    let (mut inputs, mut taken) = (0, 0);
    for_a_while("messages", |random| {
        inputs += 1;
        let mut guest = Guest::silent(Memory::new(), attachment(1, 1));
        if random.one_in(2) {
            guest.set_up(random.one_of(&[0, EVENT_IDX]));
            if random.one_in(2) {
                let (kept, file) = inflight(&mut guest, 1, SIZE);
                guest.tell(say::SET_INFLIGHT_FD, &kept, &[file.as_raw_fd()]);
            }
            guest.run_queue();
        }
        for _ in 0..random.below(30) {
            let (bytes, files) = random_message(random, &guest);
            guest.send(&bytes, &files);
            match guest.listen() {
                Ok(Listened::Watch | Listened::More) => taken += 1,
                Ok(Listened::Again) => guest.now = Moment(guest.now.0 + 400_000_000),
                Ok(Listened::End) | Err(_) => return,
            }
            while guest.answer().is_some_and(|answer| answer.len() > 4000) {}
            while guest.session.next_queue_watch().is_some() {}
            if random.one_in(3) {
                fill(random, &mut guest.memory);
                if guest.serve().is_err() {
                    return;
                }
                let _ = guest.session.arm_queues();
            }
            if random.one_in(5) {
                guest.session.queue_notified(random.below(20) as u16);
            }
        }
    });
    assert!(taken > inputs / 2, "many messages are taken: {taken} of {inputs} inputs");
}
