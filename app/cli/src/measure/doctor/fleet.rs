//! The hosts of a fleet: each examined by its worker, and the network from each to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use loadline_doctor::DoctorReport;
use loadline_doctor::report::{HostReport, Lost, MeasuredPath};
use loadline_doctor::sync_write;
use loadline_fleet::{
    EventSink, Fleet, FleetError, FleetEvent, FleetKind, FleetSpec, JoiningWorkers, NetworkPath, Placement,
    ToExamine, WorkerId, WorkerInfo, or_stop, random_token,
};
use loadline_study::StudyError;
use loadline_study::file::FleetSection;
use loadline_study::fleet::ResolvedFleet;
use loadline_study::inventory::nodes;
use loadline_study::progress::Update;
use loadline_study::read::read;
use tokio::sync::watch;

use super::Args;
use crate::output::eprint_line;
use crate::study::run::{progress, watched};

/// Seconds that one way takes to be measured.
const WAY_S: usize = 3;

/// Where the workers come from that examine hosts.
pub(super) enum Source {
    /// So many join.
    Join(u32),
    /// One is started on each host that SSH reaches; with the disks that are named for each.
    Hosts(Box<FleetSpec>, BTreeMap<String, Vec<PathBuf>>),
}

/// What the arguments ask for; `None`: this host alone.
pub(super) fn source(args: &Args) -> Result<Option<Source>, StudyError> {
    if let Some(workers) = args.join {
        return Ok(Some(Source::Join(workers)));
    }
    let fleet = match (&args.study, &args.inventory) {
        (Some(study), _) => read(study)?.0.fleet,
        (None, Some(inventory)) => {
            FleetSection { node: nodes(inventory, args.group.as_deref())?, ..FleetSection::default() }
        }
        (None, None) => return Ok(None),
    };
    let resolved = ResolvedFleet::of(&fleet)?;
    if resolved.placement.runs_here() || !resolved.has_known_workers() {
        return Err(StudyError::usage(
            "the study names no hosts that SSH reaches ([[fleet.node]] with ssh, or inventory): check this host with loadline \
             doctor, or hosts whose workers join with --join",
        ));
    }
    let mut spec = resolved.spec();
    spec.placement.one_worker_each();
    spec.goes_on_without = true;
    let disks = fleet.node.iter().map(|node| {
        let named = if node.disks.is_empty() { &fleet.disks } else { &node.disks };
        let paths = named.iter().filter_map(|disk| Some(disk.path()?.to_path_buf()));
        (node.name.clone(), paths.collect())
    });
    Ok(Some(Source::Hosts(Box::new(spec), disks.collect())))
}

/// Has workers examine their hosts, and reports of them.
pub(super) fn on_workers(
    args: &Args,
    source: Source,
    stop: &Arc<AtomicBool>,
) -> Result<DoctorReport, FleetError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| FleetError::failed(format!("cannot start: {e}")))?;
    runtime.block_on(async {
        let mut stopped = watched(Arc::clone(stop));
        report(args, source, &mut stopped).await
    })
}

async fn report(
    args: &Args,
    source: Source,
    stop: &mut watch::Receiver<bool>,
) -> Result<DoctorReport, FleetError> {
    if let Some(folder) = args.folder.as_ref().filter(|folder| !folder.is_absolute()) {
        return Err(FleetError::usage(format!(
            "--folder {}: each worker looks for it on its own host: give the whole path, such as /data",
            folder.display()
        )));
    }
    let lost = Losses::default();
    let (spec, disks, sink) = match source {
        Source::Join(workers) => {
            let token = args.token_file.or(args.token.as_deref()).map_err(FleetError::usage)?;
            let token = token.map_or_else(random_token, Ok)?;
            let mut spec = FleetSpec::new(Placement::Joined(JoiningWorkers { workers, wait: args.wait }));
            (spec.listen, spec.token) = (args.listen, Some(token.clone()));
            (spec, BTreeMap::new(), lost.sink(Some((token, workers))))
        }
        Source::Hosts(spec, disks) => (*spec, disks, lost.sink(None)),
    };
    let fleet = or_stop(stop, Fleet::start(spec, sink)).await??;
    // A worker that left before all had joined has been replaced.
    lost.forget();
    let mut fleet = fleet;
    let done = or_stop(stop, look(args, &disks, &mut fleet)).await;
    fleet.stop().await;
    let (hosts, paths) = done??;
    Ok(DoctorReport::new(hosts, paths, lost.all()))
}

async fn look(
    args: &Args,
    disks: &BTreeMap<String, Vec<PathBuf>>,
    fleet: &mut Fleet,
) -> Result<(Vec<HostReport>, Vec<MeasuredPath>), FleetError> {
    let workers = fleet.workers();
    let mut measured_on = BTreeSet::new();
    // Two that write to one disk at once would measure each other.
    let mut folder_of =
        |worker: &WorkerInfo| args.folder.clone().filter(|_| measured_on.insert(worker.host.clone()));
    let requests: BTreeMap<WorkerId, ToExamine> = workers
        .iter()
        .map(|worker| {
            let own = disks.get(&worker.node).filter(|_| args.devices.is_empty());
            let devices = own.unwrap_or(&args.devices).clone();
            let request = ToExamine { devices, folder: folder_of(worker) };
            (worker.id.clone(), request)
        })
        .collect();
    let mut hosts = Vec::new();
    let mut here = BTreeSet::new();
    for (id, examined) in fleet.examine(&requests).await? {
        // An event has reported the loss of that worker.
        let Ok(mut examined) = examined else { continue };
        if args.folder.is_some() && requests[&id].folder.is_none() {
            examined.examination.checks.retain(|check| check.check != sync_write::CHECK);
        }
        let ahead = Some(examined.clock_ahead_s);
        hosts.push(HostReport::new(examined.examination, Some(id.0.clone()), ahead));
        here.insert(id);
    }
    let here: Vec<WorkerInfo> = workers.into_iter().filter(|worker| here.contains(&worker.id)).collect();
    Ok((hosts, paths(fleet, &here).await?))
}

/// Measures the network from each worker to the next, in a circle and one after another.
async fn paths(fleet: &mut Fleet, workers: &[WorkerInfo]) -> Result<Vec<MeasuredPath>, FleetError> {
    let mut paths = Vec::new();
    if workers.len() > 1 {
        let seconds = workers.len() * WAY_S;
        eprint_line!("measuring the network between {} hosts, some {seconds} s", workers.len());
    }
    for (from, to) in workers.iter().zip(workers.iter().cycle().skip(1)).filter(|(from, to)| from.id != to.id)
    {
        let link = NetworkPath { from: from.id.clone(), to: to.id.clone(), ip: None };
        let (speed, why) = match fleet.measure_path(&link).await? {
            Ok(speed) => (Some(speed), None),
            Err(why) => (None, Some(why)),
        };
        paths.push(MeasuredPath {
            from: from.id.0.clone(),
            to: to.id.0.clone(),
            one_host: from.host == to.host,
            round_trip_us: speed.map(|speed| speed.round_trip_us),
            bytes_per_s: speed.map(|speed| speed.bytes_per_s),
            why,
        });
    }
    Ok(paths)
}

/// Workers that were lost, and why: the first reason that was reported of each.
#[derive(Clone, Default)]
struct Losses(Arc<Mutex<BTreeMap<String, String>>>);

impl Losses {
    /// Prints the events of the fleet, and records losses.
    /// `waits`: the token, and for how many workers the fleet waits.
    fn sink(&self, waits: Option<(String, u32)>) -> EventSink {
        let lost = self.clone();
        // Only while copies go on: its bar would mix with the lines of other events.
        let mut copying = None;
        Box::new(move |event| match event {
            FleetEvent::Copying(ref copies) => {
                copying.get_or_insert_with(progress::on_stderr).update(Update::Fleet(&event));
                if copies.are_complete() {
                    copying = None;
                }
            }
            FleetEvent::Notice(text) => eprint_line!("{text}"),
            FleetEvent::Listening { address } => {
                if let Some((token, workers)) = &waits {
                    eprint_line!("{}", progress::waiting(address, token, *workers));
                }
            }
            FleetEvent::Joined { worker } => eprint_line!("worker {} of {} joined", worker.id, worker.host),
            FleetEvent::Restarted { worker } => eprint_line!("worker {} is back", worker.id),
            FleetEvent::Rejected { from, why, count } => {
                eprint_line!("refused connection from {from}: {why} ({count} so far)");
            }
            FleetEvent::Lost { worker, loss } => {
                eprint_line!("worker {} is lost: {}", worker.id, loss.message);
                let mut all = lost.0.lock().unwrap_or_else(PoisonError::into_inner);
                all.entry(worker.id.0).or_insert(loss.message);
            }
            _ => {}
        })
    }

    fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn all(&self) -> Vec<Lost> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(worker, why)| Lost { worker: worker.clone(), why: why.clone() }).collect()
    }
}
