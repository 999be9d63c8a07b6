//! `loadline san dev`: a cluster on this machine, in one command.

mod suggestion;

use std::ffi::OsStr;
use std::io::BufRead;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loadline_base::limits::STACK;
use loadline_base::units::ByteSize;
use loadline_console::following::Place;
use loadline_san_node::cluster::{self, Common};
use loadline_san_node::config::catalog::{self, Role, Transport};
use loadline_san_node::node::manage::{AddDevice, StatusView};
use loadline_san_node::settings::NodeSettings;
use loadline_target::{NodeNetwork, TargetError, device_models, error, network};

use super::join;
use super::protection::Protection;
use crate::cluster::client::Api;
use crate::console::served::WithConsole;
use crate::output::{eprint_line, print_error, print_line};
use crate::process::exit::Exit;
use crate::process::interrupt;
use crate::process::made::PassingFolder;

/// The ports of a node: of the API, and for other nodes. Those for clients are their protocols'.
const API: u16 = 7400;
const PEERS: u16 = 7401;
/// How long tokens are valid by which nodes join.
const TOKENS: Duration = Duration::from_secs(600);
/// How long a node may take to answer.
const ANSWERS: Duration = Duration::from_secs(20);
/// How long one may take to stop, before it is killed.
const STOPS: Duration = Duration::from_secs(10);

/// Run a cluster for trials on this machine: make its folders, nodes and devices, and stop the cluster at Ctrl-C.
///
/// Node n listens at 127.0.0.n: for commands (the API) at port 7400, for other nodes at 7401, for clients by NBD at 10809 and by iSCSI at
/// 3260. These ports must be free. Commands in another terminal reach the cluster at 127.0.0.1:7400 without any option. With --network
/// 127.0.5.0, set LOADLINE_API=127.0.5.1:7400 there, or give --api.
///
/// Without --folder the command removes everything at the end. With --folder the cluster
/// keeps its data, and the same command with the same folder continues it.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline san dev\n  \
    loadline san dev --nodes 3 --folder ~/san --size 20GiB\n  \
    loadline san dev --model intel-s4500 --log-model intel-p4800x\n  \
    sudo loadline san dev --node-network 119MiB\n\n\
Then, from another terminal:\n  \
    loadline volume create disk --size 1GiB\n  \
    loadline volume attach disk\n  \
    loadline san status\n  \
    loadline san dev --console     with a page that shows the cluster and acts on it")]
pub(super) struct Dev {
    /// The number of nodes.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=32))]
    nodes: u8,
    /// The folder for all files of the cluster. [default: a new folder in the temporary folder]
    #[arg(long)]
    folder: Option<PathBuf>,
    /// The size of each node's device, which is a file.
    #[arg(long, default_value = "4GiB")]
    size: ByteSize,
    /// Make each node's device as slow as a drive's data sheet says, as with 'loadline device add'. So a node that dies takes its
    /// share of the cluster's performance with it. An existing cluster keeps its devices.
    #[arg(long)]
    model: Option<String>,
    /// Give each node a log device too, which behaves as this model says: then --size and --model are those of its capacity device. The path of
    /// a TOML file, or the name of a drive, as for --model. An existing cluster keeps its devices.
    #[arg(long, value_name = "MODEL")]
    log_model: Option<String>,
    /// The size of each node's log device.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", requires = "log_model")]
    log_size: ByteSize,
    /// The network of the nodes' addresses, within 127.0.0.0/8. Two clusters that run at the same time need different
    /// networks.
    #[arg(long, value_name = "IP", default_value = "127.0.0.0")]
    network: Ipv4Addr,
    /// How much each node may send to the other nodes a second, and receive from them, in bytes with the headers of TCP: 119MiB is
    /// about 1 Gbit/s. The nodes are in a network namespace then, and the addresses of their APIs and for clients are reached
    /// as without it; clients are not limited. Needs root, and the commands ip and tc (iproute2).
    #[arg(long, value_name = "SIZE")]
    node_network: Option<ByteSize>,
    /// How connections between the nodes are protected. A cluster on several hosts always protects them; here the
    /// option shows what protection costs. An existing cluster keeps its protection.
    #[arg(long, value_name = "KIND", default_value = "open")]
    transport: Protection,
    #[command(flatten)]
    console: WithConsole,
}

pub(super) fn dev(args: &Dev) -> Exit {
    let stop = interrupt::flag();
    let devices = match NodeDevices::of(args) {
        Ok(devices) => devices,
        Err(why) => return print_error(Exit::Usage, &why),
    };
    if !args.network.is_loopback() || args.network.octets()[3] != 0 {
        return print_error(Exit::Usage, "--network: give 127.x.y.0 with any x and y");
    }
    if let Some(Err(why)) = args.node_network.map(network::check) {
        return print_error(Exit::Usage, &format!("--node-network: {why}"));
    }
    let new = || std::env::temp_dir().join(format!("loadline-san-dev-{}", std::process::id()));
    let folder = args.folder.as_ref().map_or_else(new, |folder| join::absolute(folder));
    let passing = args.folder.is_none().then(|| PassingFolder::new(folder.clone()));
    let mut children = Children(Vec::new());
    let result = serve(args, &folder, &devices, &mut children, &stop);
    children.stop();
    // They are gone before the folder goes.
    drop(children);
    if let Some(passing) = passing {
        match users_of(&folder) {
            users if users.is_empty() => drop(passing),
            users => {
                passing.keep();
                let users: Vec<String> = users.iter().map(u32::to_string).collect();
                eprint_line!(
                    "loadline: {} is kept: nodes that were started by hand still use the folder (processes {}). Stop these nodes, then remove the folder",
                    folder.display(),
                    users.join(", ")
                );
            }
        }
    }
    result.unwrap_or_else(|why| print_error(Exit::Failed, &why))
}

/// The devices that each node gets: one, or a capacity device and a log device.
struct NodeDevices(Vec<AddDevice>);

impl NodeDevices {
    fn of(args: &Dev) -> Result<NodeDevices, String> {
        let find = |model: &Option<String>| {
            model.as_deref().map(device_models::find).transpose().map_err(|why| why.to_string())
        };
        let (model, log_model) = (find(&args.model)?, find(&args.log_model)?);
        let device = |name: &str, size: ByteSize, model, role| AddDevice {
            path: name.into(),
            create: Some(size.bytes()),
            overwrite: false,
            model,
            role,
        };
        let Some(log_model) = log_model else {
            return Ok(NodeDevices(vec![device("device", args.size, model, None)]));
        };
        let log = device("log-device", args.log_size, Some(log_model), Some(Role::Log));
        Ok(NodeDevices(vec![log, device("device", args.size, model, Some(Role::Capacity))]))
    }

    /// The same, in the folder of a node.
    fn in_folder(&self, folder: &Path) -> Vec<AddDevice> {
        let own = |device: &AddDevice| AddDevice { path: folder.join(&device.path), ..device.clone() };
        self.0.iter().map(own).collect()
    }
}

/// Processes that run a node of this folder.
fn users_of(folder: &Path) -> Vec<u32> {
    let own = |entry: &std::fs::DirEntry| -> Option<u32> {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let words = std::fs::read(entry.path().join("cmdline")).ok()?;
        // A path on its command line may be relative to the folder in which the process was started.
        let begun_in = std::fs::read_link(entry.path().join("cwd")).unwrap_or_default();
        let is_of = |word: &[u8]| begun_in.join(OsStr::from_bytes(word)).starts_with(folder);
        let is_node = words.split(|byte| *byte == 0).any(|word| word == b"serve");
        (id != std::process::id() && is_node && words.split(|byte| *byte == 0).any(is_of)).then_some(id)
    };
    std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| own(&entry)).collect()
}

/// The nodes' processes. They are killed if this is dropped.
struct Children(Vec<(String, Child)>);

impl Children {
    /// Sends SIGTERM to the nodes, and waits until they have ended.
    fn stop(&mut self) {
        for (_, child) in &self.0 {
            let pid = nix::unistd::Pid::from_raw(child.id() as i32);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        }
        let until = Instant::now() + STOPS;
        for (_, child) in &mut self.0 {
            while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for (_, child) in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The address of a node.
fn address(network: Ipv4Addr, number: u8) -> Ipv4Addr {
    let [a, b, c, _] = network.octets();
    Ipv4Addr::new(a, b, c, number)
}

/// Why the addresses of a network cannot be used, if so: another cluster has them, or the folder's cluster has others.
fn unusable(args: &Dev, folder: &Path, cluster: &Path) -> Result<Option<String>, String> {
    if cluster.exists() {
        let catalog = cluster::read(&cluster.into()).map_err(|why| why.to_string())?;
        let of_node =
            |number: u8| catalog.node(&format!("node-{number}")).map(|(_, node)| (number, node.api.ip()));
        let mut theirs = (1..=args.nodes).filter_map(of_node);
        if let Some((number, is)) =
            theirs.find(|(number, ip)| *ip != IpAddr::from(address(args.network, *number)))
        {
            return Ok(Some(format!(
                "node-{number} of the cluster in {} has the address {is}: name the network that it was made with (--network), or \
                 another folder",
                folder.display()
            )));
        }
    }
    for number in 1..=args.nodes {
        let ip = IpAddr::from(address(args.network, number));
        let own = [API, PEERS].map(|port| SocketAddr::new(ip, port));
        for at in own.into_iter().chain(join::endpoints(ip, &[]).into_values()) {
            if let Err(why) = TcpListener::bind(at) {
                return Ok(Some(format!(
                    "{at} cannot be used ({why}): another cluster may run there, or another program listens on that port of all \
                     addresses ('ss -ltnp'). Stop it, or give this cluster a network of its own: --network 127.0.{}.0",
                    args.network.octets()[2].wrapping_add(1)
                )));
            }
        }
    }
    Ok(None)
}

/// The network of their own that the nodes get. What clients and `loadline` in other terminals use is forwarded to it.
fn own_network(args: &Dev, per_second: ByteSize) -> Result<NodeNetwork, TargetError> {
    let of_clients = join::endpoints(args.network.into(), &[]).into_values().map(|at| at.port());
    let ports: Vec<u16> = std::iter::once(API).chain(of_clients).collect();
    NodeNetwork::make(per_second, args.network, u32::from(args.nodes), &ports)
}

fn serve(
    args: &Dev,
    folder: &Path,
    devices: &NodeDevices,
    children: &mut Children,
    stop: &AtomicBool,
) -> Result<Exit, String> {
    let cluster = folder.join("cluster.db");
    if let Some(why) = unusable(args, folder, &cluster)? {
        return Ok(print_error(Exit::Usage, &why));
    }
    let own_network = match args.node_network.map(|per_second| own_network(args, per_second)).transpose() {
        Ok(network) => network,
        Err(why) if why.kind == error::ErrorKind::Usage => {
            return Ok(print_error(Exit::Usage, &format!("--node-network: {why}")));
        }
        Err(why) => return Err(why.message),
    };
    let is_new = !cluster.exists();
    let mut token = None;
    if is_new {
        std::fs::create_dir_all(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
        let transport = args.transport.transport();
        let made =
            cluster::init(&cluster.as_path().into(), Common { transport, ..Common::default() }, TOKENS);
        token = made.map_err(|why| why.to_string())?.token;
    }
    let is_protected = match is_new {
        true => token.is_some(),
        false => {
            let catalog = cluster::read(&cluster.as_path().into()).map_err(|why| why.to_string())?;
            catalog.cluster.is_some_and(|(cluster, _)| cluster.transport != Transport::Open)
        }
    };
    let program = std::env::current_exe().map_err(|why| why.to_string())?;
    for number in 1..=args.nodes {
        let name = format!("node-{number}");
        let own = folder.join(&name);
        let file = own.join("node.toml");
        if !file.exists() {
            let at = |port| SocketAddr::from((address(args.network, number), port));
            let (api, peer) = (at(API), at(PEERS));
            let endpoints = join::endpoints(address(args.network, number).into(), &[]);
            let node = catalog::Node {
                name: name.clone(),
                api,
                peer,
                endpoints,
                incarnation: 0,
                certificates: Vec::new(),
                draining: false,
                maintenance: false,
                stopping: false,
                keeps: Default::default(),
            };
            let settings = NodeSettings {
                name: name.clone(),
                cluster: cluster.as_path().into(),
                folder: own,
                // They have one machine together.
                spin_us: Some(0),
                client_wait_s: None,
                api_names: Vec::new(),
                test_faults: true,
            };
            if number > 1 && is_protected {
                let first =
                    NodeSettings::read(&folder.join("node-1/node.toml")).map_err(|why| why.to_string())?;
                token = Some(cluster::invite(&first, TOKENS).map_err(|why| why.to_string())?);
            }
            cluster::join(settings, node, token.as_ref()).map_err(|why| why.to_string())?;
        }
        let mut command = Command::new(&program);
        command.args(["san", "serve", "--config"]).arg(&file);
        // If this process is killed, nothing else would stop them, nor read their logs.
        command.args(["--with-parent", &std::process::id().to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::piped());
        // Ctrl-C at the terminal is for this process, which stops the others.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = match &own_network {
            Some(network) => network.spawn(&mut command).map_err(|why| why.message)?,
            None => command.spawn().map_err(|why| format!("{}: {why}", program.display()))?,
        };
        if let Some(log) = child.stderr.take() {
            let name = name.clone();
            let pass = move || pass_on(&name, log);
            let thread = std::thread::Builder::new().name("log".into()).stack_size(STACK).spawn(pass);
            thread.map_err(|why| why.to_string())?;
        }
        children.0.push((name, child));
    }
    let api = |number: u8| Api::at(SocketAddr::from((address(args.network, number), API)));
    let mut last = None;
    for number in 1..=args.nodes {
        let begun = Instant::now();
        let status: StatusView = loop {
            if let Some((name, _)) = ended(children) {
                return Err(format!("{name} has ended: the reason is in the lines above"));
            }
            match api(number).get("/v1/status") {
                Ok(status) => break status,
                Err(why) if begun.elapsed() > ANSWERS => {
                    why.print_error();
                    return Ok(Exit::Failed);
                }
                Err(_) => {}
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(Exit::Interrupted);
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let name = format!("node-{number}");
        let known = status.devices.iter().filter(|device| device.node == name);
        let known: Vec<&str> = known.map(|device| device.path.as_str()).collect();
        let is_new = |add: &AddDevice| !known.iter().any(|path| Path::new(path) == add.path);
        // Of two, one may have been added before the command was interrupted. An existing cluster keeps the devices that it has.
        if known.len() < devices.0.len() {
            for add in devices.in_folder(&folder.join(&name)).into_iter().filter(is_new) {
                if let Err(why) = api(number).post::<_, u32>("/v1/devices", add) {
                    why.print_error();
                    return Ok(Exit::Failed);
                }
            }
        }
        last = Some(number);
    }
    let status = last.and_then(|number| api(number).get::<StatusView>("/v1/status").ok());
    if let Some(status) = &status {
        super::status::print(status);
    }
    print_line!();
    let processes: Vec<String> =
        children.0.iter().map(|(name, child)| format!("{name} is process {}", child.id())).collect();
    print_line!(
        "the files of the cluster are in {}; {}; Ctrl-C stops the cluster",
        folder.display(),
        processes.join(", ")
    );
    if let Some(per_second) = args.node_network {
        print_line!("each node sends and receives at most {per_second} a second");
    }
    let api = api(1).api;
    // It ends when this function does.
    let place = Place { name: "dev".into(), api: api.clone(), access: None };
    let page = args.console.start([place], None)?;
    if let Some(page) = &page {
        print_line!(
            "the console is at http://{}; to act on the cluster, sign in by {}",
            page.address,
            page.link()
        );
    }
    print_line!("from another terminal:");
    match status.and_then(|status| suggestion::size(&status.devices)) {
        Some(size) => {
            print_line!("  loadline volume create disk {size} --api {api}");
            print_line!("  loadline volume attach disk --api {api}");
        }
        None => print_line!("  loadline device list --api {api}     (no device has room for another volume)"),
    }
    while !stop.load(Ordering::Relaxed) {
        if let Some((name, status)) = ended(children) {
            // A user who kills a node wants to see the others continue.
            let file = folder.join(&name).join("node.toml");
            let within =
                own_network.as_ref().map(|network| format!("nsenter --net={} ", network.file().display()));
            eprint_line!(
                "loadline: {name} has ended ({status}); to start it again: {}loadline san serve --config {}",
                within.unwrap_or_default(),
                file.display()
            );
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(Exit::Done)
}

/// Prints each line of a node's log with its name, until the node ends.
fn pass_on(name: &str, log: impl std::io::Read) {
    for line in std::io::BufReader::new(log).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        eprint_line!("{name}: {}", line.strip_prefix("loadline: ").unwrap_or(&line));
    }
}

/// A child that has ended, once.
fn ended(children: &mut Children) -> Option<(String, std::process::ExitStatus)> {
    let found = children.0.iter_mut().position(|(_, child)| matches!(child.try_wait(), Ok(Some(_))))?;
    let (name, mut child) = children.0.remove(found);
    child.wait().ok().map(|status| (name, status))
}

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::*;

    #[test]
    fn the_help_has_each_port_that_must_be_free() {
        let command = Dev::augment_args(clap::Command::new("dev"));
        let help = command.get_long_about().expect("it has help").to_string();
        let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
        let of_clients = join::endpoints(ip, &[]).into_values().map(|at| at.port());
        for port in [API, PEERS].into_iter().chain(of_clients) {
            assert!(help.contains(&port.to_string()), "{port}: {help}");
        }
    }
}
