//! The loads that measure what the storage below the disks can do, and what the fleet's figures are of it.

use std::collections::BTreeSet;

use loadline_profile::Profile;

use crate::disks::fits;
use crate::error::StudyError;
use crate::file::Study;
use crate::fleet::ResolvedFleet;
use crate::point::Point;

/// One load for each block size, mix and pattern that the study measures, as deep as a device needs to be full.
pub(crate) fn points(
    study: &Study,
    fleet: &ResolvedFleet,
    points: &[Point],
) -> Result<Vec<Point>, StudyError> {
    let ceilings = &study.ceilings;
    let usage = |message: String| Err(StudyError::usage(message));
    if ceilings.node.is_empty() {
        let says_how = ceilings.device_writes.is_some()
            || ceilings.network().is_some()
            || ceilings.threads.or(ceilings.outstanding).is_some();
        return match says_how {
            true => {
                usage("[ceilings] says how, but not what: add a [[ceilings.node]] table for each node".into())
            }
            false => Ok(Vec::new()),
        };
    }
    if ceilings.device_writes.is_some_and(|cost| !(1.0..=100.0).contains(&cost)) {
        return usage("[ceilings] device_writes: give 1 to 100 writes on devices for each write".into());
    }
    for (key, cost) in
        [("network_writes", ceilings.network_writes), ("network_reads", ceilings.network_reads)]
    {
        if cost.is_some_and(|cost| !(0.0..=100.0).contains(&cost)) {
            return usage(format!("[ceilings] {key}: give 0 to 100 bytes between nodes for each byte"));
        }
    }
    // The nodes that workers are started on; those that join bring their own names.
    let known = &fleet.nodes;
    let mut seen = BTreeSet::new();
    for node in &ceilings.node {
        let what = format!("[[ceilings.node]] {}", node.name);
        if !seen.insert(&node.name) {
            return usage(format!("{what} is there twice: give a node one table"));
        }
        if !known.is_empty() && !known.contains(&node.name) {
            return usage(format!("{what}: there is no such node; the fleet has {}", known.join(", ")));
        }
        if node.devices.is_empty() == node.folder.is_none() {
            return usage(format!("{what}: say devices, or a folder for a scratch file, one of the two"));
        }
        if node.size.is_some() && node.folder.is_none() {
            return usage(format!("{what} says size, but devices have the size they have: remove it"));
        }
    }
    if let Some(node) = known.iter().find(|node| !seen.contains(node)) {
        return usage(format!(
            "[ceilings] has no [[ceilings.node]] table for {node}: what the fleet does is held to what all its nodes can do, \
             so give each one a table"
        ));
    }
    let mut loads: Vec<Point> = Vec::new();
    for point in points {
        let profile = Profile {
            block_size: point.profile.block_size,
            write_percent: point.profile.write_percent,
            pattern: point.profile.pattern,
            direct: point.profile.direct,
            data: point.profile.data,
            threads: ceilings.threads.unwrap_or(4),
            outstanding: ceilings.outstanding.unwrap_or(32),
            ..Profile::default()
        };
        if !loads.iter().any(|known| known.profile == profile) {
            profile.validate().map_err(|e| StudyError::usage(format!("[ceilings]: {e}")))?;
            for node in ceilings.node.iter().filter(|node| node.folder.is_some()) {
                let size = node.scratch_size();
                fits(&point.label, &profile, size, &format!("size of [[ceilings.node]] {}", node.name))?;
            }
            let (label, family) =
                (format!("ceiling-{}", profile.label()), format!("ceiling-{}", profile.family()));
            loads.push(Point { label, family, ..Point::of(profile) });
        }
    }
    Ok(loads)
}

/// Whether a ceiling is that of a load: the same blocks, mix, pattern and data, by the same way.
pub fn is_of(ceiling: &Profile, load: &Profile) -> bool {
    (ceiling.block_size, ceiling.write_percent, ceiling.pattern, ceiling.direct, ceiling.data)
        == (load.block_size, load.write_percent, load.pattern, load.direct, load.data)
}

/// What share of a ceiling this many I/Os a second are, where each write costs so many on the devices below.
pub fn share(iops: f64, ceiling_iops: f64, profile: &Profile, device_writes: f64) -> Option<f64> {
    let writes = f64::from(profile.write_percent) / 100.0;
    let cost = (1.0 - writes) + writes * device_writes;
    (ceiling_iops > 0.0).then(|| iops * cost / ceiling_iops)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::parse;

    fn labels(text: &str) -> Result<Vec<String>, String> {
        let study = parse("s.toml", &format!("name = \"s\"\n{text}")).unwrap();
        let fleet = ResolvedFleet::of(&study.fleet).unwrap();
        let loads = crate::points::points(&study, &fleet).unwrap();
        points(&study, &fleet, &loads)
            .map(|p| p.into_iter().map(|p| p.label).collect())
            .map_err(|e| e.message)
    }

    #[test]
    fn there_is_one_for_each_block_size_mix_and_pattern() {
        let text = "[matrix]\nblock_size = [\"4K\", \"64K\"]\noutstanding = [1, 8]\n[[ceilings.node]]\nname = \"node-1\"\n\
                    devices = [\"null:1GiB\"]";
        assert_eq!(labels(text).unwrap(), ["ceiling-B4-T4-O32-W0-PR", "ceiling-B64-T4-O32-W0-PR"]);
    }

    #[test]
    fn contradictions_are_refused() {
        let base = "profiles = [\"B4-T1-O1-W0-PR\"]\n";
        for (text, part) in [
            ("[ceilings]\nthreads = 2", "not what"),
            ("[ceilings]\nnetwork_reads = 0", "not what"),
            (
                "[ceilings]\nnetwork_writes = -1\n[[ceilings.node]]\nname = \"node-1\"\nfolder = \"/y\"",
                "network_writes: give 0",
            ),
            ("[[ceilings.node]]\nname = \"node-1\"", "say devices, or a folder"),
            (
                "[fleet]\nnodes = 2\n[[ceilings.node]]\nname = \"node-1\"\nfolder = \"/y\"",
                "no [[ceilings.node]] table for node-2",
            ),
            ("[[ceilings.node]]\nname = \"node-1\"\nfolder = \"/y\"\nsize = \"2K\"", "does not fit"),
            ("[[ceilings.node]]\nname = \"node-1\"\ndevices = [\"/x\"]\nfolder = \"/y\"", "one of the two"),
            (
                "[[fleet.node]]\nname = \"b\"\n[[ceilings.node]]\nname = \"a\"\nfolder = \"/y\"",
                "the fleet has b",
            ),
        ] {
            let message = labels(&format!("{base}{text}")).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn a_write_costs_what_it_costs_on_the_devices() {
        let mixed: Profile = "B8-T1-O1-W30-PR".parse().unwrap();
        // 1000 × (0.7 + 0.3 × 4) = 1900 I/Os on devices.
        assert!((share(1_000.0, 3_800.0, &mixed, 4.0).unwrap() - 0.5).abs() < 1e-12);
        assert_eq!(share(1.0, 0.0, &mixed, 1.0), None);
    }
}
