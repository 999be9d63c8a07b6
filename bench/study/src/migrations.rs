//! Machines that are migrated in a window, one after the other.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use loadline_fleet::{MIGRATION_TRIES, MidStepOrder, Migrated, Migration, NotMigrated, WorkerId};
use loadline_load::{Job, Target};
use loadline_target::error::ErrorKind;
use loadline_target::{Cluster, Storage, TargetError, VolumeSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

/// How often the end of a migration is looked for.
const TICK: Duration = Duration::from_millis(5);

/// A machine that was migrated while it measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MigratedMachine {
    /// The worker that the machine is.
    pub worker: WorkerId,
    /// The node on which it runs now.
    pub to: String,
    /// How long it stood still, milliseconds: by the host's clock, between two hosts to within the time that a message takes. The worker's
    /// clock counts that time too.
    pub downtime_ms: f64,
    /// From the order until it ran again, seconds.
    pub took_s: f64,
}

/// What came of migrating a machine.
pub(crate) enum Outcome {
    /// With what of it is not as it should be.
    Migrated(MigratedMachine, Option<String>),
    /// The fleet takes no orders any more: the step is over.
    Over,
}

/// Migrates the machine of a worker to a node, with the volumes that it reaches as local disks. `job` and `volumes` are the worker's, and say
/// afterwards what it has there. No attempt but the first begins after `until`. The inner error says why the machine was not migrated.
pub(crate) fn migrate(
    worker: &WorkerId,
    to: &str,
    (job, volumes): (&mut Job, &mut [VolumeSpec]),
    (storage, changes): (&Storage, &mpsc::Sender<MidStepOrder>),
    (stop, until): (&AtomicBool, Instant),
) -> Result<Result<Outcome, String>, TargetError> {
    let cluster = storage.own();
    let mut tries = 1..MIGRATION_TRIES;
    let (there, migrated) = loop {
        match ordered(worker, to, (job, volumes), (cluster, changes), stop)? {
            Ok(Some(done)) => break done,
            Ok(None) => return Ok(Ok(Outcome::Over)),
            Err(NotMigrated { again: true, .. }) if Instant::now() < until && tries.next().is_some() => {}
            Err(NotMigrated { why, .. }) => return Ok(Err(why)),
        }
    };
    let mut followers = Vec::new();
    for (at, target) in there {
        let goes_with_it = matches!(target, Target::Vhost(_));
        job.disks[at].target = target;
        if let Some(volume) = volumes.get_mut(at).filter(|_| goes_with_it) {
            volume.node = to.into();
            followers.push((volume.clone(), job.disks[at].target.clone()));
        }
    }
    let mut wrong = None;
    for (volume, disk) in &followers {
        match cluster.map_or(Ok(()), |cluster| cluster.await_owner(volume, disk, to, stop)) {
            Err(error) if error.kind == ErrorKind::Interrupted => return Err(error),
            Err(error) => wrong = wrong.or(Some(error.message)),
            Ok(()) => {}
        }
    }
    let machine = MigratedMachine {
        worker: worker.clone(),
        to: to.into(),
        downtime_ms: migrated.downtime.as_secs_f64() * 1e3,
        took_s: migrated.took.as_secs_f64(),
    };
    Ok(Ok(Outcome::Migrated(machine, wrong)))
}

/// Whether a disk at the destination is another one. A socket of the destination is, also if it has the same name on both hosts.
fn is_other(after: &Target, before: &Target) -> bool {
    after != before || matches!(after, Target::Vhost(_))
}

/// What was migrated: the disks that are others now, each by its place, and how that was.
type Ordered = (Vec<(usize, Target)>, Migrated);

/// Orders once that a machine be migrated. `None`: the step is over.
fn ordered(
    worker: &WorkerId,
    to: &str,
    (job, volumes): (&Job, &[VolumeSpec]),
    (cluster, changes): (Option<&Cluster>, &mpsc::Sender<MidStepOrder>),
    stop: &AtomicBool,
) -> Result<Result<Option<Ordered>, NotMigrated>, TargetError> {
    let there = match cluster.map(|cluster| disks_there(cluster, job, volumes, to)) {
        Some(Ok(there)) => there,
        Some(Err(error)) if error.kind == ErrorKind::Interrupted => return Err(error),
        Some(Err(error)) => return Ok(Err(error.message.into())),
        None => Vec::new(),
    };
    let disks = there.iter().map(|(at, target)| (job.disks[*at].target.clone(), target.clone())).collect();
    let (done, mut migrated) = oneshot::channel();
    let order = MidStepOrder::Migrate(worker.clone(), Migration { node: to.into(), disks }, done);
    if changes.blocking_send(order).is_err() {
        return Ok(Ok(None));
    }
    loop {
        match migrated.try_recv() {
            Ok(result) => return Ok(result.map(|migrated| Some((there, migrated)))),
            Err(oneshot::error::TryRecvError::Closed) => return Ok(Ok(None)),
            Err(oneshot::error::TryRecvError::Empty) if stop.load(std::sync::atomic::Ordering::Relaxed) => {
                return Err(TargetError { kind: ErrorKind::Interrupted, message: "interrupted".into() });
            }
            // The fleet has a limit for it.
            Err(oneshot::error::TryRecvError::Empty) => std::thread::sleep(TICK),
        }
    }
}

/// The disks of a job that are others at the destination, each by its place among the disks.
fn disks_there(
    cluster: &Cluster,
    job: &Job,
    volumes: &[VolumeSpec],
    to: &str,
) -> Result<Vec<(usize, Target)>, TargetError> {
    let disks = job.disks.iter().zip(volumes).enumerate();
    let there = disks.map(|(at, (disk, volume))| {
        Ok((at, cluster.at_destination(volume, &disk.target, to)?, disk.target.clone()))
    });
    let there: Vec<_> = there.collect::<Result<_, TargetError>>()?;
    Ok(there
        .into_iter()
        .filter(|(_, after, before)| is_other(after, before))
        .map(|(at, after, _)| (at, after))
        .collect())
}

#[cfg(test)]
mod tests {
    use loadline_target::external::{External, ExternalSpec};

    use super::*;

    /// What comes of an order to which the fleet answers so, one answer for each time that it is ordered; and how often it was.
    fn answered(answers: Vec<Result<Migrated, NotMigrated>>) -> (Result<Outcome, String>, usize) {
        let spec = ExternalSpec {
            nodes: vec!["a".into(), "b".into()],
            commands: [("kill".to_string(), "true".to_string()), ("return".into(), "true".into())].into(),
            health: None,
            prompt: false,
            limit: None,
        };
        let storage = Storage::Foreign(External::new(spec, None).unwrap());
        let (changes, mut orders) = mpsc::channel(1);
        let fleet = std::thread::spawn(move || {
            let mut times = 0;
            for answer in answers {
                let Some(MidStepOrder::Migrate(_, _, done)) = orders.blocking_recv() else { break };
                times += 1;
                done.send(answer).unwrap();
            }
            times
        });
        let worker = WorkerId("a/0".into());
        let mut job = Job::new(Vec::new(), "B4-T1-O1-W0-PR".parse().unwrap());
        let stop = AtomicBool::new(false);
        let until = Instant::now() + Duration::from_secs(60);
        let outcome =
            migrate(&worker, "b", (&mut job, &mut []), (&storage, &changes), (&stop, until)).unwrap();
        drop(changes);
        (outcome, fleet.join().unwrap())
    }

    #[test]
    fn a_socket_of_the_destination_is_another_one_although_it_has_the_same_name() {
        let socket = Target::Vhost("/srv/loadline/vhost/v.sock".into());
        assert!(is_other(&socket, &socket.clone()));
        let path = Target::Path("/dev/sdb".into());
        assert!(!is_other(&path, &path.clone()));
    }

    #[test]
    fn a_machine_that_was_about_to_read_something_is_ordered_again_and_not_for_ever() {
        let again = || Err(NotMigrated { why: "it has not read all".into(), again: true });
        let migrated = Migrated { downtime: Duration::from_millis(70), took: Duration::from_millis(500) };
        let (outcome, times) = answered(vec![again(), again(), Ok(migrated)]);
        assert!(matches!(outcome, Ok(Outcome::Migrated(machine, None)) if machine.downtime_ms == 70.0));
        assert_eq!(times, 3);
        let (outcome, times) = answered((0..10).map(|_| again()).collect());
        assert_eq!(
            (outcome.err().as_deref(), times),
            (Some("it has not read all"), MIGRATION_TRIES as usize)
        );
        let (outcome, times) = answered(vec![Err("its destination is gone".to_string().into())]);
        assert_eq!((outcome.err().as_deref(), times), (Some("its destination is gone"), 1));
    }
}
