//! What idle sessions of iSCSI cost a node, each of an initiator of its own.

use std::time::Duration;

use loadline_load::iscsi::uri::IscsiUri;
use serde_json::{Value, json};

use super::super::cluster::Cluster;
use super::super::{met, resident_mib, share_of_core};
use super::initiator::Idle;

const SESSIONS: u16 = 256;
/// How long the node settles before each measurement, and how long a measurement is: some rounds of pings.
const SETTLES: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_secs(30);
/// What is wanted of what the sessions add: percent of a core, and MiB.
const MOST_CPU: f64 = 1.0;
const MOST_MIB: f64 = 32.0;

/// What was measured of the node.
pub(super) struct Figures {
    /// CPU without the sessions and with them, in percent of a core.
    cpu: [f64; 2],
    /// Resident memory without them and with them, MiB.
    mib: [f64; 2],
    /// Pings that they have answered.
    pings: u64,
}

/// Measures the only node of a cluster without sessions, and then with them.
pub(super) fn measure(cluster: &Cluster, uri: &str) -> Result<Figures, String> {
    let uri: IscsiUri = uri.parse().map_err(|error| format!("{uri}: {error}"))?;
    let process = cluster.processes()[0];
    let look = || {
        std::thread::sleep(SETTLES);
        Ok::<_, String>((share_of_core(&[process], LOOK), resident_mib(process)?))
    };
    let failed = |error: std::io::Error| format!("an idle session with {uri}: {error}");
    let without = look()?;
    let sessions: Vec<Idle> =
        (0..SESSIONS).map(|number| Idle::log_in(&uri, number)).collect::<Result<_, _>>().map_err(failed)?;
    let with = look()?;
    let pings = sessions.into_iter().map(Idle::end).sum::<Result<_, _>>().map_err(failed)?;
    Ok(Figures { cpu: [without.0, with.0], mib: [without.1, with.1], pings })
}

impl Figures {
    fn added(&self) -> (f64, f64) {
        (self.cpu[1] - self.cpu[0], self.mib[1] - self.mib[0])
    }

    pub(super) fn text(&self) -> String {
        let ([cpu_without, cpu_with], [mib_without, mib_with]) = (self.cpu, self.mib);
        let (cpu, mib) = self.added();
        format!(
            "{SESSIONS} idle sessions, which answered {} pings\n\n\
             CPU of the node: {cpu_with:.2} % of a core, and {cpu_without:.2} % without them: they add {cpu:.2} %; wanted under \
             {MOST_CPU} %: {}\n\
             memory of the node: {mib_with:.1} MiB, and {mib_without:.1} MiB without them: they add {mib:.1} MiB; wanted under \
             {MOST_MIB} MiB: {}\n",
            self.pings,
            met(cpu < MOST_CPU),
            met(mib < MOST_MIB)
        )
    }

    pub(super) fn json(&self) -> Value {
        let (cpu, mib) = self.added();
        json!({
            "sessions": SESSIONS,
            "pings": self.pings,
            "cpu_percent": { "without": self.cpu[0], "with": self.cpu[1], "added": cpu, "wanted_under": MOST_CPU },
            "resident_mib": { "without": self.mib[0], "with": self.mib[1], "added": mib, "wanted_under": MOST_MIB },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sessions_add_is_what_is_judged() {
        let figures = Figures { cpu: [1.5, 2.0], mib: [100.0, 140.5], pings: 1536 };
        let text = figures.text();
        assert!(text.contains("they add 0.50 %; wanted under 1 %: met"), "{text}");
        assert!(text.contains("they add 40.5 MiB; wanted under 32 MiB: NOT MET"), "{text}");
        assert_eq!(figures.json()["cpu_percent"]["added"], 0.5);
        assert_eq!(figures.json()["resident_mib"]["added"], 40.5);
    }
}
