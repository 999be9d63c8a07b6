//! Schedules that are written down: what must go wrong in just this order is found too rarely by chance.
//!
//! Nothing is violated in any of them. Most show what one rule is for: with that rule left out, something is. Delays within
//! a schedule still come from a seed.

mod losses;
mod stalls;
mod waits;

use loadline_san_core::ids::ReplicaId;
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::record::Departed;
use loadline_san_core::rule::{Rule, leave_out};
use loadline_san_core::volume::{Event, Order, Status};

use crate::run::{Verdict, judge, settle};
use crate::settings::Settings;
use crate::store::Store;
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
        drive: alone,
    },
    Schedule {
        name: "a grant that travels long",
        rule: Some(Rule::L1),
        nodes: 3,
        copies: 3,
        drive: late_grant,
    },
    Schedule {
        name: "a member that forgot what it granted",
        rule: Some(Rule::L3),
        nodes: 3,
        copies: 3,
        drive: forgetful,
    },
    Schedule {
        name: "a read that arrives after the seal",
        rule: Some(Rule::L2),
        nodes: 4,
        copies: 2,
        drive: late_read,
    },
    Schedule {
        name: "who is being added takes over",
        rule: Some(Rule::P1Reads),
        nodes: 2,
        copies: 2,
        drive: added,
    },
    Schedule {
        name: "a device that lost what it had",
        rule: Some(Rule::T10),
        nodes: 2,
        copies: 2,
        drive: liar,
    },
    Schedule {
        name: "an entry that spares a copy",
        rule: Some(Rule::C5),
        nodes: 3,
        copies: 3,
        drive: spared,
    },
    Schedule {
        name: "what was accepted before the seal",
        rule: Some(Rule::T9),
        nodes: 2,
        copies: 2,
        drive: accepted,
    },
    Schedule {
        name: "a repair that comes late",
        rule: Some(Rule::R7),
        nodes: 3,
        copies: 2,
        drive: late_repair,
    },
    Schedule {
        name: "a device that lost what it had returns",
        rule: Some(Rule::C9),
        nodes: 2,
        copies: 2,
        drive: liar,
    },
    Schedule {
        name: "a late order to return, to the next process",
        rule: Some(Rule::C6),
        nodes: 2,
        copies: 2,
        drive: late_order,
    },
    Schedule {
        name: "a late order to return, to a member",
        rule: Some(Rule::C7),
        nodes: 2,
        copies: 2,
        drive: doubled_order,
    },
    Schedule {
        name: "who is being added is needed for writes",
        rule: Some(Rule::P1Writes),
        nodes: 2,
        copies: 2,
        drive: added_and_written,
    },
    Schedule { name: "a recovery by force", rule: None, nodes: 2, copies: 2, drive: forced },
    Schedule { name: "a store restored from an old copy", rule: None, nodes: 2, copies: 2, drive: restored },
    Schedule {
        name: "a restored store, and a node that starts again and again",
        rule: Some(Rule::P4),
        nodes: 2,
        copies: 2,
        drive: restored_and_restarted,
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
        name: "forced, and rotten",
        rule: None,
        nodes: 2,
        copies: 1,
        drive: losses::forced_and_rotten,
    },
    Schedule {
        name: "forced, and the other lives",
        rule: None,
        nodes: 2,
        copies: 2,
        drive: losses::forced_and_the_other_lives,
    },
    Schedule {
        name: "two rotten blocks, apart",
        rule: None,
        nodes: 3,
        copies: 2,
        drive: waits::rotten_apart,
    },
];

/// Runs a schedule, with delays from a seed; with all rules, or with one left out.
pub fn run(schedule: &Schedule, seed: u64, left_out: Option<Rule>, trace: bool) -> Verdict {
    leave_out(left_out);
    let settings = Settings {
        nodes: schedule.nodes,
        copies: schedule.copies,
        stripes: if schedule.name == "an owner that reaches half" { 2 } else { 1 },
        blocks: Settings::GROUP,
        least: 1,
        tenants: 2,
        depth: 4,
        hasty: true,
        watch: false,
        operations: 0,
        crashes: false,
        disks: false,
        config: false,
        steer: 0,
        orders: false,
        lasting: false,
    };
    let mut world = World::new(settings, seed);
    world.trace = trace;
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

/// The owner reaches nobody, and somebody else takes over when its leases have run out.
fn alone(world: &mut World) {
    world.begin(0);
    world.part(0, 1);
    world.part(0, 2);
    world.lonely.insert(0);
    world.overtake_and_read(1, 130);
}

/// The answers to the owner's last heartbeats come shortly before its leases run out.
fn late_grant(world: &mut World) {
    world.begin(0);
    world.slow.extend([((1, 0), 60 * MS), ((2, 0), 60 * MS)]);
    world.pass(35);
    world.part(0, 1);
    world.part(0, 2);
    world.lonely.insert(0);
    world.overtake_and_read(1, 112);
}

/// A member is started anew while the owner holds its lease, and is sealed alone.
fn forgetful(world: &mut World) {
    world.begin(0);
    world.pass(1);
    world.part(0, 1);
    world.part(0, 2);
    world.part(1, 2);
    world.lonely.insert(0);
    world.kill(2, false);
    world.start(2);
    // With the rule it waits for the lease that its predecessor may have granted.
    world.place(1, 2);
    let until = world.now() + 65 * MS;
    while !world.serves(2) && world.now() < until {
        world.pass(1);
    }
    if world.serves(2) {
        world.ask_first(1, What::Write);
        world.pass(5);
    }
    world.ask_first(0, What::Read);
    world.pass(5);
}

/// A question of the old owner, which is stopped, is on its way for long. When it arrives, the replica has an entry of the new owner that
/// nobody else has, and that is lost.
fn late_read(world: &mut World) {
    let members: Vec<ReplicaId> = world.record().groups[0].in_sync.iter().copied().collect();
    let (asked, other) = (world.home(members[0]), world.home(members[1]));
    let bare: Vec<usize> = (0..4).filter(|node| *node != asked && *node != other).collect();
    let (old, new) = (bare[0], bare[1]);
    world.begin(old);
    world.slow.insert((old, asked), 150 * MS);
    world.ask_first(0, What::Read);
    world.pass(1);
    world.cut.extend([(old, asked), (old, other)]);
    world.lonely.insert(old);
    world.pause(old, 145 * MS);
    world.place(1, new);
    world.pass(130);
    world.must(world.serves(new), "the new owner serves");
    world.cut.insert((new, other));
    world.ask_first(1, What::Write);
    world.pass(30);
    world.kill(new, false);
    world.kill(asked, true);
    world.place(1, other);
    world.pass(200);
    world.must(world.serves(other), "the last one serves");
    world.ask_first(1, What::Read);
    world.pass(8);
    world.must(!world.waits(1), "it reads");
}

/// The swap that adds a member has committed, and its owner does not know. Then the two are parted.
fn add_unheard(world: &mut World) {
    world.begin(0);
    world.part(0, 1);
    world.pass(160);
    world.must(world.record().groups[0].in_sync.len() == 1, "the other was removed");
    world.cut.clear();
    world.deaf.insert(0);
    world.pass_until(300, |world| world.record().groups[0].in_sync.len() == 2);
    world.pass(1);
    world.part(0, 1);
}

/// The new member takes over, and the owner would read.
fn added(world: &mut World) {
    add_unheard(world);
    world.overtake_and_read(1, 130);
}

/// The owner is asked to write, and the new member takes over.
fn added_and_written(world: &mut World) {
    add_unheard(world);
    world.ask_first(0, What::Write);
    world.pass(10);
    world.place(1, 1);
    world.pass(150);
    world.must(world.serves(1), "the new owner serves");
    world.ask_first(1, What::Read);
    world.pass(10);
}

/// The last member is lost for good, and a person decides to go on with one that had departed before.
fn forced(world: &mut World) {
    world.begin(0);
    world.part(0, 1);
    world.pass(160);
    world.must(world.record().groups[0].in_sync.len() == 1, "the other was removed");
    world.ask_first(0, What::Write);
    world.pass(20);
    world.nodes[0].stores.values_mut().for_each(Store::fail_next);
    world.cut.clear();
    world.ask_first(0, What::Write);
    world.pass(100);
    world.detach(0);
    let survivor = *world.nodes[1].stores.keys().next().expect("it has one");
    world.history.take_for_granted(|sector| {
        world.nodes[1].stores[&survivor].value(sector / 8).map_or(0, |block| block[(sector % 8) as usize])
    });
    let record = Box::new(world.record().clone());
    let survivors = [(GroupIndex(0), survivor)].into();
    world.forced = true;
    world.place(1, 1);
    world.step_volume(1, Event::Order(Order::Recover { record, survivors }));
    world.pass_until(600, |world| world.serves(1));
    world.ask_first(1, What::Write);
    world.ask_first(1, What::Read);
    world.pass(20);
    world.must(!world.waits(1), "it is served");
    world
        .must(world.record().groups[0].departed.values().all(|d| *d == Departed::EMPTY), "nothing is spared");
}

/// The configuration store is restored from an old copy. Nobody goes on, before a person decides.
fn restored(world: &mut World) {
    let old = world.record().clone();
    world.begin(0);
    world.config.push(old);
    world.place(1, 1);
    world.pass(400);
    let blocked = |world: &World, node: usize| {
        world.nodes[node].process.as_ref().is_some_and(|p| p.volume.status() == Status::Blocked)
    };
    world.must(blocked(world, 1), "who takes over sees promises above the record");
    world.part(0, 1);
    world.pass(200);
    world.must(blocked(world, 0), "the old owner sees it when it needs a swap");
    world.cut.clear();
    let record = Box::new(world.record().clone());
    world.step_volume(0, Event::Order(Order::Recover { record, survivors: [].into() }));
    world.tenants[0].node = Some(0);
    world.step_volume(0, Event::Attach);
    world.pass_until(600, |world| world.serves(0));
    // The other node learns of it when it starts anew.
    world.kill(1, false);
    world.start(1);
}

/// The configuration store is restored from an old copy, in which somebody is a member who has missed writes since. Each try
/// of a process that has forgotten the former one would raise the record's epoch, until it passes all promises.
fn restored_and_restarted(world: &mut World) {
    let old = world.record().clone();
    world.begin(0);
    world.part(0, 1);
    world.pass(160);
    world.must(world.record().groups[0].in_sync.len() == 1, "the other was removed");
    world.ask_first(0, What::Write);
    world.pass(20);
    world.must(!world.waits(0), "it is written without the other");
    world.kill(0, false);
    let newest = world.record().clone();
    world.config.push(old);
    world.place(1, 1);
    for _ in 0..6 {
        world.pass(400);
        world.kill(1, false);
        world.start(1);
        world.step_volume(1, Event::Attach);
    }
    world.pass(400);
    // A person finds a newer copy.
    world.config.push(newest);
    world.start(0);
    world.place(0, 0);
    world.pass_until(600, |world| world.serves(0));
}

/// A device drops what it had said to be durable.
fn liar(world: &mut World) {
    world.begin(0);
    world.ask_first(0, What::Write);
    world.pass(60);
    world.kill(0, false);
    world.kill(1, false);
    for (replica, store) in &mut world.nodes[1].stores {
        store.lose_last();
        world.liars.insert(*replica);
    }
    world.start(0);
    world.start(1);
    world.place(0, 0);
    world.pass(400);
    world.must(world.serves(0), "it was taken over");
}

/// A replica is sealed while what it has accepted is on its way to the device.
fn accepted(world: &mut World) {
    world.begin(0);
    world.without_entries.insert((0, 1));
    world.ask_first(0, What::Write);
    world.weather.disk_slowest = 20 * MS;
    world.detach(0);
    world.place(1, 1);
    world.pass_until(3_000, |world| world.serves(1));
    world.without_entries.clear();
    world.pass(200);
}

/// A block has rotted. While it is repaired, a client writes it anew.
fn late_repair(world: &mut World) {
    let members: Vec<ReplicaId> = world.record().groups[0].in_sync.iter().copied().collect();
    let (rotten, whole) = (world.home(members[0]), world.home(members[1]));
    let owner = (0..3).find(|node| *node != rotten && *node != whole).expect("there are three");
    world.begin(owner);
    world.nodes[rotten].stores.get_mut(&members[0]).expect("it is there").rot_block(0);
    world.slow.insert((whole, owner), 5 * MS);
    world.ask_first(0, What::Read);
    world.pass(2);
    world.slow.insert((owner, rotten), 40 * MS);
    world.pass(5);
    world.slow.clear();
    world.ask_first(0, What::Write);
    world.pass(120);
    world.check_members();
}

/// A block that is still to be copied is written: the entry takes the place of the copy. It reaches nobody else, and so is
/// not acknowledged, when all the rest is copied.
fn spared(world: &mut World) {
    world.begin(0);
    world.part(0, 1);
    world.part(1, 2);
    world.pass(160);
    world.must(world.record().groups[0].in_sync.len() == 2, "one was removed");
    // More extents than are copied at once.
    for extent in 0..7 {
        world.ask_for(0, 0, What::Write, extent * 64, 8);
        world.pass(2);
    }
    world.cut.clear();
    world.slow.insert((1, 0), 20 * MS);
    let copies = world.coverage.of("message", "beside");
    world.pass_until(400, |world| world.coverage.of("message", "beside") >= copies + 4);
    world.without_entries.extend([(0, 1), (0, 2)]);
    world.ask_for(0, 0, What::Write, 6 * 64, 8);
    world.slow.clear();
    for _ in 0..60 {
        world.pass(1);
        world.check_members();
    }
}

/// The other node of a cluster of two departs, and begins to return.
fn depart_and_return(world: &mut World) {
    world.begin(0);
    world.part(0, 1);
    world.pass(160);
    world.must(world.record().groups[0].in_sync.len() == 1, "the other was removed");
    world.ask_first(0, What::Write);
    world.pass(5);
    world.echo.insert((0, 1), 60 * MS);
    world.cut.clear();
    world.pass_until(140, |world| world.record().groups[0].in_sync.len() == 2);
    world.pass(2);
    world.echo.clear();
}

/// Greeting and order come again, to a process that has started since, of a replica that is a member since.
fn late_order(world: &mut World) {
    depart_and_return(world);
    world.ask_first(0, What::Write);
    world.pass(3);
    world.must(!world.waits(0), "all members have it");
    world.cut.insert((0, 1));
    world.kill(1, false);
    world.start(1);
    for _ in 0..160 {
        world.pass(1);
        world.check_members();
        if world.record().groups[0].in_sync.len() == 1 {
            break;
        }
    }
}

/// The order comes again, to a replica that is a member since.
fn doubled_order(world: &mut World) {
    depart_and_return(world);
    for _ in 0..80 {
        world.ask_first(0, What::Write);
        world.pass(2);
        world.check_members();
    }
}
