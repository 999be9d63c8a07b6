//! Volumes are made: one, or many that differ in their names only.
//!
//! ```text
//! planned, some at a time ─▶ replicas made by their nodes ─▶ records, some at a time ─▶ [attached: taken over by their nodes]
//! ```
//!
//! Until a volume has its record, it is being made, and is removed if anything fails, also if the command does not end: its plan names the
//! node that carries out the command. So all of them are made, or none. Once they have their records they stay, also if the attachment
//! fails.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use loadline_base::figures;
use loadline_san_core::ids::Incarnation;
use loadline_san_core::record::{Record, RecordState};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::plan::{Checked, MakeRecords, PlanVolumes, Planned, check};
use super::tls::check_certificates;
use super::volumes::{CreateVolume, CreateVolumes, SERVED, deleted_meanwhile};
use super::{Health, ManageError, VolumeView};
use crate::config::catalog::{Catalog, ReplicaState};
use crate::node::Node;
use crate::node::under_way::Running;
use crate::node::unfinished::LEFT;

/// How long replicas may take to be made.
const MADE: Duration = Duration::from_secs(60);
/// How long nodes have to report of the copies of new volumes.
const SEEN: Duration = Duration::from_secs(3);
/// Names that a message lists.
const MOST_NAMED: usize = 5;

/// A volume that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MadeVolume {
    /// Its name.
    pub volume: String,
    /// The node to which it is attached, if it is.
    pub node: Option<String>,
    /// Whether that node serves it now. `false` if it is not attached, or if it is attached and the node cannot serve it yet: the node
    /// does so as soon as it can, and the state of the volume has the reason.
    pub served: bool,
}

impl Node {
    /// Makes a volume. It is not attached.
    pub async fn create_volume(&self, wanted: CreateVolume) -> Result<(), ManageError> {
        let CreateVolume { name, bytes, copies, least, stripes, at, log_bytes, requires_tls } = wanted;
        let names = vec![name];
        let attach = false;
        let wanted =
            CreateVolumes { names, bytes, copies, least, stripes, at, log_bytes, requires_tls, attach };
        self.create_volumes(wanted).await.map(|_| ())
    }

    /// Makes volumes: all, or none. If they are to be attached, waits until they are served, but not for long.
    ///
    /// If this future is dropped before the volumes have their records, since the caller has disconnected or the process ends, what was
    /// made is removed: by this node at once, or if its process has ended, by another one after 10 s.
    /// If the store fails while records are made, the volumes that have one stay, and the others are removed.
    pub async fn create_volumes(&self, wanted: CreateVolumes) -> Result<Vec<MadeVolume>, ManageError> {
        let attach = wanted.attach;
        let checked = check(wanted)?;
        self.refresh().await?;
        if checked.wanted.requires_tls {
            check_certificates(&self.state().catalog)?;
        }
        let running = self.0.under_way.begin();
        let planned = match self.make_volumes(&checked, attach, &running).await {
            Err(ManageError::Gone(why)) => return Err(self.why_gone(&running, why).await),
            planned => planned?,
        };
        drop(running);
        self.reconcile_soon();
        let served = match attach {
            true => self.wait_until_all_served(&planned).await?,
            false => BTreeSet::new(),
        };
        self.wait_until_seen(&checked.wanted.names, attach && served.len() == planned.len()).await;
        let state = self.state();
        let node = |id: u32| state.catalog.nodes.get(&id).map(|(node, _)| node.name.clone());
        let made = planned.iter().zip(&checked.wanted.names).map(|(of, name)| MadeVolume {
            volume: name.clone(),
            node: node(of.first).filter(|_| attach),
            served: served.contains(&of.id),
        });
        Ok(made.collect())
    }

    /// Makes volumes up to their records.
    async fn make_volumes(
        &self,
        checked: &Checked,
        attach: bool,
        running: &Running,
    ) -> Result<Vec<Planned>, ManageError> {
        let alive = self.alive().await;
        let mut planned = Vec::new();
        while planned.len() < checked.wanted.names.len() {
            let (checked, alive, claim) = (checked.clone(), alive.clone(), running.claim());
            let mut plan = PlanVolumes::new(checked, planned.len(), alive, self.0.me, claim);
            match self.config().in_steps(move |store| plan.step(store)).await? {
                Ok(some) => planned.extend(some),
                Err(why) => return Err(self.undo(&planned, why).await),
            }
        }
        self.reconcile_soon();
        let ids: BTreeSet<u64> = planned.iter().map(|volume| volume.id).collect();
        let of_volumes = |catalog: &Catalog| {
            let here = catalog.replicas.iter().filter(|(_, (replica, _))| ids.contains(&replica.volume));
            here.map(|(id, _)| *id).collect::<Vec<u64>>()
        };
        if let Err(why) = self.made(of_volumes).await {
            return Err(self.undo(&planned, why).await);
        }
        let mut records = MakeRecords::new(planned.clone(), checked.layout, attach);
        let gone = self.config().in_steps(move |store| records.step(store)).await?;
        if !gone.is_empty() {
            let names = planned.iter().zip(&checked.wanted.names).filter(|(of, _)| gone.contains(&of.id));
            let names: Vec<&String> = names.map(|(_, name)| name).collect();
            return Err(deleted_meanwhile(&figures::listed(&names, MOST_NAMED)));
        }
        Ok(planned)
    }

    /// Why what a command was making is gone. If another node took the command for one that had ended, that node reports it.
    async fn why_gone(&self, running: &Running, why: String) -> ManageError {
        let named = running.named();
        let reports = self.reports().await;
        let mut took_back =
            reports.values().flatten().filter(|view| view.taken_back.iter().any(|id| named.contains(id)));
        let Some(other) = took_back.next() else { return ManageError::Gone(why) };
        let (other, me, silent) = (&other.node, self.name(), LEFT.as_secs());
        ManageError::Gone(format!(
            "the request was undone: node {other} removed what was made, because node {me}, which carries out the request, had not written \
             to the configuration store for {silent} s and so counted as stopped. Check with 'loadline san status' that node {me} reaches \
             the configuration store, then send the request again"
        ))
    }

    /// Removes volumes that could not be made. Returns the reason. What cannot be removed now is removed later.
    async fn undo(&self, planned: &[Planned], why: ManageError) -> ManageError {
        for Planned { id, .. } in planned {
            if self.remove_unfinished(*id, None).await.is_err() {
                break;
            }
        }
        self.reconcile_soon();
        why
    }

    /// Waits until each of these is served by its node, but not for long. Returns those that are.
    async fn wait_until_all_served(&self, planned: &[Planned]) -> Result<BTreeSet<u64>, ManageError> {
        let begun = Instant::now();
        loop {
            self.refresh().await?;
            let served: BTreeSet<u64> = planned
                .iter()
                .filter(|of| {
                    self.record(of.id).is_some_and(|record| {
                        record.owner.node.0 == of.first
                            && record.state == RecordState::Active
                            && record.owner.incarnation != Incarnation(0)
                    })
                })
                .map(|of| of.id)
                .collect();
            if served.len() == planned.len() || begun.elapsed() > SERVED {
                return Ok(served);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until all nodes report of new volumes' copies, and that volumes are `served` if they are, but not for long: then their state
    /// is known to clients of the API, and owners let clients in.
    async fn wait_until_seen(&self, names: &[String], served: bool) {
        let begun = Instant::now();
        self.reconcile_soon();
        let names: BTreeSet<&String> = names.iter().collect();
        let is_seen = |volume: &VolumeView| match volume.health {
            _ if !names.contains(&volume.name) => true,
            Some(Health::Unknown) => false,
            Some(Health::Waiting) => !served,
            _ => true,
        };
        while begun.elapsed() < SEEN {
            if self.status().await.is_ok_and(|status| status.volumes.iter().all(is_seen)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until these replicas are made.
    pub(super) async fn made(&self, which: impl Fn(&Catalog) -> Vec<u64>) -> Result<(), ManageError> {
        let begun = Instant::now();
        loop {
            self.refresh().await?;
            let mut late = BTreeSet::new();
            {
                let state = self.state();
                let catalog = &state.catalog;
                for id in which(catalog) {
                    let there = catalog.replicas.get(&id).filter(|(r, _)| r.state != ReplicaState::Dropping);
                    let Some((replica, _)) = there else {
                        return Err(ManageError::Gone(
                            "a copy was removed while it was made: try again".into(),
                        ));
                    };
                    let name =
                        catalog.nodes.get(&replica.node).map_or("?".into(), |(node, _)| node.name.clone());
                    if let Some(why) = &replica.refused {
                        return Err(ManageError::Device(format!("{name} cannot make a copy: {why}")));
                    }
                    if replica.state != ReplicaState::Ready {
                        late.insert(name);
                    }
                }
            }
            if late.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > MADE {
                let late: Vec<String> = late.into_iter().collect();
                return Err(ManageError::TimedOut(format!(
                    "not all copies were made in time, so the request was undone; late nodes: {}",
                    figures::listed(&late, MOST_NAMED)
                )));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Whether no node has owned the volume of this record yet.
pub(in crate::node) fn is_new(record: &Record) -> bool {
    record.owner.incarnation == Incarnation(0) && record.history.claims().is_empty()
}
