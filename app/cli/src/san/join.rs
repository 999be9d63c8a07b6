//! `loadline san join`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use loadline_san_export::front_ends::{Endpoint, Protocol};
use loadline_san_node::cluster;
use loadline_san_node::config::catalog;
use loadline_san_node::config::url::StoreUrl;
use loadline_san_node::identity::token::Token;
use loadline_san_node::settings::NodeSettings;

use super::service::{STATE, Unit};
use crate::output::{print_error, print_line};
use crate::process::exit::Exit;
use crate::process::secret::TokenFile;

/// Add a node to a cluster: make the node's folder with its node.toml.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline san join /srv/loadline/cluster.db --name node-1 --folder /srv/loadline/node-1 --address 127.0.0.1\n  \
    loadline san join etcd://10.0.0.1,10.0.0.2,10.0.0.3 --name node-2 --folder /srv/loadline --address 10.0.0.2 --token-file token\n  \
    loadline san join etcd://10.0.0.1,10.0.0.2,10.0.0.3 --name node-3 --address 10.0.0.3 --token-file token \
    --service\n  \
    loadline san serve --config /srv/loadline/node-1/node.toml")]
pub(super) struct Join {
    /// The configuration store of the cluster, as given to 'loadline san init'.
    cluster: StoreUrl,
    /// The node's name.
    #[arg(long)]
    name: String,
    /// The node's folder, with its settings, its identity and its sockets. [default: /var/lib/loadline/NAME]
    #[arg(long)]
    folder: Option<PathBuf>,
    /// The address at which the node listens, and by which all other nodes reach it. This host must have it already, and
    /// it cannot be changed later. Each node of a machine needs an address of its own: 127.0.0.1, 127.0.0.2, ... [default: 127.0.0.1 if the
    /// configuration store is a file; required if it is an etcd]
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// The port of the node's API.
    #[arg(long, value_name = "PORT", default_value_t = 7400)]
    api_port: u16,
    /// The port to which other nodes connect.
    #[arg(long, value_name = "PORT", default_value_t = 7401)]
    peer_port: u16,
    /// The port to which clients of a protocol connect, such as nbd=10809. [default: the standard port of the
    /// protocol]
    #[arg(long = "port", value_name = "PROTOCOL=PORT", value_parser = protocol_port)]
    ports: Vec<(Protocol, u16)>,
    /// The token by which the node joins a cluster whose nodes authenticate each other. 'loadline san init' prints
    /// one for the first node, and 'loadline san token' makes one for each further node. Every user of this host can read
    /// a token on a command line: use --token-file, or LOADLINE_JOIN_TOKEN. @FILE reads the token from a file, too.
    #[arg(long, value_name = "TOKEN", env = "LOADLINE_JOIN_TOKEN", hide_env_values = true)]
    token: Option<String>,
    #[command(flatten)]
    token_file: TokenFile,
    /// Run the node as a service of systemd: write a unit for the folder, enable it and start it, as 'loadline san service' does.
    /// If that cannot be done on this host, the node does not join.
    #[arg(long)]
    service: bool,
    /// A further name of the node's host that clients of the API may use, besides the host's own name. The option can be
    /// given several times.
    #[arg(long = "api-name", value_name = "NAME")]
    api_names: Vec<String>,
}

/// The token that was given, or that is in the file which was named.
fn token_of(text: &str) -> Result<Token, String> {
    match text.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?.parse(),
        None => text.parse(),
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
    let Some(address) =
        args.address.or((!args.cluster.is_remote()).then_some(IpAddr::V4(Ipv4Addr::LOCALHOST)))
    else {
        return print_error(
            Exit::Usage,
            "--address: give the address of this host by which the other nodes reach it",
        );
    };
    let at = |port| SocketAddr::new(address, port);
    let node = catalog::Node {
        name: args.name.clone(),
        api: at(args.api_port),
        peer: at(args.peer_port),
        endpoints: endpoints(address, &args.ports),
        incarnation: 0,
        certificates: Vec::new(),
        draining: false,
        maintenance: false,
        stopping: false,
        keeps: Default::default(),
    };
    let settings = NodeSettings {
        name: args.name.clone(),
        cluster: args.cluster.clone().absolute(),
        folder: args.folder.as_deref().map_or_else(|| Path::new(STATE).join(&args.name), absolute),
        spin_us: None,
        client_wait_s: None,
        api_names: args.api_names.clone(),
        test_faults: false,
    };
    let token = match args.token_file.or(args.token.as_deref()) {
        Ok(token) => token,
        Err(why) => return print_error(Exit::Usage, &why),
    };
    let token = match token.as_deref().map(token_of).transpose() {
        Ok(token) => token,
        Err(why) => return print_error(Exit::Usage, &format!("the token: {why}")),
    };
    let unit = args.service.then(|| {
        let file = settings.folder.join("node.toml");
        Unit::plan(&settings.name, &file, &settings.folder, &settings.cluster)
    });
    let unit = match unit.transpose() {
        Ok(unit) => unit,
        Err(why) => return print_error(Exit::Usage, &format!("--service: {why}. The node has not joined")),
    };
    match cluster::join(settings, node, token.as_ref()) {
        Ok(file) => {
            if let Some(unit) = unit {
                print_line!("node {} is in the cluster", args.name);
                return match unit.start() {
                    Ok(()) => {
                        print_line!("{}", unit.done());
                        Exit::Done
                    }
                    Err(why) => print_error(Exit::Failed, &why),
                };
            }
            print_line!(
                "node {} is in the cluster; next: loadline san serve --config {}",
                args.name,
                file.display()
            );
            Exit::Done
        }
        Err(why) => print_error(Exit::Usage, &why.to_string()),
    }
}
