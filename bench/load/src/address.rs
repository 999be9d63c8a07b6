//! Where the next I/O of a thread goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use loadline_base::units::ByteSize;
use loadline_profile::{Extent, Pattern, Profile};
use rand_core::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::error::LoadError;

/// The part of a disk that a profile touches, in units of its alignment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Space {
    /// Where it begins, bytes.
    pub(crate) base: u64,
    /// How long it is, bytes.
    pub(crate) length: u64,
    /// Offsets are multiples of this, from `base` on.
    align: u64,
    /// How many places an I/O can begin at.
    places: u64,
    /// Hot spots: up to which of 10,000 the share of I/O reaches, and the places of each.
    zones: Vec<Zone>,
}

#[derive(Debug, Clone, PartialEq)]
struct Zone {
    /// The cumulated share of I/O, of 2^64.
    up_to: u64,
    first: u64,
    places: u64,
}

impl Space {
    /// The space of a profile on a disk of this size, or why there is none.
    pub(crate) fn new(profile: &Profile, disk: ByteSize, name: &str) -> Result<Space, LoadError> {
        let block = profile.block_size.0;
        let align = profile.alignment.map_or(block, |a| a.0).max(1);
        let base = profile.base_offset.0;
        let rest = disk.0.saturating_sub(base);
        let length = match profile.working_set {
            None => rest,
            Some(Extent::Percent(percent)) => (rest as f64 * percent / 100.0) as u64,
            Some(Extent::Bytes(size)) => size.0,
        };
        if length > rest {
            return Err(LoadError::usage(format!(
                "{name}: a working set of {} from {} on does not fit in its {disk}: make it smaller, or the disk \
                 larger",
                ByteSize(length),
                ByteSize(base)
            )));
        }
        let length = length / align * align;
        if length < block {
            return Err(LoadError::usage(format!(
                "{name}: not one block of {} fits in the working set, which is {} of a disk of {disk}",
                profile.block_size,
                ByteSize(length),
            )));
        }
        let places = (length - block) / align + 1;
        let zones = zones(profile, length, align, places, name)?;
        Ok(Space { base, length, align, places, zones })
    }

    fn offset(&self, place: u64) -> u64 {
        self.base + place * self.align
    }
}

fn zones(
    profile: &Profile,
    length: u64,
    align: u64,
    places: u64,
    name: &str,
) -> Result<Vec<Zone>, LoadError> {
    if profile.hot_spots.is_empty() {
        return Ok(Vec::new());
    }
    let share = |percent: f64| (percent / 100.0 * 2f64.powi(64)) as u64;
    let (mut percent, mut first, mut zones) = (0.0, 0u64, Vec::new());
    for spot in &profile.hot_spots {
        let bytes = match spot.extent {
            Extent::Percent(p) => (length as f64 * p / 100.0) as u64,
            Extent::Bytes(size) => size.0,
        };
        let end = (first + (bytes / align).max(1)).min(places);
        if end == first {
            return Err(LoadError::usage(format!(
                "{name}: no block is left for the hot spot that receives {} % of the I/O: use a larger working set",
                spot.io_percent
            )));
        }
        percent += f64::from(spot.io_percent);
        zones.push(Zone { up_to: share(percent), first, places: end - first });
        first = end;
    }
    if percent < 100.0 {
        if first == places {
            return Err(LoadError::usage(format!(
                "{name}: the hot spots cover the whole working set but receive only {percent} % of the I/O, so the remaining \
                 I/O has no blocks"
            )));
        }
        zones.push(Zone { up_to: u64::MAX, first, places: places - first });
    } else if let Some(last) = zones.last_mut() {
        last.up_to = u64::MAX;
    }
    Ok(zones)
}

/// A number below `bound`, uniform (Lemire's multiplication, without the rejection: the bias is below
/// `bound` / 2^64).
#[inline]
pub(crate) fn below(rng: &mut Xoshiro256PlusPlus, bound: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(bound)) >> 64) as u64
}

/// A number in [0, 1).
#[inline]
pub(crate) fn unit(rng: &mut Xoshiro256PlusPlus) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// One thread's sequence of offsets.
#[derive(Debug)]
pub(crate) struct Addresses {
    space: Arc<Space>,
    pattern: Pattern,
    /// The next place of this thread's own sequence.
    next: u64,
    /// The next place of all threads of this disk, for the interleaved pattern.
    shared: Arc<AtomicU64>,
}

impl Addresses {
    pub(crate) fn new(space: Arc<Space>, pattern: Pattern, shared: Arc<AtomicU64>) -> Addresses {
        Addresses { space, pattern, next: 0, shared }
    }

    /// The next offset, in bytes.
    #[inline]
    pub(crate) fn next(&mut self, rng: &mut Xoshiro256PlusPlus) -> u64 {
        let place = match self.pattern {
            Pattern::Random => self.random(rng),
            Pattern::Sequential => self.sequential(),
            Pattern::SequentialInterleaved => self.shared.fetch_add(1, Ordering::Relaxed) % self.space.places,
            Pattern::Mixed { random_percent } => {
                if below(rng, 100) < u64::from(random_percent) {
                    let place = self.random(rng);
                    self.next = (place + 1) % self.space.places;
                    place
                } else {
                    self.sequential()
                }
            }
        };
        self.space.offset(place)
    }

    #[inline]
    fn sequential(&mut self) -> u64 {
        let place = self.next;
        self.next = if place + 1 == self.space.places { 0 } else { place + 1 };
        place
    }

    #[inline]
    fn random(&self, rng: &mut Xoshiro256PlusPlus) -> u64 {
        if self.space.zones.is_empty() {
            return below(rng, self.space.places);
        }
        let draw = rng.next_u64();
        let zone = self.space.zones.iter().find(|z| draw < z.up_to).unwrap_or(&self.space.zones[0]);
        zone.first + below(rng, zone.places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_profile::HotSpot;
    use rand_core::SeedableRng;

    fn addresses(profile: &Profile, disk: ByteSize) -> (Addresses, Xoshiro256PlusPlus) {
        let space = Arc::new(Space::new(profile, disk, "disk").unwrap());
        let shared = Arc::new(AtomicU64::new(0));
        (Addresses::new(space, profile.pattern, shared), Xoshiro256PlusPlus::seed_from_u64(7))
    }

    #[test]
    fn random_offsets_are_aligned_inside_the_working_set_and_reach_all_of_it() {
        let profile = Profile {
            base_offset: ByteSize::kib(64),
            working_set: Some(Extent::Bytes(ByteSize::kib(64))),
            ..Profile::default()
        };
        let (mut addresses, mut rng) = addresses(&profile, ByteSize::MIB);
        let seen: std::collections::BTreeSet<u64> = (0..1000).map(|_| addresses.next(&mut rng)).collect();
        assert_eq!(seen, (16..32).map(|i| i * 4096).collect());
    }

    #[test]
    fn a_sequence_walks_the_working_set_and_begins_again() {
        let profile = Profile { pattern: Pattern::Sequential, ..Profile::default() };
        let (mut addresses, mut rng) = addresses(&profile, ByteSize::kib(12));
        let offsets: Vec<u64> = (0..4).map(|_| addresses.next(&mut rng)).collect();
        assert_eq!(offsets, [0, 4096, 8192, 0]);
    }

    #[test]
    fn interleaved_threads_share_their_offset() {
        let profile = Profile { pattern: Pattern::SequentialInterleaved, ..Profile::default() };
        let (mut one, mut rng) = addresses(&profile, ByteSize::MIB);
        let mut two = Addresses::new(Arc::clone(&one.space), profile.pattern, Arc::clone(&one.shared));
        let offsets = [one.next(&mut rng), two.next(&mut rng), one.next(&mut rng)];
        assert_eq!(offsets, [0, 4096, 8192]);
    }

    #[test]
    fn hot_spots_get_their_share_of_the_io() {
        let profile = Profile {
            hot_spots: vec![
                HotSpot { io_percent: 95, extent: Extent::Percent(5.0) },
                HotSpot { io_percent: 4, extent: Extent::Percent(10.0) },
            ],
            ..Profile::default()
        };
        let (mut addresses, mut rng) = addresses(&profile, ByteSize(1000 * 4096));
        let mut counts = [0u32; 3];
        for _ in 0..100_000 {
            let place = addresses.next(&mut rng) / 4096;
            counts[if place < 50 { 0 } else { usize::from(place >= 150) + 1 }] += 1;
        }
        for (count, percent) in counts.iter().zip([95.0, 4.0, 1.0]) {
            assert!((f64::from(*count) / 1000.0 - percent).abs() < 0.3, "{counts:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let large = Profile { working_set: Some(Extent::Bytes(ByteSize::GIB)), ..Profile::default() };
        let error = Space::new(&large, ByteSize::MIB, "d.img").unwrap_err().message;
        assert!(error.contains("d.img") && error.contains("1GiB") && error.contains("1MiB"), "{error}");
        assert!(Space::new(&Profile::default(), ByteSize(4095), "d.img").is_err());
    }
}
