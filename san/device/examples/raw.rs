//! How fast the ways of I/O are here: `raw FOLDER direct|uring READS|appends [verify]`, with a file of 1 GiB in the folder.

use std::error::Error;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use loadline_san_core::ids::VolumeId;
use loadline_san_core::layout::GroupIndex;
use loadline_san_device::direct::Direct;
use loadline_san_device::file::{DeviceFile, Devices};
use loadline_san_device::pool::{BLOCK_BYTES, Blocks, Class, Pool};
use loadline_san_device::uring::{Uring, UringOptions};
use loadline_san_store::io::{
    Address, Area, Data, Disk, Done, IoRequest, Part, Piece, Reading, Sector, Token, Writing,
};
use nix::sys::resource::{UsageWho, getrusage};

const LENGTH: u64 = 1 << 30;
const OUTSTANDING: u32 = 32;
const PER_APPEND: u32 = 32;
const APPEND: u64 = PER_APPEND as u64 * (512 + BLOCK_BYTES as u64);
const TIME: Duration = Duration::from_secs(3);

struct Load {
    appends: bool,
    verify: bool,
    chance: u64,
    next: u64,
    reads: Vec<Reading>,
    writes: Vec<Writing<Blocks>>,
    pool: Pool,
}

fn address(block: u64) -> Address {
    Address { volume: VolumeId(1), group: GroupIndex(0), block }
}

impl Load {
    fn request(&mut self) -> IoRequest<Blocks> {
        if self.appends {
            let mut writing = self.writes.pop().unwrap_or_else(|| Writing {
                area: Area::Log,
                at: 0,
                bytes: Sector::zeroes(PER_APPEND as usize),
                parts: Vec::with_capacity(2 * PER_APPEND as usize),
                durable: true,
            });
            writing.at = self.next;
            self.next = (self.next + APPEND) % (LENGTH - APPEND) / 512 * 512;
            for _ in 0..PER_APPEND {
                writing.parts.push(Part::Bytes(1));
                let data = self.pool.take(1).expect("memory").freeze_without();
                writing.parts.push(Part::Data { data, first: 0, blocks: 1 });
            }
            return IoRequest::Write(writing);
        }
        self.chance =
            self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut reading =
            self.reads.pop().unwrap_or_else(|| Reading { blocks: 1, pieces: Vec::with_capacity(1) });
        let at = (self.chance >> 33) % (LENGTH / BLOCK_BYTES as u64) * BLOCK_BYTES as u64;
        reading.pieces.clear();
        reading.pieces.push(Piece { area: Area::Log, at, first: 0, blocks: 1 });
        IoRequest::Read(reading)
    }

    /// Blocks that were moved.
    fn done(&mut self, done: Done<Blocks>) -> u64 {
        match done {
            Done::Read(reading, result) => {
                let mut blocks = result.expect("a read");
                if self.verify {
                    std::hint::black_box(blocks.take_checksum(0, address(reading.pieces[0].at)));
                }
                self.reads.push(reading);
                1
            }
            Done::Wrote(mut writing, result) => {
                result.expect("a write");
                writing.parts.clear();
                self.writes.push(writing);
                u64::from(PER_APPEND)
            }
            Done::Synced(..) => 0,
        }
    }
}

fn cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("usage");
    let of =
        |time: nix::sys::time::TimeVal| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000);
    of(usage.user_time()) + of(usage.system_time())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let says = |what: &str| arguments.iter().any(|argument| argument == what);
    let path = PathBuf::from(arguments.first().ok_or("which folder?")?).join("loadline-raw");
    let class = |blocks, buffers| Class { blocks, buffers };
    let pool = Pool::new(&[class(1, 1024), class(16, 4)])?;
    let mut load = Load {
        appends: says("appends"),
        verify: says("verify"),
        chance: 1,
        next: 0,
        reads: vec![],
        writes: vec![],
        pool: pool.clone(),
    };
    if !path.exists() {
        let log = DeviceFile::create(&path, LENGTH)?;
        let mut devices = Devices { log, capacity: None };
        let some = vec![Sector([7; 512]); 2048];
        (0..LENGTH >> 20).try_for_each(|n| devices.write(Area::Log, n << 20, &some))?;
    }
    let devices = Devices { log: DeviceFile::open(&path, TIME)?, capacity: None };
    let (mut moved, begin, before) = (0, Instant::now(), cpu());
    if says("direct") {
        let mut direct = Direct::new(devices, pool);
        while begin.elapsed() < TIME {
            for _ in 0..OUTSTANDING {
                let done = direct.carry_out(load.request());
                moved += load.done(done);
            }
            direct.settle();
        }
    } else {
        let mut uring = Uring::new(UringOptions::default(), pool)?;
        let store = uring.add(devices.log.as_fd(), None)?;
        let outstanding = if load.appends { 2 } else { OUTSTANDING };
        (0..outstanding).for_each(|token| uring.start(store, Token(token), load.request()));
        while begin.elapsed() < TIME {
            uring.wait(TIME)?;
            while let Some((store, token, done)) = uring.take() {
                moved += load.done(done);
                uring.start(store, token, load.request());
            }
        }
        if !uring.is_registered() {
            println!("(memory is not registered)");
        }
    }
    let (time, cpu) = (begin.elapsed().as_secs_f64(), (cpu() - before).as_secs_f64());
    println!(
        "{}: {:.0} blocks/s, {:.2} us CPU each",
        arguments.join(" "),
        moved as f64 / time,
        cpu / moved as f64 * 1e6
    );
    Ok(())
}
