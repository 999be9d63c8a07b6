//! Where the storage is.

use loadline_fleet::NodeSpec;
use loadline_load::Target;
use loadline_target::ApiAddress;

use crate::fault::Fault;
use crate::field::Field;

/// The storage that is measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Storage {
    /// A cluster that the run starts on this machine.
    Cluster {
        /// How many nodes it has.
        nodes: u32,
    },
    /// A cluster that runs already.
    Running {
        /// The API of one of its nodes.
        api: String,
        /// The file that proves the access.
        access_file: Option<String>,
        /// Its nodes and their hosts.
        hosts: Vec<NodeSpec>,
    },
    /// Files that the run makes.
    Folder {
        /// Where they are made.
        folder: String,
        /// The nodes of the storage, if the question needs them.
        members: Vec<String>,
    },
    /// Existing disks.
    Devices {
        /// The disks.
        disks: Vec<Target>,
        /// The nodes of the storage, if the question needs them.
        members: Vec<String>,
    },
}

impl Storage {
    /// The nodes that a fault can be caused at.
    pub(crate) fn nodes(&self) -> Vec<String> {
        match self {
            Storage::Cluster { nodes } => (1..=*nodes).map(|n| format!("node-{n}")).collect(),
            Storage::Running { hosts, .. } => hosts.iter().map(|host| host.name.clone()).collect(),
            Storage::Folder { members, .. } | Storage::Devices { members, .. } => members.clone(),
        }
    }

    /// The field that names its nodes.
    pub(crate) fn field_of_nodes(&self) -> Field {
        match self {
            Storage::Cluster { .. } => Field::Nodes,
            Storage::Running { .. } => Field::Hosts,
            Storage::Folder { .. } | Storage::Devices { .. } => Field::Members,
        }
    }

    /// Whether it is a cluster of Loadline.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Storage::Cluster { .. } | Storage::Running { .. })
    }

    /// How many nodes the fleet has: workers run on the nodes of a cluster, and else on this machine.
    pub(crate) fn places(&self) -> u32 {
        match self {
            Storage::Cluster { nodes } => *nodes,
            Storage::Running { hosts, .. } => hosts.len() as u32,
            Storage::Folder { .. } | Storage::Devices { .. } => 1,
        }
    }
}

/// The parts of a list that is separated by commas or spaces.
pub(crate) fn listed(text: &str) -> Vec<&str> {
    text.split(|c: char| c == ',' || c.is_whitespace()).filter(|part| !part.is_empty()).collect()
}

/// The nodes of a running cluster: `node-1=root@10.0.0.11, node-2`. The error says which part is wrong.
pub(crate) fn hosts(text: &str) -> Result<Vec<NodeSpec>, String> {
    let of = |part: &str| match part.split_once('=') {
        Some((name, ssh)) => NodeSpec { ssh: Some(ssh.to_string()), ..NodeSpec::named(name) },
        None => NodeSpec::named(part),
    };
    let hosts: Vec<NodeSpec> = listed(text).into_iter().map(of).collect();
    if hosts.is_empty() {
        return Err("name at least one node, such as node-1=root@10.0.0.11".into());
    }
    NodeSpec::validate_all(&hosts).map_err(|why| why.message)?;
    Ok(hosts)
}

/// Existing disks. The error says which is none.
pub(crate) fn disks(text: &str) -> Result<Vec<Target>, String> {
    let disks = listed(text).into_iter().map(|part| part.parse::<Target>().map_err(|why| why.message));
    let disks: Vec<Target> = disks.collect::<Result<_, _>>()?;
    match disks.is_empty() {
        true => Err("name at least one disk, such as /dev/sdb".into()),
        false => Ok(disks),
    }
}

/// The address of an API. The error says how one is written.
pub(crate) fn api(text: &str) -> Result<String, String> {
    let address: Result<ApiAddress, _> = text.parse();
    address.map(|_| text.to_string()).map_err(|why| format!("{text:?} is no address of an API: {why}"))
}

/// Names of nodes of other storage. The error says which is none.
pub(crate) fn members(text: &str) -> Result<Vec<String>, String> {
    let names: Vec<String> = listed(text).into_iter().map(String::from).collect();
    let specs: Vec<NodeSpec> = names.iter().map(NodeSpec::named).collect();
    NodeSpec::validate_all(&specs).map_err(|why| why.message)?;
    Ok(names)
}

/// That a node can be killed and every block is still served: there are two nodes, and a way to kill one.
pub(crate) fn can_lose_a_node(storage: &Storage) -> Result<(), Fault> {
    let field = storage.field_of_nodes();
    let nodes = storage.nodes().len();
    if nodes < 2 {
        return Err(Fault::wrong(
            field,
            format!(
                "a node is killed, and another one must serve its data: give at least 2 nodes, not {nodes}"
            ),
        ));
    }
    if let Storage::Running { hosts, .. } = storage
        && let Some(here) = hosts.iter().find(|host| host.ssh.is_none())
    {
        return Err(Fault::wrong(
            field,
            format!(
                "a node is killed by a command on its host: give each node a host that SSH reaches, {}=root@HOST",
                here.name
            ),
        ));
    }
    Ok(())
}
