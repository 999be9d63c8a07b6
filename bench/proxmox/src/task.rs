//! Tasks of Proxmox VE: what takes longer than an answer may, followed until its end.

use std::time::{Duration, Instant};

use loadline_base::units::TimeSpan;
use serde_json::Value;

use crate::api::{Api, encoded};
use crate::error::{ErrorKind, ProxmoxError};

/// The shortest and the longest pause between two questions whether a task has ended.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// How long a task may take to end that is told to.
const ABORT_LIMIT: Duration = Duration::from_secs(60);
/// So many lines of a task's log are in a message.
const LINES: usize = 4;
/// So many questions in a row may be without a good answer.
const MOST_FAILURES: u32 = 5;

/// The name of a task: `UPID:NODE:PID:PSTART:STARTTIME:TYPE:ID:USER:`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Task {
    upid: String,
    /// The node on which it runs.
    node: String,
}

impl Task {
    /// The task that an answer names. `None` if it names none: what was asked for is done.
    pub(crate) fn of(answer: &Value) -> Result<Option<Task>, ProxmoxError> {
        if answer.is_null() {
            return Ok(None);
        }
        let upid = answer.as_str().unwrap_or_default();
        let parts: Vec<&str> = upid.split(':').collect();
        match parts[..] {
            ["UPID", node, ..] if parts.len() >= 8 && !node.is_empty() => {
                Ok(Some(Task { upid: upid.into(), node: node.into() }))
            }
            _ => Err(ProxmoxError::failed(format!(
                "Proxmox VE answered {answer} where the name of a task (UPID:...) is expected"
            ))),
        }
    }

    fn path(&self, rest: &str) -> String {
        format!("/nodes/{}/tasks/{}{rest}", encoded(&self.node), encoded(&self.upid))
    }

    /// Waits until the task has ended. If it has not within `wait` after `began`, or on a request to stop, it is aborted. It is an error if the
    /// task did not succeed; the error has the last lines of its log.
    pub(crate) fn wait(&self, api: &Api, began: Instant, wait: TimeSpan) -> Result<(), ProxmoxError> {
        match self.ended(api, began + wait.0)? {
            Waited::Ended(status) => self.judge(api, &status),
            Waited::Stopped => {
                self.abort(api);
                Err(ProxmoxError::interrupted())
            }
            Waited::Late => {
                self.abort(api);
                Err(ProxmoxError::failed(format!(
                    "the task {} on node {} did not end within {wait} (wait in [fleet.proxmox]), and was aborted{}",
                    self.upid,
                    self.node,
                    self.said(api)
                )))
            }
        }
    }

    /// Waits until the task has ended, up to this moment. The task is never aborted: half a deletion is worse than a late one.
    pub(crate) fn follow(&self, api: &Api, until: Instant) -> Result<(), ProxmoxError> {
        match self.ended(api, until)? {
            Waited::Ended(status) => self.judge(api, &status),
            Waited::Late | Waited::Stopped => Err(ProxmoxError::failed(format!(
                "the task {} on node {} still runs, and is not waited for any longer{}",
                self.upid,
                self.node,
                self.said(api)
            ))),
        }
    }

    /// Waits for the end of the task. It is an error if the task's status cannot be read several times in a row.
    fn ended(&self, api: &Api, until: Instant) -> Result<Waited, ProxmoxError> {
        let mut pause = PAUSES.0;
        let mut failures = 0;
        loop {
            match api.get(&self.path("/status"), &[], "to be the task's owner") {
                Ok(status) if status["status"] == "stopped" => return Ok(Waited::Ended(status)),
                Ok(_) => failures = 0,
                Err(error) => {
                    failures += 1;
                    let error = ProxmoxError::from(error);
                    if failures >= MOST_FAILURES || error.kind == ErrorKind::Usage {
                        return Err(ProxmoxError {
                            message: format!("the task {} is lost: {}", self.upid, error.message),
                            ..error
                        });
                    }
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Waited::Late);
            }
            if api.stop().wait(pause.min(left)) {
                return Ok(Waited::Stopped);
            }
            pause = PAUSES.1.min(pause * 3 / 2);
        }
    }

    fn judge(&self, api: &Api, status: &Value) -> Result<(), ProxmoxError> {
        let exit = status["exitstatus"].as_str().unwrap_or("without a status");
        // Warnings are for its log: what was asked for is done.
        if exit == "OK" || exit.starts_with("WARNINGS") {
            return Ok(());
        }
        Err(ProxmoxError::failed(format!(
            "the task {} on node {} failed: {exit}{}",
            self.upid,
            self.node,
            self.said(api)
        )))
    }

    /// The last lines of the task's log, as an end of a sentence.
    fn said(&self, api: &Api) -> String {
        let limit = [("limit", "500".to_string())];
        let log = api.to_clean().get(&self.path("/log"), &limit, "to be the task's owner");
        let lines = log.ok().and_then(|log| log.as_array().cloned()).unwrap_or_default();
        let lines: Vec<&str> =
            lines.iter().filter_map(|line| line["t"].as_str()).filter(|line| !line.is_empty()).collect();
        match lines.len() {
            0 => String::new(),
            count => format!("; the end of its log: {}", lines[count.saturating_sub(LINES)..].join(" | ")),
        }
    }

    /// Aborts the task unless it has ended, and waits for its end, for a minute at most. Returns whether it has ended.
    pub(crate) fn abort(&self, api: &Api) -> bool {
        let api = api.to_clean();
        let deadline = Instant::now() + ABORT_LIMIT;
        let mut is_told = false;
        loop {
            match api.get(&self.path("/status"), &[], "to be the task's owner") {
                Ok(status) if status["status"] != "running" => return true,
                // The node does not know the task any more: it was started again meanwhile.
                Err(error) if !error.is_passing() => return true,
                _ => {}
            }
            if Instant::now() >= deadline {
                return false;
            }
            if !is_told {
                // If it has ended meanwhile, that is as good.
                is_told = api.delete(&self.path(""), &[], "to be the task's owner").is_ok();
            }
            api.stop().wait(PAUSES.0 * 2);
        }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.upid
    }
}

/// What the wait for a task has come to.
enum Waited {
    /// It has ended, with this status.
    Ended(Value),
    /// The time is over, and it runs.
    Late,
    /// A request to stop ended the wait, and it runs.
    Stopped,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_task_is_on_the_node_that_its_name_says() {
        let upid = "UPID:pve2:001E2A3B:0A1B2C3D:68000000:qmclone:9000:bench@pve!load:";
        let task = Task::of(&json!(upid)).unwrap().unwrap();
        assert!(
            task.path("/status").starts_with("/nodes/pve2/tasks/UPID%3Apve2"),
            "{}",
            task.path("/status")
        );
        assert_eq!(Task::of(&Value::Null), Ok(None));
        for wrong in [json!("UPID:"), json!({}), json!("OK")] {
            assert!(Task::of(&wrong).unwrap_err().message.contains("UPID"), "{wrong}");
        }
    }
}
