//! The end of a machine: it is stopped and deleted with its disks, if the run made it.

use std::time::{Duration, Instant};

use crate::api::{Api, encoded};
use crate::error::ProxmoxError;
use crate::ownership::{find, is_of_run};
use crate::task::Task;

/// How long the removal of one machine is tried.
const REMOVAL_LIMIT: Duration = Duration::from_secs(180);
/// How long one task of it may take.
const TASK_LIMIT: Duration = Duration::from_secs(120);
/// The pause before it is tried again: another task may have the machine's lock.
const PAUSE: Duration = Duration::from_secs(2);

/// Stops and deletes a machine of a run, with its disks, its backup jobs and its permissions. A machine that is not there, or that the run
/// did not make, is left alone, and that is no error. Returns whether it was deleted.
pub(crate) fn remove(api: &Api, run: &str, vmid: u32, likely: &str) -> Result<bool, ProxmoxError> {
    let began = Instant::now();
    let mut is_ours = false;
    loop {
        match attempt(api, run, vmid, likely, &mut is_ours) {
            Ok(is_deleted) => return Ok(is_deleted),
            // Whatever it is, also a node that is gone for a moment, the next attempt begins with what is there then.
            Err(error) if began.elapsed() >= REMOVAL_LIMIT || error.message.contains("lacks") => {
                let why = &error.message;
                let message = match is_ours {
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
                return Err(ProxmoxError { message, ..error });
            }
            Err(_) => drop(api.stop().wait(PAUSE)),
        }
    }
}

/// `is_ours` becomes true once the machine was seen to be the run's.
fn attempt(api: &Api, run: &str, vmid: u32, likely: &str, is_ours: &mut bool) -> Result<bool, ProxmoxError> {
    let Some((node, config)) = find(api, vmid, likely)? else { return Ok(false) };
    if !is_of_run(&config, run) {
        // Its name may come a moment after the machine, which is then locked by its clone.
        return match config.get("lock").is_some() && config.get("name").is_none() {
            true => Err(ProxmoxError::failed(format!("it is locked ({})", config["lock"]))),
            false => Ok(false),
        };
    }
    *is_ours = true;
    let path = |rest: &str| format!("/nodes/{}/qemu/{vmid}{rest}", encoded(&node));
    let done =
        |answer: &serde_json::Value| Task::of(answer)?.map_or(Ok(()), |task| task.wait(api, TASK_LIMIT));
    let status = api.get(&path("/status/current"), &[], "VM.Audit on the machine")?;
    if status["status"] != "stopped" {
        done(&api.post(&path("/status/stop"), &[], "VM.PowerMgmt on the machine")?)?;
    }
    done(&api.delete(&path(""), &[("purge", "1".into())], "VM.Allocate on the machine")?)?;
    match find(api, vmid, &node) {
        Ok(Some((_, config))) if is_of_run(&config, run) => {
            Err(ProxmoxError::failed("Proxmox VE said that it is deleted, and it is still there"))
        }
        // A machine that is gone is in no pool: a token with rights on the pool alone is not told that it is gone.
        Err(error) if error.status != Some(403) => Err(error.into()),
        _ => Ok(true),
    }
}
