//! Carries out the I/Os of a store at once: for devices that live in memory, where this is faster than handing it over
//! (io_uring hands each I/O on tmpfs to a kernel thread). They are mapped, if they can be; else it is done by system calls.

use loadline_san_store::io::{Address, Area, Done, IoFault, IoRequest, Reading, Writing};
use nix::libc::iovec;

use crate::direct_read::DirectRead;
use crate::file::Devices;
use crate::mapping::Mapping;
use crate::pool::{BLOCK_BYTES, Blocks, BlocksMut, Pool, sum};
use crate::vectors::{buffer_for, gather, is_in_order};

/// One replica's devices, used at once.
#[derive(Debug)]
pub struct Direct {
    devices: Devices,
    /// Of the log's device, and of the capacity's if that is another.
    mappings: [Option<Mapping>; 2],
    pool: Pool,
    /// Where the bytes of a write are: used again for each.
    vectors: Vec<iovec>,
}

impl Direct {
    /// Uses these, with buffers from this pool.
    pub fn new(devices: Devices, pool: Pool) -> Direct {
        let mappings = [Mapping::new(&devices.log), devices.capacity.as_ref().and_then(Mapping::new)];
        Direct { devices, mappings, pool, vectors: Vec::with_capacity(64) }
    }

    /// Its devices, for reading.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Gives the devices back.
    pub fn into_devices(self) -> Devices {
        self.devices
    }

    /// This will be carried out soon.
    pub fn prepare(&self, request: &IoRequest<Blocks>) {
        self.each(request, Mapping::touch);
    }

    /// This will be carried out next but one.
    pub fn prepare_next(&self, request: &IoRequest<Blocks>) {
        self.each(request, Mapping::fetch);
    }

    /// What an ask reads of what is mapped. What it writes needs no preparation: it goes past the CPU's cache.
    fn each(&self, request: &IoRequest<Blocks>, prepare: impl Fn(&Mapping, u64, usize)) {
        let IoRequest::Read(reading) = request else { return };
        for piece in &reading.pieces {
            let other = piece.area == Area::Capacity && self.devices.capacity.is_some();
            if let Some(mapping) = &self.mappings[usize::from(other)] {
                prepare(mapping, piece.at, piece.blocks as usize * BLOCK_BYTES);
            }
        }
    }

    /// To be called before the completion is reported: other threads and processes see it from then on.
    pub fn settle(&mut self) {
        self.mappings.iter_mut().flatten().for_each(Mapping::settle);
    }

    /// Carries this out, and returns when it is done: when it is durable, if that is asked. What is carried out afterwards finds
    /// it, others once it is [settled](Self::settle).
    pub fn carry_out(&mut self, request: IoRequest<Blocks>) -> Done<Blocks> {
        match request {
            IoRequest::Read(reading) => {
                let result = self.read(&reading).map(BlocksMut::freeze_without);
                Done::Read(reading, result)
            }
            IoRequest::Write(writing) => {
                let result = self.write(&writing);
                Done::Wrote(writing, result)
            }
            IoRequest::Sync(area) => Done::Synced(area, self.sync(area)),
        }
    }

    /// Reads to where it is wanted, with the checksums taken where it lies: `of` is what the first is of. What no piece fills
    /// becomes zeroes. Gives the reading back if that cannot be: then it is to be [carried out](Self::carry_out) as others.
    pub fn read_direct(
        &mut self,
        reading: Reading,
        into: &DirectRead,
        of: Address,
    ) -> Result<Done<Blocks>, Reading> {
        if into.blocks() != reading.blocks as usize || !is_in_order(&reading) {
            return Err(reading);
        }
        let mut sums: Vec<u32> = Vec::with_capacity(reading.blocks as usize);
        let mut next = 0;
        let zero = |from: u32, to: u32| {
            for index in from..to {
                // SAFETY: a block that may be written, and to which no reference exists here (`DirectRead::add`).
                unsafe { into.block(index as usize).write_bytes(0, BLOCK_BYTES) };
            }
        };
        for piece in &reading.pieces {
            let other = piece.area == Area::Capacity && self.devices.capacity.is_some();
            let mapping = self.mappings[usize::from(other)].as_mut();
            let file = self.devices.file(piece.area);
            let there = mapping.and_then(|mapping| mapping.blocks(file, piece.at, piece.blocks));
            let Some(bytes) = there else { return Err(reading) };
            zero(next, piece.first);
            sums.resize(piece.first as usize, 0);
            for (index, from) in (piece.first..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
                sums.push(sum(from, Address { block: of.block + u64::from(index), ..of }));
                // SAFETY: as above; and it is not part of the mapping, of which there is no other reference.
                unsafe {
                    std::ptr::copy_nonoverlapping(from.as_ptr(), into.block(index as usize), BLOCK_BYTES);
                }
            }
            next = piece.first + piece.blocks;
        }
        zero(next, reading.blocks);
        sums.resize(reading.blocks as usize, 0);
        Ok(Done::Read(reading, Ok(Blocks::elsewhere(sums.into_iter()))))
    }

    fn read(&mut self, reading: &Reading) -> Result<BlocksMut, IoFault> {
        let mut buffer = buffer_for(reading, &self.pool)?;
        for piece in &reading.pieces {
            let other = piece.area == Area::Capacity && self.devices.capacity.is_some();
            let file = self.devices.file(piece.area);
            let into = buffer.some_mut(piece.first, piece.blocks);
            let mapping = self.mappings[usize::from(other)].as_mut();
            if !mapping.is_some_and(|mapping| mapping.read(file, piece.at, into)) {
                file.read_at(piece.at, into).map_err(|e| e.of(piece.area))?;
            }
        }
        Ok(buffer)
    }

    fn write(&mut self, writing: &Writing<Blocks>) -> Result<(), IoFault> {
        gather(writing, &mut self.vectors)?;
        let other = writing.area == Area::Capacity && self.devices.capacity.is_some();
        let file = self.devices.file(writing.area);
        if let Some(mapping) = &mut self.mappings[usize::from(other)] {
            // SAFETY: the vectors have just been made of the writing, which is borrowed until the call returns.
            if unsafe { mapping.write(file, writing.at, &self.vectors) } {
                return Ok(());
            }
            // The call may write over what went past the cache.
            mapping.settle();
        }
        // SAFETY: as above.
        let result = unsafe { file.write_vectors(writing.at, &mut self.vectors, writing.durable) };
        result.map_err(|e| e.of(writing.area))
    }

    fn sync(&self, area: Area) -> Result<(), IoFault> {
        self.devices.file(area).sync().map_err(|e| e.of(area))
    }
}
