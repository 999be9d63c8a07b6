//! Sources of requests of the API that were refused.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::unproved::Source;

/// The most refused requests of one source within [`EPISODE`]. Further ones without an access are refused, and neither logged nor
/// counted.
const MOST_REFUSED: u32 = 20;
/// How long refusals of a source are remembered.
pub(crate) const EPISODE: Duration = Duration::from_secs(10);
/// Sources that are remembered.
const MOST_SOURCES: usize = 1024;

/// Sources whose requests were refused: since when, and how many.
#[derive(Debug, Default)]
pub(crate) struct Refusals(BTreeMap<Source, (Instant, u32)>);

impl Refusals {
    /// Whether so many requests of a source were refused that the next one without an access is refused, and not logged.
    pub(crate) fn are_many(&mut self, from: impl Into<Source>, now: Instant) -> bool {
        self.0.retain(|_, (since, _)| now.duration_since(*since) < EPISODE);
        self.0.get(&from.into()).is_some_and(|(_, count)| *count >= MOST_REFUSED)
    }

    /// A request of a source was refused.
    pub(crate) fn add(&mut self, from: impl Into<Source>, now: Instant) {
        let source = from.into();
        if self.0.len() < MOST_SOURCES || self.0.contains_key(&source) {
            self.0.entry(source).or_insert((now, 0)).1 += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

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

    #[test]
    fn addresses_of_one_network_of_ipv6_are_refused_together() {
        let of = |number: u32| format!("2001:db8:1:2::{number:x}").parse::<IpAddr>().unwrap();
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        (0..MOST_REFUSED).for_each(|number| refusals.add(of(number), now));
        assert!(refusals.are_many(of(99), now));
        assert!(!refusals.are_many("2001:db8:1:3::1".parse::<IpAddr>().unwrap(), now));
    }
}
