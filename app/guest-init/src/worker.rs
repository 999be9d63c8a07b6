//! The worker of the machine, as a process of its own.

use std::process::ExitCode;
use std::thread;

use loadline_base::clock::{Nanos, stood_still};
use loadline_fleet::{ErrorKind, FleetError, Inside, WorkerOptions, run_worker};
use serde_json::{Value, json};

/// The socket that leads to the controller.
pub(crate) const CONTROLLER: &str = "/run/controller.sock";
/// The socket that leads to the keeper.
pub(crate) const KEEPER: &str = "/run/keeper.sock";
/// The environment variable with the moment, on the machine's clock, at which the keeper's message arrived, nanoseconds.
pub(crate) const TOLD_AT: &str = "LOADLINE_TOLD_AT";

/// What the keeper said about the worker.
pub(crate) struct Told {
    /// `join`, `token`, `name`, `node` and `acceleration`; `libvirt` if that started the machine.
    pub(crate) worker: Value,
    /// How long ago the machine was started when that was said, nanoseconds.
    pub(crate) since_start_ns: u64,
}

impl Told {
    /// As the worker reads it.
    pub(crate) fn line(&self) -> String {
        json!({ "worker": self.worker, "since_start_ns": self.since_start_ns }).to_string()
    }
}

/// Works until the controller dismisses the worker. The exit code is that of `loadline worker`.
pub(crate) fn run() -> ExitCode {
    let result = options().and_then(|options| {
        let follow = thread::Builder::new().name("clock".into()).spawn(follow_stops);
        follow.map_err(|e| FleetError::failed(format!("a thread cannot be started: {e}")))?;
        run_worker(options, &mut |_| {})
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("loadline: {}", error.message);
            ExitCode::from(match error.kind {
                ErrorKind::Usage => 2,
                ErrorKind::Failed => 1,
                ErrorKind::Limit => 99,
                ErrorKind::Interrupted => 130,
            })
        }
    }
}

/// Hears how long the machine has stood still, nanoseconds in a line each, until process 1 is gone.
fn follow_stops() {
    let lines = std::io::stdin().lines().map_while(Result::ok);
    lines.filter_map(|line| line.parse().ok()).for_each(|length| stood_still(Nanos(length)));
}

fn options() -> Result<WorkerOptions, FleetError> {
    let wrong =
        |what: &str| FleetError::failed(format!("the keeper of this virtual machine did not say {what}"));
    let mut text = String::new();
    let read = std::io::stdin().read_line(&mut text);
    read.map_err(|e| FleetError::failed(format!("what the keeper said cannot be read: {e}")))?;
    let told: Value = serde_json::from_str(&text).map_err(|_| wrong("what the worker is"))?;
    let word = |name: &str| told["worker"][name].as_str().map(str::to_string).ok_or_else(|| wrong(name));
    let told_at: u64 = std::env::var(TOLD_AT).ok().and_then(|text| text.parse().ok()).unwrap_or_default();
    let since_start = told["since_start_ns"].as_u64().unwrap_or_default();
    Ok(WorkerOptions {
        join: word("join")?,
        token: word("token")?,
        name: Some(word("name")?),
        node: Some(word("node")?),
        cpus: None,
        cgroups: Vec::new(),
        child: false,
        inside: Some(Inside {
            controller: CONTROLLER.into(),
            keeper: KEEPER.into(),
            told_at: Nanos(told_at),
            since_start: Nanos(since_start),
            acceleration: word("acceleration")?,
            libvirt: word("libvirt").ok(),
        }),
    })
}
