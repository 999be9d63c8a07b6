//! What each worker is asked to do: its disks, its seed, its journals.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use loadline_base::units::ByteSize;
use loadline_fleet::{WorkerId, WorkerInfo};
use loadline_load::{Disk, Job, Target, Verify, WritePermission};
use loadline_profile::{Data, Extent, Profile};

use crate::check::located;
use crate::error::StudyError;
use crate::folder::manifest::{MadeFile, Manifest};
use crate::plan::{Plan, Step, seed_of, used, verified_unit};

/// Makes the jobs of one run.
pub(crate) struct Jobs<'a> {
    pub(crate) manifest: &'a Manifest,
    pub(crate) plan: &'a Plan,
    /// The run's folder.
    pub(crate) run: &'a Path,
}

/// A worker's name as a part of a file's name.
fn safe(worker: &WorkerId) -> String {
    worker.0.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' }).collect()
}

/// Workers in the order in which people count them: `node-1/2` before `node-1/10`.
pub(crate) fn in_order(mut workers: Vec<WorkerInfo>) -> Vec<WorkerInfo> {
    workers.sort_by_cached_key(|worker| match worker.id.0.rsplit_once('/') {
        Some((node, number)) => (node.to_string(), number.parse().unwrap_or(u64::MAX), worker.id.0.clone()),
        None => (worker.id.0.clone(), 0, String::new()),
    });
    workers
}

impl Jobs<'_> {
    /// The files that the run makes, by worker; their names carry the run's id, so that nobody else's file has them.
    pub(crate) fn files(&self) -> Vec<MadeFile> {
        let Some(size) = self.plan.disk_size else { return Vec::new() };
        let folder = self.manifest.files_folder(self.run);
        let of_worker = |worker: &WorkerInfo| {
            let stem = format!("loadline-{}-{}", self.manifest.run_id, safe(&worker.id));
            let file = |disk| MadeFile {
                worker: worker.id.clone(),
                path: folder.join(format!("{stem}-{disk}.img")),
                size,
                identity: None,
            };
            (0..self.plan.disks_per_worker).map(file).collect::<Vec<_>>()
        };
        self.manifest.workers.iter().flat_map(of_worker).collect()
    }

    /// Every disk of the run, in the workers' order.
    pub(crate) fn targets(&self) -> Vec<Target> {
        if self.plan.disk_size.is_some() {
            return self.manifest.files.iter().map(|file| Target::Path(file.path.clone())).collect();
        }
        let devices = &self.manifest.study.target.devices;
        devices.iter().map(|target| located(target, &self.manifest.study_folder)).collect()
    }

    /// The disks of the worker at `index`.
    fn disks(&self, index: usize) -> Result<Vec<Disk>, StudyError> {
        let worker = &self.manifest.workers[index].id;
        if self.plan.disk_size.is_some() {
            let mine = self.manifest.files.iter().filter(|file| file.worker == *worker);
            return mine
                .map(|file| {
                    let identity = file
                        .identity
                        .ok_or_else(|| StudyError::failed(format!("{} was not made", file.path.display())))?;
                    Ok(Disk {
                        target: Target::Path(file.path.clone()),
                        writes: WritePermission::Made(identity),
                    })
                })
                .collect();
        }
        let each = self.plan.disks_per_worker as usize;
        let mine = self.manifest.study.target.devices.iter().skip(index * each).take(each);
        let allowed = |target: &Target| match target {
            // There is nothing on it to lose.
            Target::Null(_) => WritePermission::Destroy,
            _ if self.manifest.destroy_data => WritePermission::Destroy,
            _ => WritePermission::Refused,
        };
        Ok(mine
            .map(|target| Disk {
                writes: allowed(target),
                target: located(target, &self.manifest.study_folder),
            })
            .collect())
    }

    /// Where the journals of one worker's disks are.
    fn journals(&self, worker: &WorkerId) -> Vec<PathBuf> {
        let journal = |disk| self.run.join("verify").join(format!("{}-{disk}.journal", safe(worker)));
        (0..self.plan.disks_per_worker).map(journal).collect()
    }

    /// The journal of a file that the run makes.
    pub(crate) fn journal_of(&self, file: &MadeFile) -> Option<PathBuf> {
        let mine = self.manifest.files.iter().filter(|other| other.worker == file.worker);
        let disk = mine.clone().position(|other| other.path == file.path)?;
        self.journals(&file.worker).into_iter().nth(disk)
    }

    fn all(&self, profile: &Profile, step: u32) -> Result<BTreeMap<WorkerId, Job>, StudyError> {
        let study = &self.manifest.study;
        let workers = self.manifest.workers.iter().zip(0u32..);
        workers
            .map(|(worker, index)| {
                let mut job = Job::new(self.disks(index as usize)?, profile.clone());
                job.warm_up = study.phases.warm_up;
                job.measure = study.phases.measure;
                job.cool_down = study.phases.cool_down;
                job.drain = study.phases.drain;
                job.seed = seed_of(study.run.seed, step, index);
                job.engine = study.run.engine;
                job.poll = study.run.poll;
                job.stop_if.clone_from(&study.run.stop_if);
                job.verify = study.run.verify.then(|| Verify { journals: self.journals(&worker.id) });
                Ok((worker.id.clone(), job))
            })
            .collect()
    }

    /// The jobs of one step.
    pub(crate) fn of_step(&self, step: &Step) -> Result<BTreeMap<WorkerId, Job>, StudyError> {
        self.all(&step.profile, step.number)
    }

    /// The jobs that write once what the steps use.
    pub(crate) fn fill(&self) -> Result<BTreeMap<WorkerId, Job>, StudyError> {
        let profiles: Vec<&Profile> = self.plan.loads().map(|step| &step.profile).collect();
        self.all(&fill_profile(&profiles, self.plan.disk_size), 0)
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
    fn workers_are_counted_as_people_count() {
        let worker = |id: &str| WorkerInfo {
            id: WorkerId(id.into()),
            node: String::new(),
            host: String::new(),
            pid: 0,
            version: String::new(),
        };
        let sorted = in_order(["b/0", "a/10", "a/2", "zeta"].map(worker).to_vec());
        assert_eq!(
            sorted.iter().map(|w| w.id.0.as_str()).collect::<Vec<_>>(),
            ["a/2", "a/10", "b/0", "zeta"]
        );
    }

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
