//! What goes wrong, when, and for how long: storms and calms in turn, from the seed.

use loadline_san_core::ids::{NodeId, ReplicaId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::lease::Moment;
use loadline_san_core::record::{Group, Record};
use loadline_san_core::volume::{Event, Status, VolumeCommand};

use super::{Happening, Weather, World};
use crate::settings::Settings;
use crate::store::{Store, new_store};
use crate::time::{MS, Time, US};

impl World {
    /// The weather changes for the worse.
    pub(crate) fn storm(&mut self) {
        self.calm = false;
        let rng = &mut self.rng;
        let bad = |rng: &mut crate::rng::Rng| [u64::MAX, 200, 40, 12][rng.index(4)];
        self.weather = Weather {
            loses: if self.settings.crashes { bad(rng) } else { u64::MAX },
            doubles: if self.settings.crashes { bad(rng) } else { u64::MAX },
            slowest: [200 * US, MS, 5 * MS, 30 * MS][rng.index(4)],
            config_loses: if self.settings.config { [u64::MAX, 10, 3][rng.index(3)] } else { u64::MAX },
            config_slowest: if self.settings.config {
                [2 * MS, 30 * MS, 300 * MS][rng.index(3)]
            } else {
                2 * MS
            },
            disk_slowest: [60 * US, 60 * US, 2 * MS, 20 * MS][rng.index(4)],
        };
        if self.settings.crashes && rng.chance(4) {
            self.merge_delay = rng.below(3 * Settings::LEASE);
            self.coverage.count("situation", "merges are slow");
        }
        self.trace_event(|| format!("storm: {:?}, merges take {} ms", self.weather, self.merge_delay / MS));
        self.after(0, Happening::Fault);
        self.plan_restore();
    }

    /// Everything heals.
    pub(crate) fn heal(&mut self) {
        self.calm = true;
        self.calm_began = (self.now(), self.config.len());
        self.trace_event(|| "calm".to_owned());
        self.weather = Weather::CALM;
        self.cut.clear();
        self.cut_from_config.clear();
        self.without_config_answers.clear();
        self.slow.clear();
        self.without_entries.clear();
        self.repeats.clear();
        self.hung.clear();
        self.merge_delay = 5 * US;
        for node in 0..self.nodes.len() {
            if self.nodes[node].paused.is_some() {
                self.after(0, Happening::Resume(node));
            }
            if self.nodes[node].process.is_none() {
                self.after(MS, Happening::Start(node));
            }
        }
    }

    /// Something goes wrong, and later something else.
    pub(crate) fn fault(&mut self) {
        if self.calm {
            return;
        }
        let next = self.rng.below(120 * MS);
        self.after(next, Happening::Fault);
        let node = self.rng.index(self.nodes.len());
        match self.rng.below(28) {
            0..=2 if self.settings.crashes => self.crash(node),
            3..=5 if self.settings.crashes => {
                let length = self.short_or_long();
                self.pause(node, length);
            }
            6..=7 if self.settings.crashes => {
                let other = self.rng.index(self.nodes.len());
                self.cut_link(node, other);
                if self.rng.chance(2) {
                    self.cut_link(other, node);
                }
            }
            8..=9 if self.settings.crashes => self.isolate_owner(),
            10..=11 if self.settings.config => {
                self.trace_event(|| format!("n{node} cannot reach the configuration store"));
                self.cut_from_config.insert(node);
                if self.rng.chance(2) {
                    self.cut_from_config.clear();
                }
            }
            12 if self.settings.disks => self.disk_fails(node),
            13..=14 if self.settings.disks => self.disk_is_corrupted(node),
            15 if self.settings.disks => {
                self.kill(node, true);
                self.restart_later(node);
            }
            16..=18 if self.settings.commands => self.give_command(),
            19..=20 if self.settings.crashes => {
                let other = self.rng.index(self.nodes.len());
                self.bend_link(node, other);
            }
            21 if self.settings.disks => self.log_is_corrupted(node),
            22..=23 if self.settings.disks && self.rng.chance(2) => self.device_hangs(node),
            22..=23 if self.settings.disks => self.device_slows_down(node),
            25 if self.settings.disks => self.devices_are_copied(node),
            26..=27 if self.settings.disks => self.device_goes_back(node),
            24 if self.settings.crashes => {
                let other = self.rng.index(self.nodes.len());
                if other != node {
                    self.coverage.count("network", "taken for ended");
                    self.after(0, Happening::Runs(node, other, false));
                    let length = self.short_or_long();
                    self.after(length, Happening::Runs(node, other, true));
                }
            }
            _ => {}
        }
    }

    pub(crate) fn crash(&mut self, node: usize) {
        let power = self.settings.disks && self.rng.chance(3);
        self.kill(node, power);
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            // Its address refuses connections, unless the host that would refuse them is gone too.
            if !power && self.rng.chance(2) {
                self.coverage.count("process", "known to have ended");
                let delay = self.rng.below(5 * MS);
                self.after(delay, Happening::Refuses(other, node));
            }
        }
        self.restart_later(node);
    }

    /// The node that serves the volume is cut off, and does not know it; another node claims the volume.
    fn isolate_owner(&mut self) {
        let serves = |node: &usize| {
            self.nodes[*node]
                .process
                .as_ref()
                .is_some_and(|process| process.volume.status() == Status::Active)
        };
        let Some(owner) = (0..self.nodes.len()).find(serves) else { return };
        let alone = self.rng.chance(2);
        for other in 0..self.nodes.len() {
            if alone || self.rng.chance(2) {
                self.cut_link(owner, other);
                self.cut_link(other, owner);
            }
        }
        self.cut_from_config.insert(owner);
        self.coverage.count("situation", "owner is alone");
        self.trace_event(|| format!("n{owner} serves, and is alone"));
        let other = self.rng.index(self.nodes.len());
        if other != owner && self.nodes[other].process.is_some() && self.nodes[other].paused.is_none() {
            match self.tenants.iter().position(|tenant| tenant.node != Some(owner)) {
                Some(tenant) => self.attach_at(tenant, other),
                None => self.step_volume(other, Event::Attach),
            }
        }
    }

    fn restart_later(&mut self, node: usize) {
        let wait = self.short_or_long();
        self.after(wait, Happening::Start(node));
    }

    fn short_or_long(&mut self) -> Time {
        let most = [5 * MS, 60 * MS, 250 * MS, 800 * MS][self.rng.index(4)];
        self.rng.below(most)
    }

    /// Messages over a link take as long as leases last, or arrive a second time as late: when their sender does something else.
    fn bend_link(&mut self, from: usize, to: usize) {
        if from == to {
            return;
        }
        let late = self.rng.below(3 * Settings::LEASE);
        let comes_again = self.rng.chance(2);
        self.trace_event(|| {
            format!("from n{from} to n{to} things come {} ms late, again: {comes_again}", late / MS)
        });
        match comes_again {
            true => _ = self.repeats.insert((from, to), late),
            false => _ = self.slow.insert((from, to), late),
        }
        self.coverage.count("network", if comes_again { "link repeats" } else { "link is slow" });
        let length = self.short_or_long();
        self.after(length, Happening::Heal(from, to));
    }

    fn cut_link(&mut self, from: usize, to: usize) {
        if from == to || !self.cut.insert((from, to)) {
            return;
        }
        self.trace_event(|| format!("nothing goes from n{from} to n{to}"));
        self.coverage.count("network", "link cut");
        let length = self.short_or_long();
        self.after(length, Happening::Heal(from, to));
    }

    /// One of a node's replicas in sync, of a group with another for which this holds.
    ///
    /// Returns `None` while a person recovers the volume by force: the recovery takes the chosen replicas as they are, and does not
    /// compare them with others.
    pub(crate) fn spare(&mut self, node: usize, well: impl Fn(&Store) -> bool) -> Option<ReplicaId> {
        if self.is_being_recovered() {
            return None;
        }
        let record = self.record();
        let others = |replica: &ReplicaId, other: &ReplicaId| {
            other != replica && !self.went_back.contains_key(other) && self.store(*other).is_some_and(&well)
        };
        let spare = |replica: &&ReplicaId| {
            record.groups.iter().any(|group| {
                group.in_sync.contains(*replica) && group.in_sync.iter().any(|other| others(replica, other))
            })
        };
        let spares: Vec<ReplicaId> = self.nodes[node].stores.keys().filter(spare).copied().collect();
        if spares.is_empty() { None } else { Some(spares[self.rng.index(spares.len())]) }
    }

    /// A disk fails, if the group has another member.
    fn disk_fails(&mut self, node: usize) {
        let Some(replica) = self.spare(node, |other| !other.is_dead() && !other.has_corrupt_log()) else {
            return;
        };
        let store = self.nodes[node].stores.get_mut(&replica).expect("it is there");
        let which = store.fail_one_next(&mut self.rng);
        let of = which.map_or(String::new(), |area| format!("{area:?}-").to_lowercase());
        self.trace_event(|| format!("the {of}device of {replica} fails"));
        self.coverage.count("disk", &format!("{of}fails"));
    }

    /// A block is corrupted, if the group has another member.
    fn disk_is_corrupted(&mut self, node: usize) {
        let Some(replica) = self.spare(node, |_| true) else { return };
        let store = self.nodes[node].stores.get_mut(&replica).expect("it is there");
        if store.corrupt_at(&mut self.rng) {
            self.trace_event(|| format!("a block of {replica} is corrupted"));
            self.coverage.count("disk", "corrupts");
        }
    }

    /// A record of a log is corrupted, or a slot, if another member is well or the replica is none: a start finds it, and the replica is
    /// emptied and copied in full.
    fn log_is_corrupted(&mut self, node: usize) {
        let departed: Vec<ReplicaId> = {
            let all = self.record().groups.iter().flat_map(|group| group.departed.keys());
            all.filter(|replica| self.nodes[node].stores.contains_key(*replica)).copied().collect()
        };
        let replica = match departed.is_empty() || self.rng.chance(2) {
            true => self.spare(node, |other| !other.is_dead() && !other.is_corrupt()),
            false => Some(departed[self.rng.index(departed.len())]),
        };
        let Some(replica) = replica else { return };
        let store = self.nodes[node].stores.get_mut(&replica).expect("it is there");
        let slot = self.rng.chance(3);
        if slot && store.corrupt_slot(&mut self.rng) || !slot && store.corrupt_log(&mut self.rng) {
            let what = if slot { "slot" } else { "log" };
            self.corrupted.insert(replica);
            self.trace_event(|| format!("{what} of {replica} is corrupted"));
            self.coverage.count("disk", &format!("{what} corrupts"));
            // Else a start finds it at some other time, or a scrub mends it before.
            if self.nodes[node].process.is_some() && self.rng.chance(2) {
                let power = self.rng.chance(2);
                self.kill(node, power);
                self.restart_later(node);
            }
        }
    }

    /// Of two devices of a replica, one is much slower than the other from now on.
    fn device_slows_down(&mut self, node: usize) {
        let replicas: Vec<ReplicaId> = self.nodes[node].stores.keys().copied().collect();
        if replicas.is_empty() {
            return;
        }
        let replica = replicas[self.rng.index(replicas.len())];
        let slow = self.nodes[node].stores.get_mut(&replica).expect("it is there").slow_down(&mut self.rng);
        if let Some(area) = slow {
            self.trace_event(|| format!("the {area:?} device of {replica} is slow"));
            self.coverage.count("disk", &format!("{area:?}-slow").to_lowercase());
        }
    }

    /// A device does nothing for a while.
    fn device_hangs(&mut self, node: usize) {
        let replicas: Vec<ReplicaId> = self.nodes[node].stores.keys().copied().collect();
        if replicas.is_empty() {
            return;
        }
        let replica = replicas[self.rng.index(replicas.len())];
        let most = [5 * MS, 60 * MS, 300 * MS, 2_000 * MS][self.rng.index(4)];
        let length = 5 * MS + self.rng.below(most);
        self.trace_event(|| format!("the device of {replica} hangs for {} ms", length / MS));
        self.coverage.count("disk", "hangs");
        self.hung.insert(replica);
        self.after(length, Happening::Unhang(replica));
    }

    /// A person gives an order to the owner.
    fn give_command(&mut self) {
        let serves = |node: &usize| {
            let process = self.nodes[*node].process.as_ref();
            process.is_some_and(|process| process.volume.status() == Status::Active)
                && self.nodes[*node].paused.is_none()
        };
        let Some(owner) = (0..self.nodes.len()).find(serves) else { return };
        let record = self.record().clone();
        let dead = |replica: &&ReplicaId| self.store(**replica).is_none_or(|store| store.is_dead());
        let gone_of = |group: &Group| group.departed.keys().find(dead).copied();
        let bereft = record.groups.iter().position(|group| gone_of(group).is_some());
        let gone = bereft.and_then(|index| gone_of(&record.groups[index]));
        let index = bereft.unwrap_or_else(|| self.rng.index(record.groups.len()));
        let (group, of) = (GroupIndex(index as u32), &record.groups[index]);
        let mut command = None;
        let first = self.rng.below(4);
        // The first kind, from here on, for which there is a reason.
        for kind in 0..4 {
            command = command.or_else(|| match (first + kind) % 4 {
                0 if of.in_sync.len() + of.departed.len() < 4 => {
                    let node = self.rng.index(self.nodes.len());
                    let replica = self.new_replica(node);
                    Some(VolumeCommand::Add { group, replica, home: NodeId(node as u32) })
                }
                1 => gone.map(|replica| VolumeCommand::Forget { group, replica }),
                2 if of.in_sync.len() > 1 => {
                    let members: Vec<_> = of.in_sync.iter().copied().collect();
                    Some(VolumeCommand::Remove {
                        group,
                        replica: members[self.rng.index(members.len())],
                        instead: None,
                    })
                }
                3 if record.blocks < 256 && !self.is_on_branch(owner) => Some(self.growth(&record)),
                _ => None,
            });
        }
        if let Some(command) = command {
            self.trace_event(|| format!("n{owner} receives the command {command:?}"));
            self.step_volume(owner, Event::Command(command));
        }
    }

    /// The order to make the volume larger, often by groups that are new.
    fn growth(&mut self, record: &Record) -> VolumeCommand {
        let most = [40, 40, 200][self.rng.index(3)];
        let blocks = record.blocks + self.rng.below(most);
        let needed = record.layout.groups(blocks).expect("it is small") as usize - record.groups.len();
        let mut added = Vec::new();
        for _ in 0..needed {
            let first = self.rng.index(self.nodes.len());
            let copies = (0..self.settings.copies).map(|copy| {
                let node = (first + copy) % self.nodes.len();
                (self.new_replica(node), NodeId(node as u32))
            });
            added.push(copies.collect());
        }
        VolumeCommand::Grow { blocks, added }
    }

    /// An empty replica, durable on its device.
    fn new_replica(&mut self, node: usize) -> ReplicaId {
        self.replicas_made += 1;
        let id = ReplicaId(self.replicas_made);
        let now: Moment = self.clock(node);
        self.nodes[node].stores.insert(id, new_store(id, self.settings.tight));
        if let Some(life) = self.nodes[node].process.as_ref().map(|process| process.life) {
            let replica = self.open_replica(node, id, life, now);
            let process = self.nodes[node].process.as_mut().expect("it is there");
            process.replicas.insert(id, replica);
        }
        id
    }

    /// Something has just happened after which a fault hurts most.
    pub(crate) fn steer(&mut self, what: &'static str, node: usize) {
        if self.calm || self.settings.steer == 0 || !self.settings.crashes {
            return;
        }
        if !self.rng.chance(self.settings.steer) {
            return;
        }
        self.coverage.count("steered", what);
        match self.rng.below(6) {
            0 => self.crash(node),
            1 => {
                let length = self.short_or_long();
                self.pause(node, length);
            }
            2 => {
                let other = self.rng.index(self.nodes.len());
                self.crash(other);
            }
            3 => {
                let other = self.rng.index(self.nodes.len());
                self.cut_link(node, other);
            }
            4 => {
                // Another node claims it now.
                let other = self.rng.index(self.nodes.len());
                if self.nodes[other].paused.is_none() && other != node {
                    self.step_volume(other, Event::Attach);
                }
            }
            _ => _ = self.cut_from_config.insert(node),
        }
    }
}
