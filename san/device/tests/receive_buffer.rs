//! What is received in whatever parts: all messages come, in their order, as they were sent.

mod common;

use std::convert::Infallible;
use std::io::IoSliceMut;
use std::ops::Range;

use common::*;
use loadline_san_device::pool::Pool;
use loadline_san_device::receive_buffer::ReceiveBuffer;
use loadline_san_device::shape::Shape;
use rand_core::Rng;

/// A head says how long it is, and how much data follows it. What else is in both depends on the place, and on the message.
const LENGTHS: usize = 8;

fn message(shape: Shape, nth: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..shape.bytes()).map(|at| (at + (at >> 8) * 7 + (at >> 16) * 31 + nth * 13) as u8).collect();
    bytes[..4].copy_from_slice(&(shape.head as u32).to_le_bytes());
    bytes[4..LENGTHS].copy_from_slice(&(shape.data as u32).to_le_bytes());
    bytes
}

fn lengths(head: &[u8]) -> Option<Shape> {
    let number = |range: Range<usize>| Some(u32::from_le_bytes(head.get(range)?.try_into().ok()?) as usize);
    Some(Shape { head: number(0..4)?, data: number(4..LENGTHS)? })
}

/// Puts as much as there is room for, at most so many bytes, where it is to be. How many, and how many places there were.
fn receive(receive_buffer: &mut ReceiveBuffer, pool: &Pool, bytes: &[u8], most: usize) -> (usize, usize) {
    let (mut done, mut places) = (0, 0);
    receive_buffer.receive(pool, |spaces: &mut [IoSliceMut<'_>]| {
        places = spaces.len();
        for space in spaces {
            assert!(!space.is_empty(), "there is always room for something");
            let some = space.len().min(bytes.len() - done).min(most - done);
            space[..some].copy_from_slice(&bytes[done..done + some]);
            done += some;
        }
        Some(done)
    });
    (done, places)
}

/// The next message, as it was sent. A head is kept until its data is there.
fn next(receive_buffer: &mut ReceiveBuffer, pool: &Pool, head: &mut Vec<u8>) -> Option<Vec<u8>> {
    let is_new = head.is_empty();
    if is_new {
        let of = |head: &[u8]| Ok::<_, Infallible>(lengths(head).map(|shape| shape.head));
        head.extend_from_slice(receive_buffer.head(of).unwrap()?);
    }
    let shape = lengths(head).unwrap();
    if is_new {
        receive_buffer.take(shape, pool).unwrap();
    }
    let mut message = head.clone();
    if shape.data > 0 {
        let mut data = receive_buffer.data()?;
        message.extend_from_slice(&data.bytes_mut()[..shape.data]);
    }
    head.clear();
    Some(message)
}

#[test]
fn messages_come_as_they_were_sent_whatever_their_parts() {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let seed = std::env::var("SEED").map_or(now.as_nanos() as u64, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let (pool, mut chance) = (pool(), chance(seed));
    let mut below = move |end: usize| (chance.next_u64() % end as u64) as usize;
    let mut ahead = 0;
    for _ in 0..40 {
        let (mut receive_buffer, mut head) = (ReceiveBuffer::new(&[]), Vec::new());
        let shapes: Vec<Shape> = (0..3)
            .map(|_| Shape {
                head: [LENGTHS, 28, 150, LENGTHS + below(400_000)][below(4)],
                data: [0, 512, 4096, 8192, below(40_000)][below(5)],
            })
            .collect();
        let (mut sent, mut stream) = (Vec::new(), Vec::new());
        while sent.len() < 200 && stream.len() < 4 << 20 {
            let shape = shapes[if below(20) == 0 { below(3) } else { 0 }];
            for _ in 0..below(30) {
                sent.push(message(shape, sent.len()));
                stream.extend_from_slice(sent.last().unwrap());
            }
        }
        let (mut done, mut came) = (0, 0);
        while done < stream.len() {
            let most = [1, 30, 5_000, 70_000, usize::MAX][below(5)];
            let (some, places) = receive(&mut receive_buffer, &pool, &stream[done..], most);
            done += some;
            let before = came;
            ahead += usize::from(places > 2);
            while let Some(message) = next(&mut receive_buffer, &pool, &mut head) {
                assert!(message == sent[came], "message {came} of {}", sent.len());
                came += 1;
            }
            assert!(some > 0 || came > before, "it goes on");
        }
        assert_eq!((came, head.len()), (sent.len(), 0));
    }
    assert!(ahead > 100, "much was likely: {ahead}");
}
