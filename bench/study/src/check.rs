//! Checks a plan against this machine: space, devices, folders. Nothing is changed. The workers check again when they open
//! their disks; this check finds trouble before the run begins, and not hours later.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use loadline_base::units::ByteSize;
use loadline_fleet::FleetKind;
use loadline_load::target::free_space;
use loadline_load::{Examined, Target, examine};
use loadline_profile::Profile;
use loadline_target::FoundCluster;

use crate::disks::{fits, located};
use crate::error::StudyError;
use crate::file::Study;
use crate::folder::CLUSTER;
use crate::folder::manifest::MadeFile;
use crate::name::Name;
use crate::node_cores;
use crate::plan::Plan;
use crate::planned_step::Step;

/// The longest name of a socket, bytes (`sun_path` of unix(7), and the byte that ends it).
const LONGEST_SOCKET: usize = 107;

/// SpaceNeed that is needed on one file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpaceNeed {
    /// A folder on it: the one that exists and is nearest to where the space is needed.
    pub folder: PathBuf,
    /// What it is needed for, in words.
    pub purpose: String,
    /// How much is needed, bytes.
    pub needed: ByteSize,
    /// How much is free for this user.
    pub free: ByteSize,
}

/// An existing device or file that is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Where it is.
    pub target: Target,
    /// The size of the device or file.
    pub size: ByteSize,
}

/// What was found on a host of the fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFound {
    /// The name of its node.
    pub node: String,
    /// What `ssh` takes.
    pub destination: String,
    /// The devices that are measured there.
    pub devices: Vec<Device>,
    /// The folders in which files are made, and what is free there.
    pub folders: Vec<(PathBuf, ByteSize)>,
}

/// What the check of a plan found.
#[derive(Debug, Clone, Default)]
pub struct PlanCheck {
    /// Each file system on which space is needed.
    pub space: Vec<SpaceNeed>,
    /// The devices that are measured, in the study's order.
    pub devices: Vec<Device>,
    /// What was found on each host that was asked, in the order of the nodes.
    pub hosts: Vec<HostFound>,
    /// The machines that the fleet will make, in words; `None` if it makes none.
    pub machines: Option<String>,
    /// The cluster that ran before, if the study names one, and bytes that the run's volumes take of its devices.
    pub cluster: Option<(FoundCluster, ByteSize)>,
    /// What stands in the way; empty if nothing does.
    pub problems: Vec<StudyError>,
}

impl PlanCheck {
    /// Returns itself, or all problems as one error, a line each; of the first one's kind.
    pub fn accept(self) -> Result<PlanCheck, StudyError> {
        let Some(first) = self.problems.first() else { return Ok(self) };
        let messages: Vec<&str> = self.problems.iter().map(|problem| problem.message.as_str()).collect();
        Err(StudyError { kind: first.kind, message: messages.join("\n") })
    }
}

/// Where a run works, and what it may do there.
#[derive(Debug, Clone, Copy)]
pub struct RunPlace<'a> {
    /// The folder of the study file.
    pub study_folder: &'a Path,
    /// The run's folder. It may not exist yet.
    pub run: &'a Path,
    /// Whether the targets are given up to be written on.
    pub destroy_data: bool,
    /// Files that the run has made before: what they hold already needs no more space.
    pub made: &'a [MadeFile],
}

/// Checks everything that the plan needs on this machine. Reads only; nothing is made or changed.
pub fn check(study: &Study, plan: &Plan, place: &RunPlace<'_>) -> PlanCheck {
    let mut found = PlanCheck::default();
    // Workers elsewhere see their own hosts' disks; they refuse what does not fit when they make or open it.
    let elsewhere = !plan.fleet.placement.runs_here();
    let mut needs = vec![(place.run.to_path_buf(), "the run's folder", plan.folder_space())];
    if plan.starts_cluster() {
        found.problems.extend(sockets(study, plan, place));
        found.problems.extend(node_cores::too_many(study, node_cores::of_machine()));
        let folder = place.run.join(CLUSTER);
        let needed = plan.cluster_space().0.saturating_sub(occupied(&folder));
        needs.push((folder, "the cluster's devices", ByteSize(needed)));
    } else if plan.disk_size.is_some() && plan.cluster.is_none() && !elsewhere {
        for target in study.targets() {
            let folder = existing_folder(target.folder, "[target] folder", place, &mut found);
            let needed = plan.file_space().0 / plan.policies;
            let needed = needed.saturating_sub(held(place, &folder, target.name, false));
            needs.push((folder, "the files", ByteSize(needed)));
        }
    }
    if !elsewhere {
        for node in study.ceilings.node.iter().filter(|node| node.folder.is_some()) {
            let what = format!("[[ceilings.node]] {} folder", node.name);
            let folder = existing_folder(node.folder.as_ref(), &what, place, &mut found);
            let size = node.scratch_size().0;
            let needed = size.saturating_sub(held(place, &folder, None, true));
            needs.push((folder, "the ceilings' scratch files", ByteSize(needed)));
        }
    }
    if !elsewhere {
        devices(study, plan, place, &mut found);
    }
    if study.run.verify {
        let disks = match plan.disk_size {
            Some(_) => plan.file_space().0,
            None => found.devices.iter().fold(0, |sum: u64, device| sum.saturating_add(device.size.0)),
        };
        // Verified workers are on this machine, also those that join. What a resumed run has of them counts as free.
        let folder = place.run.join("verify");
        let held =
            fs::read_dir(&folder).into_iter().flatten().flatten().filter_map(|entry| entry.metadata().ok());
        let held = held.fold(0, |sum: u64, m| sum.saturating_add(m.blocks() * 512));
        let needed = ByteSize(plan.journal_space(ByteSize(disks)).0.saturating_sub(held));
        needs.push((folder, "the journals", needed));
    }
    match space(&needs) {
        Ok(space) => found.space = space,
        Err(problem) => found.problems.push(problem),
    }
    for space in found.space.iter().filter(|space| space.needed > space.free) {
        found.problems.push(StudyError::usage(format!(
            "too little space in {}: for {}, {} are needed, and {} are free. Make room, name another place ([target] folder, \
             or --out), or lower disk_size or the number of disks",
            space.folder.display(),
            space.purpose,
            human(space.needed),
            human(space.free)
        )));
    }
    found
}

/// An error if a socket of the cluster would have too long a name: the sockets lie in the run's folder.
fn sockets(study: &Study, plan: &Plan, place: &RunPlace<'_>) -> Option<StudyError> {
    let node = plan.fleet.nodes.last()?;
    let workers_per_node = plan.fleet.workers / plan.fleet.node_count().max(1);
    let (worker, disk) = (workers_per_node.saturating_sub(1), plan.fleet.disks_per_worker.saturating_sub(1));
    let policies = study.policy.iter().map(|policy| format!("{}-", policy.name));
    let policy = policies.max_by_key(String::len).unwrap_or_default();
    let socket = format!("{CLUSTER}/{node}/vhost/{policy}{node}-{worker}-{disk}.sock");
    let longest = std::path::absolute(place.run).ok()?.join(socket);
    let length = longest.as_os_str().len();
    (length > LONGEST_SOCKET).then(|| {
        StudyError::usage(format!(
            "the run's folder {} is too deep for its cluster: the name of a socket in it would have {length} bytes, and \
             {LONGEST_SOCKET} are possible. Name another folder with --out",
            place.run.display()
        ))
    })
}

/// What the cluster's devices hold already.
fn occupied(folder: &Path) -> u64 {
    let nodes = fs::read_dir(folder).into_iter().flatten().flatten();
    let devices = nodes.filter_map(|node| fs::metadata(node.path().join("device")).ok());
    devices.map(|m| m.blocks() * 512).sum()
}

/// What the files that the run has made there hold already.
fn held(place: &RunPlace<'_>, folder: &Path, policy: Option<&Name>, ceiling: bool) -> u64 {
    let mine = |file: &&MadeFile| {
        file.policy.as_ref() == policy && file.ceiling == ceiling && file.path.starts_with(folder)
    };
    let made = place.made.iter().filter(mine).filter_map(|file| fs::metadata(&file.path).ok());
    made.map(|m| m.blocks() * 512).sum()
}

/// The folder in which files are made, which must be there if the study names it.
fn existing_folder(
    named: Option<&PathBuf>,
    what: &str,
    place: &RunPlace<'_>,
    found: &mut PlanCheck,
) -> PathBuf {
    let Some(named) = named else { return place.run.join("disks") };
    let folder = place.study_folder.join(named);
    if !folder.is_dir() {
        found.problems.push(StudyError::usage(format!(
            "{what} {} is not a folder: make it, or name another one",
            folder.display()
        )));
    }
    folder
}

/// Adds up what is needed on each file system.
fn space(needs: &[(PathBuf, &str, ByteSize)]) -> Result<Vec<SpaceNeed>, StudyError> {
    let mut systems: BTreeMap<u64, SpaceNeed> = BTreeMap::new();
    for (path, purpose, needed) in needs {
        let folder = nearest_folder(path);
        let failed = |e: std::io::Error| StudyError::io("look at", &folder, &e);
        let device = fs::metadata(&folder).map_err(failed)?.dev();
        let free = free_space(&folder)?;
        match systems.get_mut(&device) {
            Some(space) => {
                space.needed = ByteSize(space.needed.0.saturating_add(needed.0));
                if !space.purpose.ends_with(purpose) {
                    space.purpose = format!("{} and {purpose}", space.purpose);
                }
            }
            None => {
                let space = SpaceNeed { folder, purpose: (*purpose).to_string(), needed: *needed, free };
                systems.insert(device, space);
            }
        }
    }
    Ok(systems.into_values().collect())
}

/// The folder itself, or the nearest one above it that exists.
fn nearest_folder(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    absolute.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/")).to_path_buf()
}

/// Checks every device that the study names.
fn devices(study: &Study, plan: &Plan, place: &RunPlace<'_>, found: &mut PlanCheck) {
    let mut seen: BTreeMap<(u64, u64), Target> = BTreeMap::new();
    let loads: Vec<&Step> = plan.loads().collect();
    let ceilings: Vec<&Step> = plan.ceilings().collect();
    let measured = study.named_disks().map(|device| (device, &loads, plan.writes()));
    let bare = study.ceilings.node.iter().flat_map(|node| &node.devices);
    let writes = ceilings.iter().any(|step| step.profile.write_percent > 0);
    let bare = bare.map(|device| (device, &ceilings, writes));
    for (target, loads, writes) in measured.chain(bare) {
        let target = located(target, place.study_folder);
        match device(&target, loads, writes, place.destroy_data) {
            Ok((device, identity)) => {
                let twice = identity.and_then(|identity| seen.insert(identity, target.clone()));
                if let Some(other) = twice {
                    found.problems.push(StudyError::usage(format!(
                        "[target] devices: {target} and {other} are the same disk: two workers would disturb each \
                         other; name each disk once"
                    )));
                }
                found.devices.push(device);
            }
            Err(problem) => found.problems.push(problem),
        }
    }
}

/// A device, and its identity if it is known.
fn device(
    target: &Target,
    loads: &[&Step],
    writes: bool,
    destroy_data: bool,
) -> Result<(Device, Option<(u64, u64)>), StudyError> {
    let usage = |what: String| StudyError::usage(format!("target {target}: {what}"));
    // The commonest mistakes have their own advice here; all else is for the generator to say, which opens it.
    if let Target::Path(path) = target {
        let leave_out = "leave out devices and give folder = ... to measure files in that folder";
        match fs::metadata(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(usage(format!("there is nothing; check the path, or {leave_out}")));
            }
            Ok(metadata) if metadata.is_dir() => {
                return Err(usage(format!("is a folder; name a block device or a file, or {leave_out}")));
            }
            _ => {}
        }
    }
    let mut examined: BTreeMap<_, Examined> = BTreeMap::new();
    for step in loads {
        let (label, profile) = (&step.label, &step.profile);
        let this = match examined.entry(way(profile)) {
            Entry::Occupied(known) => *known.get(),
            // Nothing was begun, whatever the trouble is.
            Entry::Vacant(new) => {
                *new.insert(examine(target, profile, writes).map_err(|e| StudyError::usage(e.message))?)
            }
        };
        fits(label, profile, this.size, &target.to_string())?;
    }
    let Some(Examined { size, identity }) = examined.into_values().next() else {
        return Err(StudyError::usage("there is nothing to measure: name a profile"));
    };
    if writes && !destroy_data && !matches!(target, Target::Null(_)) {
        return Err(usage(needs_permission(loads)));
    }
    Ok((Device { target: target.clone(), size }, identity))
}

/// What opening depends on: a matrix of thousands of loads has few of these.
pub(crate) fn way(profile: &Profile) -> impl Ord + use<> {
    let Profile { direct, write_through, block_size, alignment, base_offset, .. } = profile;
    (*direct, *write_through, *block_size, *alignment, *base_offset)
}

/// Why a disk may not be written to without `--destroy-data`.
pub(crate) fn needs_permission(loads: &[&Step]) -> String {
    let writer = loads.iter().find(|step| step.profile.write_percent > 0);
    format!(
        "{} to it, and it is not a file that Loadline made. If everything on it may be lost, add --destroy-data",
        writer.map_or("filling writes".into(), |step| format!("profile {} writes", step.label))
    )
}

/// A size for people: at most one decimal.
pub fn human(size: ByteSize) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        let value = size.0 as f64 / (1u64 << shift) as f64;
        if value >= 1.0 {
            let text = format!("{value:.1}");
            return format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text));
        }
    }
    format!("{} bytes", size.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::parse;
    use nix::fcntl::{Flock, FlockArg};

    fn problems(text: &str, folder: &Path, destroy_data: bool) -> Vec<String> {
        let study = parse("study.toml", &format!("name = \"s\"\n{text}")).unwrap();
        let plan = Plan::of(&study).unwrap();
        let place = RunPlace { study_folder: folder, run: &folder.join("runs/x"), destroy_data, made: &[] };
        check(&study, &plan, &place).problems.into_iter().map(|p| p.message).collect()
    }

    const READ: &str = "profiles = [\"B4-T1-O8-W0-PR\"]\n";
    const WRITE: &str = "profiles = [\"B4-T1-O8-W100-PR\"]\n";

    fn device_of(profiles: &str, path: &str) -> String {
        format!("{profiles}[target]\ndevices = [\"{path}\"]\n")
    }

    #[test]
    fn space_of_all_files_together_is_checked_before_anything_is_made() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(problems(&format!("{READ}[fleet]\ndisk_size = \"1MiB\""), folder.path(), false), [""; 0]);
        let huge = format!("{READ}[fleet]\ndisk_size = \"1000TiB\"\nworkers_per_node = 8");
        let problems = problems(&huge, folder.path(), false);
        assert!(problems[0].contains("too little space") && problems[0].contains("8000"), "{problems:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
    }

    #[test]
    fn journals_need_their_space() {
        let folder = tempfile::tempdir().unwrap();
        let needed = |text: &str| {
            let study = parse("study.toml", &format!("name = \"s\"\n{text}")).unwrap();
            let plan = Plan::of(&study).unwrap();
            let run = folder.path().join("runs/x");
            let place = RunPlace { study_folder: folder.path(), run: &run, destroy_data: false, made: &[] };
            let found = check(&study, &plan, &place);
            (found.space[0].needed.0, found.space[0].purpose.clone())
        };
        let text = format!("{WRITE}[fleet]\ndisk_size = \"4MiB\"\nworkers_per_node = 2\n");
        let (without, _) = needed(&text);
        let (with, purpose) = needed(&format!("{text}[run]\nverify = true"));
        assert_eq!(with - without, 2 * 4096 + 8 * (8 << 20) / 4096);
        assert!(purpose.contains("the journals"), "{purpose}");
    }

    #[test]
    fn a_target_that_cannot_be_measured_is_refused_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("disk.img"), vec![0; 8192]).unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        for (text, part) in [
            (device_of(READ, "none.img"), "there is nothing"),
            (device_of(READ, "sub"), "is a folder"),
            (device_of(READ, "/dev/null"), "neither a file nor a block device"),
            (device_of(WRITE, "disk.img"), "add --destroy-data"),
            (device_of("[[profile]]\nblock_size = \"16K\"\n", "disk.img"), "does not fit"),
            (device_of("[[profile]]\nworking_set = \"1M\"\n", "disk.img"), "larger than"),
            (format!("{READ}[target]\nfolder = \"disk.img\""), "is not a folder"),
        ] {
            let problems = problems(&text, folder.path(), false);
            assert!(problems.len() == 1 && problems[0].contains(part), "{problems:?}");
        }
        assert_eq!(problems(&device_of(READ, "disk.img"), folder.path(), false), [""; 0]);
        assert_eq!(problems(&device_of(WRITE, "disk.img"), folder.path(), true), [""; 0]);
        assert_eq!(problems(&device_of(WRITE, "null:1GiB"), folder.path(), false), [""; 0]);
    }

    #[test]
    fn a_disk_that_another_program_has_locked_is_refused_before_the_study_begins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        fs::write(&path, vec![0; 8192]).unwrap();
        let open = || fs::File::open(&path).unwrap();
        let other = Flock::lock(open(), FlockArg::LockExclusive).unwrap();
        let refused = problems(&device_of(READ, "disk.img"), folder.path(), false);
        assert!(refused.len() == 1 && refused[0].contains("in use"), "{refused:?}");
        drop(other);
        let _other = Flock::lock(open(), FlockArg::LockShared).unwrap();
        assert_eq!(problems(&device_of(READ, "disk.img"), folder.path(), false), [""; 0]);
        let refused = problems(&device_of(WRITE, "disk.img"), folder.path(), true);
        assert!(refused.len() == 1 && refused[0].contains("in use"), "a writer must be alone: {refused:?}");
    }

    #[test]
    fn one_disk_under_two_names_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), vec![0; 8192]).unwrap();
        fs::hard_link(folder.path().join("a"), folder.path().join("b")).unwrap();
        let text = format!("{READ}[fleet]\nworkers_per_node = 2\n[target]\ndevices = [\"a\", \"b\"]");
        let problems = problems(&text, folder.path(), false);
        assert!(problems.len() == 1 && problems[0].contains("the same disk"), "{problems:?}");
    }
}
