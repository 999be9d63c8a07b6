//! Any bytes, to every decoder: none panics, and what one takes encodes to the same bytes.
//!
//! `LOADLINE_FUZZ_SECONDS` (2) says how long it goes on, and `LOADLINE_FUZZ_SEED` (1) where it begins; the same seed
//! makes the same inputs in the same order. Most inputs are what can be encoded, changed, and then given the right
//! checksums and often the right length, so that the checks behind those are reached.

mod common;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use common::disk::{Lain, every_outcome};
use common::{CLUSTER, KEY, Logged, Message, logged, messages, records};
use loadline_san_core::ids::ReplicaId;
use loadline_san_core::layout::GroupIndex;
use loadline_san_protocol::header::HEADER;
use loadline_san_protocol::kind::Kind;
use loadline_san_protocol::log::{Expected, LogFault, SECTOR};
use loadline_san_protocol::record::RecordFault;
use loadline_san_protocol::{DecodeError, FieldError, decode, log, needed, record};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const REPLICA: ReplicaId = ReplicaId(77);
const GROUP: GroupIndex = GroupIndex(3);
const GENERATION: u64 = 5;
/// As many inputs at least, however slow the machine is: with these, everything is reached.
const LEAST: u64 = 300_000;

/// How often each outcome was.
type Seen = BTreeMap<String, u64>;

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
}

/// A format: its decoder, and where its checksums are.
#[derive(Debug, Clone, Copy)]
enum Format {
    Frame,
    Record,
    Log,
    Disk(Lain),
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn get(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

impl Format {
    /// Makes length and checksums right, as the reference says where they are.
    fn mend(self, bytes: &mut [u8], length_too: bool) {
        let all = bytes.len();
        match self {
            Format::Frame if all >= HEADER => {
                if length_too {
                    put(bytes, 8, (all - HEADER) as u32);
                }
                let end = HEADER.saturating_add(get(bytes, 8));
                if end <= all {
                    let header = loadline_base::crc::crc32c(&bytes[..HEADER - 4]);
                    put(bytes, HEADER - 4, loadline_base::crc::crc32c_append(header, &bytes[HEADER..end]));
                }
            }
            Format::Record if all >= 16 => {
                if length_too {
                    put(bytes, 12, all as u32);
                }
                let end = get(bytes, 12);
                if (12..=all).contains(&end) {
                    put(bytes, 8, loadline_base::crc::crc32c(&bytes[12..end]));
                }
            }
            Format::Log if all >= SECTOR => {
                let blocks = if get(bytes, 108) == 2 { get(bytes, 104) } else { 0 };
                let end = blocks.saturating_mul(4).saturating_add(116);
                let end = end.checked_next_multiple_of(SECTOR).unwrap_or(all);
                if length_too {
                    put(bytes, 16, (end as u32).wrapping_add((blocks as u32).wrapping_mul(4096)));
                }
                if end <= all {
                    put(bytes, 20, loadline_base::crc::crc32c(&bytes[SECTOR..end]));
                }
                let key = loadline_base::crc::crc32c(&KEY.to_le_bytes());
                put(bytes, 8, loadline_base::crc::crc32c_append(key, &bytes[12..SECTOR]));
            }
            Format::Disk(lain) => lain.mend(bytes),
            _ => {}
        }
    }

    /// What the decoder says. What it takes must encode to the same bytes.
    fn judge(self, bytes: &[u8]) -> String {
        match self {
            Format::Frame => match decode(bytes, CLUSTER) {
                Ok(frame) => {
                    assert_eq!(needed(bytes), Ok(Some(frame.length())));
                    assert_eq!(Message::of(&frame).bytes(), bytes[..frame.length()]);
                    kind(frame.header.begin.kind.get())
                }
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    decode_error(&error)
                }
            },
            Format::Record => match record::decode(bytes) {
                Ok(record) => {
                    assert_eq!(record::encode(&record).as_deref(), Ok(bytes));
                    "record".into()
                }
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    record_fault(&error)
                }
            },
            Format::Log => {
                let generations = GENERATION..=GENERATION + 1;
                let expected = Expected { replica: REPLICA, group: GROUP, key: KEY, generations };
                match log::decode(bytes, &expected) {
                    Ok(view) => {
                        let checksums = view.checksums.iter().map(|c| c.get()).collect();
                        let logged = Logged { record: view.record(), checksums };
                        assert_eq!(logged.bytes(), bytes[..view.header.header_length()]);
                        "log record".into()
                    }
                    Err(error) => {
                        assert!(!error.to_string().is_empty());
                        log_fault(&error)
                    }
                }
            }
            Format::Disk(lain) => lain.judge(bytes),
        }
    }
}

fn kind(code: u16) -> String {
    format!("frame {:?}", Kind::from_code(code).expect("it was decoded"))
}

fn field(of: &str, error: &FieldError) -> String {
    format!("{of} error Field: {}", error.what)
}

fn decode_error(error: &DecodeError) -> String {
    let name = match error {
        DecodeError::Field(error) => return field("frame", error),
        DecodeError::TooShort { .. } => "TooShort",
        DecodeError::NotOurs { .. } => "NotOurs",
        DecodeError::Version { .. } => "Version",
        DecodeError::Cluster { .. } => "Cluster",
        DecodeError::Kind { .. } => "Kind",
        DecodeError::Checksum { .. } => "Checksum",
        DecodeError::Length { what, .. } => return format!("frame error Length: {what}"),
    };
    format!("frame error {name}")
}

fn record_fault(error: &RecordFault) -> String {
    let name = match error {
        RecordFault::Field(error) => return field("record", error),
        RecordFault::Truncated { .. } => "Truncated",
        RecordFault::NotARecord => "NotARecord",
        RecordFault::Corrupt { .. } => "Corrupt",
        RecordFault::Newer { .. } => "Newer",
        RecordFault::Length { .. } => "Length",
        RecordFault::Layout(_) => "Layout",
        RecordFault::Broken(_) => "Broken",
    };
    format!("record error {name}")
}

fn log_fault(error: &LogFault) -> String {
    let name = match error {
        LogFault::Field(error) => return field("log", error),
        LogFault::TooShort { .. } => "TooShort",
        LogFault::Blank => "Blank",
        LogFault::NotARecord => "NotARecord",
        LogFault::Torn { .. } => "Torn",
        LogFault::Newer { .. } => "Newer",
        LogFault::OtherReplica { .. } => "OtherReplica",
        LogFault::OtherGeneration { .. } => "OtherGeneration",
    };
    format!("log error {name}")
}

/// Every outcome that a run must have had.
fn everything() -> Vec<String> {
    let kinds = Kind::ALL.map(|kind| format!("frame {kind:?}"));
    let frames = "TooShort NotOurs Version Cluster Kind Checksum";
    let lengths = ["the body", "the payload", "the table of checksums"];
    let records = "Truncated NotARecord Corrupt Newer Length Layout Broken";
    let logs = "TooShort Blank NotARecord Torn Newer OtherReplica OtherGeneration";
    let fields = [
        "frame: what an entry does",
        "frame: the blocks of an opening entry",
        "frame: the first block of an opening entry",
        "frame: the blocks of an entry",
        "frame: the blocks of an entry with data",
        "frame: the end of a range of blocks",
        "frame: the number of an entry",
        "frame: the number of an out-of-band entry",
        "frame: the number of an entry in a log",
        "frame: the first entry that a replica will get",
        "frame: whether a replica forgets everything",
        "frame: the blocks of a read",
        "frame: the blocks of an answer",
        "frame: the block to ask from",
        "frame: the block to ask on from",
        "frame: what is in blocks",
        "frame: what allocated blocks hold",
        "frame: the end of a map",
        "frame: the grant of a lease",
        "frame: the flags of a progress",
        "frame: an epoch",
        "frame: the epoch of a replica's message",
        "frame: the epoch of a promise",
        "frame: an ownership",
        "frame: a sequence number",
        "frame: a commit point",
        "frame: a number of out-of-band entries",
        "frame: the length of a body",
        "frame: the length of a payload",
        "record: the version",
        "record: the state",
        "record: the length",
        "record: the epoch",
        "record: the number of the attachment",
        "record: the number of the proposal",
        "record: the size in blocks",
        "record: the unit of one stripe",
        "record: a replica with a home",
        "record: a replica in sync",
        "record: a replica that departed",
        "record: the replicas of a group",
        "record: the number of replicas in no group",
        "record: an ownership",
        "record: a sequence number",
        "log: the version",
        "log: the number",
        "log: the number known to be synced",
        "log: the epoch of the commit point",
        "log: the kind",
        "log: what the entry of a commit point does",
        "log: the sequence number",
        "log: the group",
        "log: the length",
        "log: the place of a byte behind the checksums",
        "log: what an entry does",
    ];
    let named = |of: &'static str, names: &'static str| {
        names.split(' ').map(move |name| format!("{of} error {name}"))
    };
    let of_field = |name: &str| {
        let (of, what) = name.split_once(": ").expect("a format and a field");
        format!("{of} error Field: {what}")
    };
    (kinds.into_iter())
        .chain(["record".into(), "log record".into()])
        .chain(named("frame", frames))
        .chain(lengths.map(|what| format!("frame error Length: {what}")))
        .chain(named("record", records))
        .chain(named("log", logs))
        .chain(fields.map(of_field))
        .chain(every_outcome())
        .collect()
}

/// What can be encoded, of each format.
struct Corpus {
    runner: TestRunner,
    frames: Vec<Vec<u8>>,
    records: Vec<Vec<u8>>,
    logs: Vec<Vec<u8>>,
    /// Of each of [`Lain::ALL`].
    disks: [Vec<Vec<u8>>; 5],
}

impl Corpus {
    fn new(random: &mut Random) -> Corpus {
        let seed: Vec<u8> = (0..4).flat_map(|_| random.next().to_le_bytes()).collect();
        let random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let runner = TestRunner::new_with_rng(Config::default(), random);
        let (frames, records, logs, disks) = Default::default();
        let mut corpus = Corpus { runner, frames, records, logs, disks };
        corpus.renew();
        corpus
    }

    fn renew(&mut self) {
        fn many<S: Strategy>(runner: &mut TestRunner, count: usize, strategy: S) -> Vec<S::Value> {
            (0..count).map(|_| strategy.new_tree(runner).expect("a value").current()).collect()
        }
        let frames = many(&mut self.runner, 250, messages());
        self.frames = frames.iter().map(Message::bytes).collect();
        let records = many(&mut self.runner, 50, records());
        self.records = records.iter().map(|r| record::encode(r).expect("it can be written")).collect();
        let logs = many(&mut self.runner, 100, logged(REPLICA, GROUP, GENERATION));
        self.logs = logs.iter().map(Logged::bytes).collect();
        self.disks = Lain::ALL.map(|lain| many(&mut self.runner, 50, lain.some()));
    }

    fn one(&self, format: Format, random: &mut Random) -> &[u8] {
        let all = match format {
            Format::Frame => &self.frames,
            Format::Record => &self.records,
            Format::Log => &self.logs,
            Format::Disk(lain) => &self.disks[lain as usize],
        };
        &all[random.below(all.len())]
    }
}

/// Bytes that no encoder makes.
fn noise(corpus: &Corpus, format: Format, random: &mut Random) -> Vec<u8> {
    let most = if random.one_in(4) { 4096 } else { 200 };
    let length = random.below(most);
    if random.one_in(8) {
        let least = if let Format::Disk(lain) = format { lain.bytes() } else { SECTOR };
        return vec![0; length.max(least)];
    }
    let mut bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
    // With the right beginning, the decoder reads further than the magic.
    let begin = random.below(16).min(length);
    bytes[..begin].copy_from_slice(&corpus.one(format, random)[..begin]);
    bytes
}

/// Changes something.
fn mutate(bytes: &mut Vec<u8>, corpus: &Corpus, format: Format, random: &mut Random) {
    const TELLING: [u64; 16] = [
        0,
        1,
        2,
        3,
        4,
        5,
        8192,
        8193,
        65_536,
        1 << 31,
        1 << 32,
        1 << 44,
        (1 << 44) + 1,
        (1 << 62) + 1,
        u64::MAX - 1,
        u64::MAX,
    ];
    // Half of them behind a frame's header, where bodies are short and kinds are many.
    let from = if random.one_in(2) { HEADER.min(bytes.len()) } else { 0 };
    let at = from + random.below((bytes.len() - from).min(256));
    match random.below(8) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        1 => bytes.truncate(at),
        2 => {
            let most = if random.one_in(2) { 5 } else { 64 };
            let count = random.below(most);
            bytes.splice(at..at, (0..count).map(|_| random.next() as u8));
        }
        3 => {
            let until = (at + random.below(64)).min(bytes.len());
            bytes.drain(at..until);
        }
        4 => {
            let other = corpus.one(format, random);
            let from = if random.one_in(2) { at } else { random.below(other.len()) };
            let until = from + random.below(64);
            if let (Some(piece), Some(place)) = (other.get(from..until), bytes.get_mut(at..at + until - from))
            {
                place.copy_from_slice(piece);
            }
        }
        // A field: most begin at an even place.
        _ => {
            let (at, width) = (at & !1, [2, 4, 4, 8, 8][random.below(5)]);
            if let Some(place) = bytes.get_mut(at..at + width) {
                place.copy_from_slice(&TELLING[random.below(TELLING.len())].to_le_bytes()[..width]);
            }
        }
    }
}

fn setting(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{name}={text}: give a whole number"))
}

#[test]
fn any_bytes_are_taken_or_refused() {
    let seconds = setting("LOADLINE_FUZZ_SECONDS", 2);
    let seed = setting("LOADLINE_FUZZ_SEED", 1);
    println!("LOADLINE_FUZZ_SEED={seed} LOADLINE_FUZZ_SECONDS={seconds}");
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut random = Random(seed);
    let mut corpus = Corpus::new(&mut random);
    let (mut seen, mut inputs) = (Seen::new(), 0u64);
    while inputs < LEAST || Instant::now() < until {
        if inputs % 40_000 == 39_999 {
            corpus.renew();
        }
        let format = match random.below(8) {
            0..=1 => Format::Frame,
            2 => Format::Record,
            3 => Format::Log,
            _ => Format::Disk(Lain::ALL[random.below(Lain::ALL.len())]),
        };
        let mut bytes = if random.one_in(16) {
            noise(&corpus, format, &mut random)
        } else {
            corpus.one(format, &mut random).to_vec()
        };
        for _ in 0..random.below(4) {
            mutate(&mut bytes, &corpus, format, &mut random);
        }
        if !random.one_in(8) {
            let length_too = random.one_in(2);
            format.mend(&mut bytes, length_too);
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| format.judge(&bytes))).unwrap_or_else(|panic| {
            println!("input {inputs} of seed {seed}: {format:?} {bytes:02x?}");
            resume_unwind(panic)
        });
        *seen.entry(outcome).or_default() += 1;
        inputs += 1;
    }
    println!("{inputs} inputs:");
    seen.iter().for_each(|(outcome, count)| println!("{count:9}  {outcome}"));
    let missed: Vec<String> = everything().into_iter().filter(|one| !seen.contains_key(one)).collect();
    assert!(missed.is_empty(), "seed {seed}: {inputs} inputs reached none of {missed:?}");
}
