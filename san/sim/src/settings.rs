//! What cluster a run has, and what happens to it.

use std::collections::BTreeMap;

use loadline_san_core::history::History;
use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, ProposalId, ReplicaId, VolumeId};
use loadline_san_core::layout::Layout;
use loadline_san_core::record::{Group, Record, RecordState};

use crate::rng::Rng;
use crate::time::MS;

/// The one volume of a cluster.
pub const VOLUME: VolumeId = VolumeId(7);

/// The size of a simulated cluster, and the faults that may happen to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The number of nodes.
    pub nodes: usize,
    /// Copies of each group.
    pub copies: usize,
    /// The number of stripes of the volume.
    pub stripes: u32,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Replicas in sync that writes need.
    pub least: u32,
    /// Clients, each of which attaches the volume at its own node.
    pub tenants: usize,
    /// Requests of a client at once.
    pub depth: usize,
    /// A takeover waits only this part of a lease for members that do not answer: leases alone must do.
    pub hasty: bool,
    /// Nodes answer what they are asked through the configuration store. If not, no answer is waited for.
    pub answers: bool,
    /// Nodes take the volume over unasked.
    pub watch: bool,
    /// Client requests in all; then everything heals and is compared.
    pub operations: u64,
    /// Processes are killed and stopped, the network is cut.
    pub crashes: bool,
    /// Power is lost, disks fail, and sectors are corrupted.
    pub disks: bool,
    /// The configuration store answers late, or not at all.
    pub config: bool,
    /// Faults come where they hurt: once in so many chances. 0: never.
    pub steer: u64,
    /// Replicas are added, replaced, removed, the volume grows.
    pub commands: bool,
    /// Something stays broken at the end.
    pub lasting: bool,
    /// Devices have room for a part of the volume.
    pub tight: bool,
    /// The configuration store goes back in time.
    pub restores: bool,
    /// Clients come to nodes that do not own the volume, and are forwarded.
    pub forwards: bool,
}

impl Settings {
    /// Blocks of a stripe unit.
    pub const UNIT: u64 = 8;
    /// The most blocks of a group.
    pub const GROUP: u64 = 64;
    /// Length of leases.
    pub const LEASE: u64 = 100 * MS;

    /// What a seed stands for, where no option overrides it.
    pub fn of_seed(seed: u64) -> Settings {
        let mut rng = Rng::new(seed ^ 0x5e77_1e65);
        let nodes = 2 + rng.index(4);
        let copies = 1 + rng.index(nodes.min(3));
        let stripes = [1, 1, 2, 3, 4, 12][rng.index(6)];
        let blocks = u64::from(stripes) * Settings::UNIT * (2 + rng.below(4));
        let of_seed = Settings {
            nodes,
            copies,
            stripes,
            blocks,
            least: if rng.chance(4) { copies.min(2) as u32 } else { 1 },
            tenants: 1 + rng.index(2),
            depth: 1 + rng.index(12),
            hasty: rng.chance(2),
            answers: true,
            watch: !rng.chance(3),
            operations: 1500,
            crashes: !rng.chance(8),
            disks: !rng.chance(4),
            config: !rng.chance(4),
            steer: [0, 4, 12, 40][rng.index(4)],
            commands: rng.chance(2),
            lasting: rng.chance(2),
            tight: rng.chance(10),
            restores: rng.chance(3),
            forwards: rng.chance(3),
        };
        // What a stale copy acknowledges alone would be lost by a recovery by force.
        let two = of_seed.restores && !of_seed.disks && of_seed.copies > 1 && rng.chance(2);
        let of_seed = Settings { least: if two { 2 } else { of_seed.least }, ..of_seed };
        if of_seed.tight {
            return Settings { stripes: 1, blocks: Settings::GROUP, ..of_seed };
        }
        of_seed
    }
}

/// The record of a new volume.
pub(crate) fn first_record(settings: &Settings, rng: &mut Rng) -> Record {
    let layout = Layout::new(settings.stripes, Settings::UNIT, Settings::GROUP).expect("it is within bounds");
    let groups = layout.groups(settings.blocks).expect("it is small");
    let mut homes = Vec::new();
    for _ in 0..groups {
        let first = rng.index(settings.nodes);
        let home = |copy| NodeId(((first + copy) % settings.nodes) as u32);
        homes.push((0..settings.copies).map(home).collect());
    }
    record_of_new(layout, settings.blocks, settings.least, Settings::LEASE, &homes, 1)
}

/// The record of a volume that was just made, which no node owns. `homes`: for each group, the nodes of its replicas. Replicas are
/// numbered from `first` on.
pub(crate) fn record_of_new(
    layout: Layout,
    blocks: u64,
    least: u32,
    lease_ns: u64,
    homes: &[Vec<NodeId>],
    first: u64,
) -> Record {
    let mut next = first;
    let (mut all, mut groups) = (BTreeMap::new(), Vec::new());
    for nodes in homes {
        let mut group = Group::default();
        for node in nodes {
            all.insert(ReplicaId(next), *node);
            group.in_sync.insert(ReplicaId(next));
            next += 1;
        }
        groups.push(group);
    }
    let no_owner = Owner { node: NodeId(0), incarnation: Incarnation(0) };
    Record {
        epoch: Epoch(1),
        made_by: ProposalId { by: no_owner, number: 0 },
        owner: no_owner,
        state: RecordState::TakingOver,
        attachment: 0,
        fence: 0,
        lease_ns,
        blocks,
        layout,
        least,
        history: History::default(),
        homes: all,
        groups,
    }
}
