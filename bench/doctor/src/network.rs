//! Judges the ways between hosts: what a message takes, and what they carry.

use loadline_base::figures::{latency, thousands};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::Check;

/// A round trip above this, microseconds, is slow for a local network.
const ROUND_TRIP_US: f64 = 200.0;
/// Bytes a second that a network of 10 Gbit/s carries of data.
const BYTES_PER_S: f64 = 9e9 / 8.0;
/// Bytes of a small write.
const BLOCK: f64 = 4096.0;

/// The measured network path from one worker's host to that of another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MeasuredPath {
    /// The worker that sent.
    pub from: String,
    /// The worker that received.
    pub to: String,
    /// Whether both are on one host: then it is that host's own loopback.
    pub one_host: bool,
    /// Median time of a message of 64 bytes there and one back, over TCP, microseconds; `null` if it could not be measured.
    pub round_trip_us: Option<f64>,
    /// Bytes that arrived in a second, one way, over four TCP connections; `null` if it could not be measured.
    pub bytes_per_s: Option<f64>,
    /// Why it could not be.
    pub why: Option<String>,
}

/// Judges a way.
pub fn check(path: &MeasuredPath) -> Vec<Check> {
    let name = |what: &str| format!("network {} to {}: {what}", path.from, path.to);
    let (Some(round_trip_us), Some(bytes_per_s)) = (path.round_trip_us, path.bytes_per_s) else {
        let why = path.why.as_deref().unwrap_or("it is not known why");
        let check = Check::bad(name("not measured"), why)
            .expected("a network on which each host reaches the next host, on any port")
            .costs("nodes on these hosts would not reach each other, and the speed of the network is not known")
            .mend("check that both hosts are on the same network and no firewall is between them; this shows the firewall rules of a host:")
            .run("sudo nft list ruleset");
        return vec![check];
    };
    let found = |what: String| match path.one_host {
        true => format!("{what}, over the loopback of one host: no network was measured"),
        false => what,
    };
    let trip = found(format!("{} there and back", latency(round_trip_us)));
    let mib = thousands((bytes_per_s / f64::from(1 << 20)).round());
    let rate = found(format!("{:.1} Gbit/s ({mib} MiB/s)", bytes_per_s * 8.0 / 1e9));
    let (trip_name, rate_name) = (name("round trip"), name("bandwidth"));
    if path.one_host {
        let note = |name, found| {
            Check::note(name, found)
                .expected("workers on different hosts")
                .costs("the speed of the network between hosts is not known")
                .mend("start each worker on a host of its own")
                .run("loadline worker --join HOST:PORT --name NAME")
        };
        return vec![note(trip_name, trip), Check::ok(rate_name, rate)];
    }
    vec![round_trip(trip_name, trip, round_trip_us), bandwidth(rate_name, rate, bytes_per_s)]
}

fn round_trip(name: String, found: String, us: f64) -> Check {
    if us <= ROUND_TRIP_US {
        return Check::ok(name, found);
    }
    Check::slow(name, found)
        .expected(format!("{} or less", latency(ROUND_TRIP_US)))
        .costs(format!(
            "each write to two copies waits for it: a program that writes one block after the other gets no more \
             than {} a second",
            thousands(1e6 / us)
        ))
        .mend(
            "see that the hosts are in one place and on one switch, and that the card does not put off its \
             interrupts (ETH: its name)",
        )
        .run("sudo ethtool -C ETH adaptive-rx off rx-usecs 0")
}

fn bandwidth(name: String, found: String, bytes_per_s: f64) -> Check {
    if bytes_per_s >= BYTES_PER_S {
        return Check::ok(name, found);
    }
    Check::slow(name, found)
        .expected("10 Gbit/s, of which 9 and more are data")
        .costs(format!(
            "a volume with two copies sends one copy of each write to another node: the network limits the writes that each \
             node receives to {} MiB/s, or {} IOPS of 4 KiB",
            thousands(bytes_per_s / f64::from(1 << 20)),
            thousands(bytes_per_s / BLOCK)
        ))
        .mend("see at what speed the link is (ETH: the card's name), and use a faster network for the nodes")
        .run("sudo ethtool ETH | grep -e Speed -e Duplex")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Severity::{self, Bad, Note, Ok, Slow};

    fn path(one_host: bool, speed: Option<(f64, f64)>) -> MeasuredPath {
        let (from, to) = ("a".into(), "b".into());
        let (round_trip_us, bytes_per_s) = (speed.map(|s| s.0), speed.map(|s| s.1));
        MeasuredPath {
            from,
            to,
            one_host,
            round_trip_us,
            bytes_per_s,
            why: speed.is_none().then(|| "no route".into()),
        }
    }

    fn severities(one_host: bool, speed: Option<(f64, f64)>) -> Vec<Severity> {
        check(&path(one_host, speed)).iter().map(|check| check.severity).collect()
    }

    #[test]
    fn a_way_that_is_slow_or_narrow_is_found_with_what_it_means_for_writes() {
        assert_eq!(severities(false, Some((60.0, 1.18e9))), [Ok, Ok]);
        assert_eq!(severities(false, Some((450.0, 1.18e9))), [Slow, Ok]);
        assert_eq!(severities(false, Some((60.0, 1.17e8))), [Ok, Slow]);
        let narrow = &check(&path(false, Some((500.0, 1.17e8))));
        assert!(narrow[0].costs.as_deref().unwrap().contains("2,000 a second"), "{:?}", narrow[0]);
        let costs = narrow[1].costs.as_deref().unwrap();
        assert!(costs.contains("112 MiB/s") && costs.contains("28,564 IOPS"), "{costs}");
        assert!(narrow[1].found.contains("0.9 Gbit/s"), "{}", narrow[1].found);
    }

    #[test]
    fn loopback_is_said_to_be_no_network_and_no_way_is_bad() {
        let loopback = check(&path(true, Some((900.0, 1e8))));
        assert_eq!([loopback[0].severity, loopback[1].severity], [Note, Ok]);
        assert!(loopback.iter().all(|check| check.found.contains("loopback")));
        let none = check(&path(false, None));
        assert_eq!((none.len(), none[0].severity, none[0].found.as_str()), (1, Bad, "no route"));
    }
}
