//! `loadline san init`, `join` and `serve`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use loadline_base::limits::STACK;
use loadline_base::units::TimeSpan;
use loadline_san_export::front_ends::{Endpoint, Protocol};
use loadline_san_node::cluster::{self, Common};
use loadline_san_node::config::catalog;
use loadline_san_node::config::url::StoreUrl;
use loadline_san_node::node::Node;
use loadline_san_node::settings::NodeSettings;

use crate::exit::Exit;
use crate::interrupt;
use crate::log::LogArgs;
use crate::out::{complain, say};

/// Make a cluster without nodes: the store of its configuration, which all its nodes use.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  loadline san init /srv/loadline/cluster.db")]
pub(super) struct Init {
    /// Where the configuration is to be: sqlite:PATH, or only the path of a file that does not exist yet. All nodes of such a
    /// cluster run on this machine.
    cluster: StoreUrl,
    /// How long a node that says nothing is waited for: leases have this length. Shorter ones make for shorter stalls when a
    /// node dies, and for more false alarms.
    #[arg(long, value_name = "TIME", default_value = "600ms")]
    lease: TimeSpan,
    /// Threads of the data path of each node. A volume belongs to one of them, so that several volumes use as many cores.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    loops: u32,
    /// How much may be promised to volumes of each device, per cent of what it has: space is taken only by what is written.
    /// Above 100, writes fail when a device has no more room, whatever the size of a volume.
    #[arg(long, value_name = "PERCENT", default_value_t = 100)]
    overcommit: u32,
}

/// Add a node to a cluster: its folder is made, with its node.toml.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline san join /srv/loadline/cluster.db --name node-1 --folder /srv/loadline/node-1 --address 127.0.0.1\n  \
    loadline san serve --config /srv/loadline/node-1/node.toml")]
pub(super) struct Join {
    /// Where the cluster's configuration is, as given to 'loadline san init'.
    cluster: StoreUrl,
    /// The node's name.
    #[arg(long)]
    name: String,
    /// Its folder.
    #[arg(long)]
    folder: PathBuf,
    /// The address at which it listens. Nodes of one machine have one each: 127.0.0.1, 127.0.0.2, ...
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    address: IpAddr,
    /// The port of its API.
    #[arg(long, value_name = "PORT", default_value_t = 7400)]
    api_port: u16,
    /// The port to which other nodes connect.
    #[arg(long, value_name = "PORT", default_value_t = 7401)]
    peer_port: u16,
    /// The port to which clients of a protocol connect, such as nbd=10809. Not given, it is the protocol's own.
    #[arg(long = "port", value_name = "PROTOCOL=PORT", value_parser = protocol_port)]
    ports: Vec<(Protocol, u16)>,
}

/// Run a node.
#[derive(clap::Args)]
#[command(after_help = "It needs io_uring, of Linux 5.15 or newer, and gains from 6.1; it is tested \
                        on 6.18 only. Where a container refuses it, allow \
                        io_uring_setup, io_uring_enter and io_uring_register in its seccomp profile (Docker: \
                        --security-opt seccomp=PROFILE.json), and see that kernel.io_uring_disabled is 0.")]
pub(super) struct Serve {
    /// Its node.toml, which 'loadline san join' has written.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// End, as by kill -9, when the process that started it is gone, which is this one: of a cluster for one run.
    #[arg(long, hide = true, value_name = "PID")]
    with_parent: Option<i32>,
    #[command(flatten)]
    log: LogArgs,
}

pub(super) fn init(args: &Init) -> Exit {
    let lease_ms = args.lease.0.as_millis() as u64;
    if !(100..=60_000).contains(&lease_ms) {
        return complain(Exit::Usage, "--lease: 100ms to 60s are possible");
    }
    if !(1..=64).contains(&args.loops) {
        return complain(Exit::Usage, "--loops: 1 to 64 are possible");
    }
    if !(100..=10_000).contains(&args.overcommit) {
        return complain(Exit::Usage, "--overcommit: 100 to 10000 per cent are possible");
    }
    let (loops, overcommit) = (args.loops, args.overcommit);
    match cluster::init(&args.cluster, Common { lease_ms, loops, overcommit }) {
        Ok(id) => {
            say!("cluster {id} is made, in {}", args.cluster);
            say!("next: loadline san join {} --name node-1 --folder FOLDER", args.cluster);
            Exit::Done
        }
        Err(why) => complain(Exit::Usage, &why.to_string()),
    }
}

/// A path that means the same from everywhere.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Where clients of each protocol connect over the network.
pub(super) fn endpoints(address: IpAddr, ports: &[(Protocol, u16)]) -> BTreeMap<String, SocketAddr> {
    let port_of = |protocol: Protocol| match protocol.endpoint() {
        Endpoint::Node { port, .. } => {
            let given = ports.iter().rev().find(|(of, _)| *of == protocol);
            Some(given.map_or(port, |(_, port)| *port))
        }
        Endpoint::Volume { .. } => None,
    };
    let all = Protocol::ALL.into_iter();
    all.filter_map(|protocol| Some((protocol.name().into(), SocketAddr::new(address, port_of(protocol)?))))
        .collect()
}

fn protocol_port(text: &str) -> Result<(Protocol, u16), String> {
    let is_network = |protocol: &Protocol| matches!(protocol.endpoint(), Endpoint::Node { .. });
    let known: Vec<&str> = Protocol::ALL.into_iter().filter(is_network).map(Protocol::name).collect();
    let wrong =
        || format!("write PROTOCOL=PORT, such as nbd=10809; protocols with a port: {}", known.join(", "));
    let (name, port) = text.split_once('=').ok_or_else(wrong)?;
    let protocol = Protocol::of_name(name).filter(is_network).ok_or_else(wrong)?;
    match port.parse() {
        Ok(port) if port > 0 => Ok((protocol, port)),
        _ => Err(wrong()),
    }
}

pub(super) fn join(args: &Join) -> Exit {
    let at = |port| SocketAddr::new(args.address, port);
    let node = catalog::Node {
        name: args.name.clone(),
        api: at(args.api_port),
        peer: at(args.peer_port),
        endpoints: endpoints(args.address, &args.ports),
        incarnation: 0,
        draining: false,
    };
    let settings = NodeSettings {
        name: args.name.clone(),
        cluster: args.cluster.clone().absolute(),
        folder: absolute(&args.folder),
        spin_us: None,
        client_wait_s: None,
        test_faults: false,
    };
    match cluster::join(settings, node) {
        Ok(file) => {
            say!(
                "node {} is in the cluster; next: loadline san serve --config {}",
                args.name,
                file.display()
            );
            Exit::Done
        }
        Err(why) => complain(Exit::Usage, &why.to_string()),
    }
}

pub(super) fn serve(args: &Serve) -> Exit {
    args.log.begin();
    if let Some(parent) = args.with_parent {
        let bound = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
        // The signal comes only for a death that is still ahead.
        if bound.is_err() || nix::unistd::getppid().as_raw() != parent {
            return complain(Exit::Failed, "whoever started this node is gone");
        }
    }
    let settings = match NodeSettings::read(&args.config) {
        Ok(settings) => settings,
        Err(why) => return complain(Exit::Usage, &why.to_string()),
    };
    // A node of which a part is missing would look alive and not serve: others take over from one that is gone.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        hook(panic);
        std::process::abort();
    }));
    let stop = interrupt::flag();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().thread_stack_size(STACK).build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(why) => return complain(Exit::Failed, &why.to_string()),
    };
    runtime.block_on(async {
        let (node, serving) = match Node::start(settings).await {
            Ok(started) => started,
            Err(why) => return complain(Exit::Usage, &why.to_string()),
        };
        say!("node {} serves", node.name());
        let ended = tokio::select! {
            why = serving => complain(Exit::Failed, &why.to_string()),
            () = until(&stop) => Exit::Done,
        };
        node.stop();
        ended
    })
}

/// Until the flag is set.
pub(super) async fn until(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
