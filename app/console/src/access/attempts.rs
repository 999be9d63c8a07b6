//! Wrong keys, counted for each address and in all, within a bounded memory.
//!
//! An address that has sent ten wrong keys within a minute is refused without a look at its keys until the minute is over. The addresses of
//! this machine are not: its users share them, and one user must not shut another one out. After a hundred wrong keys of all addresses, a
//! further wrong key has the same answer; a valid key is taken.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(60);
/// Wrong keys of an address in a window.
const MOST: u32 = 10;
/// Wrong keys of all addresses in a window.
const MOST_IN_ALL: u32 = 100;
/// Addresses that are counted. As many can send a wrong key before all further ones are refused in any case.
const ADDRESSES: usize = MOST_IN_ALL as usize;

/// The wrong keys of the last minute.
#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<Option<Counts>>);

#[derive(Debug)]
struct Counts {
    begun: Instant,
    all: u32,
    by_address: BTreeMap<IpAddr, u32>,
}

/// The address, or of IPv6 the network of 64 bits: a host that has one address there has all.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        address => address,
    }
}

impl Attempts {
    /// How long keys of this address are refused, if they are.
    pub(super) fn refused_for(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = counts.as_ref().filter(|counts| now < counts.begun + WINDOW)?;
        let network = network(address);
        let many = counts.by_address.get(&network).is_some_and(|count| *count >= MOST);
        (many && !network.is_loopback()).then(|| counts.begun + WINDOW - now)
    }

    /// Counts a wrong key. Returns how long further ones are refused, if this one was too many.
    pub(super) fn add(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.as_ref().is_none_or(|counts| now >= counts.begun + WINDOW) {
            *counts = Some(Counts { begun: now, all: 0, by_address: BTreeMap::new() });
        }
        let counts = counts.as_mut()?;
        counts.all = counts.all.saturating_add(1);
        let network = network(address);
        let mut of_address = 0;
        if counts.by_address.len() < ADDRESSES || counts.by_address.contains_key(&network) {
            let count = counts.by_address.entry(network).or_default();
            *count = count.saturating_add(1);
            of_address = *count;
        }
        (counts.all > MOST_IN_ALL || of_address > MOST).then(|| counts.begun + WINDOW - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).into()
    }

    #[test]
    fn an_address_with_many_wrong_keys_is_refused_until_the_minute_is_over_and_no_other_one() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        for _ in 0..MOST {
            assert_eq!(attempts.refused_for(address(1), now), None);
            assert_eq!(attempts.add(address(1), now), None);
        }
        let later = now + WINDOW / 3;
        assert_eq!(attempts.refused_for(address(1), later), Some(WINDOW / 3 * 2));
        assert_eq!(attempts.refused_for(address(2), later), None);
        assert_eq!(attempts.refused_for(address(1), now + WINDOW), None);
    }

    #[test]
    fn users_of_this_machine_do_not_shut_each_other_out_and_a_network_of_ipv6_counts_as_one() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        let of = |text: &str| text.parse::<IpAddr>().expect("it is one");
        for number in 0..=MOST {
            attempts.add(of("127.0.0.1"), now);
            attempts.add(of(&format!("fd00:0:0:1::{number}")), now);
        }
        assert_eq!(attempts.refused_for(of("127.0.0.1"), now), None);
        assert!(
            attempts.add(of("127.0.0.1"), now).is_some(),
            "the answer to a wrong key is 429 all the same"
        );
        assert!(attempts.refused_for(of("fd00:0:0:1::ffff"), now).is_some());
        assert_eq!(attempts.refused_for(of("fd00:0:0:2::1"), now), None);
    }

    #[test]
    fn many_addresses_are_refused_in_all_and_take_a_bounded_memory() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        for number in 0..MOST_IN_ALL {
            assert_eq!(attempts.add(address(number), now), None);
        }
        for number in 0..10_000 {
            assert!(attempts.add(address(number), now).is_some());
        }
        let counts = attempts.0.lock().unwrap();
        assert!(counts.as_ref().is_some_and(|counts| counts.by_address.len() <= ADDRESSES));
    }
}
