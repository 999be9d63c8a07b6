//! A new life of the node's process begins: what it is in the cluster, and the threads of its data path.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use loadline_base::limits::STACK;
use loadline_san_protocol::ClusterId;

use super::NodeError;
use super::leaving::kept_by;
use crate::config::catalog::{self, Catalog, Cluster, change};
use crate::config::{ConfigError, ConfigStore};
use crate::event_loop::command::LoopEvent;
use crate::event_loop::{EventLoop, LoopOptions, LoopSender};

/// How long loops poll before they sleep, if there are cores to spare.
const SPIN: Duration = Duration::from_micros(50);

/// How long loops poll before they sleep. If each loop has a core, and one more is left for clients, polling is cheaper
/// than being woken; otherwise polling takes the core from the thread whose work is polled for.
pub(super) fn spin(declared: Option<u64>, loops: u32) -> Duration {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let spare = cores > loops as usize;
    declared.map_or(if spare { SPIN } else { Duration::ZERO }, Duration::from_micros)
}

/// The cluster, and the node of this name in it.
pub(super) fn who_is(
    store: &mut dyn ConfigStore,
    name: &str,
) -> Result<Option<(Cluster, catalog::Node)>, ConfigError> {
    let catalog = Catalog::read(store)?;
    let missing = || ConfigError::Broken { key: "cluster".into(), why: "there is none".into() };
    let (cluster, _) = catalog.cluster.clone().ok_or_else(missing)?;
    Ok(catalog.node(name).map(|(_, node)| (cluster, node.clone())))
}

pub(super) fn cluster_id(cluster: &Cluster) -> Result<ClusterId, ConfigError> {
    let why = "its id is no hexadecimal number".into();
    let number = u128::from_str_radix(&cluster.id, 16);
    Ok(ClusterId(number.map_err(|_| ConfigError::Broken { key: "cluster".into(), why })?))
}

/// Gives the node a new incarnation, which is this process. None if the configuration has no node of this name.
pub(super) fn begin_life(
    store: &mut dyn ConfigStore,
    name: &str,
) -> Result<Option<(u32, catalog::Node)>, ConfigError> {
    for _ in 0..16 {
        let catalog = Catalog::read(store)?;
        let Some((id, _)) = catalog.node(name) else { return Ok(None) };
        let (mut node, version) = catalog.nodes[&id].clone();
        let kept: BTreeSet<u64> =
            node.keeps.iter().copied().filter(|volume| kept_by(&catalog, *volume) == Some(id)).collect();
        // Greater than that of any life before, also if the store was restored from an older copy.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        node.incarnation = now.max(node.incarnation + 1);
        (node.stopping, node.keeps) = (false, kept);
        if store.commit(&[change(format!("node/{id}"), Some(version), &node)])? {
            return Ok(Some((id, node)));
        }
    }
    Err(ConfigError::Contended)
}

/// Starts the thread of a loop, and waits until it is made.
pub(super) fn start_loop(
    options: LoopOptions,
    report: tokio::sync::mpsc::UnboundedSender<(u32, LoopEvent)>,
) -> Result<LoopSender, NodeError> {
    let (commands, receiver) = EventLoop::commands()?;
    let for_loop = (commands.clone(), receiver);
    let (made, is_made) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name(format!("loop-{}", options.number)).stack_size(STACK);
    thread.spawn(move || {
        let number = options.number;
        let to_control = report.clone();
        let on_event = Box::new(move |event| _ = to_control.send((number, event)));
        match EventLoop::new(options, for_loop, on_event) {
            Ok(made_loop) => {
                let _ = made.send(None);
                if let Err(error) = made_loop.run() {
                    tracing::error!(number, "the data path has ended: {error}");
                }
            }
            Err(error) => _ = made.send(Some(error)),
        }
        let _ = report.send((number, LoopEvent::Ended));
    })?;
    match is_made.recv().unwrap_or(None) {
        None => Ok(commands),
        Some(error) => Err(error.into()),
    }
}
