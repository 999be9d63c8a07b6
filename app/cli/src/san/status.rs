//! `loadline san status`: how everything is, for people and for monitoring.

use std::collections::BTreeSet;

use loadline_base::figures::listed;
use loadline_base::units::ByteSize;
use loadline_san_node::config::catalog::Reserve;
use loadline_san_node::config::health::StoreMember;
use loadline_san_node::node::manage::{Health, NodeView, StatusView, VolumeView};

use super::probe::{Probe, probe};
use super::reserve;
use crate::cluster::client::{Api, print_json, table};
use crate::output::text::counted;
use crate::output::{alike, print_line, write};
use crate::process::exit::Exit;

/// Nodes that a line names.
const MOST_NODES: usize = 8;

/// Show the state of the cluster: its nodes and its volumes.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 all volumes are healthy and all nodes report; 3 a node or a copy is missing; 1 a \
                        volume waits, is blocked or is in an unknown state, a node does not use the configuration store, a probe \
                        failed, or no node answers."
)]
pub(super) struct Status {
    #[command(flatten)]
    api: Api,
    /// Read a block of each attached volume through its owner, and print the time of the read or the error.
    #[arg(long)]
    probe: bool,
}

/// What is printed as JSON with --probe.
#[derive(serde::Serialize)]
struct Probed<'a> {
    #[serde(flatten)]
    status: &'a StatusView,
    probes: &'a [Probe],
}

pub(super) fn status(args: &Status) -> Exit {
    let status: StatusView = match args.api.get("/v1/status") {
        Ok(status) => status,
        Err(why) => return why.print_error(),
    };
    let probes = if args.probe { probe(&status) } else { Vec::new() };
    match (args.api.json, args.probe) {
        (true, false) => _ = print_json(&status),
        (true, true) => _ = print_json(&Probed { status: &status, probes: &probes }),
        (false, _) => {
            print(&status);
            print_probes(&probes);
        }
    }
    let worst = status.volumes.iter().filter_map(|volume| volume.health).max();
    let all_alive = status.nodes.iter().all(|node| node.alive);
    let all_well = status.devices.iter().all(|device| device.fault.is_none());
    let members_are_well =
        status.store.iter().all(|member| member.fault.is_none() && member.alarms.is_empty());
    let store =
        status.store_fault.is_none() && status.nodes.iter().all(|node| !node.alive || node.fault.is_none());
    let all_read = probes.iter().all(|probe| probe.failed.is_none());
    match worst {
        _ if !store || !all_read => Exit::Failed,
        Some(Health::Unknown | Health::Waiting | Health::Blocked) => Exit::Failed,
        Some(Health::Degraded | Health::Resyncing) => Exit::Findings,
        _ if !all_alive || !all_well || !members_are_well => Exit::Findings,
        _ => Exit::Done,
    }
}

fn print_probes(probes: &[Probe]) {
    for Probe { volume, node, milliseconds, failed } in probes {
        let node = node.as_deref().unwrap_or("-");
        match (milliseconds, failed) {
            (Some(took), _) => print_line!("probe of {volume}: read through {node} in {took:.1} ms"),
            (None, failed) => {
                let why = failed.as_deref().unwrap_or("it was not read");
                print_line!("probe of {volume}: not read through {node}: {why}");
            }
        }
    }
}

pub(super) fn print(status: &StatusView) {
    print_line!("cluster {}, as node {} sees it", status.cluster, status.asked);
    if status.reserve != Reserve::default() {
        print_line!("reserved: {}", reserve::words(&status.reserve));
    }
    if let Some(fault) = &status.store_fault {
        print_line!("node {}: {fault}", status.asked);
    }
    if !status.store.is_empty() {
        print_line!();
        print_store(&status.store);
    }
    print_line!();
    print_nodes(&status.nodes);
    print_line!();
    print_volumes(&status.volumes);
    if let Some(line) = initiators(&status.volumes) {
        print_line!("{line}");
    }
    for node in status.nodes.iter().filter(|node| node.name != status.asked) {
        if let Some(fault) = &node.fault {
            print_line!("node {}: {fault}", node.name);
        }
    }
    let reports = |name: &str| status.nodes.iter().any(|node| node.name == name && node.alive);
    // Of nodes that do not report, the table shows it.
    for device in status.devices.iter().filter(|device| device.fault.is_some() && reports(&device.node)) {
        let fault = device.fault.as_deref().unwrap_or_default();
        print_line!("device {} of {}: {fault}", device.id, device.node);
    }
    for device in &status.devices {
        if let Some(advice) = &device.advice {
            print_line!("device {} of {}: {advice}", device.id, device.node);
        }
    }
}

/// The members of an etcd as a table, and what is to be done about their alarms.
fn print_store(members: &[StoreMember]) {
    let size = |bytes: Option<u64>| bytes.map_or("-".into(), |bytes| ByteSize(bytes).to_string());
    let rows: Vec<Vec<String>> = members
        .iter()
        .map(|member| {
            let state = match (&member.fault, member.leads) {
                (Some(_), _) => "does not answer".to_owned(),
                (None, true) => format!("leads (etcd {})", member.version),
                (None, false) => format!("follows (etcd {})", member.version),
            };
            let fsync = member.fsync_p99_ms.map_or("-".into(), |ms| format!("{ms} ms"));
            let (database, quota) = (size(member.database_bytes), size(member.quota_bytes));
            vec![member.address.clone(), state, database, quota, fsync]
        })
        .collect();
    write(table(&["configuration store", "state", "database", "quota", "sync p99"], &rows).as_bytes());
    for StoreMember { address, fault, alarms, .. } in members {
        if let Some(fault) = fault {
            print_line!("{address}: {fault}");
        }
        for alarm in alarms {
            match alarm.as_str() {
                "NOSPACE" => print_line!(
                    "{address}: alarm NOSPACE: its database is full, so nothing can be changed. Compact and defragment etcd, then clear the \
                     alarm: etcdctl compact REVISION; etcdctl defrag --cluster; etcdctl alarm disarm"
                ),
                other => print_line!("{address}: alarm {other}: replace this member of etcd"),
            }
        }
    }
}

/// The nodes as a table.
pub(crate) fn print_nodes(nodes: &[NodeView]) {
    let nodes: Vec<Vec<String>> = nodes
        .iter()
        .map(|node| {
            let state = match (node.alive, node.maintenance, node.draining) {
                (false, true, _) => "does not report, maintenance",
                (false, false, _) => "does not report",
                (true, true, true) => "maintenance, draining",
                (true, true, false) => "maintenance",
                (true, false, true) => "draining",
                (true, false, false) => "reports",
            };
            let (devices, replicas) = (node.devices.to_string(), node.replicas.to_string());
            let clients = node.endpoints.iter().map(|(protocol, at)| format!("{protocol} {at}"));
            let clients: Vec<String> = clients.collect();
            vec![node.name.clone(), state.into(), devices, replicas, node.api.clone(), clients.join(", ")]
        })
        .collect();
    write(table(&["node", "state", "devices", "copies", "API", "clients"], &nodes).as_bytes());
}

/// The volumes as a table, and what people should know of them.
pub(crate) fn print_volumes(volumes: &[VolumeView]) {
    if volumes.is_empty() {
        print_line!("no volumes: 'loadline volume create NAME --size 10GiB' makes one");
        return;
    }
    let rows: Vec<Vec<String>> = volumes
        .iter()
        .map(|volume| {
            vec![
                volume.name.clone(),
                ByteSize(volume.bytes).to_string(),
                health(volume.health).into(),
                copies_in_sync(volume),
                volume.stripes.to_string(),
                volume.owner.clone().or(volume.attached.clone()).unwrap_or("-".into()),
            ]
        })
        .collect();
    write(table(&["volume", "size", "state", "copies in sync", "stripes", "at"], &rows).as_bytes());
    for note in notes(volumes) {
        print_line!("{note}");
    }
}

/// The notes of volumes, each once with the volumes that have it, in the order in which they come first.
fn notes(volumes: &[VolumeView]) -> Vec<String> {
    let all = volumes.iter().filter_map(|volume| Some((volume.name.as_str(), volume.note.as_deref()?)));
    let text = |(note, names): (&str, Vec<&str>)| match names.as_slice() {
        [name] => format!("{name}: {note}"),
        names => format!("{}: {note}", alike::volumes(names)),
    };
    alike::grouped(all).into_iter().map(text).collect()
}

/// How initiators of iSCSI use the volumes, and where that is not known. Nothing if no volume is for them, as far as is known.
fn initiators(volumes: &[VolumeView]) -> Option<String> {
    let registered =
        |volume: &VolumeView| volume.reservations.as_ref().is_some_and(|of| !of.registrations.is_empty());
    let uses = |volume: &&VolumeView| {
        !volume.paths.initiators.is_empty() || !volume.initiators.is_empty() || registered(volume)
    };
    let used: Vec<&VolumeView> = volumes.iter().filter(uses).collect();
    if used.is_empty() {
        return None;
    }
    let sessions: usize = used.iter().map(|volume| volume.paths.sessions()).sum();
    let names: BTreeSet<&str> =
        used.iter().flat_map(|volume| &volume.paths.initiators).map(|of| of.initiator.as_str()).collect();
    let with = used.iter().filter(|volume| !volume.paths.initiators.is_empty()).count();
    let reserved =
        |volume: &&&VolumeView| volume.reservations.as_ref().is_some_and(|of| of.reservation.is_some());
    let mut parts = vec![match sessions {
        0 => "no sessions".into(),
        _ => format!(
            "{} of {} with {}",
            counted(sessions as u64, "session"),
            counted(names.len() as u64, "initiator"),
            counted(with as u64, "volume")
        ),
    }];
    match used.iter().filter(reserved).count() {
        0 => {}
        count => parts.push(format!("{} reserved", counted(count as u64, "volume"))),
    }
    let unknown: BTreeSet<&str> =
        used.iter().flat_map(|volume| &volume.paths.unknown).map(|of| of.node.as_str()).collect();
    if !unknown.is_empty() {
        let nodes: Vec<&str> = unknown.into_iter().collect();
        parts.push(format!("sessions at {} are not known", listed(&nodes, MOST_NODES)));
    }
    if used.iter().any(|volume| volume.reservations.is_none()) {
        parts.push("reservations are not known".into());
    }
    Some(format!("iSCSI: {}", parts.join("; ")))
}

/// Copies in sync, of those that the volume is to have. While a copy moves there is one more for a time.
pub(crate) fn copies_in_sync(volume: &VolumeView) -> String {
    let (in_sync, copies) = (volume.in_sync, volume.copies);
    match in_sync > copies {
        true => format!("{copies} of {copies}, and {} more", in_sync - copies),
        false => format!("{in_sync} of {copies}"),
    }
}

pub(crate) fn health(health: Option<Health>) -> &'static str {
    match health {
        None => "being made",
        Some(Health::Healthy) => "healthy",
        Some(Health::Resyncing) => "resyncing",
        Some(Health::Degraded) => "degraded",
        Some(Health::Unknown) => "unknown",
        Some(Health::Waiting) => "waiting",
        Some(Health::Blocked) => "blocked",
    }
}

#[cfg(test)]
mod tests {
    use loadline_san_node::node::manage::{
        InitiatorPaths, PathState, PathView, PathsView, ReservationView, ReservationsView, UnknownPaths,
    };

    use super::*;

    fn volume(name: &str, note: Option<&str>) -> VolumeView {
        VolumeView {
            name: name.into(),
            bytes: 1 << 20,
            copies: 2,
            least: 1,
            stripes: 1,
            lease_ms: 600,
            requires_tls: false,
            initiators: Vec::new(),
            paths: PathsView::default(),
            reservations: Some(ReservationsView::default()),
            cache_bytes: 0,
            limit: None,
            health: Some(Health::Unknown),
            in_sync: 2,
            attached: None,
            attach_key: None,
            owner: None,
            epoch: 1,
            replicas: Vec::new(),
            note: note.map(str::to_owned),
        }
    }

    #[test]
    fn equal_notes_are_printed_once_with_a_few_names() {
        let mut volumes: Vec<VolumeView> =
            (1..=100).map(|number| volume(&format!("disk-{number}"), Some("last known"))).collect();
        volumes.insert(1, volume("other", Some("not in sync")));
        volumes.push(volume("well", None));
        assert_eq!(
            notes(&volumes),
            ["100 volumes (disk-1, disk-2, disk-3 and 97 more): last known", "other: not in sync",]
        );
    }

    #[test]
    fn initiators_are_counted_in_one_line_that_says_what_is_not_known() {
        let (mut one, mut two, other) = (volume("one", None), volume("two", None), volume("other", None));
        let all =
            |volumes: &[&VolumeView]| initiators(&volumes.iter().map(|of| (*of).clone()).collect::<Vec<_>>());
        let unknown = UnknownPaths { node: "node-2".into(), why: "it does not answer".into() };
        one.paths.unknown = vec![unknown.clone()];
        assert_eq!(all(&[&one, &two, &other]), None, "no volume is for initiators");
        let path = PathView { node: "node-1".into(), portal: None, state: PathState::Active, sessions: 2 };
        let initiator = InitiatorPaths { initiator: "iqn.a".into(), paths: vec![path] };
        (one.paths.initiators, two.paths.initiators) = (vec![initiator.clone()], vec![initiator]);
        assert_eq!(
            all(&[&one, &two, &other]).unwrap(),
            "iSCSI: 4 sessions of 1 initiator with 2 volumes; sessions at node-2 are not known"
        );
        let reservation = ReservationView {
            kind: "write exclusive".into(),
            restricts: "only the holder writes".into(),
            holder: None,
        };
        one.paths.unknown.clear();
        one.reservations.as_mut().unwrap().reservation = Some(reservation);
        two.reservations = None;
        assert_eq!(
            all(&[&one, &two, &other]).unwrap(),
            "iSCSI: 4 sessions of 1 initiator with 2 volumes; 1 volume reserved; reservations are not known"
        );
    }
}
