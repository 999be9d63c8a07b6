//! What was measured of the network between the nodes, and what share of it a load uses.

use loadline_fleet::NetworkPathSpeed;
use loadline_profile::Profile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The network from one node to the next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MeasuredLink {
    /// The node that sent.
    pub from: String,
    /// The node that received.
    pub to: String,
    /// Whether both are on one host: then it is that host's own loopback.
    pub one_host: bool,
    /// What it does; `null` if it could not be measured.
    pub speed: Option<NetworkPathSpeed>,
    /// Why it could not be.
    pub why: Option<String>,
}

/// What share of the slowest link a load uses, if each node sends as much as the others: this many bytes a second of the
/// whole fleet, of which each that is written is sent to other nodes `writes` times, and each that is read `reads` times.
/// `None` if no link was measured.
pub fn share(
    bytes_per_s: f64,
    profile: &Profile,
    (writes, reads): (f64, f64),
    links: &[MeasuredLink],
) -> Option<f64> {
    let slowest = links.iter().filter_map(|link| Some(link.speed?.bytes_per_s)).reduce(f64::min)?;
    let written = f64::from(profile.write_percent) / 100.0;
    let sent = bytes_per_s * (written * writes + (1.0 - written) * reads) / links.len() as f64;
    (slowest > 0.0).then(|| sent / slowest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(speed: Option<f64>) -> MeasuredLink {
        let speed = speed.map(|bytes_per_s| NetworkPathSpeed { round_trip_us: 50.0, bytes_per_s });
        MeasuredLink { from: "a".into(), to: "b".into(), one_host: false, speed, why: None }
    }

    #[test]
    fn a_share_is_of_the_slowest_link_and_counts_copies() {
        let mixed: Profile = "B8-T1-O1-W30-PR".parse().unwrap();
        let links = [link(Some(2e9)), link(Some(1e9)), link(Some(3e9))];
        // Of 6 GB/s 1.8 are written, and sent twice; 4.2 are read, half of them from another node: 5.7 GB/s by 3 nodes.
        let found = share(6e9, &mixed, (2.0, 0.5), &links).unwrap();
        assert!((found - 1.9).abs() < 1e-12, "{found}");
        assert_eq!(share(6e9, &mixed, (2.0, 0.5), &[]), None);
        assert_eq!(share(6e9, &mixed, (2.0, 0.5), &[link(None)]), None);
    }
}
