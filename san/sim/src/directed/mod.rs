//! Schedules that are written down: what must go wrong in just this order is found too rarely by chance.
//!
//! Nothing is violated in any of them. Most show what one rule is for: with that rule left out, something is. Delays within
//! a schedule still come from a seed.

mod clients;
mod damaged;
mod forwarders;
mod losses;
mod maps;
mod owners;
mod returns;
mod schedules;
mod stalls;
mod waits;

pub use forwarders::FORWARDING;
use loadline_san_core::ids::ReplicaId;
use loadline_san_core::rule::{Rule, leave_out};
use loadline_san_core::volume::{Event, Status};
pub use schedules::SCHEDULES;

use crate::run::{Verdict, judge, settle};
use crate::settings::Settings;
use crate::time::{MS, Time, US};
use crate::world::forwarder;
use crate::world::tenant::Operation;
use crate::world::{Happening, World};

/// A schedule.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// The name of the schedule, as a sentence about the rule.
    pub name: &'static str,
    /// The rule that it is about, if it is about one.
    pub rule: Option<Rule>,
    nodes: usize,
    copies: usize,
    drive: fn(&mut World),
}

/// Runs a schedule, with delays from a seed; with all rules, or with one left out.
pub fn run(schedule: &Schedule, seed: u64, left_out: Option<Rule>, trace: bool) -> Verdict {
    leave_out(left_out);
    run_forwarding(schedule, seed, None, trace)
}

/// The same, with all rules of forwarding, or with one left out.
pub fn run_forwarding(
    schedule: &Schedule,
    seed: u64,
    left_out: Option<forwarder::Rule>,
    trace: bool,
) -> Verdict {
    let settings = Settings {
        nodes: schedule.nodes,
        copies: schedule.copies,
        stripes: if schedule.name == "an owner that reaches half" { 2 } else { 1 },
        // The last extent is not full.
        blocks: Settings::GROUP - 2,
        least: if schedule.name.contains("held") { 2 } else { 1 },
        tenants: 2,
        depth: 4,
        // Otherwise members that do not reach each other exclude each other at once, as if one had died.
        answers: matches!(schedule.rule, Some(Rule::S1 | Rule::S1Soon | Rule::S1Anew | Rule::S1Ended)),
        hasty: !schedule.name.contains("has ended")
            && !matches!(schedule.rule, Some(Rule::S1Anew | Rule::S1Ended)),
        watch: false,
        operations: 0,
        crashes: false,
        disks: false,
        config: false,
        steer: 0,
        commands: false,
        lasting: false,
        restores: false,
        forwards: false,
        tight: schedule.name.contains("a device that w"),
    };
    let mut world = World::new(settings, seed);
    world.trace = trace;
    world.forwarders.left_out = left_out;
    judge(world, |world| {
        world.pass(5);
        (schedule.drive)(world);
        if world.violation().is_none() {
            world.heal();
            (0..2).for_each(|tenant| world.after(MS, Happening::Tenant(tenant)));
            return settle(world);
        }
        false
    })
}

/// The steps that schedules are written in.
impl World {
    /// So many milliseconds pass.
    fn pass(&mut self, ms: Time) {
        self.run_until(self.now() + ms * MS);
    }

    /// Time passes until this holds, at most so many milliseconds.
    fn pass_until(&mut self, most_ms: u64, holds: impl Fn(&World) -> bool) {
        let until = self.now() + most_ms * MS;
        while !holds(self) && self.now() < until && self.violation().is_none() {
            self.run_until(self.now() + 100 * US);
        }
        self.must(holds(self), "it waited in vain");
    }

    /// A client is at this node from now on, and the volume is attached there.
    fn place(&mut self, tenant: usize, node: usize) {
        self.tenants[tenant].node = Some(node);
        self.step_volume(node, Event::Attach);
    }

    /// A client requests the first block.
    fn ask_first(&mut self, tenant: usize, what: Operation) {
        let node = self.tenants[tenant].node.expect("it is somewhere");
        self.ask_for(tenant, node, what, 0, 8);
    }

    fn waits(&self, tenant: usize) -> bool {
        !self.tenants[tenant].outstanding.is_empty()
    }

    /// Nothing that is sent from now on goes between two nodes.
    fn part(&mut self, one: usize, other: usize) {
        self.cut.extend([(one, other), (other, one)]);
    }

    /// What a node's process does with the volume.
    fn is(&self, node: usize, status: Status) -> bool {
        self.nodes[node].process.as_ref().is_some_and(|process| process.volume.status() == status)
    }

    fn serves(&self, node: usize) -> bool {
        let volume = self.nodes[node].process.as_ref().map(|process| process.volume.status());
        matches!(volume, Some(Status::Active | Status::Changing))
    }

    fn home(&self, replica: ReplicaId) -> usize {
        self.record().homes[&replica].0 as usize
    }

    /// A schedule that does not come to where it should shows nothing.
    fn must(&self, holds: bool, what: &str) {
        assert!(holds || self.violation().is_some(), "the schedule did not get there: {what}");
    }

    /// A client at a node has written the first block, and every replica knows that the write was acknowledged.
    fn begin(&mut self, node: usize) {
        self.place(0, node);
        self.pass(250);
        self.must(self.serves(node), "the first owner serves");
        self.ask_first(0, Operation::Write);
        self.pass(60);
        self.must(!self.waits(0), "the first write is acknowledged");
    }

    /// Another client, at another node, takes the volume over and writes; then the first one reads, at the old owner.
    fn overtake_and_read(&mut self, new: usize, wait: Time) {
        self.place(1, new);
        self.pass(wait);
        self.must(self.serves(new), "the new owner serves");
        self.ask_first(1, Operation::Write);
        self.pass(8);
        self.must(!self.waits(1), "its write is acknowledged");
        self.ask_first(0, Operation::Read);
        self.pass(8);
    }
}
