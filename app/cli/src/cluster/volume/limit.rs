//! `loadline volume limit`: how much the clients of a volume may do a second.

use loadline_base::units::TimeSpan;
use loadline_san_node::node::manage::LimitVolume;

use super::{alike, escaped, expanded, many};
use crate::cluster::client::{Api, Failed};
use crate::process::exit::Exit;

/// A megabyte, as on a drive's label.
const MB: u64 = 1_000_000;

/// How much a second. The command sets the whole limit: what is not given is not limited any more.
#[derive(clap::Args)]
pub(super) struct Rates {
    /// Requests a second: a whole number. Without it, requests are not limited any more.
    #[arg(long, value_name = "N", required_unless_present_any = ["mbps", "none"])]
    iops: Option<u64>,
    /// Megabytes a second of reads and writes together: a whole number. Without it, bytes are not limited any more.
    #[arg(long, value_name = "N")]
    mbps: Option<u64>,
    /// How much of the time before may be caught up: after an idle second, a burst of 1s lets twice as much begin in the next one. [default:
    /// 100ms]
    #[arg(long, value_name = "TIME")]
    burst: Option<TimeSpan>,
    /// Remove the limit.
    #[arg(long, conflicts_with_all = ["iops", "mbps", "burst"])]
    none: bool,
}

pub(super) fn run(names: &[String], limit: &Rates, api: &Api) -> Result<Exit, Failed> {
    let Some(names) = expanded(names) else { return Ok(Exit::Usage) };
    let wanted = LimitVolume {
        iops: limit.iops,
        bytes_per_s: limit.mbps.map(|mb| mb.saturating_mul(MB)),
        burst_ms: limit.burst.map(|burst| u64::try_from(burst.0.as_millis()).unwrap_or(u64::MAX)),
    };
    many::each(&names, "limited", |name| -> Result<(), Failed> {
        api.post(&format!("/v1/volumes/{}/limit", escaped(name)), wanted)
    })?;
    let what = match names.as_slice() {
        [name] => format!("volume {name} has"),
        all => format!("{} have", alike::volumes(all)),
    };
    Ok(api.done(&match limit.none {
        true => format!("{what} no limit"),
        false => format!("{what} a limit of {}", wanted),
    }))
}
