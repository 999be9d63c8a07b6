//! Addresses whose requests of the API were refused.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The most refused requests of one address within [`EPISODE`]. Further ones are refused without a check.
const MOST_REFUSED: u32 = 20;
/// How long refusals of an address are remembered.
pub(crate) const EPISODE: Duration = Duration::from_secs(10);
/// Addresses that are remembered.
const MOST_ADDRESSES: usize = 1024;

/// Addresses whose requests were refused: since when, and how many.
#[derive(Debug, Default)]
pub(crate) struct Refusals(BTreeMap<IpAddr, (Instant, u32)>);

impl Refusals {
    /// Whether so many requests of an address were refused that the next is refused without a check.
    pub(crate) fn are_many(&mut self, address: IpAddr, now: Instant) -> bool {
        self.0.retain(|_, (since, _)| now.duration_since(*since) < EPISODE);
        self.0.get(&address).is_some_and(|(_, count)| *count >= MOST_REFUSED)
    }

    /// A request of an address was refused.
    pub(crate) fn add(&mut self, address: IpAddr, now: Instant) {
        if self.0.len() < MOST_ADDRESSES || self.0.contains_key(&address) {
            self.0.entry(address).or_insert((now, 0)).1 += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_not_looked_at_for_a_while_after_many_refusals_and_others_are() {
        let (one, other): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        for _ in 0..MOST_REFUSED {
            assert!(!refusals.are_many(one, now));
            refusals.add(one, now);
        }
        assert!(refusals.are_many(one, now));
        assert!(!refusals.are_many(other, now));
        assert!(!refusals.are_many(one, now + EPISODE));
    }
}
