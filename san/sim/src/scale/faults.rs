//! The faults, one after the other on one cluster, and what is measured of each: while its cause lasts, and after that.

use std::collections::BTreeSet;

use loadline_san_core::record::Record;

use super::figures::{Fault, Phase, Role, seconds};
use super::world::{Shared, World};
use crate::time::{MS, Time};

/// How long a cause lasts; the configuration store is away for longer.
const LASTS: Time = 10_000 * MS;
const STORE_LASTS: Time = 60_000 * MS;
/// A process that is started again has been away for so long.
const RESTARTS: Time = 500 * MS;
/// No fault is waited for any longer.
const LIMIT: Time = 300_000 * MS;
/// What is still under way when all is well has ended after this time.
const SETTLES: Time = 2_000 * MS;

/// The most commits of a volume's record that a fault may cost while its cause lasts, and the same after that.
pub const MOST_WRITES: u32 = 3;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// A host goes, and comes back.
    Host(usize),
    /// A process ends, and is started again after a while, or at once.
    Process(usize),
    Restart(usize),
    /// Nothing passes between two nodes for a while; or again and again, which no fault of the list does.
    Link(usize, usize),
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "a test shows with it that too many writes are noticed")
    )]
    Flapping(usize, usize),
    /// The configuration store is away.
    Store,
    /// A host goes for good, and its copies are made anew elsewhere.
    Replaced(usize),
}

impl Cause {
    fn name(self) -> &'static str {
        match self {
            Cause::Host(_) => "host lost",
            Cause::Process(_) => "process ends",
            Cause::Restart(_) => "process restarts",
            Cause::Link(..) => "link cut",
            Cause::Flapping(..) => "link flaps",
            Cause::Store => "store away",
            Cause::Replaced(_) => "host replaced",
        }
    }

    fn nodes(self) -> Vec<usize> {
        match self {
            Cause::Host(node) | Cause::Process(node) | Cause::Restart(node) | Cause::Replaced(node) => {
                vec![node]
            }
            Cause::Link(one, other) | Cause::Flapping(one, other) => vec![one, other],
            Cause::Store => Vec::new(),
        }
    }

    fn lasts(self) -> Time {
        match self {
            Cause::Restart(_) => RESTARTS,
            Cause::Store => STORE_LASTS,
            _ => LASTS,
        }
    }

    /// What a volume has to do with it.
    fn role(self, record: &Record) -> Role {
        let owner = record.owner.node.0 as usize;
        let homes: BTreeSet<usize> = record.members().map(|(_, node)| node.0 as usize).collect();
        let (owns, has) = match self {
            Cause::Host(node) | Cause::Process(node) | Cause::Restart(node) | Cause::Replaced(node) => {
                (owner == node, homes.contains(&node))
            }
            Cause::Link(one, other) | Cause::Flapping(one, other) => {
                let both = homes.contains(&one) && homes.contains(&other);
                (both && [one, other].contains(&owner), both)
            }
            Cause::Store => (true, true),
        };
        match (owns, has) {
            (true, _) => Role::Owner,
            (false, true) => Role::Copy,
            (false, false) => Role::Other,
        }
    }

    fn begins(self, world: &mut World) {
        match self {
            Cause::Host(node) | Cause::Replaced(node) => world.kill(node, true),
            Cause::Process(node) | Cause::Restart(node) => world.kill(node, false),
            Cause::Link(one, other) | Cause::Flapping(one, other) => world.cut_link(one, other),
            Cause::Store => world.away_until = world.now + STORE_LASTS,
        }
    }

    fn ends(self, world: &mut World) {
        match self {
            Cause::Host(node) | Cause::Process(node) | Cause::Restart(node) => world.start(node),
            Cause::Link(..) | Cause::Flapping(..) => world.heal_links(),
            Cause::Store => {}
            Cause::Replaced(node) => world.replaced = Some(node),
        }
    }
}

/// The faults that every cluster is measured with. The first three and the last are of nodes of their own.
pub(super) const CAUSES: [fn(&World) -> Cause; 6] = [
    |_| Cause::Host(0),
    |_| Cause::Process(1),
    |_| Cause::Restart(2),
    |world| {
        let (one, other) = world.busiest_link();
        Cause::Link(one, other)
    },
    |_| Cause::Store,
    |world| Cause::Replaced(world.cluster.nodes - 1),
];

impl World {
    /// From now on everything is counted anew.
    pub(super) fn begin_phase(&mut self) {
        self.phase_began = self.now;
        self.load = super::world::config::Load::default();
        self.seconds.clear();
        for volume in &mut self.volumes {
            volume.writes = 0;
            volume.client.stall = 0;
        }
    }

    /// The owner and the node of another copy that have the most volumes in common.
    pub(super) fn busiest_link(&self) -> (usize, usize) {
        let nodes = self.cluster.nodes;
        let mut common = vec![0u32; nodes * nodes];
        for Shared { record, .. } in &self.volumes {
            let owner = record.owner.node.0 as usize;
            let others = record.members().map(|(_, node)| node.0 as usize).filter(|node| *node != owner);
            others.for_each(|other| common[owner * nodes + other] += 1);
        }
        let most = (0..common.len()).max_by_key(|at| (common[*at], std::cmp::Reverse(*at))).unwrap_or(1);
        (most / nodes, most % nodes)
    }

    /// Lets something go wrong, and measures what comes of it.
    pub(super) fn fault(&mut self, cause: Cause) -> Fault {
        let roles: Vec<Role> = self.volumes.iter().map(|volume| cause.role(&volume.record)).collect();
        self.begin_phase();
        cause.begins(self);
        // Each volume is asked for something at that moment.
        (0..self.volumes.len()).for_each(|volume| self.begin_write(volume));
        match cause {
            Cause::Flapping(one, other) => {
                for _ in 0..4 {
                    self.run_for(3_000 * MS);
                    self.heal_links();
                    self.run_until(LIMIT, World::is_well);
                    self.cut_link(one, other);
                }
            }
            _ => self.run_for(cause.lasts()),
        }
        let during = self.end_phase(&roles, None);
        self.begin_phase();
        cause.ends(self);
        let is_over = |world: &World| match cause {
            Cause::Replaced(node) => world.is_replaced(node) && world.is_well(),
            _ => world.is_well(),
        };
        if !self.run_until(LIMIT, is_over) {
            self.violations.push(format!("{}: not all is well after {} s", cause.name(), seconds(LIMIT)));
        }
        let ended = self.now;
        self.run_for(SETTLES);
        let after = self.end_phase(&roles, Some(ended));
        self.check(cause.name(), &roles, &[&during, &after]);
        self.replaced = None;
        Fault { name: cause.name(), nodes: cause.nodes(), lasts_s: seconds(cause.lasts()), during, after }
    }

    fn end_phase(&self, roles: &[Role], redundant: Option<Time>) -> Phase {
        let of_role = |role: Role| {
            let volumes = self.volumes.iter().zip(roles).filter(move |(_, of)| **of == role);
            volumes.map(|(volume, _)| volume).collect::<Vec<_>>()
        };
        Phase::of(self, of_role, redundant)
    }

    /// What must be so after each fault.
    fn check(&mut self, name: &str, roles: &[Role], phases: &[&Phase]) {
        for (when, phase) in ["while it lasts", "after it"].iter().zip(phases) {
            for group in &phase.volumes {
                if group.writes_most > MOST_WRITES {
                    self.violations.push(format!(
                        "{name}, {when}: {} writes for a volume, and at most {MOST_WRITES} are allowed",
                        group.writes_most
                    ));
                }
                if group.role == Role::Other && group.writes > 0 {
                    self.violations.push(format!(
                        "{name}, {when}: {} writes for volumes that it is not about",
                        group.writes
                    ));
                }
            }
        }
        debug_assert_eq!(roles.len(), self.volumes.len());
        self.check_data(name);
    }

    /// Every member of every volume holds what was acknowledged, and all hold the same.
    fn check_data(&mut self, name: &str) {
        let mut wrong = Vec::new();
        for (number, volume) in self.volumes.iter().enumerate() {
            for block in 0..super::world::BLOCKS {
                let may = volume.client.may_hold(block);
                let held: BTreeSet<u64> = volume
                    .record
                    .members()
                    .filter_map(|(replica, node)| self.nodes[node.0 as usize].stores.get(&replica))
                    .map(|store| store.value(block).unwrap_or(crate::store::ZERO)[0])
                    .collect();
                if held.len() != 1 || !held.iter().all(|value| may.contains(value)) {
                    wrong.push(format!(
                        "{name}: block {block} of volume {number} holds {held:?}, and may hold {may:?}"
                    ));
                }
            }
        }
        self.violations.extend(wrong);
    }
}
