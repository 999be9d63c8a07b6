//! The bounds of a study's numbers, and parts of a study that exclude each other.

use std::collections::BTreeSet;

use loadline_base::figures::counted;
use loadline_base::units::TimeSpan;
use loadline_load::Target;
use loadline_profile::Extent;

use crate::disks::used;
use crate::error::StudyError;
use crate::file::Study;
use crate::fleet::ResolvedFleet;
use crate::node_disks;
use crate::own_cluster;
use crate::point::Point;

/// More workers than this need more than one controller.
pub(crate) const MOST_WORKERS: u32 = 1024;
/// More disks than this are a slip.
pub(crate) const MOST_DISKS: u32 = 65_536;
/// More repeats than this are a slip.
pub(crate) const MOST_REPEATS: u32 = 1000;
/// A phase beyond this is a slip.
const LONGEST_PHASE: TimeSpan = TimeSpan::seconds(100 * 86_400);

/// Checks every number of a study against its bounds, and parts of it against each other. The error is of kind `Usage`.
pub(crate) fn bounds(study: &Study, resolved: &ResolvedFleet) -> Result<(), StudyError> {
    let usage = |message: String| Err(StudyError::usage(message));
    let (fleet, phases) = (&study.fleet, &study.phases);
    for (key, number, most) in [
        ("[fleet] nodes", fleet.nodes.unwrap_or(1), MOST_WORKERS),
        ("[fleet] workers_per_node", fleet.workers_per_node, MOST_WORKERS),
        ("[fleet] join", fleet.join.unwrap_or(1), MOST_WORKERS),
        ("[fleet] disks_per_worker", fleet.disks_per_worker, 256),
        ("[run] repeats", study.run.repeats, MOST_REPEATS),
    ] {
        if number == 0 || number > most {
            return usage(format!("{key} = {number}: give at least 1 and at most {most}"));
        }
    }
    for (what, number, most) in
        [("workers", resolved.workers, MOST_WORKERS), ("disks in all", resolved.disks(), MOST_DISKS)]
    {
        if number > most {
            return usage(format!("[fleet] makes {number} {what}: at most {most} are possible; give fewer"));
        }
    }
    let scratch =
        study.ceilings.node.iter().map(|node| (format!("[[ceilings.node]] {}: size", node.name), node.size));
    for (key, size) in [("[fleet] disk_size".to_string(), fleet.disk_size)].into_iter().chain(scratch) {
        if size.is_some_and(|size| size.0 == 0) {
            return usage(format!(
                "{key} = 0: a disk of no size cannot be measured; give one such as \"1GiB\""
            ));
        }
    }
    resolved.spec().validate().map_err(|e| StudyError::usage(format!("[fleet]: {e}")))?;
    disks(study, resolved)?;
    for (name, span, least) in
        [("warm_up", phases.warm_up, 0), ("measure", phases.measure, 1), ("cool_down", phases.cool_down, 0)]
    {
        if span.0.subsec_nanos() != 0 || span.0.as_secs() < least || span > LONGEST_PHASE {
            return usage(format!(
                "[phases] {name} = \"{span}\": series are kept by the second, so give whole seconds, at least \
                 {least} and at most 100 days"
            ));
        }
    }
    if let Some(steady) = &phases.steady {
        let whole = |span: TimeSpan| span.0.subsec_nanos() == 0 && span <= LONGEST_PHASE;
        if !whole(steady.limit) || steady.limit < TimeSpan::seconds(10) {
            return usage(format!(
                "[phases.steady] limit = \"{}\": give whole seconds, at least 10 and at most 100 days",
                steady.limit
            ));
        }
        let round = steady.round.unwrap_or(TimeSpan::seconds(1));
        if !whole(round) || round < TimeSpan::seconds(1) || steady.round_s() * 5 > steady.limit.0.as_secs() {
            return usage(format!(
                "[phases.steady] round = \"{round}\": five rounds decide, so give whole seconds, and at most a fifth of \
                 the limit"
            ));
        }
    }
    if phases.drain > LONGEST_PHASE {
        return usage(format!("[phases] drain = \"{}\": give at most 100 days", phases.drain));
    }
    Ok(())
}

/// Workers that join bring names of their own, and devices go to them in the order of these names: the study cannot
/// say on whose host a device is written to, and the wrong host's disk would be lost.
pub(crate) fn devices_of_unknown_workers(
    study: &Study,
    fleet: &ResolvedFleet,
    points: &[Point],
    fill: bool,
) -> Result<(), StudyError> {
    let ceilings = study.ceilings.node.iter().flat_map(|node| &node.devices);
    let mut devices = study.targets().flat_map(|t| t.devices).chain(ceilings);
    // An image of a cluster, or a target's unit, is the same from whichever host. An NBD server may well be each host's own.
    let is_a_hosts_own =
        |target: &&Target| !matches!(target, Target::Null(_) | Target::Rbd(_) | Target::Iscsi(_));
    let real = devices.find(is_a_hosts_own);
    let Some(device) = real.filter(|_| !fleet.has_known_workers()) else { return Ok(()) };
    let what = match points.iter().find(|point| point.profile.write_percent > 0) {
        _ if fill => "[phases] fill writes".to_string(),
        Some(writer) => format!("profile {} writes", writer.label),
        None => return Ok(()),
    };
    Err(StudyError::usage(format!(
        "{what} to devices ({device}), but workers that join receive devices in the order of the workers' names, so a disk of \
         the same name on another host could be overwritten. Use folder instead of devices, which creates files on each \
         worker's host, or use only profiles that read"
    )))
}

/// What disks a study names: one kind, as many as there are, and for each policy its own.
fn disks(study: &Study, resolved: &ResolvedFleet) -> Result<(), StudyError> {
    let usage = |message: String| Err(StudyError::usage(message));
    own_cluster::check(study, resolved)?;
    node_disks::check(study, resolved)?;
    let fleet = &study.fleet;
    if !study.policy.is_empty() && (study.target.folder.is_some() || !study.target.devices.is_empty()) {
        return usage("[target] and [[policy]] tables both name disks: leave [target] out".into());
    }
    let mut names = BTreeSet::new();
    let mut folders = BTreeSet::new();
    for target in study.targets() {
        let what = target.name.map_or("[target]".to_string(), |name| format!("[[policy]] {name}"));
        if target.name.is_some_and(|name| !names.insert(name)) {
            return usage(format!("{what} is there twice: give each policy a name of its own"));
        }
        if target.folder.is_some() && !target.devices.is_empty() {
            return usage(format!(
                "{what} says folder and devices: files are created, or devices exist, not both"
            ));
        }
        let names_some = target.folder.is_some() || !target.devices.is_empty() || target.san.is_some();
        if target.name.is_some() && !names_some {
            return usage(format!(
                "{what} names no disks: give folder = ..., devices = [...] or san = {{ ... }}"
            ));
        }
        if target.name.is_some() && target.devices.is_empty() != study.makes_files() {
            return usage(format!("{what}: either all policies have files (folder), or all have devices"));
        }
        let plain = |folder: &std::path::PathBuf| -> std::path::PathBuf {
            folder.components().filter(|part| *part != std::path::Component::CurDir).collect()
        };
        if target.folder.is_some_and(|folder| !folders.insert(plain(folder))) {
            return usage(format!("{what}: another policy has the same folder, so they would be one policy"));
        }
        if !target.devices.is_empty() && target.devices.len() as u64 != u64::from(resolved.disks()) {
            return usage(format!(
                "{what} names {}, and {} with {} each need {}: name as many",
                counted(target.devices.len() as u64, "device"),
                counted(resolved.workers.into(), "worker"),
                counted(resolved.disks_per_worker.into(), "disk"),
                resolved.disks()
            ));
        }
        if !target.devices.is_empty() && fleet.disk_size.is_some() {
            return usage(
                "[fleet] says disk_size, but existing devices have the size they have: remove it".into(),
            );
        }
    }
    Ok(())
}

/// What is written before a level is measured must reach as far as its loads do, on disks whose size is known.
pub(crate) fn fill_levels(
    study: &Study,
    fleet: &ResolvedFleet,
    points: &[Point],
    fill: bool,
) -> Result<(), StudyError> {
    let lowest = points.iter().filter_map(|point| point.fill_level).reduce(f64::min);
    let Some(lowest) = lowest else { return Ok(()) };
    let usage = |message: String| Err(StudyError::usage(message));
    if !fill {
        return usage("fill_level varies how much is written before: say fill = true in [phases]".into());
    }
    if study.load_line.is_some() || study.capacity.is_some() {
        return usage(
            "fill_level is varied beside a search (load_line or capacity): searches come last, when the storage is as full \
             as it gets; run one study for each level"
                .into(),
        );
    }
    let size = fleet.file_size;
    for point in points {
        let profile = &point.profile;
        let label = &point.label;
        let reach = if study.makes_files() {
            100.0 * used(profile, size).0 as f64 / size.0 as f64
        } else {
            // How large a device is is not known here.
            match profile.working_set {
                None if profile.base_offset.0 == 0 => 100.0,
                Some(Extent::Percent(percent)) if profile.base_offset.0 == 0 => percent,
                _ => {
                    return usage(format!(
                        "profile {label}: with fill_level on devices a load's reach must be a percentage of the disk: say \
                         working_set = \"25%\", and no base_offset"
                    ));
                }
            }
        };
        let level = point.fill_level.unwrap_or(lowest);
        if reach > level + 1e-6 {
            return usage(format!(
                "profile {label}: at {level} % full it would reach {reach:.0} % of the disk, and read blocks that were never \
                 written: say working_set = \"{level}%\" or less"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::plan::Plan;
    use crate::read::parse;

    #[test]
    fn a_count_of_nothing_or_of_far_too_many_is_refused_with_its_key() {
        for (text, says) in [
            (
                "[fleet]\nworkers_per_node = 0",
                "[fleet] workers_per_node = 0: give at least 1 and at most 1024",
            ),
            ("[fleet]\nnodes = 4000000000", "[fleet] nodes = 4000000000: give at least 1 and at most 1024"),
            (
                "[fleet]\ndisks_per_worker = 0",
                "[fleet] disks_per_worker = 0: give at least 1 and at most 256",
            ),
            ("[fleet]\njoin = 0\nlisten = \"127.0.0.1:7400\"", "[fleet] join = 0: give at least 1"),
            ("[fleet]\njoin = 2\nwait = \"0s\"", "no worker can join within 0 s"),
            ("[fleet]\ndisk_size = \"0\"", "[fleet] disk_size = 0: a disk of no size"),
            ("[run]\nrepeats = 4000000000", "[run] repeats = 4000000000: give at least 1"),
            (
                "[[ceilings.node]]\nname = \"node-1\"\nfolder = \"/tmp\"\nsize = \"0\"",
                "[[ceilings.node]] node-1: size = 0: a disk of no size",
            ),
            ("[matrix]\nworkers = [0]", "0 workers: the fleet has 1; give 1 to 1"),
            ("[matrix]\nthreads = [0]", "0 threads on a disk; give 1 to 1024"),
        ] {
            let study = parse("s.toml", &format!("name = \"s\"\nprofiles = [\"oltp\"]\n{text}\n")).unwrap();
            let message = Plan::of(&study).unwrap_err().message;
            assert!(message.contains(says), "{text:?} gives {message}");
        }
    }
}
