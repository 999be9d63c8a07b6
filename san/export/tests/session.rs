//! Requests and answers, against a volume in memory: bytes come and go in any portions, answers in any order.

use std::collections::BTreeMap;
use std::io::{IoSlice, Read};

use loadline_base::nbd::{
    CHUNK_MAGIC, Request, SIMPLE_REPLY_MAGIC, chunk, command, command_flag, error, get_u16, get_u32, get_u64,
    state,
};
use loadline_san_core::map::{Held, Map};
use loadline_san_core::message::{Content, Payload};
use loadline_san_core::volume::{Failure, MOST_MAPPED};
use loadline_san_device::pool::{BLOCK_BYTES, Class, Pool};
use loadline_san_export::block::{BlockRequest, Operation};
use loadline_san_export::nbd::handshake::Choice;
use loadline_san_export::nbd::session::{MOST_REQUESTS, Session, SessionError};
use proptest::prelude::*;

const BLOCKS: usize = 40;
const BYTES: usize = BLOCKS * BLOCK_BYTES;

fn pool() -> Pool {
    Pool::new(&[Class { blocks: 1, buffers: 64 }, Class { blocks: 16, buffers: 16 }])
        .expect("there is memory")
}

fn session(structured: bool, rest: &[u8]) -> Session {
    let choice = Choice { name: "vol".into(), structured, allocation: structured };
    Session::new(choice, BYTES as u64, rest)
}

/// What is in a volume, and what its blocks hold.
struct Volume {
    bytes: Vec<u8>,
    held: Vec<Held>,
    pool: Pool,
}

impl Volume {
    fn new() -> Volume {
        Volume { bytes: vec![0; BYTES], held: vec![Held::Nothing; BLOCKS], pool: pool() }
    }

    /// Carries out a request; what is read comes in parts of this many blocks.
    fn carry_out(&mut self, session: &mut Session, asked: BlockRequest, part: usize) {
        let from = asked.sector as usize * 512;
        let range = from..from + asked.sectors as usize * 512;
        match asked.operation {
            Operation::Read => {
                let (first, end) = (from / BLOCK_BYTES, range.end.div_ceil(BLOCK_BYTES));
                for start in (first..end).step_by(part).rev() {
                    let blocks = start..(start + part).min(end);
                    let content = self.content(blocks.clone());
                    // It may come again.
                    session.fill(asked.slot, (start - first) as u64, blocks.len() as u32, Content::Nothing);
                    session.fill(asked.slot, (start - first) as u64, blocks.len() as u32, content);
                }
            }
            Operation::Map => {
                // Another part may come before.
                session.map(asked.slot, Map { ranges: Vec::new(), until: 1 });
                session.map(asked.slot, self.map(from / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES), part));
            }
            Operation::Write(data) => {
                self.bytes[range.clone()].copy_from_slice(&data.bytes()[..range.len()]);
                hold(&mut self.held, &range, Held::Data);
            }
            Operation::WriteZeroes => {
                hold(&mut self.held, &range, Held::Zeroes);
                self.bytes[range].fill(0);
            }
            Operation::Trim => {
                let blocks = filled(&range);
                if !blocks.is_empty() {
                    self.bytes[blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES].fill(0);
                }
                hold(&mut self.held, &range, Held::Nothing);
            }
            Operation::Flush => {}
        }
        session.complete(asked.slot, Ok(()));
    }

    fn content(&self, blocks: std::ops::Range<usize>) -> Content<loadline_san_device::pool::Blocks> {
        if self.held[blocks.clone()].iter().all(|held| *held == Held::Nothing) {
            return Content::Nothing;
        }
        // It lies behind a block of something else.
        let mut buffer = self.pool.take(blocks.len() as u32 + 1).expect("there is memory");
        buffer
            .some_mut(1, blocks.len() as u32)
            .copy_from_slice(&self.bytes[blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES]);
        let payload = Payload { data: buffer.freeze_without(), first: 1 };
        let holes = (0..).zip(blocks).filter(|(_, block)| self.held[*block] == Held::Nothing);
        let holes: Vec<_> = holes.map(|(i, _)| i..i + 1).collect();
        if holes.is_empty() { Content::Data(payload) } else { Content::Sparse(payload, holes) }
    }

    /// What these blocks hold, as far as one answer states.
    fn map(&self, blocks: std::ops::Range<usize>, most: usize) -> Map {
        let mut map = Map::from(0);
        for held in self.held[blocks].iter().take(most) {
            assert!(map.describe(map.until + 1, *held, BLOCKS));
        }
        map
    }
}

/// The blocks that these bytes fill.
fn filled(bytes: &std::ops::Range<usize>) -> std::ops::Range<usize> {
    let start = bytes.start.div_ceil(BLOCK_BYTES);
    start..(bytes.end / BLOCK_BYTES).max(start)
}

/// The blocks that these bytes fill hold this from now on. Others that are touched hold data, unless they are trimmed.
fn hold(all: &mut [Held], bytes: &std::ops::Range<usize>, held: Held) {
    if held != Held::Nothing {
        all[bytes.start / BLOCK_BYTES..bytes.end.div_ceil(BLOCK_BYTES)].fill(Held::Data);
    }
    all[filled(bytes)].fill(held);
}

/// What a map states of bytes: how many in a row hold the same.
fn extents(all: &[Held], bytes: std::ops::Range<usize>) -> Vec<(u32, u32)> {
    let mut extents: Vec<(u32, u32)> = Vec::new();
    for sector in bytes.step_by(512) {
        let flags = match all[sector / BLOCK_BYTES] {
            Held::Nothing => state::HOLE | state::ZERO,
            Held::Zeroes => state::ZERO,
            Held::Data => 0,
        };
        match extents.last_mut().filter(|last| last.1 == flags) {
            Some(last) => last.0 += 512,
            None => extents.push((512, flags)),
        }
    }
    extents
}

/// The content of an answer.
#[derive(Debug, Default, Clone, PartialEq)]
struct Answer {
    error: u32,
    data: BTreeMap<u64, Vec<u8>>,
    extents: Vec<(u32, u32)>,
    data_chunks: usize,
}

/// The answers in a stream. `reads`: cookies of reads, with their lengths.
fn answers(mut bytes: &[u8], reads: &BTreeMap<u64, (u64, usize)>) -> Vec<(u64, Answer)> {
    let mut open: BTreeMap<u64, Answer> = BTreeMap::new();
    let mut done = Vec::new();
    while !bytes.is_empty() {
        if get_u32(bytes, 0) == SIMPLE_REPLY_MAGIC {
            let (error, cookie) = (get_u32(bytes, 4), get_u64(bytes, 8));
            bytes = &bytes[16..];
            let mut answer = Answer { error, ..Answer::default() };
            if let Some((offset, length)) = reads.get(&cookie).filter(|_| error == 0) {
                answer.data.insert(*offset, bytes[..*length].to_vec());
                bytes = &bytes[*length..];
            }
            done.push((cookie, answer));
            continue;
        }
        assert_eq!(get_u32(bytes, 0), CHUNK_MAGIC);
        let (flags, kind, cookie) = (get_u16(bytes, 4), get_u16(bytes, 6), get_u64(bytes, 8));
        let (body, rest) = bytes[20..].split_at(get_u32(bytes, 16) as usize);
        bytes = rest;
        let answer = open.entry(cookie).or_default();
        match kind {
            chunk::OFFSET_DATA => {
                answer.data.insert(get_u64(body, 0), body[8..].to_vec());
                answer.data_chunks += 1;
            }
            chunk::OFFSET_HOLE => {
                assert_eq!(body.len(), 12);
                answer.data.insert(get_u64(body, 0), vec![0; get_u32(body, 8) as usize]);
                answer.data_chunks += 1;
            }
            chunk::BLOCK_STATUS => {
                assert_eq!(get_u32(body, 0), 1);
                answer.extents = body[4..].chunks(8).map(|e| (get_u32(e, 0), get_u32(e, 4))).collect();
            }
            chunk::ERROR => {
                answer.error = get_u32(body, 0);
                assert_eq!(get_u16(body, 4) as usize, body.len() - 6);
                std::str::from_utf8(&body[6..]).expect("it is text");
            }
            _ => assert_eq!((kind, body.len()), (chunk::NONE, 0)),
        }
        if flags & chunk::DONE != 0 {
            done.push((cookie, open.remove(&cookie).expect("it was put there")));
        }
    }
    assert!(open.is_empty(), "every answer ends");
    done
}

/// Takes what is to be sent, at most so many bytes at a time.
fn sent(session: &mut Session, most: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while session.out.bytes() > 0 {
        let mut slices = [IoSlice::new(&[]); 3];
        let used = session.out.slices(&mut slices);
        let some: Vec<u8> =
            slices[..used].iter().flat_map(|slice| slice.iter().copied()).take(most).collect();
        assert!(!some.is_empty());
        session.out.sent(some.len());
        bytes.extend(some);
    }
    bytes
}

fn feed(session: &mut Session, pool: &Pool, bytes: &[u8]) -> usize {
    let mut some = 0;
    session.receive(pool, |spaces| {
        some = (&mut &bytes[..]).read_vectored(spaces).unwrap();
        Some(some)
    });
    some
}

fn request(command: u16, flags: u16, cookie: u64, offset: usize, length: usize) -> Request {
    Request { flags, command, cookie, offset: offset as u64, length: length as u32 }
}

#[derive(Debug, Clone)]
struct Op {
    command: u16,
    flags: u16,
    sector: usize,
    sectors: usize,
    byte: u8,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let command = prop_oneof![
        4 => Just(command::READ),
        4 => Just(command::WRITE),
        1 => Just(command::TRIM),
        1 => Just(command::WRITE_ZEROES),
        1 => Just(command::FLUSH),
        2 => Just(command::BLOCK_STATUS)
    ];
    let op = (command, any::<bool>(), 0..BYTES / 512, 1..BYTES / 512, 1u8..).prop_map(
        |(command, flag, sector, sectors, byte)| {
            let flags = match command {
                command::READ if flag => command_flag::DF,
                command::BLOCK_STATUS if flag => command_flag::REQ_ONE,
                command::WRITE if flag => command_flag::FUA,
                _ => 0,
            };
            // A few go beyond the end.
            Op {
                command,
                flags,
                sector,
                sectors: sectors.min(BYTES / 512 - sector + usize::from(byte < 8)),
                byte,
            }
        },
    );
    // Of some there are many in a row, which differ in where and what they write.
    let run = (op, prop_oneof![3 => Just(1), 1 => 2usize..60], prop_oneof![1usize..=8, 1usize..80]);
    let run = run.prop_map(|(op, times, sectors)| match times {
        1 => vec![op],
        _ => (0..times).map(|nth| one_of_many(&op, nth, sectors.min(op.sectors))).collect(),
    });
    proptest::collection::vec(run, 1..30).prop_map(|runs| runs.concat())
}

fn one_of_many(op: &Op, nth: usize, sectors: usize) -> Op {
    let sector = (op.sector + nth * 5) % (BYTES / 512 - sectors);
    Op { sector, sectors, byte: op.byte.wrapping_add(nth as u8).max(1), ..op.clone() }
}

proptest! {
    #[test]
    fn what_is_read_is_what_was_written(
        ops in ops(), structured: bool, portion in 1usize..70_000, most in 1usize..70_000, part in 1usize..20
    ) {
        let mut volume = Volume::new();
        let mut session = session(structured, b"");
        let (mut stream, mut expected, mut reads) = (Vec::new(), Vec::new(), BTreeMap::new());
        let (mut model, mut held) = (vec![0u8; BYTES], [Held::Nothing; BLOCKS]);
        for (cookie, op) in (1000u64..).zip(&ops) {
            let (offset, length) = (op.sector * 512, op.sectors * 512);
            stream.extend(request(op.command, op.flags, cookie, offset, length).encode());
            if op.command == command::WRITE {
                stream.extend(std::iter::repeat_n(op.byte, length));
            }
            let range = offset..offset + length;
            let beyond = range.end > BYTES && op.command != command::FLUSH;
            let refused = op.command == command::BLOCK_STATUS && !structured;
            let (mut read, mut statuses) = (Vec::new(), Vec::new());
            if !beyond {
                match op.command {
                    command::READ => {
                        reads.insert(cookie, (offset as u64, length));
                        read = model[range].to_vec();
                    }
                    command::WRITE => {
                        hold(&mut held, &range, Held::Data);
                        model[range].fill(op.byte);
                    }
                    command::WRITE_ZEROES => {
                        hold(&mut held, &range, Held::Zeroes);
                        model[range].fill(0);
                    }
                    command::TRIM => {
                        let blocks = filled(&range);
                        model[blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES].fill(0);
                        hold(&mut held, &range, Held::Nothing);
                    }
                    command::BLOCK_STATUS if structured => {
                        let end = range.end.min((offset / BLOCK_BYTES + part) * BLOCK_BYTES);
                        statuses = extents(&held, offset..end);
                        if op.flags != 0 { statuses.truncate(1); }
                    }
                    _ => {}
                }
            }
            let error = match op.command {
                _ if refused => error::INVAL,
                command::WRITE | command::WRITE_ZEROES if beyond => error::NOSPC,
                _ if beyond => error::INVAL,
                _ => 0,
            };
            expected.push((cookie, error, read, statuses, op.clone()));
        }
        let mut left = &stream[..];
        let mut out = Vec::new();
        let pool = pool();
        while !left.is_empty() {
            left = &left[feed(&mut session, &pool, &left[..left.len().min(portion)])..];
            while let Some(asked) = session.next(&pool).expect("it follows the protocol") {
                volume.carry_out(&mut session, asked, part);
            }
            if out.len() % 3 == 0 { out.extend(sent(&mut session, most)); }
        }
        out.extend(sent(&mut session, most));
        let answers = answers(&out, &reads);
        prop_assert_eq!(answers.len(), expected.len());
        for ((cookie, answer), (of, error, read, statuses, op)) in answers.into_iter().zip(expected) {
            prop_assert_eq!((cookie, answer.error), (of, error));
            let data: Vec<u8> = answer.data.values().flatten().copied().collect();
            prop_assert!(data == read, "what is read differs");
            prop_assert!(op.flags & command_flag::DF == 0 || answer.data_chunks <= 1);
            prop_assert_eq!(answer.extents, statuses);
        }
        prop_assert_eq!(session.in_flight(), 0);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000), requests in ops()) {
        // After some requests in order, anything.
        let mut stream = Vec::new();
        for op in &requests {
            let length = if op.command == command::WRITE { 512 } else { op.sectors * 512 };
            stream.extend(request(op.command ^ u16::from(op.byte & 1), op.flags, 7, op.sector * 512, length).encode());
        }
        stream.extend(bytes);
        let (mut session, pool, mut volume) = (session(true, b""), pool(), Volume::new());
        let mut left = &stream[..];
        'fed: while !left.is_empty() {
            left = &left[feed(&mut session, &pool, left)..];
            loop {
                match session.next(&pool) {
                    Ok(Some(asked)) => volume.carry_out(&mut session, asked, 7),
                    Ok(None) => break,
                    Err(_) => break 'fed,
                }
            }
            if !session.wants_bytes() { break; }
        }
    }
}

#[test]
fn writes_of_one_length_are_received_where_they_stay() {
    let (mut session, pool, mut volume) = (session(true, b""), pool(), Volume::new());
    let one = |cookie: u64, length: usize| {
        let head = request(command::WRITE, 0, cookie, cookie as usize * 512, length).encode();
        [&head[..], &vec![cookie as u8; length]].concat()
    };
    let mut stream: Vec<u8> = (1..=40).flat_map(|cookie| one(cookie, 4096)).collect();
    // Of another length: what comes behind is not where it stays.
    stream.extend((41..=50).flat_map(|cookie| one(cookie, 512)));
    let (mut left, mut places) = (&stream[..], Vec::new());
    while !left.is_empty() {
        session.receive(&pool, |spaces| {
            places.push(spaces.len());
            let some = (&mut &left[..left.len().min(30_000)]).read_vectored(spaces).unwrap();
            left = &left[some..];
            Some(some)
        });
        while let Some(asked) = session.next(&pool).expect("it follows the protocol") {
            volume.carry_out(&mut session, asked, 16);
        }
    }
    // The first are staged, then each has a place for its head and one for its data, and what is missing of one comes first.
    assert_eq!(places[0], 1);
    assert!(places[1..].iter().any(|places| *places >= 17), "{places:?}");
    assert_eq!(answers(&sent(&mut session, 1 << 20), &BTreeMap::new()).len(), 50);
    for cookie in 41..=50usize {
        assert!(
            volume.bytes[cookie * 512..][..512].iter().all(|byte| *byte == cookie as u8),
            "write {cookie}"
        );
    }
}

#[test]
fn a_write_that_is_refused_amid_writes_of_one_length_harms_none_of_them() {
    let (mut session, pool, mut volume) = (session(false, b""), pool(), Volume::new());
    let one = |cookie: u64, offset: usize| {
        [&request(command::WRITE, 0, cookie, offset, 512).encode()[..], &[cookie as u8; 512]].concat()
    };
    let is_bad = |cookie: u64| cookie % 17 == 16;
    let place = |cookie: u64| if is_bad(cookie) { BYTES } else { cookie as usize * 512 };
    let stream: Vec<u8> = (1..=100).flat_map(|cookie| one(cookie, place(cookie))).collect();
    let mut left = &stream[..];
    for _ in 0..1000 {
        left = &left[feed(&mut session, &pool, &left[..left.len().min(20_000)])..];
        while let Some(asked) = session.next(&pool).expect("it follows the protocol") {
            volume.carry_out(&mut session, asked, 16);
        }
    }
    assert!(left.is_empty());
    assert_eq!(answers(&sent(&mut session, 1 << 20), &BTreeMap::new()).len(), 100);
    for cookie in (1..=100).filter(|cookie| !is_bad(*cookie)) {
        let there = &volume.bytes[place(cookie)..][..512];
        assert!(there.iter().all(|byte| *byte == cookie as u8), "write {cookie}");
    }
}

#[test]
fn what_was_received_behind_as_many_as_may_be_asked_for_comes_once_they_are_done() {
    let (mut session, pool, mut volume) = (session(true, b""), pool(), Volume::new());
    let one =
        |cookie| [&request(command::WRITE, 0, cookie, 0, 512).encode()[..], &[cookie as u8; 512]].concat();
    let stream: Vec<u8> = (0..300).flat_map(one).collect();
    let (mut left, mut waiting, mut asked) = (&stream[..], Vec::new(), 0);
    for _ in 0..300 {
        if session.wants_bytes() {
            left = &left[feed(&mut session, &pool, left)..];
        } else {
            assert_eq!(waiting.len(), MOST_REQUESTS);
            waiting.drain(..).for_each(|one| volume.carry_out(&mut session, one, 16));
            continue;
        }
        while let Some(one) = session.next(&pool).expect("it follows the protocol") {
            asked += 1;
            waiting.push(one);
        }
    }
    waiting.drain(..).for_each(|one| volume.carry_out(&mut session, one, 16));
    assert!(left.is_empty() && asked == 300, "{asked}");
    assert_eq!(answers(&sent(&mut session, 1 << 20), &BTreeMap::new()).len(), 300);
    assert_eq!(volume.bytes[0], 299u64 as u8);
}

#[test]
fn holes_are_told_apart_from_data_and_zeroes() {
    let (mut volume, mut session, pool) = (Volume::new(), session(true, b""), pool());
    let mut stream = request(command::WRITE, 0, 1, 8192, 4096).encode().to_vec();
    stream.extend([9; 4096]);
    stream.extend(request(command::WRITE_ZEROES, 0, 3, 12288, 4096).encode());
    stream.extend(request(command::BLOCK_STATUS, 0, 2, 512, 20 * 1024).encode());
    feed(&mut session, &pool, &stream);
    while let Some(asked) = session.next(&pool).expect("it follows the protocol") {
        volume.carry_out(&mut session, asked, 16);
    }
    let out = sent(&mut session, 1 << 20);
    let answers = answers(&out, &BTreeMap::new());
    let hole = state::HOLE | state::ZERO;
    let zeroes = (4096, state::ZERO);
    assert_eq!(answers[2].1.extents, [(8192 - 512, hole), (4096, 0), zeroes, (4096 + 512, hole)]);
}

#[test]
fn one_answer_tells_of_as_much_as_was_asked_about() {
    let choice = Choice { name: "vol".into(), structured: true, allocation: true };
    let (mut session, pool) = (Session::new(choice, 8 << 30, b""), pool());
    // The longest that can be asked about: 4 GiB less a sector, from the middle of a block on.
    let length = (1_usize << 32) - 512;
    feed(&mut session, &pool, &request(command::BLOCK_STATUS, 0, 1, 1024, length).encode());
    let asked = session.next(&pool).unwrap().expect("it is there");
    assert!(matches!(asked.operation, Operation::Map), "{asked:?}");
    assert_eq!((asked.sector, asked.sectors), (2, 8_388_607));
    assert!(session.taken() < 64 << 10, "the answer is short: {}", session.taken());
    let mut map = Map::from(0);
    for (until, held) in [(10, Held::Nothing), (1 << 19, Held::Data), ((1 << 20) + 1, Held::Nothing)] {
        map.describe(until, held, 9);
    }
    session.map(asked.slot, map);
    session.complete(asked.slot, Ok(()));
    let answers = answers(&sent(&mut session, 1 << 20), &BTreeMap::new());
    let hole = state::HOLE | state::ZERO;
    let extents = [(40960 - 1024, hole), ((1 << 31) - 40960, 0), ((1 << 31) + 512, hole)];
    assert_eq!(answers[0].1.extents, extents);
    assert_eq!(extents.iter().map(|extent| u64::from(extent.0)).sum::<u64>(), length as u64);
}

#[test]
fn the_longest_answer_has_a_bound() {
    let choice = Choice { name: "vol".into(), structured: true, allocation: true };
    let (mut session, pool) = (Session::new(choice, 8 << 30, b""), pool());
    feed(&mut session, &pool, &request(command::BLOCK_STATUS, 0, 1, 0, 1 << 31).encode());
    let asked = session.next(&pool).unwrap().expect("it is there");
    let mut map = Map::from(0);
    for block in 0..MOST_MAPPED as u64 {
        map.describe(2 * block + 1, Held::Nothing, MOST_MAPPED);
        map.describe(2 * block + 2, Held::Data, MOST_MAPPED);
    }
    map.describe(1 << 19, Held::Nothing, MOST_MAPPED);
    session.map(asked.slot, map);
    let taken = session.taken();
    session.complete(asked.slot, Ok(()));
    assert!(session.taken() <= taken + 20, "no more is taken than was counted");
    let answers = answers(&sent(&mut session, 1 << 20), &BTreeMap::new());
    assert_eq!(answers[0].1.extents.len(), 2 * MOST_MAPPED + 1);
}

#[test]
fn a_client_that_does_not_follow_the_protocol_is_hung_up_on() {
    let pool = pool();
    let mut wrong = session(true, &[1; 28]);
    assert!(matches!(wrong.next(&pool), Err(SessionError::Magic)));
    let mut greedy = session(true, &request(command::WRITE, 0, 1, 0, 1 << 30).encode());
    assert!(matches!(greedy.next(&pool), Err(SessionError::TooLong(_))));
}

#[test]
fn one_that_asks_and_does_not_read_is_made_to_wait() {
    let (mut session, pool, mut volume) = (session(false, b""), pool(), Volume::new());
    let ask = request(command::READ, 0, 1, 0, BYTES).encode();
    for _ in 0..10_000 {
        if !session.wants_bytes() {
            break;
        }
        feed(&mut session, &pool, &ask);
        if let Some(asked) = session.next(&pool).expect("it follows the protocol") {
            volume.carry_out(&mut session, asked, 8);
        }
    }
    assert!(!session.wants_bytes() && session.out.bytes() < 65 << 20, "it waits, and no more is kept");
    let more = session.out.bytes();
    sent(&mut session, 1 << 20);
    assert!(more > 60 << 20 && session.wants_bytes());
}

#[test]
fn what_fails_is_told_with_the_reason_and_good_bye_waits_for_answers() {
    let pool = pool();
    let mut session = session(true, b"");
    let mut stream = request(command::READ, 0, 5, 0, 4096).encode().to_vec();
    stream.extend(request(command::DISC, 0, 0, 0, 0).encode());
    feed(&mut session, &pool, &stream);
    let asked = session.next(&pool).expect("it follows the protocol").expect("it is there");
    assert!(session.next(&pool).expect("it follows the protocol").is_none());
    assert!(!session.is_over() && !session.wants_bytes());
    session.complete(asked.slot, Err(Failure::Corrupt));
    assert!(!session.is_over());
    let out = sent(&mut session, 1 << 20);
    assert_eq!(answers(&out, &BTreeMap::new())[0].1.error, error::IO);
    assert!(session.is_over());
}
