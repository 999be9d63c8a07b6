//! Numbers that look random, and are the same for the same seed (splitmix64).

use std::time::{SystemTime, UNIX_EPOCH};

/// A splitmix64 generator: a pure function of its seed and stream number. Not for cryptography.
pub(crate) struct Random(u64);

impl Random {
    /// Begins at this seed, on one of its ways.
    pub(crate) fn of(seed: u64, way: u64) -> Random {
        Random(seed.wrapping_mul(0xD1B5_4A32_D192_ED03).wrapping_add(way.wrapping_mul(0x8CB9_2BA7_2F3D_8DD7)))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Less than `below`, which is not 0.
    pub(crate) fn below(&mut self, below: u64) -> u64 {
        self.next() % below.max(1)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    pub(crate) fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// A seed that was not there before, short enough to be typed.
pub(crate) fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Random::of(now.as_nanos() as u64, 0).below(1_000_000_000)
}
