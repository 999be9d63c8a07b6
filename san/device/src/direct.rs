//! Carries out what a store asks at once: for devices that live in memory, where this is faster than handing it over (io_uring
//! hands each I/O on tmpfs to a kernel thread). They are mapped, if they can be; else it is done by system calls.

use loadline_san_store::io::{Area, Ask, Done, IoFault, Reading, Writing};
use nix::libc::iovec;

use crate::file::Devices;
use crate::mapping::Mapping;
use crate::pool::{BLOCK_BYTES, Blocks, BlocksMut, Pool};
use crate::vectors::{buffer_for, gather};

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

    /// Its devices, to look at.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Gives the devices back.
    pub fn into_devices(self) -> Devices {
        self.devices
    }

    /// This will be carried out soon.
    pub fn prepare(&self, ask: &Ask<Blocks>) {
        let mapping = |area| {
            let other = area == Area::Capacity && self.devices.capacity.is_some();
            self.mappings[usize::from(other)].as_ref()
        };
        match ask {
            Ask::Read(reading) => {
                for piece in &reading.pieces {
                    if let Some(mapping) = mapping(piece.area) {
                        mapping.touch(piece.at, piece.blocks as usize * BLOCK_BYTES);
                    }
                }
            }
            Ask::Write(writing) => {
                if let Some(mapping) = mapping(writing.area) {
                    mapping.touch(writing.at, writing.length() as usize);
                }
            }
            Ask::Sync(_) => {}
        }
    }

    /// Carries this out, and returns when it is done: when it is durable, if that is asked.
    pub fn carry_out(&mut self, ask: Ask<Blocks>) -> Done<Blocks> {
        match ask {
            Ask::Read(reading) => {
                let result = self.read(&reading).map(BlocksMut::freeze_without);
                Done::Read(reading, result)
            }
            Ask::Write(writing) => {
                let result = self.write(&writing);
                Done::Wrote(writing, result)
            }
            Ask::Sync(area) => Done::Synced(area, self.sync(area)),
        }
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
        }
        // SAFETY: as above.
        let result = unsafe { file.write_vectors(writing.at, &mut self.vectors, writing.durable) };
        result.map_err(|e| e.of(writing.area))
    }

    fn sync(&self, area: Area) -> Result<(), IoFault> {
        self.devices.file(area).sync().map_err(|e| e.of(area))
    }
}
