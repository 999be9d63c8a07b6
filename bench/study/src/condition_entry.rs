//! What a run has its cluster do: make the disks and remove them, and lead it from condition to condition.

use std::collections::{BTreeMap, BTreeSet};

use loadline_base::figures::{are, counted};
use loadline_fleet::{WorkerInfo, or_stop};
use loadline_load::Target;
use loadline_load::error::ErrorKind;
use loadline_measure::audit::{Finding, FindingKind};
use loadline_target::CpuPeriods;

use crate::conditions::resting;
use crate::error::StudyError;
use crate::faults::has_faults;
use crate::file::{Access, Condition};
use crate::folder::RunFolder;
use crate::folder::events::RunEvent;
use crate::name::Name;
use crate::node_cores;
use crate::planned_step::{Purpose, Step};
use crate::progress::Update;
use crate::runner::Runner;
use crate::running_cluster::volume_prefix;
use crate::volumes::volumes_of;
use crate::workers::Workers;

impl<W: Workers> Runner<'_, W> {
    /// Has the study's cluster make the disks, if it has one: they are there already if the run is resumed.
    pub(crate) async fn make_volumes(&mut self) -> Result<(), StudyError> {
        let is_own = self.owned.folder.plan.cluster.is_some();
        let Some(harness) = self.harness.as_ref().filter(|_| is_own && !self.is_measured()) else {
            return Ok(());
        };
        let folder = &self.owned.folder;
        if folder.manifest.study.running_cluster().is_some() {
            // Written down before they are made: whenever the process ends, none of them is forgotten.
            let named = self.volume_names();
            if self.owned.folder.manifest.volumes != named {
                self.owned.folder.manifest.volumes = named;
                self.owned.save()?;
            }
        }
        let folder = &self.owned.folder;
        let workers = &folder.manifest.workers;
        let made = harness.volumes(&folder.manifest, &folder.plan, workers, 0, &mut self.stop).await?;
        (self.volumes, self.places, self.owners) = (made.volumes, made.places, made.owners);
        if made.new.is_some() {
            // The cluster of a run that is resumed was removed: what its disks held, and what the journals have of it, is
            // gone.
            let _ = std::fs::remove_dir_all(folder.path().join("verify"));
            std::fs::create_dir_all(folder.path().join("verify"))
                .map_err(|e| StudyError::io("make", &folder.path().join("verify"), &e))?;
            self.owned.folder.manifest.filled = false;
            self.owned.save()?;
        }
        Ok(())
    }

    /// The names of all volumes of the run.
    fn volume_names(&self) -> Vec<String> {
        let study = &self.owned.folder.manifest.study;
        study.targets().flat_map(|target| self.names_of(target.name)).collect()
    }

    /// The names of the volumes of a policy, or of the study if it compares none.
    fn names_of(&self, policy: Option<&Name>) -> Vec<String> {
        let RunFolder { manifest, plan, .. } = &self.owned.folder;
        let prefix = volume_prefix(&manifest.study, &manifest.run_id);
        let of_policy = volumes_of(&manifest.study, plan, &prefix, &manifest.workers, policy);
        of_policy.into_values().flatten().map(|volume| volume.name).collect()
    }

    /// Gives the volumes of a step the limit that it is measured with, before its load begins.
    pub(crate) async fn limit_volumes(&mut self, step: &Step) -> Result<(), StudyError> {
        if step.purpose == Purpose::Ceiling || !self.owned.folder.manifest.study.limits_volumes() {
            return Ok(());
        }
        let Some(harness) = &self.harness else { return Ok(()) };
        let names = self.names_of(step.policy.as_ref()).into_iter().collect();
        let limit = step.volume_limit.map(|limit| limit.of_volume());
        harness.limit_volumes(names, limit, &mut self.stop).await
    }

    /// Removes the limits of all volumes of the run: what is done to them next is no load of the study.
    pub(crate) async fn unlimit_volumes(&mut self) -> Result<(), StudyError> {
        let is_limited = self.owned.folder.manifest.study.limits_volumes();
        let Some(harness) = self.harness.as_ref().filter(|_| is_limited) else { return Ok(()) };
        let names = self.volume_names().into_iter().collect();
        harness.limit_volumes(names, None, &mut self.stop).await
    }

    /// Removes the volumes that the run has made in a cluster that ran before.
    pub(crate) async fn remove_volumes(&mut self) -> Result<(), StudyError> {
        let names: BTreeSet<String> = self.owned.folder.manifest.volumes.iter().cloned().collect();
        let Some(harness) = self.harness.as_ref().filter(|_| !names.is_empty()) else { return Ok(()) };
        harness.remove_volumes(names, &mut self.stop).await?;
        self.owned.folder.manifest.volumes.clear();
        self.owned.folder.manifest.filled = false;
        self.owned.save()
    }

    /// Has the workers run on the hosts on which their volumes of this policy are used.
    pub(crate) async fn place_workers(&mut self, policy: Option<&Name>) -> Result<(), StudyError> {
        match self.places.get(&policy.cloned()) {
            Some(places) => Ok(or_stop(&mut self.stop, self.workers.place(places)).await??),
            None => Ok(()),
        }
    }

    /// Leads the cluster into the condition in which a step is measured, unless it is there. One leads to the next: what was
    /// done before is not done again, but where the run was resumed, or a new repeat begins, all is begun anew.
    pub(crate) async fn enter(&mut self, step: &Step) -> Result<(), StudyError> {
        self.enter_condition(step).await?;
        // A run that was stopped in the middle of a fault goes on with storage to which nothing was done.
        if has_faults(&self.owned.folder.manifest.study, step) && self.entered.is_none() {
            if let Some(harness) = &self.harness {
                harness.enter(true, Vec::new(), &mut self.stop).await?;
            }
            self.entered = Some((0, 0));
            self.place(step.unaligned_percent, step.condition.as_ref()).await?;
        }
        if step.unaligned_percent != self.unaligned_percent {
            self.place(step.unaligned_percent, step.condition.as_ref()).await?;
        }
        self.follow_owners(step).await
    }

    /// In a cluster that ran before, volumes also move without the run: a host starts again, a person moves them. Then they are moved
    /// back where that can be done; where not, the run goes on, and the workers that cannot reach their volumes are lost for the step.
    async fn follow_owners(&mut self, step: &Step) -> Result<(), StudyError> {
        let is_running = self.owned.folder.manifest.study.running_cluster().is_some();
        let Some(harness) = self.harness.as_ref().filter(|_| is_running) else { return Ok(()) };
        let owners = harness.owners(&mut self.stop).await?;
        let is_moved = |(name, owner): (&String, &String)| {
            owners.get(name).is_none_or(|now| now.as_ref() != Some(owner))
        };
        if owners.is_empty() || !self.owners.iter().any(is_moved) {
            return Ok(());
        }
        match self.place(step.unaligned_percent, step.condition.as_ref()).await {
            Err(error) if error.kind == ErrorKind::Failed && self.is_all_there(&owners) => {
                let notice =
                    format!("volumes of the run have moved, and do not come back: {}", error.message);
                self.shared.lock().show(Update::Notice(&notice));
                Ok(())
            }
            placed => placed,
        }
    }

    /// Whether the cluster still has all volumes that the workers use.
    fn is_all_there(&self, owners: &BTreeMap<String, Option<String>>) -> bool {
        self.owners.keys().all(|name| owners.contains_key(name))
    }

    /// Has the cluster serve each worker's volumes at its node, and of so many percent of the workers at another one.
    pub(crate) async fn place(
        &mut self,
        unaligned_percent: u8,
        condition: Option<&Name>,
    ) -> Result<(), StudyError> {
        let RunFolder { manifest, plan, .. } = &self.owned.folder;
        let Some(harness) = self.harness.as_ref().filter(|_| plan.cluster.is_some()) else { return Ok(()) };
        // Whether the volumes of workers that rest are served does not matter to the workers that are left.
        let resting = condition.map(|name| resting(&manifest.study, name)).unwrap_or_default();
        let at_work = |worker: &&WorkerInfo| !resting.contains(worker.node.as_str());
        let workers: Vec<WorkerInfo> = manifest.workers.iter().filter(at_work).cloned().collect();
        let placed = harness.volumes(manifest, plan, &workers, unaligned_percent, &mut self.stop).await?;
        if let Some(name) = placed.new {
            // Nothing is written to the new one, and journals tell of what was on the old one.
            return Err(StudyError::failed(format!(
                "the volume {name} of the run was removed by someone else while the run went on, and is made anew, empty: run the study \
                 anew"
            )));
        }
        (self.volumes, self.places, self.owners) = (placed.volumes, placed.places, placed.owners);
        self.unaligned_percent = unaligned_percent;
        Ok(())
    }

    async fn enter_condition(&mut self, step: &Step) -> Result<(), StudyError> {
        let Some(harness) = &self.harness else { return Ok(()) };
        let manifest = &self.owned.folder.manifest;
        let conditions = &manifest.study.condition;
        let name = match (&step.condition, step.purpose) {
            (Some(name), _) => name,
            // A search goes on in the first condition, and ceilings come before all.
            (None, Purpose::Search { .. }) => match conditions.first() {
                Some(first) => &first.name,
                None => return Ok(()),
            },
            (None, _) => return Ok(()),
        };
        let Some(place) = conditions.iter().position(|condition| condition.name == *name) else {
            return Ok(());
        };
        let repeat = if matches!(step.purpose, Purpose::Search { .. }) { 0 } else { step.repeat };
        if self.entered == Some((repeat, place)) {
            return Ok(());
        }
        let from = self.entered.filter(|(known, at)| *known == repeat && *at < place).map(|(_, at)| at + 1);
        let to_enter = conditions[from.unwrap_or(0)..=place].to_vec();
        self.shared.lock().show(Update::Notice(&format!("condition {name}")));
        let began = std::time::Instant::now();
        // What was not measured in between was not written either, and does not come back.
        let is_again = self.entered.is_none() && place > 0;
        self.out_of_turn = is_again && to_enter.iter().any(Condition::returns);
        harness.enter(from.is_none(), to_enter, &mut self.stop).await?;
        let health = harness.health(&mut self.stop).await?;
        let name = name.clone();
        self.place(step.unaligned_percent, Some(&name)).await?;
        self.entered = Some((repeat, place));
        // The load that was put on before was of another condition.
        self.warm = None;
        let event = RunEvent::ConditionEntered {
            condition: name,
            repeat: step.repeat,
            seconds: began.elapsed().as_secs_f64(),
            nodes_alive: health.as_ref().map(|health| health.nodes_alive),
            degraded: health.as_ref().map(|health| health.degraded),
            left_bytes: health.as_ref().map(|health| health.left_bytes),
        };
        self.owned.events.run(&event)
    }

    /// How often each node has used up the cores that the run gave it; empty if it has given all of them to all nodes.
    pub(crate) async fn cpu_periods(&mut self) -> Result<BTreeMap<String, CpuPeriods>, StudyError> {
        let is_limited =
            self.owned.folder.manifest.study.nodes().is_some_and(|node| node.cpu_limit.is_some());
        match &self.harness {
            Some(harness) if is_limited => harness.cpu_periods(&mut self.stop).await,
            _ => Ok(BTreeMap::new()),
        }
    }

    /// What makes a step doubtful that was measured on the run's own cluster: a node that ended by itself, or a condition
    /// that was not reached as the ones before it lead to it. `periods` are those of the nodes when the step began.
    pub(crate) async fn condition_findings(
        &mut self,
        step: &Step,
        periods: &BTreeMap<String, CpuPeriods>,
    ) -> Result<Vec<Finding>, StudyError> {
        let mut during = self.cpu_periods().await?;
        for (node, now) in &mut during {
            *now = now.since(periods.get(node).copied().unwrap_or_default());
        }
        let Some(harness) = &self.harness else { return Ok(Vec::new()) };
        let mut findings = Vec::new();
        let study = &self.owned.folder.manifest.study;
        let is_local = study.access(step.policy.as_ref()) == Access::Local && step.unaligned_percent == 0;
        if study.running_cluster().is_some() && is_local {
            let disks = || self.volumes.get(&step.policy).into_iter().flat_map(BTreeMap::values).flatten();
            let (all, remote) =
                (disks().count(), disks().filter(|disk| !matches!(disk, Target::Vhost(_))).count());
            if remote > 0 {
                findings.push(Finding::doubt(
                    FindingKind::TwoVariables,
                    "every volume to be reached by shared memory (access = \"local\")",
                    format!(
                        "{remote} of {} {} reached by NBD over the network",
                        counted(all as u64, "volume"),
                        are(remote as u64)
                    ),
                    "Their owners are not the nodes on whose hosts their workers run: volumes of one worker have several owners, or an \
                     owner is no node of the fleet. Give each worker one disk, and have all nodes of the cluster in the fleet.",
                ));
            }
        }
        for ended in harness.ended_unasked(&mut self.stop).await? {
            findings.push(Finding::doubt(
                FindingKind::TwoVariables,
                "the cluster as the condition has it",
                ended,
                "The figures are of another condition. See the node's log, and free memory or space; then run the study anew.",
            ));
        }
        let modelled = harness.modelled(&mut self.stop).await?;
        findings.extend(self.modelled.findings(modelled, node_cores::are_used_up(&during)));
        let plan = &self.owned.folder.plan;
        let nodes = plan.fleet.node_count();
        findings.extend(node_cores::findings(study, nodes, node_cores::of_machine(), &during));
        if self.out_of_turn {
            findings.push(Finding::doubt(
                FindingKind::TwoVariables,
                "the condition to be reached from the one before, after its loads",
                "that it was begun anew when the run was resumed, with no load in between",
                "What a node missed while it was gone was not written, so that less had to be copied to it. Run the study anew if \
                 that matters.",
            ));
        }
        Ok(findings)
    }
}
