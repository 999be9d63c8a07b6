//! Writes and reads at random, as the agreed parameters let an initiator send them: several at once, completed in any order, by two sessions
//! of a volume. What is read is what was written. `LOADLINE_WALK_SEED` (1) says where it begins.

mod initiator;

use std::collections::BTreeMap;

use initiator::{
    BYTES, Received, Target, UNSOLICITED, Volume, cdb16, command, data_out, encode, unit, wanted,
};
use loadline_base::iscsi::{field, flag, opcode};
use loadline_base::scsi::operation;
use loadline_san_export::iscsi::parameters::Parameters;

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

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % (limit.max(1) as u64)) as usize
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// A command that is under way: where, and its data.
struct UnderWay {
    from: usize,
    data: Vec<u8>,
    is_write: bool,
    read: Vec<u8>,
}

struct Client {
    target: Target,
    under_way: BTreeMap<u32, UnderWay>,
}

impl Client {
    /// Sends a write, with as much data as may come without being asked for; or a read.
    fn begin(&mut self, random: &mut Random, sector: usize, data: Vec<u8>, is_write: bool) -> Vec<u8> {
        let parameters = self.target.parameters.clone();
        let number = self.target.next();
        let length = data.len() as u32;
        let (code, flags) = match is_write {
            true => (operation::WRITE_16, flag::WRITE),
            false => (operation::READ_16, flag::READ),
        };
        let mut header = command(&cdb16(code, sector as u64, length / 512), flags, number, number, length);
        let mut stream = Vec::new();
        if is_write {
            let (first, segment) =
                (parameters.first_burst.min(length) as usize, parameters.receives as usize);
            let mut sent = 0;
            if parameters.immediate_data && random.below(4) > 0 {
                sent = if random.below(3) > 0 {
                    first.min(segment)
                } else {
                    4 * random.below(first.min(segment) / 4)
                };
            }
            let goes_on = !parameters.initial_r2t && sent < length as usize && random.below(3) > 0;
            let (mut at, mut behind) = (sent, Vec::new());
            if goes_on {
                header.0[1] &= !flag::FINAL;
                // The sequence ends where it likes, at most with the first burst.
                let end =
                    if random.below(2) == 0 { first } else { at + 4 * random.below((first - at) / 4 + 1) };
                for count in 0.. {
                    let some = segment.min(end - at);
                    let is_final = at + some == end;
                    let pdu = data_out(number, UNSOLICITED, count, at as u32, is_final);
                    behind.extend(encode(&parameters, pdu, &data[at..at + some]));
                    at += some;
                    if is_final {
                        break;
                    }
                }
            }
            stream.extend(encode(&parameters, header, &data[..sent]));
            stream.extend(behind);
        } else {
            stream.extend(encode(&parameters, header, &[]));
        }
        self.under_way.insert(number, UnderWay { from: sector * 512, data, is_write, read: Vec::new() });
        stream
    }

    /// What the target wants of a PDU.
    fn answer(&mut self, received: &Received) -> Vec<u8> {
        let tag = received.header.task_tag();
        let parameters = &self.target.parameters;
        let one = self.under_way.get_mut(&tag).expect("it is under way");
        let mut stream = Vec::new();
        match received.opcode() {
            opcode::R2T => {
                let (transfer, offset, bytes) = wanted(received);
                assert!(bytes <= parameters.burst && bytes > 0);
                let (mut at, end) = (offset as usize, (offset + bytes) as usize);
                for count in 0.. {
                    let some = (parameters.receives as usize).min(end - at);
                    let pdu = data_out(tag, transfer, count, at as u32, at + some == end);
                    stream.extend(encode(parameters, pdu, &one.data[at..at + some]));
                    at += some;
                    if at == end {
                        break;
                    }
                }
            }
            opcode::DATA_IN => {
                assert_eq!(received.header.u32(field::OFFSET) as usize, one.read.len());
                one.read.extend(&received.data);
                if received.header.has(flag::STATUS) {
                    assert_eq!(received.status(), (0, None));
                    assert!(one.read == one.data, "what is read at {}", one.from);
                    self.under_way.remove(&tag);
                }
            }
            other => {
                assert_eq!((other, received.status()), (opcode::SCSI_RESPONSE, (0, None)));
                assert!(one.is_write);
                assert_eq!(received.header.flags() & (flag::UNDERFLOW | flag::OVERFLOW), 0);
                self.under_way.remove(&tag);
            }
        }
        stream
    }
}

fn walk(seed: u64) {
    let mut random = Random(seed);
    let parameters = Parameters {
        header_digest: random.below(3) == 0,
        data_digest: random.below(3) == 0,
        sends: random.one_of(&[512, 8192, 262_144]),
        receives: random.one_of(&[512, 8192, 262_144]),
        immediate_data: random.below(4) > 0,
        initial_r2t: random.below(3) == 0,
        first_burst: random.one_of(&[512, 4096, 65536, 262_144]),
        burst: random.one_of(&[512, 4096, 65536, 1 << 20]),
        outstanding: 1 + random.below(4) as u32,
    };
    let unit = unit();
    let mut clients: Vec<Client> = (1..=2)
        .map(|isid| Client {
            target: Target::of(&unit, parameters.clone(), isid),
            under_way: BTreeMap::new(),
        })
        .collect();
    let mut volume = Volume::new(&clients[0].target.pool);
    clients.iter_mut().for_each(|client| client.target.get_ready(&mut volume));
    let mut model = vec![0; BYTES];
    let mut streams = [Vec::new(), Vec::new()];
    let mut left = 60;
    while left > 0 || clients.iter().any(|client| !client.under_way.is_empty()) {
        let which = random.below(2);
        if left > 0 && random.below(3) == 0 && clients[which].under_way.len() < 20 {
            let bytes = 512 * (1 + if random.below(4) == 0 { random.below(600) } else { random.below(20) });
            let from = 512 * random.below((BYTES - bytes) / 512);
            let overlaps = |one: &UnderWay| one.from < from + bytes && from < one.from + one.data.len();
            if !clients.iter().flat_map(|client| client.under_way.values()).any(overlaps) {
                let is_write = random.below(2) == 0;
                if is_write {
                    let fill = random.next();
                    let data = (0..bytes).map(|at| (fill >> (at % 7)) as u8 ^ (at / 512) as u8);
                    data.zip(&mut model[from..]).for_each(|(byte, place)| *place = byte);
                }
                let data = model[from..from + bytes].to_vec();
                let said = clients[which].begin(&mut random, from / 512, data, is_write);
                streams[which].extend(said);
                left -= 1;
            }
        }
        let client = &mut clients[which];
        // A portion of what is to be sent.
        let some = match random.below(3) {
            0 => streams[which].len(),
            _ => random.below(streams[which].len() + 1),
        };
        let sent = client.target.send_bytes(&streams[which][..some]);
        streams[which].drain(..sent);
        client.target.turn().expect("the session goes on");
        if !client.target.requests.is_empty() && random.below(2) == 0 {
            let at = random.below(client.target.requests.len());
            let request = client.target.requests.swap_remove(at);
            volume
                .carry_out(client.target.connection(), request, 1 + random.below(9))
                .expect("the session goes on");
            client.target.turn().expect("the session goes on");
        }
        for pdu in client.target.received() {
            let said = client.answer(&pdu);
            streams[which].extend(said);
        }
        // Writes of both go on as the loop lets them.
        clients.iter_mut().for_each(|client| client.target.turn().expect("the session goes on"));
    }
    assert!(volume.bytes == model, "what the volume holds");
    clients.iter_mut().for_each(|client| assert_eq!(bytes_of(client), 0, "nothing is left"));
}

fn bytes_of(client: &mut Client) -> usize {
    use loadline_san_export::session::Session as _;
    client.target.connection().bytes()
}

#[test]
fn what_is_read_is_what_was_written() {
    let first = std::env::var("LOADLINE_WALK_SEED").ok().and_then(|value| value.parse().ok()).unwrap_or(1);
    for seed in first..first + 120 {
        println!("LOADLINE_WALK_SEED={seed}");
        walk(seed);
    }
}
