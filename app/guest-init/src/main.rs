//! The first process of a virtual machine: it makes the machine ready, starts the worker as its child, and relays between the worker
//! and the machine's keeper. When the worker has ended, it turns the machine off. In a machine for a session it starts a shell or a command,
//! or checks the disk, in place of the worker.
//!
//! The worker is a process of its own, so that the keeper hears how it ended.

mod boot;
mod check;
mod partitions;
mod program;
mod relay;
mod shell;
mod terminal;
mod unmount;
mod worker;

use std::process::ExitCode;

/// The argument with which this program runs as the worker.
const WORKER: &str = "worker";

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(WORKER) {
        return worker::run();
    }
    if std::process::id() != 1 {
        eprintln!(
            "guest-init is the first process of a virtual machine, which loadline starts: there is no use for it elsewhere"
        );
        return ExitCode::from(2);
    }
    let result = boot::prepare().and_then(|()| match boot::wants_shell() {
        true => shell::run(),
        false => relay::run(),
    });
    if let Err(error) = result {
        // It is the last line of the console, which the keeper shows.
        eprintln!("guest-init: {error}");
    }
    boot::power_off()
}
