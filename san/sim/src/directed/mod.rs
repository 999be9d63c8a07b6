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
mod stalls;
mod waits;

pub use forwarders::FORWARDING;
use loadline_san_core::ids::ReplicaId;
use loadline_san_core::rule::{Rule, leave_out};
use loadline_san_core::volume::{Event, Status};

use crate::forwarder;
use crate::run::{Verdict, judge, settle};
use crate::settings::Settings;
use crate::tenant::What;
use crate::world::{Happening, MS, Time, US, World};

/// A schedule.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// Its name.
    pub name: &'static str,
    /// The rule that it is about, if it is about one.
    pub rule: Option<Rule>,
    nodes: usize,
    copies: usize,
    drive: fn(&mut World),
}

/// All of them.
pub const SCHEDULES: &[Schedule] = &[
    Schedule {
        name: "an owner that is alone does not read",
        rule: Some(Rule::L4),
        nodes: 3,
        copies: 3,
        drive: owners::alone,
    },
    Schedule {
        name: "a grant that travels long",
        rule: Some(Rule::L1),
        nodes: 3,
        copies: 3,
        drive: owners::late_grant,
    },
    Schedule {
        name: "a member that forgot what it granted",
        rule: Some(Rule::L3),
        nodes: 3,
        copies: 3,
        drive: owners::forgetful,
    },
    Schedule {
        name: "leases that are given back late",
        rule: Some(Rule::L5),
        nodes: 3,
        copies: 3,
        drive: owners::late_release,
    },
    Schedule {
        name: "a read that arrives after the seal",
        rule: Some(Rule::L2),
        nodes: 4,
        copies: 2,
        drive: owners::late_read,
    },
    Schedule {
        name: "who is being added takes over",
        rule: Some(Rule::P1Reads),
        nodes: 2,
        copies: 2,
        drive: owners::added,
    },
    Schedule {
        name: "a device that lost what it had",
        rule: Some(Rule::T10),
        nodes: 2,
        copies: 2,
        drive: losses::liar,
    },
    Schedule {
        name: "an entry that spares a copy",
        rule: Some(Rule::C5),
        nodes: 3,
        copies: 3,
        drive: returns::spared,
    },
    Schedule {
        name: "what was accepted before the seal",
        rule: Some(Rule::T9),
        nodes: 2,
        copies: 2,
        drive: owners::accepted,
    },
    Schedule {
        name: "a repair that comes late",
        rule: Some(Rule::R7),
        nodes: 3,
        copies: 2,
        drive: returns::late_repair,
    },
    Schedule {
        name: "a device that lost what it had returns",
        rule: Some(Rule::C9),
        nodes: 2,
        copies: 2,
        drive: losses::liar,
    },
    Schedule {
        name: "a late order to return, to the next process",
        rule: Some(Rule::C6),
        nodes: 2,
        copies: 2,
        drive: returns::late_order,
    },
    Schedule {
        name: "a late order to return, to a member",
        rule: Some(Rule::C7),
        nodes: 2,
        copies: 2,
        drive: returns::doubled_order,
    },
    Schedule {
        name: "who is being added is needed for writes",
        rule: Some(Rule::P1Writes),
        nodes: 2,
        copies: 2,
        drive: owners::added_and_written,
    },
    Schedule { name: "a recovery by force", rule: None, nodes: 2, copies: 2, drive: losses::forced },
    Schedule {
        name: "a store restored from an old copy",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: owners::restored,
    },
    Schedule {
        name: "a restored store, and a node that starts again and again",
        rule: Some(Rule::P4),
        nodes: 2,
        copies: 2,
        drive: owners::restored_and_restarted,
    },
    Schedule {
        name: "an answer to a former attempt",
        rule: Some(Rule::C10),
        nodes: 3,
        copies: 2,
        drive: waits::stale_answer,
    },
    Schedule {
        name: "who has it whole is removed",
        rule: None,
        nodes: 3,
        copies: 2,
        drive: waits::hung_read,
    },
    Schedule { name: "a source that takes long", rule: None, nodes: 3, copies: 2, drive: waits::slow_source },
    Schedule {
        name: "one that comes back is struck off",
        rule: None,
        nodes: 3,
        copies: 3,
        drive: waits::struck_off,
    },
    Schedule {
        name: "the only member, greeted late",
        rule: None,
        nodes: 2,
        copies: 1,
        drive: waits::only_member,
    },
    Schedule {
        name: "an owner that reaches half",
        rule: None,
        nodes: 4,
        copies: 1,
        drive: waits::half_reached,
    },
    Schedule {
        name: "a request that waited",
        rule: Some(Rule::T12),
        nodes: 2,
        copies: 2,
        drive: waits::waited,
    },
    Schedule { name: "clients that have moved", rule: None, nodes: 3, copies: 3, drive: waits::moved },
    Schedule {
        name: "dead before the opening entry",
        rule: None,
        nodes: 3,
        copies: 2,
        drive: waits::before_opening,
    },
    Schedule {
        name: "a member whose process has ended",
        rule: None,
        nodes: 3,
        copies: 3,
        drive: stalls::ended_member,
    },
    Schedule {
        name: "an owner whose process has ended",
        rule: None,
        nodes: 3,
        copies: 3,
        drive: stalls::ended_owner,
    },
    Schedule { name: "an owner that gives way", rule: None, nodes: 3, copies: 3, drive: stalls::deposed },
    Schedule { name: "a member that hangs", rule: None, nodes: 3, copies: 3, drive: stalls::hung_member },
    Schedule { name: "a source that hangs", rule: None, nodes: 3, copies: 3, drive: stalls::hung_source },
    Schedule { name: "small ones pass", rule: None, nodes: 3, copies: 3, drive: stalls::small_ones_pass },
    Schedule { name: "a target that hangs", rule: None, nodes: 3, copies: 3, drive: stalls::hung_target },
    Schedule {
        name: "one that is made equal hangs",
        rule: None,
        nodes: 3,
        copies: 3,
        drive: stalls::hung_equal,
    },
    Schedule {
        name: "the configuration store is away",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: stalls::store_away,
    },
    Schedule { name: "the only copy revives", rule: None, nodes: 2, copies: 1, drive: stalls::revived },
    Schedule {
        name: "returned, and started anew",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: stalls::returned_and_restarted,
    },
    Schedule { name: "a group that is new", rule: None, nodes: 2, copies: 2, drive: stalls::grown },
    Schedule {
        name: "blocks made for a former ownership",
        rule: Some(Rule::T11),
        nodes: 2,
        copies: 2,
        drive: stalls::stale_merge,
    },
    Schedule {
        name: "lost before the opening entry",
        rule: None,
        nodes: 3,
        copies: 2,
        drive: losses::lost_before_opening,
    },
    Schedule {
        name: "away, and lost",
        rule: Some(Rule::C9),
        nodes: 2,
        copies: 2,
        drive: losses::away_and_lost,
    },
    Schedule { name: "many changes", rule: None, nodes: 2, copies: 2, drive: losses::pages },
    Schedule { name: "forced, and short", rule: None, nodes: 2, copies: 1, drive: losses::forced_and_short },
    Schedule {
        name: "forced, and corrupt",
        rule: None,
        nodes: 2,
        copies: 1,
        drive: losses::forced_and_corrupt,
    },
    Schedule {
        name: "forced, and the other lives",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: losses::forced_and_the_other_lives,
    },
    Schedule {
        name: "a write that waited, and clients that were there",
        rule: Some(Rule::T12),
        nodes: 2,
        copies: 2,
        drive: clients::joins_others,
    },
    Schedule {
        name: "a write that waited, and a store restored",
        rule: Some(Rule::T12),
        nodes: 2,
        copies: 2,
        drive: clients::forgotten_attachment,
    },
    Schedule {
        name: "a write that waited where it was blocked",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: clients::blocked_meanwhile,
    },
    Schedule {
        name: "a write that waited where it was recovered",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: clients::recovered_meanwhile,
    },
    Schedule { name: "two recoveries", rule: None, nodes: 2, copies: 2, drive: clients::two_recoveries },
    Schedule { name: "left out for a while", rule: None, nodes: 3, copies: 2, drive: stalls::left_out },
    Schedule { name: "a takeover that is stopped", rule: None, nodes: 3, copies: 3, drive: stalls::paused },
    Schedule { name: "twice in a while", rule: None, nodes: 3, copies: 3, drive: stalls::twice_in_a_while },
    Schedule {
        name: "undecided for long",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: stalls::undecided_for_long,
    },
    Schedule { name: "large ones are lost", rule: None, nodes: 2, copies: 2, drive: stalls::large_ones_lost },
    Schedule { name: "a late salvage", rule: None, nodes: 2, copies: 2, drive: losses::late_salvage },
    Schedule {
        name: "forced, and detached",
        rule: None,
        nodes: 2,
        copies: 1,
        drive: losses::forced_and_detached,
    },
    Schedule { name: "forced, and late", rule: None, nodes: 2, copies: 1, drive: losses::forced_late },
    Schedule {
        name: "a loss that is forgotten",
        rule: None,
        nodes: 3,
        copies: 2,
        drive: losses::forgotten_loss,
    },
    Schedule {
        name: "a configuration store put right",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: owners::put_right,
    },
    Schedule {
        name: "a corrupt block behind the end",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: returns::rotten_behind_the_end,
    },
    Schedule {
        name: "a write that waited, and another client at the owner",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: clients::after_another,
    },
    Schedule {
        name: "a write that waited, and another client on its way",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: clients::beside_another,
    },
    Schedule {
        name: "a write that waited on a branch",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: clients::on_a_branch,
    },
    Schedule {
        name: "a loss while all are asked",
        rule: None,
        nodes: 3,
        copies: 2,
        drive: losses::loss_while_sealing,
    },
    Schedule { name: "grown again", rule: None, nodes: 2, copies: 2, drive: losses::grown_again },
    Schedule {
        name: "damaged, and ahead",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: losses::damaged_and_ahead,
    },
    Schedule {
        name: "an order, and blocked",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: owners::order_and_blocked,
    },
    Schedule {
        name: "left out, and the other hangs",
        rule: None,
        nodes: 3,
        copies: 2,
        drive: stalls::left_out_and_hung,
    },
    Schedule {
        name: "two corrupt blocks, apart",
        rule: None,
        nodes: 3,
        copies: 2,
        drive: waits::rotten_apart,
    },
    Schedule {
        name: "a return to a device that was full",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: returns::to_a_full_device,
    },
    Schedule {
        name: "a return to a device that was full, and stays so",
        rule: Some(Rule::C11),
        nodes: 2,
        copies: 2,
        drive: returns::to_a_device_that_stays_full,
    },
    Schedule {
        name: "zeroes on a device that would be full",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: returns::zeroes_on_a_small_device,
    },
    Schedule {
        name: "a device that went back in time, alone",
        rule: Some(Rule::R9),
        nodes: 2,
        copies: 2,
        drive: losses::device_goes_back_alone,
    },
    Schedule {
        name: "a device that went back in time, beside others",
        rule: Some(Rule::R9),
        nodes: 3,
        copies: 2,
        drive: losses::device_goes_back_beside,
    },
    Schedule {
        name: "a write that is held, and its client goes",
        rule: Some(Rule::T13),
        nodes: 2,
        copies: 2,
        drive: clients::held_and_gone,
    },
    Schedule {
        name: "a write that is held, and an attach is ordered",
        rule: Some(Rule::T13),
        nodes: 2,
        copies: 2,
        drive: clients::held_and_fenced,
    },
    Schedule {
        name: "an owner that reaches the configuration store only",
        rule: Some(Rule::S1),
        nodes: 3,
        copies: 3,
        drive: owners::reaches_the_store_only,
    },
    Schedule {
        name: "members that fall silent one after the other",
        rule: Some(Rule::S1Soon),
        nodes: 3,
        copies: 3,
        drive: owners::one_after_the_other,
    },
    Schedule {
        name: "members that answered before they fell silent",
        rule: Some(Rule::S1Anew),
        nodes: 3,
        copies: 3,
        drive: owners::answered_before,
    },
    Schedule {
        name: "an owner whose connections are all refused",
        rule: Some(Rule::S1Ended),
        nodes: 3,
        copies: 3,
        drive: owners::all_refuse,
    },
    Schedule {
        name: "an older record, held by a stale copy that starts alone",
        rule: Some(Rule::R11),
        nodes: 3,
        copies: 3,
        drive: owners::forked,
    },
    Schedule {
        name: "a stale copy alone on an older record, whose process ends again and again",
        rule: None,
        nodes: 3,
        copies: 3,
        drive: owners::forked_and_restarted,
    },
    Schedule {
        name: "an older record, and the same node owns the volume in both histories",
        rule: Some(Rule::R11),
        nodes: 3,
        copies: 2,
        drive: owners::forked_between_lives,
    },
    Schedule {
        name: "a stale copy that was blocked starts again beside those that went on",
        rule: Some(Rule::P4All),
        nodes: 3,
        copies: 3,
        drive: owners::forked_and_started_again,
    },
    Schedule {
        name: "corruption that nobody reads",
        rule: None,
        nodes: 3,
        copies: 2,
        drive: waits::corrupt_unread,
    },
    Schedule {
        name: "a map of what is only in the log",
        rule: Some(Rule::R10),
        nodes: 2,
        copies: 2,
        drive: maps::only_in_the_log,
    },
    Schedule {
        name: "a map that is answered after the seal",
        rule: None,
        nodes: 4,
        copies: 2,
        drive: maps::late,
    },
    Schedule {
        name: "a map, and the member that is asked is gone",
        rule: None,
        nodes: 3,
        copies: 2,
        drive: maps::asked_again,
    },
    Schedule {
        name: "damaged, away, and emptied before the record says so",
        rule: Some(Rule::C12),
        nodes: 3,
        copies: 2,
        drive: damaged::emptied_early,
    },
    Schedule {
        name: "a member found damaged is rebuilt",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: damaged::member,
    },
    Schedule {
        name: "a member with a slot that is corrupt is rebuilt",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: damaged::slot,
    },
    Schedule {
        name: "it dies while it is emptied",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: damaged::dies_meanwhile,
    },
    Schedule {
        name: "both are damaged, and a person decides",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: damaged::both,
    },
    Schedule {
        name: "the last copy is damaged, and the other is empty",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: damaged::the_last,
    },
];

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
        orders: false,
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

/// What a schedule says.
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

    /// A client is at this node from now on, and wants the volume there.
    fn place(&mut self, tenant: usize, node: usize) {
        self.tenants[tenant].node = Some(node);
        self.step_volume(node, Event::Attach);
    }

    /// A client asks for the first block.
    fn ask_first(&mut self, tenant: usize, what: What) {
        let node = self.tenants[tenant].node.expect("it is somewhere");
        self.ask_for(tenant, node, what, 0, 8);
    }

    fn waits(&self, tenant: usize) -> bool {
        !self.tenants[tenant].asked.is_empty()
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

    /// A client at a node has written the first block, and everybody knows.
    fn begin(&mut self, node: usize) {
        self.place(0, node);
        self.pass(250);
        self.must(self.serves(node), "the first owner serves");
        self.ask_first(0, What::Write);
        self.pass(60);
        self.must(!self.waits(0), "the first write is acknowledged");
    }

    /// Another client, at another node, takes the volume over and writes; then the first one reads, at the old owner.
    fn overtake_and_read(&mut self, new: usize, wait: Time) {
        self.place(1, new);
        self.pass(wait);
        self.must(self.serves(new), "the new owner serves");
        self.ask_first(1, What::Write);
        self.pass(8);
        self.must(!self.waits(1), "its write is acknowledged");
        self.ask_first(0, What::Read);
        self.pass(8);
    }
}
