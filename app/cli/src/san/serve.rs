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

/// How long after the configuration store did not answer it is asked again.
const AGAIN: Duration = Duration::from_secs(1);

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
    // Its path, before an upgrade puts another file there.
    let program = std::env::current_exe();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().thread_stack_size(STACK).build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(why) => return print_error(Exit::Failed, &why.to_string()),
    };
    runtime.block_on(async {
        let (node, serving) = match start(settings, &stop).await {
            Ok(Some(started)) => started,
            Ok(None) => return Exit::Done,
            Err(why) => return print_error(Exit::Usage, &why.to_string()),
        };
        print_line!("node {} serves", node.name());
        let mut serving = std::pin::pin!(serving);
        let next = tokio::select! {
            why = &mut serving => Next::End(print_error(Exit::Failed, &why.to_string())),
            () = until(&stop) => Next::End(Exit::Done),
            () = node.restart_ordered() => Next::Restart,
        };
        if !matches!(next, Next::End(Exit::Failed)) {
            tokio::select! {
                _ = &mut serving => {}
                () = node.leave() => {}
            }
        }
        node.stop();
        match next {
            Next::End(exit) => exit,
            Next::Restart => restart(program),
        }
    })
}

/// What comes after a node has served.
enum Next {
    End(Exit),
    Restart,
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
                tokio::time::sleep(AGAIN).await;
            }
            started => return started.map(Some),
        }
    }
    Ok(None)
}

/// Until the flag is set.
pub(super) async fn until(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
