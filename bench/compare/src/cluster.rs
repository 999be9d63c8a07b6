//! A cluster that loses nodes under a fleet, and what measuring with a fleet costs: what `./dev bench cluster` runs.

mod beside_ceph;
mod faults;
mod resync;
mod streaming;
mod watched;

use std::path::Path;

use crate::pair::Context;

/// What the measurements need to know.
pub(crate) struct Setting<'a> {
    pub(crate) context: &'a Context,
    /// Folders in memory and on a disk.
    pub(crate) memory: &'a Path,
    pub(crate) disk: &'a Path,
    /// How often nodes are killed.
    pub(crate) kills: u32,
    /// The seed from which the nodes to kill are drawn.
    pub(crate) seed: u64,
}

/// The names of all of them. What needs Ceph is measured only if it is named.
const NAMES: [&str; 5] = ["faults", "resync", "streaming", "watched", "ceph"];

/// Measures what is wanted: all, if nothing is named, but what needs Ceph.
pub(crate) fn measure(setting: &Setting<'_>, names: &[String]) -> Result<(), String> {
    if let Some(unknown) = names.iter().find(|name| !NAMES.iter().any(|known| known.contains(name.as_str())))
    {
        return Err(format!("cluster has no '{unknown}': there are {}", NAMES.join(", ")));
    }
    let wanted = |known: &str| names.is_empty() || names.iter().any(|name| known.contains(name.as_str()));
    if wanted("faults") {
        faults::measure(setting)?;
    }
    if wanted("resync") {
        resync::measure(setting)?;
    }
    if wanted("streaming") {
        streaming::measure(setting)?;
    }
    if wanted("watched") {
        watched::measure(setting)?;
    }
    if names.iter().any(|name| name == "ceph") {
        beside_ceph::measure(setting)?;
    }
    Ok(())
}

/// A figure, and whether it is what is wanted.
fn row(what: &str, value: &str, wanted: Option<(&str, bool)>) {
    match wanted {
        None => println!("{what:<44} {value}"),
        Some((wanted, met)) => {
            println!("{what:<44} {value:<34} {wanted}: {}", if met { "met" } else { "NOT MET" });
        }
    }
}
