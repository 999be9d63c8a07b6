//! `loadline san serve`.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use loadline_base::limits::STACK;
use loadline_san_node::config::ConfigError;
use loadline_san_node::node::{Node, NodeError};
use loadline_san_node::settings::NodeSettings;

use crate::output::{print_error, print_line};
use crate::process::exit::Exit;
use crate::process::interrupt;
use crate::process::log::LogArgs;
use crate::process::notify::Manager;

/// How long after the configuration store did not answer it is asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a node that waits for its configuration store may take until it is ready, from each of its reports on. One attempt takes less.
const STARTS: Duration = Duration::from_secs(90);
/// In the time after which a service manager ends a silent node, the node is checked so many times.
const CHECKS: u32 = 4;

/// Run a node.
#[derive(clap::Args)]
#[command(
    after_help = "A node needs io_uring of Linux 5.15 or newer. It runs faster on 6.1 or newer, and is tested only on 6.18. If a container refuses io_uring, allow \
                        io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile (Docker: --security-opt seccomp=PROFILE.json), and check that kernel.io_uring_disabled is 0."
)]
pub(super) struct Serve {
    /// The node.toml that 'loadline san join' wrote for this node.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// End, as by kill -9, when the process that started it is gone, which is this one: of a cluster for one run.
    #[arg(long, hide = true, value_name = "PID")]
    with_parent: Option<i32>,
    #[command(flatten)]
    log: LogArgs,
}

pub(super) fn serve(args: &Serve) -> Exit {
    args.log.begin();
    if let Some(parent) = args.with_parent {
        let bound = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
        // The signal comes only for a death that is still ahead.
        if bound.is_err() || nix::unistd::getppid().as_raw() != parent {
            return print_error(Exit::Failed, "the process that started this node has ended");
        }
    }
    let settings = match NodeSettings::read(&args.config) {
        Ok(settings) => settings,
        Err(why) => return print_error(Exit::Usage, &why.to_string()),
    };
    // A node of which a part is missing would look alive and not serve: others take over from one that is gone.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        hook(panic);
        std::process::abort();
    }));
    let stop = interrupt::flag();
    let program = own_program();
    let manager = Manager::of_environment();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().thread_stack_size(STACK).build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(why) => return print_error(Exit::Failed, &why.to_string()),
    };
    runtime.block_on(async {
        let (node, serving) = match start(settings, &stop, &manager).await {
            Ok(Some(started)) => started,
            Ok(None) => {
                manager.stopping("stops");
                return Exit::Done;
            }
            Err(why) => {
                manager.status(&why.to_string());
                return print_error(Exit::Usage, &why.to_string());
            }
        };
        print_line!("node {} serves", node.name());
        let mut serving = std::pin::pin!(serving);
        let next = tokio::select! {
            why = &mut serving => {
                manager.stopping(&why.to_string());
                // Of a node that was removed on purpose nothing is to be started again.
                let exit = if matches!(why, NodeError::Removed(_)) { Exit::Done } else { Exit::Failed };
                Next::Ended(print_error(exit, &why.to_string()))
            }
            () = until(&stop) => {
                manager.stopping(&format!("node {} hands its volumes over and stops", node.name()));
                Next::Stop
            }
            () = node.restart_ordered() => {
                manager.status(&format!("node {} hands its volumes over and starts again", node.name()));
                Next::Restart
            }
            never = report(&node, &manager) => Next::Ended(never),
        };
        if !matches!(next, Next::Ended(_)) {
            tokio::select! {
                _ = &mut serving => {}
                () = node.leave() => {}
            }
        }
        node.stop();
        match next {
            Next::Ended(exit) => exit,
            Next::Stop => Exit::Done,
            // It was ordered to stop meanwhile.
            Next::Restart if stop.load(Ordering::Relaxed) => Exit::Done,
            Next::Restart => restart(program),
        }
    })
}

/// What comes after a node has served.
enum Next {
    /// It serves no more: something went wrong, or it was removed.
    Ended(Exit),
    Stop,
    Restart,
}

/// The path by which this program was started, before an upgrade puts another file there: what a link leads to then is started.
fn own_program() -> std::io::Result<PathBuf> {
    match std::env::args_os().next().map(PathBuf::from) {
        Some(named) if named.components().count() > 1 => std::path::absolute(named),
        _ => std::env::current_exe(),
    }
}

/// Replaces this process by one of the program at the same path, with the same arguments: perhaps a newer version. Its id stays the same, so
/// whatever has started it does not notice.
fn restart(program: std::io::Result<PathBuf>) -> Exit {
    let why = match program {
        Ok(program) => std::process::Command::new(program).args(std::env::args_os().skip(1)).exec(),
        Err(why) => why,
    };
    print_error(
        Exit::Failed,
        &format!("the node has stopped, and its program cannot be started again: {why}. Start the node"),
    )
}

/// Starts the node. If its configuration store is on other hosts and does not answer, or refuses this node, the node waits for it: hosts that
/// start together after a loss of power come in any order, and a person may mend the users of an etcd meanwhile. `None` if the node is to stop
/// before the store answers.
async fn start(
    settings: NodeSettings,
    stop: &AtomicBool,
    manager: &Manager,
) -> Result<Option<(Node, impl Future<Output = NodeError>)>, NodeError> {
    let mut reported = None;
    while !stop.load(Ordering::Relaxed) {
        match Node::start(settings.clone()).await {
            Err(NodeError::Config(ConfigError::Unavailable(why) | ConfigError::Refused(why)))
                if settings.cluster.is_remote() =>
            {
                if reported.replace(why.clone()) != Some(why.clone()) {
                    tracing::warn!("the node waits for the configuration store: {why}");
                }
                manager.starting(&format!("waits for the configuration store: {why}"), STARTS);
                tokio::time::sleep(AGAIN).await;
            }
            started => return started.map(Some),
        }
    }
    Ok(None)
}

/// Reports to the service manager when the node serves, and then, as long as no part of the node hangs, that it is alive. A node that
/// hangs is ended by the manager and started again.
async fn report(node: &Node, manager: &Manager) -> Exit {
    node.until_applied().await;
    let serves = format!("node {} serves", node.name());
    manager.ready(&serves);
    let Some(silence) = manager.watchdog() else { return std::future::pending().await };
    let (mut pulse, mut hangs) = (node.pulse(), false);
    loop {
        let hung = pulse.hung(silence / 2);
        if hung.is_none() {
            manager.alive();
        }
        if hung.is_some() != hangs {
            match &hung {
                Some(what) => {
                    tracing::error!(
                        "a thread of this node hangs: {what}. The service manager ends the node if that goes on"
                    );
                    manager.status(&format!("hangs: {what}"));
                }
                None => manager.status(&serves),
            }
        }
        hangs = hung.is_some();
        tokio::time::sleep(silence / CHECKS).await;
    }
}

/// Until the flag is set.
pub(super) async fn until(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
