//! `loadline san verify` and `dump`: what lies on a device that no node has open.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use loadline_san_core::ids::ReplicaId;
use loadline_san_device::file::{DeviceFile, Devices};
use loadline_san_device::pool::Blocks;
use loadline_san_store::check::{Checked, ReadOnly};
use loadline_san_store::io::{Area, IoFault};
use loadline_san_store::open::{Damage, OpenError, open_read_only};
use loadline_san_store::space::Space;
use loadline_san_store::store::{Settings, Store};
use serde::Serialize;

use crate::output::text::counted;
use crate::output::{print_error, print_line};
use crate::process::exit::Exit;
use crate::process::interrupt;

/// How long a device is waited for that another process has.
const PATIENCE: Duration = Duration::from_secs(2);
/// Of corrupt blocks so many are named.
const NAMED: usize = 20;

/// The device to read.
#[derive(clap::Args)]
pub(crate) struct Device {
    /// The device with the logs: a block device, or a file.
    log: PathBuf,
    /// A capacity device of the same node, if data of these logs is there. Can be given several times.
    #[arg(long, value_name = "DEVICE")]
    capacity: Vec<PathBuf>,
    /// Only the replica with this number.
    #[arg(long, value_name = "NUMBER")]
    replica: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Seen {
    cluster: String,
    device: String,
    bytes: u64,
    chunk_bytes: u64,
    chunks: u32,
    free_chunks: u32,
    /// Replicas that have data here, and their logs elsewhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    data_of: Vec<u64>,
    replicas: Vec<Replica>,
}

#[derive(Debug, Serialize)]
struct Replica {
    replica: u64,
    /// Why it cannot be checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    unusable: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<ReplicaState>,
    damage: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checked: Option<CheckedBlocks>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    log: Vec<Record>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    extents: Vec<Extent>,
}

#[derive(Debug, Serialize)]
struct ReplicaState {
    volume: u64,
    group: u32,
    blocks: u64,
    promise_epoch: u64,
    promise_node: u32,
    promise_incarnation: u64,
    commit_point: String,
    epoch: u64,
    generation: u64,
    log_bytes: u64,
    log_used: u64,
    records: usize,
    extents: u64,
    listed: Vec<[u64; 2]>,
    tombstones: usize,
}

#[derive(Debug, Serialize)]
struct CheckedBlocks {
    blocks: u64,
    shadowed_by_log: u64,
    corrupt: u64,
    first_corrupt: Vec<u64>,
    complete: bool,
}

#[derive(Debug, Serialize)]
struct Record {
    number: u64,
    at: u64,
    kind: &'static str,
    position: String,
    sequenced: bool,
    dropped: bool,
    block: u64,
    blocks: u32,
}

#[derive(Debug, Serialize)]
struct Extent {
    extent: u64,
    stamp: u64,
    at: u64,
    data: u32,
    zeroes: u32,
}

pub(crate) fn report(args: &Device, dumps: bool) -> Exit {
    let stop = interrupt::flag();
    let (log, capacities) = match Opened::all(args) {
        Ok(opened) => opened,
        Err(why) => return print_error(Exit::Usage, &why),
    };
    let mut replicas: Vec<ReplicaId> = {
        let space = log.space.lock().expect("no holder panics");
        space.replicas().filter(|id| args.replica.is_none_or(|only| only == id.0)).collect()
    };
    replicas.sort_unstable();
    if let Some(only) = args.replica.filter(|_| replicas.is_empty()) {
        let message = format!("there is no log of replica {only} on {}", args.log.display());
        return print_error(Exit::Usage, &message);
    }
    let mut seen = {
        let space = log.space.lock().expect("no holder panics");
        let begin = space.superblock();
        let here: Vec<ReplicaId> = space.replicas().collect();
        let data_of = space.residents().into_keys().filter(|id| !here.contains(id)).map(|id| id.0);
        Seen {
            cluster: format!("{:032x}", begin.cluster.0),
            device: begin.device.to_string(),
            bytes: begin.bytes,
            chunk_bytes: begin.chunk_bytes,
            chunks: begin.chunks,
            free_chunks: space.free(),
            data_of: data_of.collect(),
            replicas: Vec::new(),
        }
    };
    for id in replicas {
        seen.replicas.push(match open(id, &log, &capacities) {
            Ok((store, mut disk, damage)) => of_store(&store, &mut disk, &damage, dumps, &stop),
            Err(why) => Replica {
                replica: id.0,
                unusable: Some(why),
                state: None,
                damage: Vec::new(),
                checked: None,
                log: Vec::new(),
                extents: Vec::new(),
            },
        });
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    if args.json {
        match serde_json::to_string_pretty(&seen) {
            Ok(text) => crate::output::document(&text),
            Err(error) => return print_error(Exit::Failed, &error.to_string()),
        }
    } else {
        print(&seen);
    }
    if stop.load(Ordering::Relaxed) {
        return Exit::Interrupted;
    }
    let is_well = |replica: &Replica| {
        replica.unusable.is_none()
            && replica.damage.is_empty()
            && replica.checked.as_ref().is_none_or(|checked| checked.corrupt == 0)
    };
    if seen.replicas.iter().all(is_well) { Exit::Done } else { Exit::Failed }
}

/// A device that is open, with what it begins with.
struct Opened {
    file: DeviceFile,
    space: Arc<Mutex<Space>>,
}

impl Opened {
    /// The device with the logs, and the capacity devices.
    fn all(args: &Device) -> Result<(Opened, Vec<Opened>), String> {
        let log = Opened::open(&args.log)?;
        let mut capacities = Vec::new();
        for path in &args.capacity {
            let opened = Opened::open(path)?;
            let begins = *opened.space.lock().expect("no holder panics").superblock();
            let (cluster, of_log) =
                (begins.cluster, log.space.lock().expect("no holder panics").superblock().cluster);
            if cluster != of_log {
                return Err(format!(
                    "{} belongs to cluster {:032x}, and {} to cluster {:032x}: give devices of one node",
                    path.display(),
                    cluster.0,
                    args.log.display(),
                    of_log.0
                ));
            }
            capacities.push(opened);
        }
        Ok((log, capacities))
    }

    fn open(path: &Path) -> Result<Opened, String> {
        let file = DeviceFile::open(path, PATIENCE).map_err(|why| why.to_string())?;
        let mut disk = ReadOnly(Devices { log: file, capacity: None });
        let space = Space::load(&mut disk, Area::Log, None);
        let space = space.map_err(|why| format!("{}: {why}", path.display()))?;
        Ok(Opened { file: disk.0.log, space: Arc::new(Mutex::new(space)) })
    }
}

type Read = (Store<Blocks>, ReadOnly<Devices>, Vec<Damage>);

/// Reads a replica whose log is on this device, and whose data is there too or on one of these.
fn open(id: ReplicaId, log: &Opened, capacities: &[Opened]) -> Result<Read, String> {
    // A capacity device that is not this replica's is refused, by what the replica's own metadata says.
    let read = |capacity: Option<&Opened>| -> Result<Read, OpenError> {
        let other = capacity.map(|of| of.file.share()).transpose();
        let files = log.file.share().and_then(|log| other.map(|capacity| Devices { log, capacity }));
        let error = |error| IoFault::Failed { area: Area::Log, at: 0, error };
        let mut disk = ReadOnly(files.map_err(error)?);
        let space = capacity.map_or(&log.space, |of| &of.space);
        let (store, _, damage) =
            open_read_only::<Blocks>(&mut disk, &log.space, space, id, Settings::default())?;
        Ok((store, disk, damage))
    };
    let mut last = read(None);
    for capacity in capacities {
        if matches!(last, Err(OpenError::OtherCapacity { .. })) {
            last = read(Some(capacity));
        }
    }
    last.map_err(|why| match why {
        OpenError::OtherCapacity { found, .. } => {
            format!("its data is on device {found}, which was not given: give the device with --capacity")
        }
        why => why.to_string(),
    })
}

fn of_store(
    store: &Store<Blocks>,
    disk: &mut ReadOnly<Devices>,
    damage: &[Damage],
    dumps: bool,
    stop: &AtomicBool,
) -> Replica {
    let (state, fill) = (store.state(), store.fill());
    let kept = ReplicaState {
        volume: state.volume.0,
        group: state.group.0,
        blocks: state.blocks,
        promise_epoch: state.promise.epoch.0,
        promise_node: state.promise.owner.node.0,
        promise_incarnation: state.promise.owner.incarnation.0,
        commit_point: store.commit_point().to_string(),
        epoch: state.epoch.0,
        generation: state.generation,
        log_bytes: fill.log_bytes,
        log_used: fill.log_used,
        records: store.records().count(),
        extents: store.held().count() as u64,
        listed: store.list().map(|range| [range.start, range.end]).collect(),
        tombstones: store.tombstones().count(),
    };
    let mut replica = Replica {
        replica: state.replica.0,
        unusable: None,
        state: Some(kept),
        damage: damage.iter().map(ToString::to_string).collect(),
        checked: None,
        log: Vec::new(),
        extents: Vec::new(),
    };
    if dumps {
        replica.log = store.records().map(record).collect();
        replica.extents = store.held().map(extent).collect();
        return replica;
    }
    let terminal = std::io::stderr().is_terminal();
    let mut complete = true;
    let result = store.check(disk, |done, all| {
        if terminal && done % 256 == 0 {
            let _ = write!(std::io::stderr(), "\rreplica {}: extent {done} of {all} ", replica.replica);
        }
        complete = !stop.load(Ordering::Relaxed);
        complete
    });
    if terminal {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    match result {
        Ok(Checked { blocks, corrupt, shadowed }) => {
            replica.checked = Some(CheckedBlocks {
                blocks,
                shadowed_by_log: shadowed,
                corrupt: corrupt.len() as u64,
                first_corrupt: corrupt.into_iter().take(NAMED).collect(),
                complete,
            });
        }
        Err(error) => replica.damage.push(error.to_string()),
    }
    replica
}

fn record(of: loadline_san_store::check::Logged) -> Record {
    Record {
        number: of.number,
        at: of.at,
        kind: of.kind,
        position: of.position.to_string(),
        sequenced: of.sequenced,
        dropped: of.dropped,
        block: of.block,
        blocks: of.blocks,
    }
}

fn extent(of: loadline_san_store::check::Held) -> Extent {
    Extent { extent: of.extent, stamp: of.stamp.0, at: of.at, data: of.data, zeroes: of.zeroes }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn print(seen: &Seen) {
    let (chunk, free) = (mib(seen.chunk_bytes), seen.free_chunks);
    print_line!("device {} of cluster {}", seen.device, seen.cluster);
    print_line!(
        "  {} in {} of {chunk}, {free} of them free",
        mib(seen.bytes),
        counted(seen.chunks.into(), "chunk")
    );
    if seen.replicas.is_empty() {
        print_line!("  no replica has its log here");
    }
    if !seen.data_of.is_empty() {
        let ids = seen.data_of.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        print_line!(
            "  data of replicas {ids}, whose logs are on a log device: give that device, and this one with --capacity"
        );
    }
    for replica in &seen.replicas {
        print_line!();
        match &replica.state {
            None => print_line!("replica {}: {}", replica.replica, replica.unusable.as_deref().unwrap_or("")),
            Some(state) => print_state(replica.replica, state),
        }
        replica.damage.iter().for_each(|damage| print_line!("  DAMAGED: {damage}"));
        if let Some(checked) = &replica.checked {
            let cut = if checked.complete { "" } else { ", and then stopped" };
            print_line!("  blocks    {} read, {} do not match{cut}", checked.blocks, checked.corrupt);
            if checked.shadowed_by_log > 0 {
                print_line!("            {} more are newer in the log", checked.shadowed_by_log);
            }
            if !checked.first_corrupt.is_empty() {
                print_line!(
                    "  CORRUPT:   blocks {:?}{}",
                    checked.first_corrupt,
                    if checked.corrupt as usize > NAMED { " …" } else { "" }
                );
            }
        }
        for record in &replica.log {
            let Record { number, at, kind, position, block, blocks, .. } = record;
            let beside = if record.sequenced || position == "0:0" { "" } else { " beside" };
            let dropped = if record.dropped { " dropped" } else { "" };
            print_line!(
                "  record {number:>8}  at {at:>12}  {kind:<7} {position:>12}  {block}+{blocks}{beside}{dropped}"
            );
        }
        for extent in &replica.extents {
            let Extent { extent, stamp, at, data, zeroes } = extent;
            print_line!(
                "  extent {extent:>8}  at {at:>12}  stamp {stamp:<6} {data} of data, {zeroes} of zeroes"
            );
        }
    }
}

fn print_state(replica: u64, state: &ReplicaState) {
    let ReplicaState { volume, group, blocks, commit_point, epoch, .. } = state;
    print_line!("replica {replica}: volume {volume}, group {group}, {blocks} blocks");
    let (node, life) = (state.promise_node, state.promise_incarnation);
    print_line!("  follows   node {node} (life {life}) at epoch {}", state.promise_epoch);
    print_line!("  committed {commit_point}, at epoch {epoch}");
    let (used, all) = (mib(state.log_used), mib(state.log_bytes));
    print_line!(
        "  log       {} in {used} of {all}, generation {}",
        counted(state.records as u64, "record"),
        state.generation
    );
    print_line!("  extents   {}, and tombstones of {} freed extents", state.extents, state.tombstones);
    if !state.listed.is_empty() {
        print_line!(
            "  to copy   {} ranges of blocks, whose data this replica has dropped",
            state.listed.len()
        );
    }
}
