//! What is written: the first content of a write buffer, and the stamp that keeps two writes from being equal.

use loadline_profile::Data;
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Storage that deduplicates or compresses does so in units of this size or larger.
const UNIT: usize = 4096;

/// Gives the buffers of blocks of `block` bytes their first content.
pub(crate) fn fill(buffer: &mut [u8], block: usize, data: Data, seed: u64) {
    match data {
        Data::Zeros => buffer.fill(0),
        Data::CountingBytes => buffer.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8),
        Data::Random => random(buffer, seed),
        Data::Compressible { ratio } => {
            // The first 1/ratio of each unit is random and the rest zero, so that every unit compresses alike.
            let size = UNIT.min(block);
            let kept = ((size as f64 / ratio) as usize).clamp(STAMP, size);
            for (i, unit) in buffer.chunks_mut(size).enumerate() {
                let kept = kept.min(unit.len());
                random(&mut unit[..kept], seed ^ i as u64);
                unit[kept..].fill(0);
            }
        }
    }
}

fn random(buffer: &mut [u8], seed: u64) {
    Xoshiro256PlusPlus::seed_from_u64(seed).fill_bytes(buffer);
}

/// Bytes of a stamp.
const STAMP: usize = 16;

/// Makes a buffer of random or compressible data differ from every other write, at next to no cost, so that
/// deduplication gains nothing: 16 bytes of each unit say which thread's how-manieth unit it is.
#[derive(Debug)]
pub(crate) struct Stamp {
    thread: u64,
    count: u64,
}

impl Stamp {
    /// Stamps for one thread; `None` where the data are meant to be equal.
    pub(crate) fn new(data: Data, thread: u64) -> Option<Stamp> {
        match data {
            Data::Random | Data::Compressible { .. } => Some(Stamp { thread, count: 0 }),
            Data::Zeros | Data::CountingBytes => None,
        }
    }

    /// Stamps a block about to be written.
    #[inline]
    pub(crate) fn apply(&mut self, block: &mut [u8]) {
        for unit in block.chunks_mut(UNIT) {
            self.count += 1;
            // Multiplied by odd constants, the counts look random and stay distinct.
            unit[..8].copy_from_slice(&self.thread.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
            unit[8..STAMP].copy_from_slice(&self.count.wrapping_mul(0xD134_2543_DE82_EF95).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share_of_zeros(block: &[u8]) -> f64 {
        block.iter().filter(|b| **b == 0).count() as f64 / block.len() as f64
    }

    #[test]
    fn random_data_have_no_long_runs_and_compressible_data_the_stated_ratio() {
        let mut block = vec![0; 64 << 10];
        fill(&mut block, 4096, Data::Random, 3);
        assert!(share_of_zeros(&block) < 0.01);
        fill(&mut block, 4096, Data::Compressible { ratio: 4.0 }, 3);
        assert!((share_of_zeros(&block) - 0.75).abs() < 0.01);
        fill(&mut block, 512, Data::Compressible { ratio: 4.0 }, 3);
        assert!((share_of_zeros(&block[512..1024]) - 0.75).abs() < 0.02, "each small block compresses alike");
        fill(&mut block, 4096, Data::Zeros, 3);
        assert_eq!(share_of_zeros(&block), 1.0);
        fill(&mut block, 4096, Data::CountingBytes, 3);
        assert_eq!(&block[254..258], [254, 255, 0, 1]);
    }

    #[test]
    fn no_two_units_that_are_written_are_equal() {
        let mut block = vec![0; 8 * UNIT];
        let mut stamps = [Stamp::new(Data::Random, 1).unwrap(), Stamp::new(Data::Random, 2).unwrap()];
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            for stamp in &mut stamps {
                stamp.apply(&mut block);
                for unit in block.chunks(UNIT) {
                    assert!(seen.insert(unit.to_vec()));
                }
            }
        }
        assert!(Stamp::new(Data::Zeros, 1).is_none());
    }
}
