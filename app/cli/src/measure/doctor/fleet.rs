//! The hosts of a fleet: each examined by its worker, and the network from each to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use loadline_doctor::DoctorReport;
use loadline_doctor::report::{HostReport, Lost, MeasuredPath};
use loadline_doctor::sync_write;
use loadline_fleet::{
    EventSink, Fleet, FleetError, FleetEvent, FleetSpec, JoiningWorkers, NetworkPath, Placement, ToExamine,
    WorkerId, WorkerInfo, or_stop, random_token,
};
use tokio::sync::watch;

use super::Args;
use crate::output::eprint_line;
use crate::study::run::{progress, watched};

/// Seconds that one way takes to be measured.
const WAY_S: usize = 3;

/// Waits for workers, and reports of their hosts.
pub(super) fn on_workers(
    args: &Args,
    workers: u32,
    stop: &Arc<AtomicBool>,
) -> Result<DoctorReport, FleetError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| FleetError::failed(format!("cannot start: {e}")))?;
    runtime.block_on(async {
        let mut stopped = watched(Arc::clone(stop));
        report(args, workers, &mut stopped).await
    })
}

async fn report(
    args: &Args,
    workers: u32,
    stop: &mut watch::Receiver<bool>,
) -> Result<DoctorReport, FleetError> {
    if let Some(folder) = args.folder.as_ref().filter(|folder| !folder.is_absolute()) {
        return Err(FleetError::usage(format!(
            "--folder {}: each worker looks for it on its own host: give the whole path, such as /data",
            folder.display()
        )));
    }
    let token = args.token_file.or(args.token.as_deref()).map_err(FleetError::usage)?;
    let token = token.map_or_else(random_token, Ok)?;
    let mut spec = FleetSpec::new(Placement::Joined(JoiningWorkers { workers, wait: args.wait }));
    (spec.listen, spec.token) = (args.listen, Some(token.clone()));
    let lost = Losses::default();
    let fleet = or_stop(stop, Fleet::start(spec, lost.sink(token, workers))).await??;
    // A worker that left before all had joined has been replaced.
    lost.forget();
    let mut fleet = fleet;
    let done = or_stop(stop, look(args, &mut fleet)).await;
    fleet.stop().await;
    let (hosts, paths) = done??;
    Ok(DoctorReport::new(hosts, paths, lost.all()))
}

async fn look(args: &Args, fleet: &mut Fleet) -> Result<(Vec<HostReport>, Vec<MeasuredPath>), FleetError> {
    let workers = fleet.workers();
    let mut measured_on = BTreeSet::new();
    // Two that write to one disk at once would measure each other.
    let mut folder_of =
        |worker: &WorkerInfo| args.folder.clone().filter(|_| measured_on.insert(worker.host.clone()));
    let requests: BTreeMap<WorkerId, ToExamine> = workers
        .iter()
        .map(|worker| {
            let request = ToExamine { devices: args.devices.clone(), folder: folder_of(worker) };
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
    fn sink(&self, token: String, workers: u32) -> EventSink {
        let lost = self.clone();
        Box::new(move |event| match event {
            FleetEvent::Listening { address } => {
                eprint_line!("{}", progress::waiting(address, &token, workers))
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
