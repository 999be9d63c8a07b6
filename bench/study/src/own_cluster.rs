//! The cluster of the virtual SAN in which a run makes volumes: what it cannot be, and how large the devices of one are that the run
//! starts for itself.

use loadline_base::device_model::DeviceModel;
use loadline_base::figures::{are, counted};
use loadline_base::units::ByteSize;
use loadline_fleet::FleetKind;
use loadline_target::device_models;

use crate::error::StudyError;
use crate::file::{Access, LEAST_LOG, NodeModel, NodeSection, SanSection, Study};
use crate::fleet::ResolvedFleet;
use crate::node_cores;
use crate::node_network;
use crate::point::Point;
use crate::running_cluster;

/// The longest name of a policy whose volumes are called after it, characters: names of volumes have 64 at the most.
const LONGEST_OF_VOLUMES: usize = 40;
/// The most that is written at once to any volume.
const MOST_AT_ONCE: ByteSize = ByteSize(32 << 20);

/// What a device takes beside its replicas, bytes, and more than enough.
const DEVICE_MORE: u64 = 128 << 20;

/// A cluster in which a run makes volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterPlan {
    /// The number of nodes.
    pub nodes: u32,
    /// Copies of every block, the fewest of any policy.
    pub copies: u32,
    /// The size of each node's device, which is reserved when it is made; `None` of a cluster that runs already.
    pub device: Option<ByteSize>,
    /// Whether each node has a log device of the same size too.
    pub has_log_devices: bool,
}

/// What the devices with data of the cluster that the run starts behave as; `None`: as what is behind them.
pub(crate) fn device_model(study: &Study) -> Result<Option<DeviceModel>, StudyError> {
    found("model", study.nodes().and_then(|node| node.model.as_ref()))
}

/// What the log devices of that cluster behave as; `None`: logs are on the devices with the data.
pub(crate) fn log_model(study: &Study) -> Result<Option<DeviceModel>, StudyError> {
    found("log_model", study.nodes().and_then(|node| node.log_model.as_ref()))
}

fn found(key: &str, model: Option<&NodeModel>) -> Result<Option<DeviceModel>, StudyError> {
    let wrong = |why: String| StudyError::usage(format!("[target] san.node.{key}: {why}"));
    match model {
        None => Ok(None),
        Some(NodeModel::Published(name)) => {
            device_models::published(name).map(Some).map_err(|why| wrong(why.message))
        }
        Some(NodeModel::Own(model)) => {
            model.check().map_err(|why| wrong(why.to_string()))?;
            Ok(Some(model.clone()))
        }
    }
}

/// How nodes cannot be.
fn nodes_are(node: &NodeSection) -> Result<(), StudyError> {
    let usage = |message: &str| Err(StudyError::usage(format!("[target] san.node{message}")));
    match node {
        NodeSection { machine_iops: Some(0), .. } => {
            usage(".machine_iops: a machine that carries nothing: leave it out if you do not know it")
        }
        NodeSection { model: None, log_model: Some(_), .. } => usage(
            ".log_model without model: what would have the data is as fast as this machine's disk. Say model = \"intel-s4500\" too",
        ),
        NodeSection { model: None, machine_iops: Some(_), .. } => usage(
            ".machine_iops without model: it is of predictions, and only steps on modelled devices are predicted. Say model = \
             \"intel-s4500\" too, or leave it out",
        ),
        NodeSection { model: None, cpu_limit: None, network: None, .. } => {
            usage(" says nothing: give model, cpu_limit or network, or leave node out")
        }
        _ => node_cores::check(node).and_then(|()| node_network::check(node)),
    }
}

/// What a cluster for the run cannot be.
pub(crate) fn check(study: &Study, fleet: &ResolvedFleet) -> Result<(), StudyError> {
    let usage = |message: String| Err(StudyError::usage(message));
    let nodes = fleet.node_count();
    running_cluster::check(study, fleet)?;
    device_model(study)?;
    log_model(study)?;
    study.nodes().map_or(Ok(()), nodes_are)?;
    node_network::fits(study)?;
    let is_running = study.running_cluster().is_some();
    let has_only_node = |san: &SanSection| {
        san.node.is_some() && *san == SanSection { node: san.node.clone(), ..SanSection::default() }
    };
    if study.target.san.as_ref().is_some_and(|san| !has_only_node(san))
        && !study.policy.is_empty()
        && !is_running
    {
        return usage(
            "[target] san with [[policy]] tables: only node = { ... } may be there; say the rest in each of them, san = { ... }"
                .into(),
        );
    }
    if study.fewest_copies().is_none() {
        if study.target.san.is_some() {
            return usage("[target] san.node is of a cluster that the run starts, and no policy is of one: say san = { ... } in each".into());
        }
        return Ok(());
    }
    if !is_running && (!fleet.placement.runs_here() || !study.fleet.node.is_empty()) {
        return usage(
            "[target] san starts a cluster on this machine, of as many nodes as the fleet has: say nodes = 4 in [fleet], \
             and no join or [[fleet.node]]; or name the API of a cluster that runs on these hosts, san = { api = \"https://HOST:7400\" }"
                .into(),
        );
    }
    if !(1..=32).contains(&nodes) {
        return usage(format!("[target] san with {nodes} nodes: 1 to 32 are possible"));
    }
    for target in study.targets() {
        let what = target.name.map_or("[target]".to_string(), |name| format!("[[policy]] {name}"));
        let Some(san) = target.san else {
            return usage(format!("{what}: either all policies are of the run's cluster (san), or none is"));
        };
        if target.name.is_some_and(|name| name.as_str().len() > LONGEST_OF_VOLUMES) {
            return usage(format!(
                "{what}: volumes are called after it, so {LONGEST_OF_VOLUMES} characters are the most"
            ));
        }
        if target.folder.is_some() || !target.devices.is_empty() {
            return usage(format!("{what}: san makes the disks: leave folder and devices out"));
        }
        if !(1..=3).contains(&san.copies()) || san.copies() > nodes {
            return usage(format!(
                "{what} san: copies = {}, each on another node, and there {} {}: 1 to 3 copies are possible",
                san.copies(),
                are(nodes.into()),
                counted(nodes.into(), "node")
            ));
        }
        if let Some(least) = san.least.filter(|least| !(1..=san.copies()).contains(least)) {
            return usage(format!(
                "{what} san: least = {least} of {}: 1 to {} are possible",
                counted(san.copies().into(), "copy"),
                san.copies()
            ));
        }
        if san.log() < LEAST_LOG {
            return usage(format!(
                "{what} san: a log of {} is too small: {LEAST_LOG} is the least",
                san.log()
            ));
        }
        if san.stripes.is_some_and(|stripes| !(1..=12).contains(&stripes)) {
            return usage(format!("{what} san: stripes: 1 to 12 are possible"));
        }
    }
    if !fleet.file_size.0.is_multiple_of(4096) {
        return usage("[fleet] disk_size: a volume has whole blocks of 4 KiB".into());
    }
    Ok(())
}

/// That workers can be apart from their volumes, if that is varied.
pub(crate) fn aligned(study: &Study) -> Result<(), StudyError> {
    let usage = |message: String| Err(StudyError::usage(message));
    let mut all = study.matrix.unaligned_percent.iter().chain(&study.vary.unaligned_percent).peekable();
    if all.peek().is_none() {
        return Ok(());
    }
    if let Some(more) = all.find(|percent| **percent > 100) {
        return usage(format!("unaligned_percent: {more} is more than all workers: 0 to 100 are possible"));
    }
    match study.fewest_copies() {
        Some(2..) => Ok(()),
        Some(_) => usage(
            "unaligned_percent: these workers use volumes that another node with a copy owns, so each volume needs at least \
             two copies: set san = { copies = 2 }"
                .into(),
        ),
        None => usage(
            "unaligned_percent: the run knows the owner of a volume only in a cluster of the SAN: set san = {} in [target]".into(),
        ),
    }
}

/// That no load writes more at once than the logs of its volumes take.
pub(crate) fn for_logs(study: &Study, points: &[Point]) -> Result<(), StudyError> {
    for point in points {
        let Some(san) = study.san(point.policy.as_ref()) else { continue };
        // A client by NBD gets the largest size, and reads no more either.
        let by_nbd = san.access == Access::Nbd || point.unaligned_percent > 0;
        if point.profile.write_percent == 0 && !by_nbd {
            continue;
        }
        // A seventh of a log may be in flight, headers included.
        let most = MOST_AT_ONCE.min(ByteSize(san.log().0 / 8));
        if point.profile.block_size > most {
            return Err(StudyError::usage(format!(
                "profile {}: its block size is {}, but logs of {} allow at most {most}: set a larger log in san = {{ ... }}, \
                 or a smaller block_size",
                point.label,
                point.profile.block_size,
                san.log()
            )));
        }
    }
    Ok(())
}

/// A cluster of as many nodes as the fleet has; if the run starts it, each with a device for its share of all copies of all policies, of each one
/// more, and what an uneven spread takes.
pub(crate) fn plan(study: &Study, fleet: &ResolvedFleet) -> Option<ClusterPlan> {
    let nodes = fleet.node_count().max(1);
    let (mut on_each, mut bytes) = (0u64, 0u64);
    for san in study.targets().filter_map(|target| target.san) {
        let stripes = u64::from(san.stripes().max(1));
        let replicas =
            u64::from(fleet.disks()).saturating_mul(u64::from(san.copies())).saturating_mul(stripes);
        let share = replicas.div_ceil(u64::from(nodes)).saturating_add(1);
        let size = fleet.file_size.0.div_ceil(stripes);
        let each = size.saturating_add(san.log().0);
        on_each = on_each.saturating_add(share);
        bytes = bytes.saturating_add(share.saturating_mul(each));
    }
    let device = study.running_cluster().is_none().then(|| ByteSize(device_for(on_each, bytes)));
    let has_log_devices = study.nodes().is_some_and(|node| node.log_model.is_some());
    study.fewest_copies().map(|copies| ClusterPlan { nodes, copies, device, has_log_devices })
}

/// A device for so many replicas that take so many bytes together. The virtual SAN cuts it into chunks, of which slots take an
/// eighth at the most, and two of each replica are not full.
fn device_for(replicas: u64, bytes: u64) -> u64 {
    let bytes = bytes.saturating_add(bytes / 7).saturating_add(DEVICE_MORE);
    let mut device = bytes;
    // A larger device has larger chunks, up to a limit.
    for _ in 0..32 {
        let chunk = (device / 512).clamp(1 << 20, 64 << 20).next_power_of_two();
        let needed = bytes.saturating_add(replicas.saturating_mul(2 * chunk));
        if needed <= device {
            break;
        }
        device = needed;
    }
    device
}

#[cfg(test)]
mod tests {
    use crate::plan::Plan;
    use crate::read::parse;

    fn refusal(text: &str) -> String {
        let study = format!(
            "name = \"s\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n{text}\n[fleet]\nnodes = 3\ndisk_size = \"64MiB\"\n"
        );
        let planned = parse("s.toml", &study).and_then(|study| Plan::of(&study).map(drop));
        planned.err().map(|error| error.message).unwrap_or_default()
    }

    #[test]
    fn what_is_said_of_nodes_must_have_an_effect() {
        for (node, part) in [
            ("cpu_limit = 0", "san.node: a cpu_limit of 0 cores"),
            ("cpu_limit = -1.5", "a cpu_limit of -1.5 cores"),
            ("cpu_limit = nan", "a cpu_limit of NaN cores"),
            ("cpu_limit = 5000", "give 0.01 to 4096"),
            ("", "says nothing"),
            ("log_model = \"intel-p4800x\", cpu_limit = 1", "log_model without model"),
            ("machine_iops = 100, cpu_limit = 1", "machine_iops without model"),
            ("model = \"intel-s4500\", machine_iops = 0", "carries nothing"),
        ] {
            let found = refusal(&format!("[target]\nsan = {{ node = {{ {node} }} }}"));
            assert!(found.contains(part), "{node}\n{found}");
        }
        let both = "[target]\nsan = { node = { model = \"intel-s4500\", cpu_limit = 0.25 } }";
        assert_eq!(refusal(both), "");
    }

    #[test]
    fn nodes_are_modelled_for_all_policies_together() {
        let node = "node = { model = \"intel-s4500\" }";
        let policy = |san: &str| format!("[[policy]]\nname = \"one\"\n{san}\n");
        assert_eq!(refusal(&format!("[target]\nsan = {{ {node} }}")), "");
        assert_eq!(refusal("[target]\nsan = { node = { cpu_limit = 0.5 } }"), "");
        assert_eq!(refusal(&format!("[target]\nsan = {{ {node} }}\n{}", policy("san = { copies = 2 }"))), "");
        for (target, san, part) in [
            (format!("san = {{ {node}, copies = 2 }}"), "san = {}".into(), "only node"),
            (String::new(), format!("san = {{ {node} }}"), "write node in [target] san"),
            (format!("san = {{ {node} }}"), "folder = \"x\"".into(), "no policy is of one"),
            (
                "san = { node = { model = \"intel-s450\" } }".into(),
                "san = {}".into(),
                "Did you mean intel-s4500?",
            ),
        ] {
            let found = refusal(&format!("[target]\n{target}\n{}", policy(&san)));
            assert!(found.contains(part), "{target} {san}\n{found}");
        }
    }
}
