//! Addresses of hosts on a network.

use std::net::{IpAddr, Ipv6Addr};

/// What stands for the host that connects from this address, where connections of strangers are counted: an IPv4 address itself, also if it
/// is written as one of IPv6; of another IPv6 address its first 64 bits, with zeroes behind, because whoever has one address of such a
/// network has all.
pub fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one_source_and_those_of_ipv4_are_not() {
        let source = |text: &str| source_of(text.parse().unwrap());
        assert_eq!(source("2001:db8:1:2::1"), source("2001:db8:1:2:ffff::9"));
        assert_ne!(source("2001:db8:1:2::1"), source("2001:db8:1:3::1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"), "one is written as the other");
        assert_ne!(source("::ffff:10.0.0.1"), source("::ffff:10.0.0.2"));
    }
}
