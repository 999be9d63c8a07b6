//! When I/Os completed, to the millisecond, and the longest time that none did.
//!
//! A stall of the whole fleet is a time in which *no* worker completed anything, so it cannot be found from the
//! workers' own longest stalls; their maps of completions are merged instead.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use loadline_base::clock::Nanos;

const MILLIS: usize = 1000;
const WORDS: usize = MILLIS.div_ceil(64);

/// The milliseconds of one second in which at least one I/O completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompletionMap {
    bits: [u64; WORDS],
}

impl CompletionMap {
    /// Marks a completion at `within`, the time since the second began (below one second).
    #[inline]
    pub fn set(&mut self, within: Nanos) {
        let milli = (within.0 / 1_000_000) as usize;
        assert!(milli < MILLIS, "a moment of a second lies within it");
        self.bits[milli / 64] |= 1 << (milli % 64);
    }

    /// Whether an I/O completed in this millisecond.
    pub fn get(&self, milli: usize) -> bool {
        milli < MILLIS && self.bits[milli / 64] >> (milli % 64) & 1 == 1
    }

    /// Adds another map's completions.
    pub fn merge(&mut self, other: &CompletionMap) {
        self.bits.iter_mut().zip(other.bits).for_each(|(a, b)| *a |= b);
    }

    /// 1000 bits, least significant first, in base64; trailing zero words are cut off.
    pub fn encode(&self) -> String {
        let used = WORDS - self.bits.iter().rev().take_while(|w| **w == 0).count();
        let bytes: Vec<u8> = self.bits[..used].iter().flat_map(|w| w.to_le_bytes()).collect();
        STANDARD_NO_PAD.encode(bytes)
    }

    /// The map that was encoded. `None` if the text is not one.
    pub fn decode(text: &str) -> Option<CompletionMap> {
        if text.len() > WORDS * 8 * 4 / 3 + 4 {
            return None;
        }
        let bytes = STANDARD_NO_PAD.decode(text).ok()?;
        let mut map = CompletionMap::default();
        let words = bytes.chunks_exact(8);
        if !words.remainder().is_empty() || words.len() > WORDS {
            return None;
        }
        for (word, chunk) in map.bits.iter_mut().zip(words) {
            *word = u64::from_le_bytes(chunk.try_into().ok()?);
        }
        (map.bits[WORDS - 1] >> (MILLIS % 64) == 0).then_some(map)
    }
}

/// The maps of a measured window, by second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Completions {
    seconds: BTreeMap<i64, CompletionMap>,
}

impl Completions {
    /// Adds completions of one second.
    pub fn add(&mut self, second: i64, map: &CompletionMap) {
        self.seconds.entry(second).or_default().merge(map);
    }

    /// Adds another's completions.
    pub fn merge(&mut self, other: &Completions) {
        other.seconds.iter().for_each(|(second, map)| self.add(*second, map));
    }

    /// The longest run of whole milliseconds without a completion in the `length` ms from second 0 on: the
    /// longest stall, to within a millisecond at either end. A window without any is one stall.
    pub fn longest_stall_ms(&self, length: u64) -> u64 {
        self.longest_stall_between(0, length)
    }

    /// The same of the milliseconds from one of the window to before another.
    pub fn longest_stall_between(&self, from: u64, to: u64) -> u64 {
        let (mut longest, mut run) = (0, 0);
        let (mut at, length) = (from, to);
        while at < length {
            let (second, milli) = ((at / MILLIS as u64) as i64, (at % MILLIS as u64) as usize);
            match self.seconds.get(&second) {
                Some(map) if map.get(milli) => (longest, run, at) = (longest.max(run), 0, at + 1),
                Some(_) => (run, at) = (run + 1, at + 1),
                None => {
                    let rest = (MILLIS - milli) as u64;
                    let step = rest.min(length - at);
                    (run, at) = (run + step, at + step);
                }
            }
        }
        longest.max(run)
    }

    /// The first millisecond of the window from this one on in which something completed.
    pub fn first_from(&self, from: u64) -> Option<u64> {
        let (second, milli) = ((from / MILLIS as u64) as i64, (from % MILLIS as u64) as usize);
        self.seconds.range(second..).find_map(|(known, map)| {
            let begin = if *known == second { milli } else { 0 };
            let milli = (begin..MILLIS).find(|milli| map.get(*milli))?;
            Some(u64::try_from(*known).ok()? * MILLIS as u64 + milli as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn completions(millis: impl IntoIterator<Item = u64>) -> Completions {
        let mut all = Completions::default();
        for ms in millis {
            let mut map = CompletionMap::default();
            map.set(Nanos(ms % 1000 * 1_000_000));
            all.add((ms / 1000) as i64, &map);
        }
        all
    }

    #[test]
    fn an_outage_of_five_seconds_shows_as_five_seconds() {
        let outage = completions((0..2000).chain(7000..10_000));
        assert_eq!(outage.longest_stall_ms(10_000), 5000);
    }

    #[test]
    fn a_stall_at_either_end_of_the_window_counts() {
        assert_eq!(completions(400..1000).longest_stall_ms(1000), 400);
        assert_eq!(completions(0..700).longest_stall_ms(1000), 300);
        assert_eq!(completions([]).longest_stall_ms(2500), 2500, "nothing at all is one stall");
    }

    #[test]
    fn a_stall_within_a_part_of_the_window_ends_at_its_ends() {
        let outage = completions((0..2000).chain(7000..10_000));
        assert_eq!(outage.longest_stall_between(0, 2000), 0);
        assert_eq!(outage.longest_stall_between(1500, 4000), 2000);
        assert_eq!(outage.longest_stall_between(6500, 20_000), 10_000);
        assert_eq!((outage.first_from(1999), outage.first_from(2000)), (Some(1999), Some(7000)));
        assert_eq!(outage.first_from(10_000), None);
    }

    #[test]
    fn the_fleet_stalls_only_while_no_worker_completes() {
        let mut fleet = completions(0..500);
        fleet.merge(&completions(600..1000));
        assert_eq!(fleet.longest_stall_ms(1000), 100);
    }

    proptest! {
        #[test]
        fn a_map_comes_back_from_its_encoding(millis in prop::collection::vec(0u64..1000, 0..50)) {
            let mut map = CompletionMap::default();
            millis.iter().for_each(|ms| map.set(Nanos(ms * 1_000_000)));
            prop_assert_eq!(CompletionMap::decode(&map.encode()), Some(map));
        }

        #[test]
        fn no_text_panics_the_decoder(text in ".{0,200}") {
            let _ = CompletionMap::decode(&text);
        }
    }
}
