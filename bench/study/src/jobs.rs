//! What each worker is asked to do: its disks, its seed, its journals.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use loadline_base::units::{ByteSize, TimeSpan};
use loadline_fleet::{FleetKind, WorkerId, WorkerInfo};
use loadline_load::{Disk, Job, Target, Verify, WritePermission};
use loadline_profile::{Data, Extent, Profile};

use crate::conditions::resting;
use crate::disks::{located, used, verified_unit};
use crate::error::StudyError;
use crate::folder::manifest::{MadeFile, Manifest};
use crate::goals::CeilingNode;
use crate::name::Name;
use crate::plan::{Plan, seed_of};
use crate::planned_step::{Purpose, Step};
use crate::volumes::Volumes;
use crate::worker_order::in_circle;

/// Makes the jobs of one run.
pub(crate) struct Jobs<'a> {
    pub(crate) manifest: &'a Manifest,
    pub(crate) plan: &'a Plan,
    /// The run's folder.
    pub(crate) run: &'a Path,
    /// The disks of each worker, if a cluster makes them for the run.
    pub(crate) volumes: &'a Volumes,
}

/// A worker's name as a part of a file's name.
fn safe(worker: &WorkerId) -> String {
    worker.0.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' }).collect()
}

/// Which disks of a worker.
#[derive(Debug, Clone, Copy)]
enum DiskSet<'a> {
    /// Those of a policy, or of the study if it compares none.
    Measured(Option<&'a Name>),
    /// Those whose ceiling is measured.
    Ceiling,
}

impl Jobs<'_> {
    /// The files that the run makes, by worker; their names carry the run's id, so that no other file has such a name.
    pub(crate) fn files(&self) -> Vec<MadeFile> {
        let manifest = self.manifest;
        let file = |worker: &WorkerInfo, folder: &Path, part: &str, size: ByteSize| MadeFile {
            worker: worker.id.clone(),
            path: folder.join(format!("loadline-{}-{}-{part}.img", manifest.run_id, safe(&worker.id))),
            size,
            policy: None,
            ceiling: false,
            identity: None,
        };
        let mut files = Vec::new();
        for target in manifest.study.targets() {
            let Some(size) = self.plan.disk_size.filter(|_| self.plan.cluster.is_none()) else { break };
            let folder = manifest.files_folder(self.run, target.folder);
            for worker in &manifest.workers {
                files.extend((0..self.plan.fleet.disks_per_worker).map(|disk| {
                    let part = target.name.map_or(disk.to_string(), |name| format!("{name}@{disk}"));
                    MadeFile { policy: target.name.cloned(), ..file(worker, &folder, &part, size) }
                }));
            }
        }
        for node in &manifest.study.ceilings.node {
            let first = manifest.workers.iter().find(|worker| worker.node == node.name);
            if let (Some(worker), Some(_)) = (first, &node.folder) {
                let folder = manifest.files_folder(self.run, node.folder.as_ref());
                let size = node.scratch_size();
                files.push(MadeFile { ceiling: true, ..file(worker, &folder, "ceiling", size) });
            }
        }
        files
    }

    /// Every disk of the run, in the workers' order.
    pub(crate) fn targets(&self) -> Vec<Target> {
        if self.plan.cluster.is_some() && !self.plan.fleet.placement.runs_here() {
            return Vec::new();
        }
        if self.plan.cluster.is_some() {
            return self.volumes.values().flat_map(BTreeMap::values).flatten().cloned().collect();
        }
        if self.plan.disk_size.is_some() {
            return self.manifest.files.iter().map(|file| Target::Path(file.path.clone())).collect();
        }
        // The disks of hosts are inspected there, by the worker that watches its host.
        if self.manifest.study.names_node_disks() && !self.plan.fleet.placement.runs_here() {
            return Vec::new();
        }
        let devices = self.manifest.study.named_disks();
        devices.map(|target| located(target, &self.manifest.study_folder)).collect()
    }

    /// Files that the run made, as disks.
    fn made<'a>(&self, files: impl Iterator<Item = &'a MadeFile>) -> Result<Vec<Disk>, StudyError> {
        files
            .map(|file| {
                let identity = file
                    .identity
                    .ok_or_else(|| StudyError::failed(format!("{} was not made", file.path.display())))?;
                Ok(Disk { target: Target::Path(file.path.clone()), writes: WritePermission::Made(identity) })
            })
            .collect()
    }

    fn devices<'a>(&self, devices: impl Iterator<Item = &'a Target>) -> Vec<Disk> {
        let made = self.plan.fleet.placement.made_disks();
        let allowed = |target: &Target| match target {
            // There is nothing on it to lose.
            Target::Null(_) => WritePermission::Destroy,
            _ if self.manifest.destroy_data => WritePermission::Destroy,
            // They were made for this run, with the machine that has them.
            _ if made.contains(target) => WritePermission::Destroy,
            _ => WritePermission::Refused,
        };
        devices
            .map(|target| Disk {
                writes: allowed(target),
                target: located(target, &self.manifest.study_folder),
            })
            .collect()
    }

    /// The disks of the worker at `index`; none if it has no part in the ceilings.
    fn disks(&self, index: usize, set: DiskSet<'_>) -> Result<Vec<Disk>, StudyError> {
        let worker = &self.manifest.workers[index];
        let mine = self.manifest.files.iter().filter(|file| file.worker == worker.id);
        let policy = match set {
            DiskSet::Measured(policy) => policy,
            DiskSet::Ceiling => {
                let workers = &self.manifest.workers;
                let first = workers.iter().position(|w| w.node == worker.node) == Some(index);
                let node = self.manifest.study.ceilings.node.iter().find(|node| node.name == worker.node);
                let Some(node) = node.filter(|_| first) else { return Ok(Vec::new()) };
                let mut disks = self.devices(node.devices.iter());
                disks.extend(self.made(mine.filter(|file| file.ceiling))?);
                return Ok(disks);
            }
        };
        if self.plan.cluster.is_some() {
            let volumes = self.volumes.get(&policy.cloned()).and_then(|workers| workers.get(&worker.id));
            let mine = volumes.map_or(&[] as &[Target], Vec::as_slice);
            // The run made them, in its own cluster.
            let disk = |target: &Target| Disk { target: target.clone(), writes: WritePermission::Destroy };
            return Ok(mine.iter().map(disk).collect());
        }
        if self.plan.disk_size.is_some() {
            return self.made(mine.filter(|file| !file.ceiling && file.policy.as_ref() == policy));
        }
        let each = self.plan.fleet.disks_per_worker as usize;
        if self.manifest.study.names_node_disks() {
            let all = self.manifest.study.disks_of_node(&worker.node);
            let number = worker.id.0.rsplit_once('/').and_then(|(_, number)| number.parse::<usize>().ok());
            let first =
                number.ok_or_else(|| StudyError::failed(format!("{} has no number", worker.id)))? * each;
            return Ok(self.devices(all.iter().skip(first).take(each)));
        }
        let target = self.manifest.study.targets().find(|target| target.name == policy);
        let all = target.map_or(&[] as &[Target], |target| target.devices);
        Ok(self.devices(all.iter().skip(index * each).take(each)))
    }

    /// Where the journals of one worker's disks are.
    fn journals(&self, worker: &WorkerId, policy: Option<&Name>) -> Vec<PathBuf> {
        // No name has an @ in it, so no two workers and policies share a journal.
        let policy = policy.map_or("-".to_string(), |policy| format!("@{policy}@"));
        let journal = |disk| self.run.join("verify").join(format!("{}{policy}{disk}.journal", safe(worker)));
        (0..self.plan.fleet.disks_per_worker).map(journal).collect()
    }

    /// The journal of a file that the run makes.
    pub(crate) fn journal_of(&self, file: &MadeFile) -> Option<PathBuf> {
        let alike = |other: &&MadeFile| {
            (&other.worker, &other.policy, other.ceiling) == (&file.worker, &file.policy, file.ceiling)
        };
        let disk = self.manifest.files.iter().filter(alike).position(|other| other.path == file.path)?;
        let journals = self.journals(&file.worker, file.policy.as_ref());
        journals.into_iter().nth(disk).filter(|_| !file.ceiling)
    }

    /// The jobs of these workers; a worker without a disk of the set has none.
    fn all(
        &self,
        workers: &[usize],
        set: DiskSet<'_>,
        profile: &Profile,
        step: u32,
    ) -> Result<BTreeMap<WorkerId, Job>, StudyError> {
        let study = &self.manifest.study;
        let mut jobs = BTreeMap::new();
        for &index in workers {
            let worker = &self.manifest.workers[index];
            let disks = self.disks(index, set)?;
            if disks.is_empty() {
                continue;
            }
            let mut job = Job::new(disks, profile.clone());
            job.warm_up = study.phases.warm_up;
            job.measure = study.phases.measure;
            job.cool_down = study.phases.cool_down;
            job.drain = study.phases.drain;
            job.seed = seed_of(study.run.seed, step, u32::try_from(index).unwrap_or(u32::MAX));
            job.engine = study.run.engine;
            job.poll = study.run.poll;
            job.stop_if.clone_from(&study.run.stop_if);
            if let DiskSet::Measured(policy) = set {
                let journals = self.journals(&worker.id, policy);
                job.verify = study.run.verify.then_some(Verify { journals });
            }
            jobs.insert(worker.id.clone(), job);
        }
        Ok(jobs)
    }

    fn all_workers(&self) -> Vec<usize> {
        (0..self.manifest.workers.len()).collect()
    }

    /// The jobs of one step: of the workers that take part in it.
    pub(crate) fn of_step(&self, step: &Step) -> Result<BTreeMap<WorkerId, Job>, StudyError> {
        if step.purpose == Purpose::Ceiling {
            let jobs = self.all(&self.all_workers(), DiskSet::Ceiling, &step.profile, step.number)?;
            let measured: Vec<&str> = (self.manifest.workers.iter())
                .filter(|worker| jobs.contains_key(&worker.id))
                .map(|worker| worker.node.as_str())
                .collect();
            let lacks = |node: &&CeilingNode| !measured.contains(&node.name.as_str());
            if let Some(node) = self.manifest.study.ceilings.node.iter().find(lacks) {
                return Err(StudyError::usage(format!(
                    "[[ceilings.node]] {}: no worker is on a node of that name; there are {}",
                    node.name,
                    self.nodes().join(", ")
                )));
            }
            return match self.nodes().into_iter().find(|node| !measured.contains(node)) {
                None => Ok(jobs),
                Some(node) => Err(StudyError::usage(format!(
                    "[ceilings] has no [[ceilings.node]] table for {node}: what the fleet does is held to what all its \
                     nodes can do, so give each one a table"
                ))),
            };
        }
        let mut workers = self.all_workers();
        if let Some(condition) = &step.condition {
            let resting = resting(&self.manifest.study, condition);
            workers.retain(|index| !resting.contains(self.manifest.workers[*index].node.as_str()));
        }
        if let Some(count) = step.workers {
            workers = in_circle(&self.manifest.workers).into_iter().take(count as usize).collect();
        }
        self.all(&workers, DiskSet::Measured(step.policy.as_ref()), &step.profile, step.number)
    }

    fn nodes(&self) -> Vec<&str> {
        let mut nodes: Vec<&str> = self.manifest.workers.iter().map(|worker| worker.node.as_str()).collect();
        nodes.dedup();
        nodes
    }

    /// The jobs that put a step's load on until it is steady, at most so long: by as many workers as any step that shares
    /// this warm-up has, so that the disks of all of them were under load.
    pub(crate) fn settling(
        &self,
        step: &Step,
        limit: TimeSpan,
    ) -> Result<BTreeMap<WorkerId, Job>, StudyError> {
        let alike = self.plan.steps.iter().filter(|other| other.warm_up_key() == step.warm_up_key());
        let most = alike.map(|other| other.workers.unwrap_or(u32::MAX)).max();
        let capacity = self.manifest.study.capacity.is_some();
        let workers = most.filter(|most| *most < u32::MAX && !capacity);
        let mut jobs = self.of_step(&Step { workers, ..step.clone() })?;
        for job in jobs.values_mut() {
            (job.warm_up, job.measure, job.cool_down) = (TimeSpan::seconds(0), limit, TimeSpan::seconds(0));
            // Other offsets than the step's own: it must not find what it reads in a cache.
            job.seed ^= 1 << 63;
        }
        Ok(jobs)
    }

    /// The jobs that write once what the steps use, one after another: each policy's, and the ceilings' scratch files.
    /// With a level, so many percent of each disk, from `from` percent on.
    pub(crate) fn fill(&self, level: Option<(f64, f64)>) -> Result<Vec<BTreeMap<WorkerId, Job>>, StudyError> {
        let profiles: Vec<&Profile> = self.plan.loads().map(|step| &step.profile).collect();
        let mut profile = fill_profile(&profiles, self.plan.disk_size);
        if let Some((from, to)) = level {
            match self.plan.disk_size {
                // What is written already is not written again, but for what an edge shares a piece with.
                Some(size) => {
                    let at = |percent: f64| (size.0 as f64 * percent / 100.0) as u64;
                    let begin = at(from) >> 20 << 20;
                    profile.base_offset = ByteSize(begin);
                    let length = at(to).max(begin + profile.block_size.0) - begin;
                    profile.working_set = Some(Extent::Bytes(ByteSize(length)));
                }
                None => profile.working_set = Some(Extent::Percent(to)),
            }
        }
        let everyone = self.all_workers();
        let mut fills = Vec::new();
        // Only the scratch files where the study fills nothing: what it measures is not its own to write to.
        for target in self.manifest.study.targets().filter(|_| self.plan.fill) {
            fills.push(self.all(&everyone, DiskSet::Measured(target.name), &profile, 0)?);
        }
        let scratch = self.manifest.files.iter().any(|file| file.ceiling);
        if scratch && level.is_none_or(|(from, _)| from == 0.0) {
            let whole = Profile { base_offset: ByteSize(0), working_set: None, ..profile.clone() };
            let mut jobs = self.all(&everyone, DiskSet::Ceiling, &whole, 0)?;
            // Devices beside them are measured as they are.
            for job in jobs.values_mut() {
                job.disks.retain(|disk| matches!(disk.writes, WritePermission::Made(_)));
            }
            jobs.retain(|_, job| !job.disks.is_empty());
            fills.push(jobs);
        }
        fills.retain(|jobs| !jobs.is_empty());
        Ok(fills)
    }
}

/// A load whose working set is all that these use, of the same data if they agree on it.
fn fill_profile(profiles: &[&Profile], disk: Option<ByteSize>) -> Profile {
    let all = |test: fn(&Profile) -> bool| profiles.iter().all(|profile| test(profile));
    let ends = profiles.iter().filter_map(|profile| match profile.working_set {
        Some(Extent::Bytes(size)) => profile.base_offset.0.checked_add(size.0),
        _ => None,
    });
    let percents = profiles.iter().filter_map(|profile| match profile.working_set {
        Some(Extent::Percent(percent)) => Some(percent),
        _ => None,
    });
    let working_set = if let Some(disk) = disk {
        profiles.iter().map(|profile| used(profile, disk)).max().map(Extent::Bytes)
    } else if all(|p| matches!(p.working_set, Some(Extent::Bytes(_)))) {
        ends.max().map(|end| Extent::Bytes(ByteSize(end)))
    } else if all(|p| matches!(p.working_set, Some(Extent::Percent(_))) && p.base_offset.0 == 0) {
        percents.reduce(f64::max).map(Extent::Percent)
    } else {
        None
    };
    let unit = profiles.iter().map(|profile| verified_unit(profile)).min().unwrap_or(4096);
    let data = match profiles.first() {
        Some(first) if profiles.iter().all(|profile| profile.data == first.data) => first.data,
        _ => Data::Random,
    };
    Profile {
        block_size: ByteSize(unit),
        outstanding: 8,
        write_percent: 100,
        pattern: loadline_profile::Pattern::Sequential,
        working_set,
        data,
        direct: all(|p| p.direct),
        ..Profile::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_any_load_uses_is_filled_and_no_more() {
        let bytes = |at: u64, size: u64| Profile {
            base_offset: ByteSize(at << 20),
            working_set: Some(Extent::Bytes(ByteSize(size << 20))),
            ..Profile::default()
        };
        let percent = |p: f64| Profile { working_set: Some(Extent::Percent(p)), ..Profile::default() };
        let filled = |profiles: &[Profile], disk: Option<u64>| {
            fill_profile(&profiles.iter().collect::<Vec<_>>(), disk.map(|mib| ByteSize(mib << 20)))
                .working_set
        };
        let mib = |n: u64| Some(Extent::Bytes(ByteSize(n << 20)));
        assert_eq!(filled(&[bytes(0, 4), bytes(8, 2)], None), mib(10));
        assert_eq!(filled(&[percent(10.0), percent(30.0)], None), Some(Extent::Percent(30.0)));
        assert_eq!(filled(&[percent(10.0), bytes(0, 4)], None), None);
        assert_eq!(filled(&[percent(10.0), bytes(0, 4)], Some(100)), mib(10));
        assert_eq!(filled(&[percent(10.0), Profile::default()], Some(100)), mib(100));
    }
}
