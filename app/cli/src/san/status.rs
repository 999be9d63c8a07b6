//! `loadline san status`: how everything is, for people and for monitoring.

use loadline_base::units::ByteSize;
use loadline_san_node::node::manage::{Health, NodeView, StatusView};

use crate::client::{Api, print_json, table};
use crate::exit::Exit;
use crate::out::{say, write};

/// How the cluster is.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 all volumes are healthy and all nodes answer; 3 a node or a copy is missing; 1 a \
                        volume waits, or no node answers."
)]
pub(super) struct Status {
    #[command(flatten)]
    api: Api,
}

pub(super) fn status(args: &Status) -> Exit {
    let status: StatusView = match args.api.get("/v1/status") {
        Ok(status) => status,
        Err(why) => return why.complain(),
    };
    match args.api.json {
        true => _ = print_json(&status),
        false => print(&status),
    }
    let worst = status.volumes.iter().filter_map(|volume| volume.health).max();
    let all_alive = status.nodes.iter().all(|node| node.alive);
    let all_well = status.devices.iter().all(|device| device.fault.is_none());
    match worst {
        Some(Health::Waiting) => Exit::Failed,
        Some(Health::Degraded | Health::Resyncing) => Exit::Findings,
        _ if !all_alive || !all_well => Exit::Findings,
        _ => Exit::Done,
    }
}

pub(super) fn print(status: &StatusView) {
    say!("cluster {}, as node {} sees it", status.cluster, status.asked);
    say!();
    print_nodes(&status.nodes);
    say!();
    print_volumes(&status.volumes);
    for device in status.devices.iter().filter(|device| device.fault.is_some()) {
        let fault = device.fault.as_deref().unwrap_or_default();
        say!("device {} of {}: {fault}", device.id, device.node);
    }
}

/// The nodes as a table.
pub(crate) fn print_nodes(nodes: &[NodeView]) {
    let nodes: Vec<Vec<String>> = nodes
        .iter()
        .map(|node| {
            let state = match (node.alive, node.draining) {
                (false, _) => "does not answer",
                (true, true) => "draining",
                (true, false) => "answers",
            };
            let (devices, replicas) = (node.devices.to_string(), node.replicas.to_string());
            vec![node.name.clone(), state.into(), devices, replicas, node.api.clone(), node.nbd.clone()]
        })
        .collect();
    write(table(&["node", "state", "devices", "replicas", "API", "NBD"], &nodes).as_bytes());
}

/// The volumes as a table, and what people should know of them.
pub(crate) fn print_volumes(volumes: &[loadline_san_node::node::manage::VolumeView]) {
    if volumes.is_empty() {
        say!("no volumes: 'loadline volume create NAME --size 10GiB' makes one");
        return;
    }
    let rows: Vec<Vec<String>> = volumes
        .iter()
        .map(|volume| {
            vec![
                volume.name.clone(),
                ByteSize(volume.bytes).to_string(),
                health(volume.health).into(),
                format!("{} of {}", volume.in_sync, volume.copies),
                volume.stripes.to_string(),
                volume.owner.clone().or(volume.attached.clone()).unwrap_or("-".into()),
            ]
        })
        .collect();
    write(table(&["volume", "size", "state", "copies in sync", "stripes", "at"], &rows).as_bytes());
    for volume in volumes {
        if let Some(note) = &volume.note {
            say!("{}: {note}", volume.name);
        }
    }
}

pub(crate) fn health(health: Option<Health>) -> &'static str {
    match health {
        None => "being made",
        Some(Health::Healthy) => "healthy",
        Some(Health::Resyncing) => "resyncing",
        Some(Health::Degraded) => "degraded",
        Some(Health::Waiting) => "waiting",
    }
}
