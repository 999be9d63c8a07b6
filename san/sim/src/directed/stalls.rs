//! Schedules in which all nodes answer, and something makes no progress all the same: devices that hang, links that lose large
//! messages, a configuration store that is away.

use loadline_san_core::ids::{NodeId, ReplicaId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::volume::{Event, Status, VolumeCommand};

use crate::settings::Settings;
use crate::store::{Store, new_store};
use crate::time::MS;
use crate::world::tenant::Operation;
use crate::world::{Happening, World};

fn members(world: &World) -> usize {
    world.record().groups[0].in_sync.len()
}

/// The first group's members, and their nodes.
fn homes(world: &World) -> (Vec<ReplicaId>, Vec<usize>) {
    let replicas: Vec<ReplicaId> = world.record().groups[0].in_sync.iter().copied().collect();
    let homes = replicas.iter().map(|replica| world.home(*replica)).collect();
    (replicas, homes)
}

/// A member's process ends, and the owner receives a report of that: a write waits less long than for a member that is silent.
/// When the process runs again the member returns, and so does a member that was reported as ended by mistake.
pub(super) fn ended_member(world: &mut World) {
    let (_, homes) = homes(world);
    world.begin(homes[0]);
    world.kill(homes[1], false);
    world.ask_first(0, Operation::Write);
    world.pass(5);
    world.must(world.waits(0), "what is written waits for it");
    world.step_volume(homes[0], Event::Ended(NodeId(homes[1] as u32)));
    world.pass(10);
    world.must(!world.waits(0) && members(world) == 2, "it is written without the one that has ended");
    world.step_volume(homes[0], Event::Ended(NodeId(homes[2] as u32)));
    world.pass_until(10, |world| members(world) == 1);
    world.after(0, Happening::Start(homes[1]));
    // It takes a connection.
    world.step_volume(homes[0], Event::Started(NodeId(homes[2] as u32)));
    world.pass_until(2_000, |world| members(world) == 3);
}

/// The owner's process ends, and the node to which its clients connect next receives a report of that: it serves when the leases
/// have ended, and waits for no report of the owner that has ended.
pub(super) fn ended_owner(world: &mut World) {
    let (_, homes) = homes(world);
    world.begin(homes[0]);
    world.kill(homes[0], false);
    world.step_volume(homes[1], Event::Ended(NodeId(homes[0] as u32)));
    world.place(1, homes[1]);
    world.pass(Settings::LEASE / MS * 7 / 5);
    world.must(world.serves(homes[1]), "it serves soon");
    world.after(0, Happening::Start(homes[0]));
    world.pass_until(2_000, |world| members(world) == 3);
}

/// Another node claims a volume while its owner serves: the deposed owner gives its leases back, so the new owner does not wait
/// until they end.
pub(super) fn deposed(world: &mut World) {
    let (_, homes) = homes(world);
    world.begin(homes[0]);
    world.place(1, homes[1]);
    world.pass(Settings::LEASE / MS * 3 / 5);
    world.must(world.serves(homes[1]), "it serves before any lease is over");
}

/// A member's device does nothing any more, and its process answers.
pub(super) fn hung_member(world: &mut World) {
    let (replicas, homes) = homes(world);
    world.begin(homes[0]);
    world.hung.insert(replicas[1]);
    world.ask_first(0, Operation::Write);
    world.pass(1_000);
    world.must(!world.waits(0), "it is written without the member that hangs");
}

/// The device of the owner's own member hangs. What is read comes from another.
pub(super) fn hung_source(world: &mut World) {
    let (replicas, homes) = homes(world);
    world.begin(homes[0]);
    world.hung.insert(replicas[0]);
    for _ in 0..20 {
        world.ask_first(0, Operation::Read);
        world.pass(60);
    }
    world.must(members(world) == 2, "a member that answers no request is removed");
    world.must(!world.waits(0), "the others are read");
}

/// Large messages do not get to a member, small ones do.
pub(super) fn small_ones_pass(world: &mut World) {
    world.begin(0);
    world.without_entries.insert((0, 1));
    world.ask_first(0, Operation::Write);
    world.pass(1_000);
    world.must(!world.waits(0), "it is written without the member that gets nothing");
}

/// The device of a replica that comes back hangs, while blocks are locked that are copied to it.
pub(super) fn hung_target(world: &mut World) {
    let (replicas, homes) = homes(world);
    world.begin(homes[0]);
    world.part(homes[0], homes[1]);
    world.pass(160);
    world.must(members(world) == 2, "one was removed");
    world.ask_first(0, Operation::Write);
    world.pass(5);
    let copies = world.coverage.of("message", "out_of_band");
    world.cut.clear();
    world.pass_until(400, |world| world.coverage.of("message", "out_of_band") > copies);
    world.hung.insert(replicas[1]);
    world.ask_first(0, Operation::Read);
    world.pass(1_000);
    world.must(!world.waits(0), "what is copied to it is given up, and the blocks are free");
}

/// A member was sealed and has reported; then its device hangs.
pub(super) fn hung_equal(world: &mut World) {
    let (replicas, homes) = homes(world);
    world.begin(homes[0]);
    // An entry that one member has.
    world.without_entries.insert((homes[0], homes[1]));
    world.ask_first(0, Operation::Write);
    world.pass(5);
    world.detach(homes[0]);
    world.place(1, homes[1]);
    world.pass_until(1_000, |world| world.is(homes[1], Status::Equalizing));
    world.hung.insert(replicas[2]);
    world.pass(2_000);
    world.must(world.serves(homes[1]), "it is taken over without the one that hangs");
}

/// The configuration store is away. All replicas answer; a change that no client's request needs is undecided.
pub(super) fn store_away(world: &mut World) {
    world.begin(0);
    world.cut_from_config.extend([0, 1]);
    world.pass(2_000);
    world.must(world.serves(0), "without a change it is served without the configuration store");
    let command = VolumeCommand::Add { group: GroupIndex(0), replica: ReplicaId(99), home: NodeId(1) };
    world.step_volume(0, Event::Command(command));
    world.pass(1_000);
    world.must(world.serves(0), "with an undecided one too");
    world.ask_first(0, Operation::Write);
    world.pass(20);
    world.must(!world.waits(0), "it is written");
    // The replica does not exist, so it never returns.
    world.cut_from_config.clear();
    world.pass(200);
    world.step_volume(
        0,
        Event::Command(VolumeCommand::Forget { group: GroupIndex(0), replica: ReplicaId(99) }),
    );
    world.pass(50);
}

/// The only copy fails to write once; its process is started anew, and finds the device well.
pub(super) fn revived(world: &mut World) {
    let (replicas, homes) = homes(world);
    let owner = 1 - homes[0];
    world.begin(owner);
    let store = |world: &mut World, what: fn(&mut Store)| {
        what(world.nodes[homes[0]].stores.get_mut(&replicas[0]).expect("it is there"));
    };
    store(world, Store::fail_next);
    world.ask_first(0, Operation::Write);
    world.pass(50);
    world.kill(homes[0], false);
    store(world, Store::revive);
    world.start(homes[0]);
    world.pass(1_500);
    world.must(!world.waits(0), "it has a session again");
}

/// The reports of a member that has returned, and starts anew within the same ownership, are believed.
pub(super) fn returned_and_restarted(world: &mut World) {
    world.begin(0);
    world.part(0, 1);
    world.pass(160);
    world.must(members(world) == 1, "one was removed");
    world.cut.clear();
    world.pass_until(3_000, |world| members(world) == 2);
    world.pass(100);
    world.kill(1, false);
    world.start(1);
    world.pass(60);
    world.ask_first(0, Operation::Write);
    world.pass(300);
    world.must(!world.waits(0) && members(world) == 2, "both have it");
}

/// A group that is new is served by the owner that made it.
pub(super) fn grown(world: &mut World) {
    world.begin(0);
    grow_by_a_group(world);
}

/// Node 0, which serves the volume, adds a group to it, and a client writes and reads there.
pub(super) fn grow_by_a_group(world: &mut World) {
    let new = ReplicaId(1_001);
    world.nodes[0].stores.insert(new, new_store(new, false));
    let life = world.nodes[0].process.as_ref().expect("it runs").life;
    let replica = world.open_replica(0, new, life, world.clock(0));
    world.nodes[0].process.as_mut().expect("it runs").replicas.insert(new, replica);
    let added = vec![vec![(new, NodeId(0))]];
    world.step_volume(0, Event::Command(VolumeCommand::Grow { blocks: 128, added }));
    world.pass(300);
    world.ask_for(0, 0, Operation::Write, 100 * 8, 8);
    world.ask_for(0, 0, Operation::Read, 127 * 8, 8);
    world.pass(200);
    world.must(!world.waits(0), "what is new is written and read");
}

/// What was made of a client's data for a former ownership comes late.
pub(super) fn stale_merge(world: &mut World) {
    world.begin(0);
    world.merge_delay = 400 * MS;
    // A part of the first block, as the second job of its place.
    world.ask_for(0, 0, Operation::Write, 3, 2);
    world.pass(5);
    world.detach(0);
    world.place(0, 0);
    world.pass_until(300, |world| world.serves(0));
    // In the next ownership, jobs are counted anew: the second one is a part of another block.
    world.ask_for(0, 0, Operation::Write, 8, 8);
    world.pass(5);
    world.ask_for(0, 0, Operation::Write, 80, 2);
    world.pass(390);
    world.check_members();
    world.ask_for(0, 0, Operation::Read, 80, 8);
    world.pass(600);
}

/// A node without replicas takes over, and a member is left out that hung for a while. The members, their nodes, that node.
fn one_is_left_out(world: &mut World) -> (Vec<ReplicaId>, Vec<usize>, usize) {
    let (replicas, homes) = homes(world);
    let bare = (0..3).find(|node| !homes.contains(node)).expect("there are three");
    world.begin(homes[0]);
    world.without_entries.insert((homes[0], homes[1]));
    world.ask_first(0, Operation::Write);
    world.pass(5);
    world.detach(homes[0]);
    world.place(1, bare);
    world.pass_until(1_000, |world| world.is(bare, Status::Equalizing));
    world.hung.insert(replicas[1]);
    world.pass_until(2_000, |world| world.is(bare, Status::Sealing));
    world.hung.clear();
    (replicas, homes, bare)
}

/// A member that hung for a while was left out of a takeover. Then the other one dies for good.
pub(super) fn left_out(world: &mut World) {
    let (_, homes, bare) = one_is_left_out(world);
    world.kill(homes[0], false);
    world.pass_until(3_000, |world| world.serves(bare));
}

/// The node that takes over is stopped for a while: it excludes no other node for that.
pub(super) fn paused(world: &mut World) {
    let (_, homes) = homes(world);
    world.begin(homes[0]);
    world.without_entries.insert((homes[0], homes[1]));
    world.ask_first(0, Operation::Write);
    world.pass(5);
    world.detach(homes[0]);
    world.without_entries.clear();
    world.place(1, homes[1]);
    world.slow.extend([((homes[0], homes[1]), 2 * MS), ((homes[2], homes[1]), 2 * MS)]);
    world.pass_until(1_000, |world| world.is(homes[1], Status::Equalizing));
    world.pause(homes[1], 500 * MS);
    world.pass(510);
    world.slow.clear();
    for _ in 0..20 {
        world.pass(1);
        world.must(members(world) == 3, "no member is left out");
    }
}

/// Twice in a while a request to a member is lost. Between the two the member answers every request.
pub(super) fn twice_in_a_while(world: &mut World) {
    let (replicas, homes) = homes(world);
    world.begin(homes[0]);
    world.pass(300);
    let before = world.coverage.of("message", "return");
    for _ in 0..2 {
        world.hung.insert(replicas[0]);
        world.ask_first(0, Operation::Read);
        world.pass(5);
        world.cut.insert((homes[1], homes[0]));
        world.pass(45);
        world.cut.clear();
        world.pass(15);
        world.hung.clear();
        world.pass(3_000);
    }
    world.must(world.coverage.of("message", "return") == before, "no member was removed");
}

/// A change is undecided for long, and then a member starts anew: it is greeted, and the owner stays.
pub(super) fn undecided_for_long(world: &mut World) {
    world.begin(0);
    world.cut_from_config.extend([0, 1]);
    let command = VolumeCommand::Add { group: GroupIndex(0), replica: ReplicaId(99), home: NodeId(1) };
    world.step_volume(0, Event::Command(command));
    world.pass(1_000);
    world.kill(1, false);
    world.start(1);
    world.slow.insert((1, 0), 8 * MS);
    world.pass(60);
    world.must(world.serves(0), "it is served");
    world.slow.clear();
    world.cut_from_config.clear();
    world.pass(200);
    world.step_volume(
        0,
        Event::Command(VolumeCommand::Forget { group: GroupIndex(0), replica: ReplicaId(99) }),
    );
    world.pass(50);
}

/// What is large does not get to a replica that comes back. Most of the time its blocks can be written all the same.
pub(super) fn large_ones_lost(world: &mut World) {
    world.begin(0);
    world.part(0, 1);
    world.pass(160);
    world.must(members(world) == 1, "one was removed");
    world.ask_first(0, Operation::Write);
    world.pass(5);
    world.cut.clear();
    world.without_entries.insert((0, 1));
    let mut locked = 0;
    for _ in 0..10_000 {
        if !world.waits(0) {
            world.ask_first(0, Operation::Write);
        }
        world.pass(1);
        locked += u32::from(world.waits(0));
    }
    world.must(locked < 1_500, &format!("the block is locked for {locked} ms of 10 s"));
    // Everything heals: it is not tried at once.
    world.without_entries.clear();
    world.pass_until(15_000, |world| members(world) == 2);
}

/// A member that hung for a while was left out of a takeover. Then the other one hangs for good.
pub(super) fn left_out_and_hung(world: &mut World) {
    let (replicas, _, bare) = one_is_left_out(world);
    world.pass_until(2_000, |world| world.is(bare, Status::Equalizing));
    world.hung.insert(replicas[0]);
    world.pass_until(5_000, |world| world.serves(bare));
}

/// The process of a member is about to end, by order: it leaves the set while it still answers, does not return, ends, and returns when it has
/// started again. No write waits for it.
pub(super) fn ends_by_order(world: &mut World) {
    world.begin(0);
    let in_sync = |world: &World| world.record().groups[0].in_sync.len();
    let home = (1..3).find(|node| members_at(world, *node)).expect("another node has one");
    world.step_volume(0, Event::Ended(NodeId(home as u32)));
    world.pass_until(100, |world| in_sync(world) == 2);
    world.pass(400);
    world.must(in_sync(world) == 2, "it does not return while it is about to end");
    world.kill(home, false);
    world.pass(100);
    world.start(home);
    world.pass_until(2_000, |world| in_sync(world) == 3);
}

/// Whether a node has a member of the first group.
fn members_at(world: &World, node: usize) -> bool {
    world.record().groups[0].in_sync.iter().any(|replica| world.home(*replica) == node)
}
