//! Checks a plan against the hosts of its fleet: whether each host can be reached, and whether each disk that is named there exists, is
//! free, and has room for the loads. Nothing is changed on a host, but that the program is copied there. Hosts that the fleet makes are not
//! there yet: the cluster in which it makes them is asked whether it can.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;

use loadline_fleet::{
    DiskQuestion, FleetEvent, FleetKind, HostAnswer, HostQuestion, check_hosts_to_make, inspect_hosts,
};
use loadline_load::Target;

use crate::check::{Device, HostFound, PlanCheck, RunPlace, human, needs_permission, way};
use crate::disks::fits;
use crate::error::StudyError;
use crate::file::Study;
use crate::plan::Plan;
use crate::planned_step::Step;
use crate::progress::{Progress, Update};

/// A disk of a node, the loads on it, and whether they write.
struct Wanted<'a> {
    target: &'a Target,
    loads: &'a [&'a Step],
    writes: bool,
}

/// Asks the hosts of the plan's fleet, all at once, and adds what they answer to `found`. Does nothing for a fleet whose workers are on
/// this machine or join. `progress` shows copies of the program to hosts. Dropping the future ends what it began.
pub async fn check_hosts(
    study: &Study,
    plan: &Plan,
    place: &RunPlace<'_>,
    found: &mut PlanCheck,
    progress: &mut dyn Progress,
) {
    if plan.fleet.placement.runs_here() || !plan.fleet.has_known_workers() {
        return;
    }
    let loads: Vec<&Step> = plan.loads().collect();
    if plan.fleet.placement.makes_hosts() {
        return check_machines(study, plan, &loads, found).await;
    }
    let ceilings: Vec<&Step> = plan.ceilings().collect();
    let all_disks: BTreeMap<String, Vec<Target>> =
        study.fleet.node.iter().map(|node| (node.name.clone(), study.disks_of_node(&node.name))).collect();
    let mut wanted: BTreeMap<&str, Vec<Wanted<'_>>> = BTreeMap::new();
    let mut questions = BTreeMap::new();
    for node in &study.fleet.node {
        let ceiling = study.ceilings.node.iter().filter(|ceiling| ceiling.name == node.name);
        let bare = ceiling.clone().flat_map(|ceiling| &ceiling.devices);
        let writes = ceilings.iter().any(|step| step.profile.write_percent > 0);
        let measured = all_disks.get(&node.name).into_iter().flatten();
        let disks: Vec<Wanted<'_>> = measured
            .map(|target| Wanted { target, loads: &loads, writes: plan.writes() })
            .chain(bare.map(|target| Wanted { target, loads: &ceilings, writes }))
            .collect();
        let folders: Vec<PathBuf> = study
            .targets()
            .filter_map(|target| target.folder)
            .chain(ceiling.filter_map(|ceiling| ceiling.folder.as_ref()))
            .cloned()
            .collect();
        let question = HostQuestion { disks: disks.iter().map(question).collect(), folders };
        questions.insert(node.name.clone(), question);
        wanted.insert(&node.name, disks);
    }
    let show = |copies| progress.update(Update::Fleet(&FleetEvent::Copying(copies)));
    let mut answers = inspect_hosts(&plan.fleet.spec(), questions.clone(), show).await;
    // Which disk has which name, by the system and the disk's own identity.
    let mut seen: BTreeMap<(String, (u64, u64)), String> = BTreeMap::new();
    for node in &study.fleet.node {
        let Some(answer) = answers.remove(&node.name) else { continue };
        let destination = node.ssh.clone().unwrap_or_default();
        match answer {
            Err(error) => found.problems.push(error.into()),
            Ok(answer) => {
                let mut host = HostFound {
                    node: node.name.clone(),
                    destination,
                    devices: Vec::new(),
                    folders: Vec::new(),
                };
                let disks = wanted.remove(node.name.as_str()).unwrap_or_default();
                let folders = &questions[&node.name].folders;
                found.problems.extend(judge(&mut host, &disks, folders, &answer, place, &mut seen));
                let free: u64 = host.folders.iter().map(|(_, free)| free.0).min().unwrap_or(u64::MAX);
                let needed = plan.file_space().0 / u64::from(plan.fleet.node_count().max(1));
                if plan.disk_size.is_some() && place.made.is_empty() && needed > free {
                    found.problems.push(StudyError::usage(format!(
                        "host {} ({}): too little space: the files of its workers need {}, and {} are free. Make room, name \
                         another folder ([target] folder), or lower disk_size",
                        host.node,
                        host.destination,
                        human(loadline_base::units::ByteSize(needed)),
                        human(loadline_base::units::ByteSize(free))
                    )));
                }
                found.hosts.push(host);
            }
        }
    }
}

/// Asks the cluster in which the machines of the fleet will be made, and checks that the loads fit on the disks that will be.
async fn check_machines(study: &Study, plan: &Plan, loads: &[&Step], found: &mut PlanCheck) {
    match check_hosts_to_make(&plan.fleet.spec()).await {
        Ok(words) => found.machines = words,
        Err(error) => found.problems.push(error.into()),
    }
    if let Some(disk) = study.fleet.proxmox.as_ref().and_then(|cluster| cluster.disk.as_ref()) {
        let source = "[fleet.proxmox] disk";
        let unfit = loads.iter().find_map(|step| fits(&step.label, &step.profile, disk.size, source).err());
        found.problems.extend(unfit);
    }
}

fn question(wanted: &Wanted<'_>) -> DiskQuestion {
    let mut profiles = BTreeMap::new();
    for step in wanted.loads {
        if let Entry::Vacant(new) = profiles.entry(way(&step.profile)) {
            new.insert(step.profile.clone());
        }
    }
    let profiles = profiles.into_values().collect();
    DiskQuestion { target: wanted.target.clone(), profiles, writes: wanted.writes }
}

/// Takes what a host answers, and returns what stands in the way there.
fn judge(
    host: &mut HostFound,
    disks: &[Wanted<'_>],
    folders: &[PathBuf],
    answer: &HostAnswer,
    place: &RunPlace<'_>,
    seen: &mut BTreeMap<(String, (u64, u64)), String>,
) -> Vec<StudyError> {
    let mut problems = Vec::new();
    let here = format!("host {} ({})", host.node, host.destination);
    let mut problem = |what: String| problems.push(StudyError::usage(format!("{here}: {what}")));
    for (wanted, found) in disks.iter().zip(&answer.disks) {
        let target = wanted.target;
        let disk = match found {
            Ok(disk) => disk,
            Err(why) => {
                problem(why.clone());
                continue;
            }
        };
        if let Some(identity) = disk.identity {
            let name = format!("{target} of {}", host.node);
            if let Some(other) = seen.insert((answer.boot.clone(), identity), name.clone()) {
                problem(format!(
                    "{name} and {other} are the same disk: two workers would disturb each other; name each disk once"
                ));
            }
        }
        let source = format!("{target} of {}", host.node);
        let unfit =
            wanted.loads.iter().find_map(|step| fits(&step.label, &step.profile, disk.size, &source).err());
        if let Some(error) = unfit {
            problem(error.message);
        }
        if wanted.writes && !place.destroy_data && !matches!(target, Target::Null(_)) {
            problem(format!("{target}: {}", needs_permission(wanted.loads)));
        }
        host.devices.push(Device { target: target.clone(), size: disk.size });
    }
    for (folder, free) in folders.iter().zip(&answer.folders) {
        match free {
            Ok(free) => host.folders.push((folder.clone(), *free)),
            Err(why) => problem(format!("folder {}: {why}", folder.display())),
        }
    }
    problems
}
