//! Any bytes, to the whole of the server: from a client's first word to its requests, in any portions. It never panics, never
//! takes more memory than it may, and answers what it has taken exactly once, in a form that can be read.
//!
//! `LOADLINE_FUZZ_SECONDS` (2) says how long it goes on, and `LOADLINE_FUZZ_SEED` (1) where it begins; the same seed makes the
//! same inputs in the same order. Most inputs are what clients send, changed in a few places.

use std::collections::BTreeMap;
use std::io::{IoSlice, Read};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use loadline_base::nbd::{
    CHUNK_MAGIC, MOST_DATA, OPTION_MAGIC, Request, SIMPLE_REPLY_MAGIC, chunk, command, get_u16, get_u32,
    get_u64, option,
};
use loadline_san_core::map::{Held, Map};
use loadline_san_core::message::Content;
use loadline_san_core::volume::Failure;
use loadline_san_device::pool::{BLOCK_BYTES, Class, Pool};
use loadline_san_export::block::{BlockRequest, Operation};
use loadline_san_export::login::{Export, Refusal};
use loadline_san_export::nbd::handshake::{Choice, Handshake, Next};
use loadline_san_export::nbd::session::Session;

const BYTES: u64 = 40 * BLOCK_BYTES as u64;
/// As many inputs at least, however slow the machine is.
const LEAST: u64 = 3_000;
/// What a connection may take: twice the longest request that is counted, one that is always taken, and what is sent of errors.
const MOST_TAKEN: usize = 3 * MOST_DATA as usize + (1 << 20);

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

/// What a client sends until it has chosen a volume, more or less.
fn options(random: &mut Random) -> Vec<u8> {
    let flags = if random.one_in(10) { random.one_of(&[0u32, 1, 7, u32::MAX]) } else { 3 };
    let mut said = flags.to_be_bytes().to_vec();
    for _ in 0..random.below(5) {
        let kind = random.one_of(&[
            option::LIST,
            option::STRUCTURED_REPLY,
            option::SET_META_CONTEXT,
            option::LIST_META_CONTEXT,
            option::INFO,
            option::GO,
            5,
            77,
        ]);
        option_of(random, kind, &mut said);
    }
    if random.one_in(30) {
        option_of(random, option::ABORT, &mut said);
    }
    if !random.one_in(20) {
        let kind = random.one_of(&[option::GO, option::GO, option::GO, option::EXPORT_NAME]);
        option_of(random, kind, &mut said);
    }
    said
}

fn option_of(random: &mut Random, kind: u32, said: &mut Vec<u8>) {
    let name = random.one_of(&["vol", "vol", "vol", "vol", "vol", "", "away", "none"]);
    let mut data = Vec::new();
    match kind {
        option::EXPORT_NAME => data.extend(name.as_bytes()),
        option::GO | option::INFO => {
            data.extend((name.len() as u32).to_be_bytes());
            data.extend(name.as_bytes());
            let wants: Vec<u16> = (0..random.below(4)).map(|_| random.below(6) as u16).collect();
            data.extend((wants.len() as u16).to_be_bytes());
            wants.iter().for_each(|want| data.extend(want.to_be_bytes()));
        }
        option::SET_META_CONTEXT | option::LIST_META_CONTEXT => {
            data.extend((name.len() as u32).to_be_bytes());
            data.extend(name.as_bytes());
            let queries: Vec<&str> =
                (0..random.below(3)).map(|_| random.one_of(&["base:allocation", "base:", "x:y"])).collect();
            data.extend((queries.len() as u32).to_be_bytes());
            for query in queries {
                data.extend((query.len() as u32).to_be_bytes());
                data.extend(query.as_bytes());
            }
        }
        _ if random.one_in(4) => data.extend([7; 9]),
        _ => {}
    }
    said.extend(OPTION_MAGIC.to_be_bytes());
    said.extend(kind.to_be_bytes());
    said.extend((data.len() as u32).to_be_bytes());
    said.extend(data);
}

fn requests(random: &mut Random) -> Vec<u8> {
    let mut said = Vec::new();
    for cookie in 0..random.below(40) as u64 {
        let command = random.one_of(&[
            command::READ,
            command::READ,
            command::WRITE,
            command::WRITE,
            command::FLUSH,
            command::TRIM,
            command::WRITE_ZEROES,
            command::BLOCK_STATUS,
            command::DISC,
            5,
            99,
        ]);
        let flags = if random.one_in(4) { random.below(32) as u16 } else { 0 };
        let length = random.one_of(&[512u32, 4096, 4096, 8192, 65536, 0, 100, MOST_DATA, u32::MAX]);
        let offset = match random.below(6) {
            0 => random.next(),
            1 => BYTES.wrapping_sub(length.into()),
            _ => random.below(BYTES as usize / 512) as u64 * 512,
        };
        if command == command::DISC && !random.one_in(6) {
            continue;
        }
        // Of some there are many in a row.
        let times = if length <= 8192 && random.one_in(4) { 1 + random.below(40) } else { 1 };
        for nth in 0..times {
            let cookie = cookie + (nth << 32) as u64;
            said.extend(Request { flags, command, cookie, offset, length }.encode());
            if command == command::WRITE && length <= 1 << 16 {
                said.resize(said.len() + length as usize, cookie as u8);
            }
        }
    }
    said
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
                let end = (at + random.below(40)).min(said.len());
                let copy = said[at..end].to_vec();
                said.splice(at..at, copy);
            }
            _ => _ = said.drain(at..(at + random.below(9)).min(said.len())),
        }
    }
}

/// What a server with one export makes of it. What was chosen, and what came behind that.
fn shake_hands(random: &mut Random, mut said: &[u8]) -> Option<(Choice, Vec<u8>)> {
    let mut handshake = Handshake::default();
    if random.one_in(2) {
        handshake.offer_tls();
    }
    let export = Export { description: "a volume".into(), bytes: BYTES, most: 32 << 20, ..Export::default() };
    loop {
        assert!(handshake.out.len() < 1 << 20, "no answer is as long as that");
        handshake.out.clear();
        match handshake.step().ok()? {
            // The handshake of TLS is not its own: what comes behind it are options again.
            Next::StartTls => {}
            Next::Bytes if said.is_empty() => return None,
            Next::Bytes => {
                let (some, rest) = said.split_at(1 + random.below(said.len().min(64)));
                handshake.feed(some);
                said = rest;
            }
            Next::List => handshake.list(&[("vol".into(), export.clone())]),
            Next::Export(name) => {
                let found = match name.as_str() {
                    "vol" | "" => Ok(&export),
                    "away" => Err(Refusal::NotNow("its owner is starting".into())),
                    _ => Err(Refusal::Unknown("there is none".into())),
                };
                handshake.export(found).ok()?;
            }
            Next::Gone => return None,
            Next::Chosen(choice) => return Some((choice, [handshake.rest(), said.to_vec()].concat())),
        }
    }
}

/// Carries out what it is asked, in any order, and reads the answers. How many there were.
fn serve(random: &mut Random, pool: &Pool, choice: Choice, said: &[u8]) -> u64 {
    let (structured, first) = (choice.structured, said.len().min(random.below(100)));
    let mut session = Session::new(choice, BYTES, &said[..first]);
    let mut said = &said[first..];
    let (mut asked, mut received) = (Vec::<BlockRequest>::new(), Vec::new());
    let mut over = false;
    for turn in 0.. {
        assert!(turn < 1_000_000, "it goes round for ever, with {} bytes not taken", said.len());
        if !over && session.wants_bytes() && !said.is_empty() {
            let most = said.len().min(1 + random.below(40_000));
            session.receive(pool, |spaces| {
                let some = (&mut &said[..most]).read_vectored(spaces).expect("memory is read");
                said = &said[some..];
                Some(some)
            });
        }
        while !over {
            match session.next(pool) {
                Ok(Some(one)) => asked.push(one),
                Ok(None) => break,
                Err(_) => over = true,
            }
        }
        assert!(session.taken() <= MOST_TAKEN, "{} bytes are taken", session.taken());
        let end = over || said.is_empty() || session.is_over();
        while !asked.is_empty() && (end || !session.wants_bytes() || random.one_in(2)) {
            let one = asked.swap_remove(random.below(asked.len()));
            carry_out(random, pool, &mut session, one);
        }
        take(&mut session, &mut received);
        if end && asked.is_empty() {
            return replies(&received, structured);
        }
    }
    unreachable!("it ends, or fails")
}

fn carry_out(random: &mut Random, pool: &Pool, session: &mut Session, asked: BlockRequest) {
    let BlockRequest { slot, operation: what, sector, sectors } = asked;
    assert!(sector * 512 + u64::from(sectors) * 512 <= BYTES, "nothing is asked behind the end");
    if random.one_in(8) {
        session.complete(slot, Err(random.one_of(&[Failure::Corrupt, Failure::NoSpace, Failure::Deposed])));
        return;
    }
    if let Operation::Read = what {
        let blocks = (sector * 512 % 4096 + u64::from(sectors) * 512).div_ceil(4096) as u32;
        let content = match random.one_in(2) {
            true => Content::Nothing,
            false => {
                let data = pool.take(blocks).expect("there is memory").freeze_without();
                Content::Data(loadline_san_core::message::Payload { data, first: 0 })
            }
        };
        session.fill(slot, 0, blocks, content);
    }
    if let Operation::Map = what {
        let blocks = (sector * 512 % 4096 + u64::from(sectors) * 512).div_ceil(4096);
        let mut map = Map::from(0);
        for until in 1..=1 + random.next() % blocks {
            map.describe(until, random.one_of(&[Held::Nothing, Held::Zeroes, Held::Data]), 40);
        }
        session.map(slot, map);
    }
    session.complete(slot, Ok(()));
}

fn take(session: &mut Session, received: &mut Vec<u8>) {
    while session.out.bytes() > 0 {
        let mut slices = [IoSlice::new(&[]); 8];
        let used = session.out.slices(&mut slices);
        let some: Vec<u8> = slices[..used].iter().flat_map(|slice| slice.iter().copied()).collect();
        received.extend(&some);
        session.out.sent(some.len());
    }
}

/// How many replies are complete. Structured ones can be read to the end; of simple ones the first can, since only the client
/// knows which have data.
fn replies(mut received: &[u8], structured: bool) -> u64 {
    let mut complete = 0;
    let mut open: BTreeMap<u64, u64> = BTreeMap::new();
    if !structured {
        assert!(received.is_empty() || get_u32(received, 0) == SIMPLE_REPLY_MAGIC);
        return u64::from(!received.is_empty());
    }
    while !received.is_empty() {
        assert_eq!(get_u32(received, 0), CHUNK_MAGIC, "the answers can be read");
        let (flags, cookie, length) =
            (get_u16(received, 4), get_u64(received, 8), get_u32(received, 16) as usize);
        received = &received[20 + length..];
        *open.entry(cookie).or_default() += 1;
        if flags & chunk::DONE != 0 {
            open.remove(&cookie);
            complete += 1;
        }
    }
    assert!(open.is_empty(), "every answer has an end");
    complete
}

#[test]
fn any_bytes_are_borne() {
    let setting = |name: &str, or: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(or);
    let seed: u64 = setting("LOADLINE_FUZZ_SEED", 1);
    let until = Instant::now() + Duration::from_secs(setting("LOADLINE_FUZZ_SECONDS", 2));
    let pool = Pool::new(&[Class { blocks: 1, buffers: 64 }, Class { blocks: 16, buffers: 16 }])
        .expect("there is memory");
    let (mut inputs, mut chosen, mut answered) = (0u64, 0u64, 0u64);
    while inputs < LEAST || Instant::now() < until {
        let mut random = Random(seed.wrapping_add(inputs));
        let one = catch_unwind(AssertUnwindSafe(|| {
            let mut said = options(&mut random);
            if random.one_in(3) {
                mutate(&mut random, &mut said);
            }
            let mut more = requests(&mut random);
            mutate(&mut random, &mut more);
            said.extend(more);
            let (choice, rest) = shake_hands(&mut random, &said)?;
            Some(serve(&mut random, &pool, choice, &rest))
        }));
        match one {
            Ok(Some(answers)) => (chosen, answered) = (chosen + 1, answered + answers),
            Ok(None) => {}
            Err(panic) => {
                eprintln!("LOADLINE_FUZZ_SEED={} does it again at once", seed.wrapping_add(inputs));
                resume_unwind(panic);
            }
        }
        inputs += 1;
    }
    eprintln!("{inputs} inputs, {chosen} came to requests, {answered} of which were answered");
    assert!(
        chosen > inputs / 4 && answered > chosen,
        "most inputs come far: {chosen} of {inputs}, {answered}"
    );
}
