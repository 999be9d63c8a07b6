//! The end of a machine: it is stopped and deleted with its disks, if the run made it.

use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::api::{Api, CallError, encoded};
use crate::error::ProxmoxError;
use crate::ownership::{find, is_of_run};
use crate::task::Task;

/// How long a removal that fails is tried again: another task may have the machine's lock, or its node may be gone for a moment.
const RETRY_LIMIT: Duration = Duration::from_secs(180);
/// The same, if the token may not see the machine: it is in no pool yet, or not any more.
const UNSEEN_LIMIT: Duration = Duration::from_secs(10);
/// The pause before it is tried again.
const PAUSE: Duration = Duration::from_secs(2);
/// A clone that was asked for without an answer is there after so long, or is not made: longer than a call may take.
const CLONE_APPEARS: Duration = Duration::from_secs(60);

/// A machine that was made, or may have been.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) vmid: u32,
    /// The node on which it was to be.
    pub(crate) node: String,
    pub(crate) clone: CloneState,
}

/// How far the clone of a machine is, as far as it is known.
#[derive(Debug, Clone)]
pub(crate) enum CloneState {
    /// It was asked for at this moment, and there is no answer.
    Asked(SystemTime),
    /// This task makes it, or has made it.
    Task(Task),
    /// It is made, or was refused.
    Ended,
}

impl CloneState {
    /// Ends the clone if it goes on. The error says why it may go on all the same: until it has ended, a machine that is absent may come.
    fn end(&self, api: &Api) -> Result<(), String> {
        match self {
            CloneState::Ended => Ok(()),
            CloneState::Task(task) => match task.abort(api) {
                true => Ok(()),
                false => Err(format!("the task {} that clones it does not end", task.name())),
            },
            CloneState::Asked(at) => match at.elapsed() {
                Ok(past) if past < CLONE_APPEARS => {
                    Err("Proxmox VE has not answered whether it clones the machine".into())
                }
                _ => Ok(()),
            },
        }
    }
}

/// The removal of machines of one run.
pub(crate) struct Removal<'a> {
    /// An API whose waits no request to stop ends.
    pub(crate) api: &'a Api,
    pub(crate) run: &'a str,
    /// When it is given up.
    pub(crate) until: Instant,
    /// Gets messages for people.
    pub(crate) tell: &'a (dyn Fn(String) + Sync),
}

/// Why an attempt failed.
struct Failure {
    error: ProxmoxError,
    /// How long after the first attempt it is tried again.
    retry: Duration,
}

impl Failure {
    /// Something that may be otherwise a moment later.
    fn passing(error: ProxmoxError) -> Failure {
        Failure { error, retry: RETRY_LIMIT }
    }

    /// The machine could not be looked at.
    fn unseen(error: CallError) -> Failure {
        let retry = if error.is_forbidden() { UNSEEN_LIMIT } else { RETRY_LIMIT };
        Failure { error: error.into(), retry }
    }

    /// What the token may not do, it may not do later either.
    fn refused(error: CallError) -> Failure {
        let retry = if error.is_forbidden() { Duration::ZERO } else { RETRY_LIMIT };
        Failure { error: error.into(), retry }
    }
}

/// What attempts have found and done so far.
#[derive(Default)]
struct Progress {
    /// The machine was seen to be the run's.
    is_ours: bool,
    is_deleted: bool,
}

impl Removal<'_> {
    /// Stops and deletes a machine of the run, with its disks, its backup jobs and its permissions. A machine that is not there, or that the
    /// run did not make, is left alone, and that is no error. Returns whether it was deleted.
    pub(crate) fn remove(&self, machine: &Made) -> Result<bool, ProxmoxError> {
        let began = Instant::now();
        let mut progress = Progress::default();
        let mut is_told = false;
        let (vmid, run) = (machine.vmid, self.run);
        if began >= self.until {
            return Err(ProxmoxError::failed(format!(
                "run {run} may have left VM {vmid}, for which no time was left: 'loadline fleet clean STUDY.toml --run {run}' deletes it"
            )));
        }
        loop {
            // Whatever it is, also a node that is gone for a moment, the next attempt begins with what is there then.
            let failure = match self.attempt(machine, &mut progress) {
                Ok(is_deleted) => return Ok(is_deleted),
                Err(failure) => failure,
            };
            let why = &failure.error.message;
            let limit = (began + failure.retry).min(self.until);
            if Instant::now() >= limit {
                let message = match progress.is_ours {
                    true => format!(
                        "VM {vmid} of run {run} is left ({why}): delete it by 'loadline fleet clean STUDY.toml --run {run}', or on its node with \
                         'qm stop {vmid}; qm destroy {vmid} --purge' (and 'qm unlock {vmid}' before, if a lock is in the way)"
                    ),
                    // Another user's machine may have this VMID by now.
                    false => format!(
                        "run {run} may have left VM {vmid}, which could not be looked at ({why}): if its name and its description both carry \
                         {run}, delete it by 'loadline fleet clean STUDY.toml --run {run}'"
                    ),
                };
                return Err(ProxmoxError { message, ..failure.error });
            }
            if !std::mem::replace(&mut is_told, true) {
                let left = limit.saturating_duration_since(Instant::now()).as_secs();
                (self.tell)(format!(
                    "VM {vmid} of run {run} cannot be deleted yet ({why}): trying again for {left} s"
                ));
            }
            self.api.stop().wait(PAUSE);
        }
    }

    fn attempt(&self, machine: &Made, progress: &mut Progress) -> Result<bool, Failure> {
        let Removal { api, run, until, .. } = *self;
        // Before the look: what is absent then does not come any more.
        let ended = machine.clone.end(api);
        let Some((node, config)) = find(api, machine.vmid, &machine.node).map_err(Failure::unseen)? else {
            return match ended {
                Ok(()) => Ok(progress.is_deleted),
                Err(why) => Err(Failure::passing(ProxmoxError::failed(why))),
            };
        };
        if !is_of_run(&config, run) {
            // Its name may come a moment after the machine, which is then locked by its clone.
            return match config.get("lock").is_some() && config.get("name").is_none() {
                true => {
                    Err(Failure::passing(ProxmoxError::failed(format!("it is locked ({})", config["lock"]))))
                }
                false => Ok(progress.is_deleted),
            };
        }
        progress.is_ours = true;
        let path = |rest: &str| format!("/nodes/{}/qemu/{}{rest}", encoded(&node), machine.vmid);
        let done = |answer: &Value| {
            Task::of(answer)
                .and_then(|task| task.map_or(Ok(()), |task| task.follow(api, until)))
                .map_err(Failure::passing)
        };
        let status = api.get(&path("/status/current"), &[], "VM.Audit on the machine");
        if status.map_err(Failure::unseen)?["status"] != "stopped" {
            let stop = api.post(&path("/status/stop"), &[], "VM.PowerMgmt on the machine");
            done(&stop.map_err(Failure::refused)?)?;
            // That took a while, in which a person may have made the machine its own.
            match find(api, machine.vmid, &node).map_err(Failure::unseen)? {
                Some((now, config)) if now == node && is_of_run(&config, run) => {}
                Some((_, config)) if is_of_run(&config, run) => {
                    return Err(Failure::passing(ProxmoxError::failed("it has moved to another node")));
                }
                _ => return Ok(false),
            }
        }
        let deleted = api.delete(&path(""), &[("purge", "1".into())], "VM.Allocate on the machine");
        done(&deleted.map_err(Failure::refused)?)?;
        progress.is_deleted = true;
        match find(api, machine.vmid, &node) {
            Ok(Some((_, config))) if is_of_run(&config, run) => Err(Failure::passing(ProxmoxError::failed(
                "Proxmox VE reported that it is deleted, and it is still there",
            ))),
            // Another user, whose machines the token may not see, has the VMID already.
            Err(error) if !error.is_forbidden() => Err(Failure::unseen(error)),
            _ => Ok(true),
        }
    }
}
