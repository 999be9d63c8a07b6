//! Both ways of I/O do the same as a vector of bytes does.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use common::*;
use loadline_san_device::direct::Direct;
use loadline_san_device::file::{DeviceFile, Devices};
use loadline_san_device::pool::{BLOCK_BYTES, Blocks, Pool};
use loadline_san_device::uring::{Uring, UringOptions};
use loadline_san_store::io::{
    Area, Disk, Done, IoFault, IoRequest, MOST_BETWEEN, Part, Piece, Reading, Sector, Token, Writing,
};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use rand_core::Rng;

const LOG: u64 = 1 << 20;
const CAPACITY: u64 = 3 << 19;

/// Each way of I/O on each kind of place, with two devices and with one.
fn everywhere(mut test: impl FnMut(Driver, &Pool, &Path, bool)) {
    for place in places() {
        for two in [true, false] {
            for uring in [true, false] {
                let (folder, pool) = (folder_in(&place), pool());
                let Some(devices) = devices(folder.path(), LOG, two.then_some(CAPACITY)) else { continue };
                let driver = match uring {
                    true => Driver::uring(devices, &pool, 8),
                    false => Some(Driver::Direct(Direct::new(devices, pool.clone()))),
                };
                let Some(driver) = driver else { continue };
                test(driver, &pool, folder.path(), two);
                assert!(pool.free().all(|(class, free)| class.buffers as usize == free), "{pool:?}");
            }
        }
    }
}

#[test]
fn requests_do_what_they_say() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = std::env::var("SEED").map_or(now.as_nanos() as u64, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    everywhere(|mut driver, pool, _, two| {
        let chance = &mut chance(seed);
        let (mut log, mut capacity) = (vec![0; LOG as usize], vec![0; CAPACITY as usize]);
        for _ in 0..60 {
            // Writes at the same time are of different places: each has a fourteenth of one device.
            let mut writes = vec![];
            for part in 0..14 {
                let area = if part % 2 == 0 { Area::Log } else { Area::Capacity };
                let length = if area == Area::Log || !two { LOG } else { CAPACITY };
                let part_length = length / 14 / SECTOR as u64 * SECTOR as u64;
                let range = (part * part_length, (part + 1) * part_length);
                if below(chance, 3) > 0 {
                    writes.push(some_write(chance, pool, area, range, None));
                }
            }
            for writing in &writes {
                apply(writing, if writing.area == Area::Log || !two { &mut log } else { &mut capacity });
            }
            for done in driver.all(writes.into_iter().map(IoRequest::Write).collect()) {
                let Done::Wrote(_, result) = done else { panic!("a write comes back as {done:?}") };
                result.unwrap();
            }
            let (second, length) = if two { (&capacity, CAPACITY) } else { (&log, LOG) };
            let mut requests: Vec<IoRequest<Blocks>> = vec![];
            for _ in 0..below(chance, 24) {
                requests.push(IoRequest::Read(some_read(chance, LOG, length)));
            }
            let reads = requests.len();
            requests.extend([IoRequest::Sync(Area::Log), IoRequest::Sync(Area::Capacity)]);
            for (index, done) in driver.all(requests).into_iter().enumerate() {
                match done {
                    Done::Synced(area, result) => {
                        assert_eq!(
                            (index - reads, result.unwrap()),
                            (usize::from(area == Area::Capacity), ())
                        );
                    }
                    read => drop(check_read(read, &log, second)),
                }
            }
        }
    });
}

#[test]
fn pieces_with_little_between_are_one_io_and_read_as_if_each_was() {
    everywhere(|mut driver, pool, _, _| {
        let chance = &mut chance(2);
        let data = some_blocks(chance, pool, 64);
        let parts = vec![Part::Data { data, first: 0, blocks: 64 }];
        let writing = Writing { area: Area::Log, at: 1024, bytes: vec![], parts, durable: true };
        let mut log = vec![0; LOG as usize];
        apply(&writing, &mut log);
        let Done::Wrote(_, result) = driver.one(IoRequest::Write(writing)) else { panic!() };
        result.unwrap();
        // As records of one block are in a log, then nothing between, then more than is read along, then back.
        let mut pieces: Vec<Piece> = (0..30)
            .map(|n| Piece { area: Area::Log, at: u64::from(n) * 4608, first: n, blocks: 1 })
            .collect();
        let end = pieces[29].end();
        for (at, first, blocks) in [
            (end, 30, 2),
            (end + 8192 + MOST_BETWEEN, 33, 1),
            (end + 12288 + 2 * MOST_BETWEEN + 512, 34, 1),
            (512, 35, 3),
        ] {
            pieces.push(Piece { area: Area::Log, at, first, blocks });
        }
        let reading = Reading { blocks: 40, pieces };
        let ios: Vec<usize> = reading.ios().map(<[Piece]>::len).collect();
        assert_eq!(ios, [32, 1, 1]);
        check_read(driver.one(IoRequest::Read(reading)), &log, &log);
    });
}

#[test]
fn many_pieces_and_many_parts() {
    everywhere(|mut driver, pool, _, _| {
        // More vectors than the system takes at once: blocks, and sectors between them.
        let chance = &mut chance(1);
        let mut writing = Writing { area: Area::Log, at: 512, bytes: vec![], parts: vec![], durable: true };
        let data = some_blocks(chance, pool, 1);
        let mut sector = Sector::ZERO;
        for _ in 0..160 {
            chance.fill_bytes(&mut sector.0);
            writing.bytes.push(sector);
            writing.parts.push(Part::Data { data: data.clone(), first: 0, blocks: 1 });
            writing.parts.push(Part::Bytes(1));
        }
        let mut log = vec![0; LOG as usize];
        apply(&writing, &mut log);
        let Done::Wrote(_, result) = driver.one(IoRequest::Write(writing)) else { panic!() };
        result.unwrap();
        // Backwards: nothing can be read at once.
        let piece = |n: u32| Piece {
            area: Area::Log,
            at: u64::from(199 - n) * BLOCK_BYTES as u64,
            first: n,
            blocks: 1,
        };
        let reading = Reading { blocks: 200, pieces: (0..200).map(piece).collect() };
        check_read(driver.one(IoRequest::Read(reading)), &log, &log);
    });
}

#[test]
fn more_vectors_than_the_system_takes_at_once() {
    for place in places() {
        for uring in [true, false] {
            let (folder, pool) = (folder_in(&place), pool());
            let Some(devices) = devices(folder.path(), 16 << 20, None) else { continue };
            let mut driver = match uring {
                true => match Driver::uring(devices, &pool, 1) {
                    Some(driver) => driver,
                    None => continue,
                },
                false => Driver::Direct(Direct::new(devices, pool.clone())),
            };
            let chance = &mut chance(2);
            let data = some_blocks(chance, &pool, 2);
            let mut writing =
                Writing { area: Area::Capacity, at: 0, bytes: vec![], parts: vec![], durable: true };
            // The same block again and again is never merged.
            writing.parts.extend((0..2500).map(|n| Part::Data {
                data: data.clone(),
                first: n % 2,
                blocks: 1,
            }));
            writing.parts.extend((0..600).map(|_| Part::Data { data: data.clone(), first: 1, blocks: 1 }));
            let mut log = vec![0; 16 << 20];
            apply(&writing, &mut log);
            let Done::Wrote(_, result) = driver.one(IoRequest::Write(writing)) else { panic!() };
            result.unwrap();
            let whole = Piece { area: Area::Log, at: 0, first: 0, blocks: 4096 };
            check_read(
                driver.one(IoRequest::Read(Reading { blocks: 4096, pieces: vec![whole] })),
                &log,
                &log,
            );
        }
    }
}

#[test]
fn a_device_in_memory_is_the_same_before_and_after_its_stretches_are_mapped() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = std::env::var("SEED").map_or(now.as_nanos() as u64, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    // Three whole stretches of 2 MiB, and a part of one.
    const BYTES: u64 = (6 << 20) + 300 * BLOCK_BYTES as u64;
    for place in places() {
        let (folder, pool) = (folder_in(&place), pool());
        let Some(devices) = devices(folder.path(), BYTES, None) else { continue };
        let (mut direct, mut bytes) = (Direct::new(devices, pool.clone()), vec![0; BYTES as usize]);
        let chance = &mut chance(seed);
        for _ in 0..1500 {
            // Often across the edge of a stretch.
            let range = match below(chance, 3) {
                0 => (0, BYTES),
                nth => ((nth << 21) - (64 << 10), (nth << 21) + (64 << 10)),
            };
            let writing = some_write(chance, &pool, Area::Log, range, None);
            apply(&writing, &mut bytes);
            let Done::Wrote(_, result) = direct.carry_out(IoRequest::Write(writing)) else { panic!() };
            result.unwrap();
            let reading = some_read(chance, BYTES, BYTES);
            check_read(direct.carry_out(IoRequest::Read(reading)), &bytes, &bytes);
        }
        direct.settle();
        let mut there = Vec::new();
        File::open(folder.path().join("log")).unwrap().read_to_end(&mut there).unwrap();
        assert!(there == bytes, "it is in the file too");
    }
}

#[test]
fn what_was_made_shorter_is_short() {
    everywhere(|mut driver, _, folder, two| {
        let whole = |area, at| Piece { area, at, first: 0, blocks: 4 };
        let short = LOG - 2 * BLOCK_BYTES as u64;
        let file = File::options().write(true).open(folder.join("log")).unwrap();
        file.set_len(short).unwrap();
        for at in [LOG - 4 * BLOCK_BYTES as u64, short] {
            let reading = Reading { blocks: 4, pieces: vec![whole(Area::Log, at)] };
            let Done::Read(_, result) = driver.one(IoRequest::Read(reading)) else { panic!() };
            let area = if two { Area::Log } else { Area::Capacity };
            match result.unwrap_err() {
                IoFault::Short { area: Area::Log, at } => assert_eq!(at, short),
                other => panic!("{area:?}: {other}"),
            }
        }
        // The first error of several pieces is reported, when all are over.
        let mut pieces = vec![whole(Area::Log, short), whole(Area::Log, 0), whole(Area::Log, 8192)];
        (0..).zip(&mut pieces).for_each(|(n, piece)| piece.first = 4 * n);
        let Done::Read(reading, result) = driver.one(IoRequest::Read(Reading { blocks: 12, pieces })) else {
            panic!()
        };
        assert!(matches!(result, Err(IoFault::Short { .. })) && reading.pieces.len() == 3);
    });
}

#[test]
fn what_makes_no_sense_is_an_error_and_no_more() {
    everywhere(|mut driver, pool, _, _| {
        let piece = |at, first, blocks| Piece { area: Area::Log, at, first, blocks };
        let reads = [
            (0, vec![]),
            (2, vec![piece(0, 1, 2)]),
            (2, vec![piece(0, u32::MAX, 2)]),
            (4, vec![piece(0, 2, 1), piece(0, 1, 1)]),
            (4, vec![piece(0, 0, 2), piece(0, 1, 1)]),
            (4, vec![piece(0, 0, 0)]),
            (1, vec![piece(u64::MAX, 0, 1)]),
            (1, vec![piece(u64::MAX - 4095, 0, 1)]),
            (1, vec![piece(1 << 63, 0, 1)]),
        ];
        for (blocks, pieces) in reads {
            let Done::Read(reading, result) = driver.one(IoRequest::Read(Reading { blocks, pieces })) else {
                panic!()
            };
            assert!(matches!(result, Err(IoFault::Failed { .. })), "{reading:?}");
        }
        let data =
            |first, blocks| vec![Part::Data { data: pool.take(2).unwrap().freeze_without(), first, blocks }];
        let writes = [
            (0, vec![]),
            (0, vec![Part::Bytes(2)]),
            (0, vec![Part::Bytes(1), Part::Bytes(1)]),
            (0, data(1, 2)),
            (0, data(u32::MAX, 1)),
            (0, data(0, 0)),
            (u64::MAX - 511, vec![Part::Bytes(1)]),
        ];
        for (at, parts) in writes {
            let writing = Writing { area: Area::Log, at, bytes: vec![Sector::ZERO], parts, durable: false };
            let Done::Wrote(writing, result) = driver.one(IoRequest::Write(writing)) else { panic!() };
            assert!(matches!(result, Err(IoFault::Failed { .. })), "{writing:?}");
        }
        // Nothing of it is left in the way.
        let Done::Read(_, result) = driver.one(IoRequest::Read(Reading { blocks: 3, pieces: vec![] })) else {
            panic!()
        };
        assert!(result.unwrap().bytes().iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_device_that_refuses_is_told_of() {
    // What is only open for reading refuses to be written to; a real device fails in ways that a file cannot.
    let (folder, pool) = (tempfile::tempdir().unwrap(), pool());
    std::fs::write(folder.path().join("log"), [0; 4096]).unwrap();
    let file = File::open(folder.path().join("log")).unwrap();
    let options = UringOptions { in_flight: 2, stores: 1, ..UringOptions::default() };
    let Ok(mut uring) = Uring::new(options, pool) else { return };
    let store = uring.add(file.as_fd(), None).unwrap();
    let error = uring.add(file.as_fd(), None).unwrap_err();
    assert!(error.to_string().contains("1 stores"), "{error}");
    for (token, of) in [(1, store), (2, store + 7)] {
        let parts = vec![Part::Bytes(1)];
        let writing =
            Writing { area: Area::Capacity, at: 0, bytes: vec![Sector::ZERO], parts, durable: true };
        uring.start(of, Token(token), IoRequest::Write(writing));
        assert!(of != store || uring.remove(store).is_err(), "something of it is not done");
        uring.wait(LIMIT).unwrap();
        let (from, with, Done::Wrote(_, result)) = uring.take().unwrap() else { panic!() };
        assert_eq!((from, with), (of, Token(token)));
        assert!(matches!(result, Err(IoFault::Failed { .. })));
    }
    uring.remove(store).unwrap();
    assert_eq!(uring.add(file.as_fd(), None).unwrap(), store, "its number is used again");
}

/// A ring with one store, whose devices are both this.
fn ring_over(file: impl AsFd, pool: &Pool) -> Option<(Uring, u32)> {
    let mut uring =
        Uring::new(UringOptions { in_flight: 4, stores: 1, ..UringOptions::default() }, pool.clone()).ok()?;
    let store = uring.add(file.as_fd(), None).unwrap();
    Some((uring, store))
}

#[test]
fn what_comes_in_small_parts_is_put_together() {
    // A pipe gives and takes as much as there is: no device does, but a short I/O is like this.
    let (pool, chance) = (pool(), &mut chance(4));
    let data = some_blocks(chance, &pool, 60);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let Some((mut uring, store)) = ring_over(&reader, &pool) else { return };
    let whole = |blocks| Piece { area: Area::Capacity, at: 0, first: 0, blocks };
    uring.start(store, Token(1), IoRequest::Read(Reading { blocks: 60, pieces: vec![whole(60)] }));
    uring.submit().unwrap();
    for some in data.bytes().chunks(3000) {
        writer.write_all(some).unwrap();
        uring.poll().unwrap();
    }
    uring.wait(LIMIT).unwrap();
    let Some((_, _, Done::Read(_, Ok(read)))) = uring.take() else { panic!() };
    assert!(read.bytes() == data.bytes());
    uring.start(store, Token(2), IoRequest::Read(Reading { blocks: 2, pieces: vec![whole(2)] }));
    writer.write_all(&[1; 5000]).unwrap();
    drop(writer);
    uring.wait(LIMIT).unwrap();
    let Some((_, _, Done::Read(_, Err(fault)))) = uring.take() else { panic!() };
    assert!(matches!(fault, IoFault::Short { area: Area::Capacity, at: 5000 }), "{fault}");

    let (mut reader, writer) = std::io::pipe().unwrap();
    let Some((mut uring, store)) = ring_over(&writer, &pool) else { return };
    let part = |first, blocks| Part::Data { data: data.clone(), first, blocks };
    // In one vector, and in several.
    for parts in [vec![part(0, 60)], vec![part(30, 30), part(0, 30), part(7, 1)]] {
        let writing = Writing { area: Area::Log, at: 0, bytes: vec![], parts, durable: false };
        let mut expected = vec![0; writing.length() as usize];
        apply(&writing, &mut expected);
        uring.start(store, Token(3), IoRequest::Write(writing));
        uring.submit().unwrap();
        let (mut got, mut some) = (Vec::<u8>::new(), [0; 7000]);
        while got.len() < expected.len() {
            let length = reader.read(&mut some).unwrap();
            got.extend(&some[..length]);
            uring.poll().unwrap();
        }
        uring.wait(LIMIT).unwrap();
        assert!(matches!(uring.take(), Some((_, Token(3), Done::Wrote(_, Ok(()))))));
        assert!(got == expected);
    }
}

#[test]
fn a_ring_can_be_polled_beside_others() {
    let (folder, pool) = (tempfile::tempdir().unwrap(), pool());
    let Some(devices) = devices(folder.path(), LOG, None) else { return };
    let Some((mut uring, store)) = ring_over(&devices.log, &pool) else { return };
    // SAFETY: the ring is open until it is dropped, after its last use here.
    let ring = unsafe { BorrowedFd::borrow_raw(uring.as_raw_fd()) };
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    epoll.add(ring, EpollEvent::new(EpollFlags::EPOLLIN, 1)).unwrap();
    let mut events = [EpollEvent::empty(); 4];
    assert_eq!(epoll.wait(&mut events, 0u16), Ok(0));
    // More I/Os than may be in flight at once: those that wait begin without another call.
    for token in 0..20 {
        let piece = Piece { area: Area::Log, at: 0, first: 0, blocks: 1 };
        uring.start(store, Token(token), IoRequest::Read(Reading { blocks: 1, pieces: vec![piece] }));
    }
    uring.submit().unwrap();
    let mut done = 0;
    while done < 20 {
        assert_eq!(epoll.wait(&mut events, 30_000u16), Ok(1), "{done} are done");
        uring.poll().unwrap();
        while let Some((_, _, Done::Read(_, Ok(_)))) = uring.take() {
            done += 1;
        }
    }
}

#[test]
fn the_memory_of_what_never_ends_is_never_used_again() {
    let pool = pool();
    let (reader, _writer) = std::io::pipe().unwrap();
    let Some((mut uring, store)) = ring_over(&reader, &pool) else { return };
    let piece = Piece { area: Area::Log, at: 0, first: 0, blocks: 1 };
    uring.start(store, Token(1), IoRequest::Read(Reading { blocks: 1, pieces: vec![piece] }));
    let begin = Instant::now();
    drop(uring);
    assert!(begin.elapsed() < LIMIT, "it is not waited for without a limit");
    assert_eq!(pool.free().next().unwrap().1, 63);
}

#[test]
fn a_ring_that_is_gone_holds_no_lock() {
    let (folder, pool) = (tempfile::tempdir().unwrap(), pool());
    let Some(devices) = devices(folder.path(), LOG, None) else { return };
    let Some(mut driver) = Driver::uring(devices, &pool, 4) else { return };
    let piece = Piece { area: Area::Log, at: 0, first: 0, blocks: 1 };
    drop(driver.one(IoRequest::Read(Reading { blocks: 1, pieces: vec![piece] })));
    drop(driver);
    DeviceFile::open(&folder.path().join("log"), Duration::ZERO).unwrap();
}

#[test]
fn nothing_in_flight_is_not_waited_for() {
    let Ok(mut uring) = Uring::new(Default::default(), pool()) else { return };
    let begin = Instant::now();
    uring.wait(Duration::from_secs(20)).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(10) && uring.take().is_none());
}

#[test]
fn dropped_with_io_in_flight() {
    for place in places() {
        let (folder, pool) = (folder_in(&place), pool());
        let Some(devices) = devices(folder.path(), 16 << 20, None) else { continue };
        let Some(Driver::Uring(mut uring, store, devices)) = Driver::uring(devices, &pool, 16) else {
            continue;
        };
        let mut chance = chance(3);
        for token in 0..40 {
            let request = match token % 3 {
                0 => IoRequest::Read(some_read(&mut chance, 16 << 20, 16 << 20)),
                1 => IoRequest::Write(some_write(&mut chance, &pool, Area::Log, (0, 16 << 20), None)),
                _ => IoRequest::Sync(Area::Log),
            };
            uring.start(store, Token(token), request);
        }
        // Those that read nothing are done already.
        assert!((30..=40).contains(&uring.in_flight()));
        drop(uring);
        drop(devices);
        // All came to an end, so all memory came back.
        assert!(pool.free().all(|(class, free)| class.buffers as usize == free), "{pool:?}");
    }
}

#[test]
fn devices_are_read_and_written_at_once() {
    for place in places() {
        let folder = folder_in(&place);
        let Some(mut devices): Option<Devices> = devices(folder.path(), LOG, Some(CAPACITY)) else {
            continue;
        };
        assert_eq!((devices.bytes(Area::Log), devices.bytes(Area::Capacity)), (LOG, CAPACITY));
        assert!(devices.log.is_blank().unwrap());
        let mut sectors = Sector::ZERO.0.map(|_| Sector::ZERO).to_vec();
        sectors.iter_mut().zip(1..).for_each(|(sector, n): (_, u16)| sector.0[7] = n as u8);
        devices.write(Area::Capacity, 1024, &sectors).unwrap();
        devices.sync(Area::Capacity).unwrap();
        let mut read = vec![Sector::ZERO; sectors.len()];
        devices.read(Area::Capacity, 1024, &mut read).unwrap();
        assert!(read == sectors);
        assert!(devices.log.is_blank().unwrap() && !devices.capacity.as_ref().unwrap().is_blank().unwrap());
        let last = LOG - 512;
        devices.write(Area::Log, last, &sectors[..1]).unwrap();
        assert!(!devices.log.is_blank().unwrap(), "its end is looked at");
        let short = devices.read(Area::Log, last, &mut read).unwrap_err();
        assert!(matches!(short, IoFault::Short { area: Area::Log, at: LOG }), "{short}");
    }
}
