//! Schedules in which two nodes claim the volume: leases, takeovers, and the record in the configuration store.

use loadline_san_core::history::MOST_CLAIMS;
use loadline_san_core::ids::{Epoch, NodeId, ReplicaId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::volume::{Event, Status, VolumeCommand};

use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;
use crate::world::tenant::Operation;

/// The owner reaches no other node, and another node takes over when the owner's leases have ended.
pub(super) fn alone(world: &mut World) {
    world.begin(0);
    world.part(0, 1);
    world.part(0, 2);
    world.cut_from_config.insert(0);
    world.overtake_and_read(1, 130);
}

/// The answers to the owner's last heartbeats come shortly before its leases run out.
pub(super) fn late_grant(world: &mut World) {
    world.begin(0);
    world.slow.extend([((1, 0), 60 * MS), ((2, 0), 60 * MS)]);
    world.pass(35);
    world.part(0, 1);
    world.part(0, 2);
    world.cut_from_config.insert(0);
    world.overtake_and_read(1, 112);
}

/// A member is started anew while the owner holds its lease, and is sealed alone.
pub(super) fn forgetful(world: &mut World) {
    world.begin(0);
    world.pass(1);
    world.part(0, 1);
    world.part(0, 2);
    world.part(1, 2);
    world.cut_from_config.insert(0);
    world.kill(2, false);
    world.start(2);
    // With the rule it waits for the lease that its predecessor may have granted.
    world.place(1, 2);
    let until = world.now() + 65 * MS;
    while !world.serves(2) && world.now() < until {
        world.pass(1);
    }
    if world.serves(2) {
        world.ask_first(1, Operation::Write);
        world.pass(5);
    }
    world.ask_first(0, Operation::Read);
    world.pass(5);
}

/// The first owner reads a volume into which nothing was written. A member that has acknowledged nothing either, as far as its device
/// shows, is started anew while the owner holds its lease, and is sealed alone.
pub(super) fn empty_and_forgetful(world: &mut World) {
    world.place(0, 0);
    world.pass_until(250, |world| world.serves(0));
    world.pass(10);
    world.must(world.serves(0), "the first owner serves");
    world.part(0, 1);
    world.part(0, 2);
    world.part(1, 2);
    world.cut_from_config.insert(0);
    world.kill(2, false);
    world.start(2);
    // With the rule it waits for the lease that its predecessor may have granted.
    world.place(1, 2);
    let until = world.now() + 65 * MS;
    while !world.serves(2) && world.now() < until {
        world.pass(1);
    }
    if world.serves(2) {
        world.ask_first(1, Operation::Write);
        world.pass(5);
    }
    world.ask_first(0, Operation::Read);
    world.pass(5);
}

/// No lease is waited for where none can have been granted: the replicas were made by the processes that run.
pub(super) fn at_once(world: &mut World) {
    let begun = world.now();
    world.place(0, 0);
    world.pass_until(250, |world| world.serves(0));
    world.must(world.now() - begun < world.record().lease_ns / 2, "a new volume waits for no lease");
}

/// The message by which an owner gives its leases back is delayed. When it arrives, the same node is the owner again, alone, and
/// another node takes over.
pub(super) fn late_release(world: &mut World) {
    world.begin(0);
    world.slow.insert((0, 1), 300 * MS);
    let until = world.now() + 290 * MS;
    world.detach(0);
    world.slow.clear();
    world.place(0, 0);
    world.pass(200);
    world.must(world.serves(0), "it is the owner again");
    world.run_until(until);
    world.part(0, 1);
    world.part(0, 2);
    world.cut_from_config.insert(0);
    world.place(1, 1);
    // With the rule it waits until the new leases are over.
    let until = world.now() + 70 * MS;
    while !world.serves(1) && world.now() < until {
        world.pass(1);
    }
    if world.serves(1) {
        world.ask_first(1, Operation::Write);
        world.pass(5);
    }
    world.ask_first(0, Operation::Read);
    world.pass(5);
}

/// A read request of the old owner, which is stopped, is delayed. When it arrives, the replica has an entry of the new owner that no
/// other replica has, and that is lost.
pub(super) fn late_read(world: &mut World) {
    let members: Vec<ReplicaId> = world.record().groups[0].in_sync.iter().copied().collect();
    let (asked, other) = (world.home(members[0]), world.home(members[1]));
    let bare: Vec<usize> = (0..4).filter(|node| *node != asked && *node != other).collect();
    let (old, new) = (bare[0], bare[1]);
    world.begin(old);
    world.slow.insert((old, asked), 150 * MS);
    world.ask_first(0, Operation::Read);
    world.pass(1);
    world.cut.extend([(old, asked), (old, other)]);
    world.cut_from_config.insert(old);
    world.pause(old, 145 * MS);
    world.place(1, new);
    world.pass(130);
    world.must(world.serves(new), "the new owner serves");
    world.cut.insert((new, other));
    world.ask_first(1, Operation::Write);
    world.pass(30);
    world.kill(new, false);
    world.kill(asked, true);
    world.place(1, other);
    world.pass(200);
    world.must(world.serves(other), "the last one serves");
    world.ask_first(1, Operation::Read);
    world.pass(8);
    world.must(!world.waits(1), "it reads");
}

/// The swap that adds a member has committed, and its owner does not know. Then the two are parted.
fn add_without_answers(world: &mut World) {
    world.begin(0);
    world.part(0, 1);
    world.pass(160);
    world.must(world.record().groups[0].in_sync.len() == 1, "the other was removed");
    world.cut.clear();
    world.without_config_answers.insert(0);
    world.pass_until(300, |world| world.record().groups[0].in_sync.len() == 2);
    world.pass(1);
    world.part(0, 1);
}

/// The new member takes over, and the owner would read.
pub(super) fn added(world: &mut World) {
    add_without_answers(world);
    world.overtake_and_read(1, 130);
}

/// The owner is asked to write, and the new member takes over.
pub(super) fn added_and_written(world: &mut World) {
    add_without_answers(world);
    world.ask_first(0, Operation::Write);
    world.pass(10);
    world.place(1, 1);
    world.pass(150);
    world.must(world.serves(1), "the new owner serves");
    world.ask_first(1, Operation::Read);
    world.pass(10);
}

/// The configuration store is restored from an old copy. No node serves before a person decides.
pub(super) fn restored(world: &mut World) {
    let old = world.record().clone();
    world.begin(0);
    world.config.push(old);
    world.place(1, 1);
    world.pass(400);
    world.must(world.is(1, Status::Blocked), "the node that takes over sees promises above the record");
    world.part(0, 1);
    world.pass(200);
    world.must(world.is(0, Status::Blocked), "the old owner sees it when it needs a swap");
    world.cut.clear();
    let record = Box::new(world.record().clone());
    world.step_volume(
        0,
        Event::Command(VolumeCommand::Recover { record, survivors: [].into(), promised: Epoch(0) }),
    );
    world.tenants[0].node = Some(0);
    world.step_volume(0, Event::Attach);
    world.pass_until(600, |world| world.serves(0));
    // The other node learns of it when it starts anew.
    world.kill(1, false);
    world.start(1);
}

/// The configuration store is restored from an old copy, in which a replica is a member that has missed writes since. Each takeover
/// by a process that has forgotten the one before would raise the record's epoch, until it passes all promises.
pub(super) fn restored_and_restarted(world: &mut World) {
    let old = world.record().clone();
    world.begin(0);
    world.part(0, 1);
    world.pass(160);
    world.must(world.record().groups[0].in_sync.len() == 1, "the other was removed");
    world.ask_first(0, Operation::Write);
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

/// The configuration store is restored from an old copy while all are stopped. A member of it that has missed a write since starts alone,
/// takes the volume over, and its swaps pass all promises. Then the others start, which that record calls departed.
pub(super) fn forked(world: &mut World) {
    let newest = stale_alone(world);
    world.ask_first(0, Operation::Read);
    world.pass_until(600, |world| !world.waits(0));
    for _ in 0..10 {
        // Each client that attaches raises the epoch.
        world.detach(2);
        world.place(0, 2);
        world.pass_until(3_000, |world| world.serves(2));
    }
    world.must(world.held().epoch > newest, "the epochs of the one history have passed those of the other");
    world.start(0);
    world.start(1);
    world.pass(1_500);
    world.must(world.is(2, Status::Blocked), "the stale owner is blocked");
    // It is not ended by that a process forgets it, or by what is swapped since.
    for _ in 0..4 {
        world.kill(2, false);
        world.start(2);
        world.place(0, 2);
        world.pass(600);
    }
    go_on_with(world, 0);
}

/// The same, and the process of the stale copy has ended more often than a record keeps claims.
pub(super) fn forked_and_restarted(world: &mut World) {
    stale_alone(world);
    for _ in 0..MOST_CLAIMS + 2 {
        world.kill(2, false);
        world.start(2);
        world.place(0, 2);
        world.pass_until(3_000, |world| world.serves(2));
    }
    world.start(0);
    world.start(1);
    world.pass(1_500);
    world.must(world.is(2, Status::Blocked), "the stale owner is blocked");
    go_on_with(world, 0);
}

/// An owner without a copy continues without the second copy, is stopped, and begins another life on the record from before, with
/// that copy: in both histories the same node owned the volume, in other lives of its process.
pub(super) fn forked_between_lives(world: &mut World) {
    let homes: Vec<usize> = world.record().homes.values().map(|node| node.0 as usize).collect();
    let (first, second) = (homes[0], homes[1]);
    let outside = (0..3).find(|node| !homes.contains(node)).expect("two of three have copies");
    world.begin(outside);
    let old = world.record().clone();
    world.kill(second, false);
    world.ask_first(0, Operation::Write);
    world.pass_until(6_000, |world| !world.waits(0));
    world.must(world.record().groups[0].in_sync.len() == 1, "the second copy is excluded");
    // Until the copy that continues has durably a commit point of the epoch with which it continues.
    world.pass(500);
    world.detach(outside);
    world.tenants[0].node = None;
    world.branch_from(old);
    world.start(second);
    world.start(outside);
    world.place(0, outside);
    world.pass_until(6_000, |world| world.serves(outside));
    for _ in 0..5 {
        world.detach(outside);
        world.place(0, outside);
        world.pass_until(6_000, |world| world.serves(outside));
    }
    world.start(first);
    world.pass(3_000);
    world.must(world.is(outside, Status::Blocked), "the owner is blocked");
    go_on_with(world, first);
}

/// The stale copy is blocked, and its process starts again while the copies that continued run: it never serves.
pub(super) fn forked_and_started_again(world: &mut World) {
    stale_alone(world);
    world.start(0);
    world.start(1);
    world.pass(1_500);
    for _ in 0..6 {
        world.kill(2, false);
        world.start(2);
        world.place(0, 2);
        world.pass_until(1_500, |world| world.serves(2) || world.is(2, Status::Blocked));
        world.must(
            world.is(2, Status::Blocked),
            "copies that have left report which owner they follow before it serves",
        );
    }
    for node in [0, 1] {
        world.kill(node, false);
        world.start(node);
    }
    world.pass(700);
    go_on_with(world, 0);
}

/// A person recovers the volume by force from the copy of a node.
fn go_on_with(world: &mut World, node: usize) {
    let home = |replica: &&ReplicaId| world.home(**replica) == node;
    let survivor = *world.record().homes.keys().find(home).expect("it has a copy");
    world.recover_from(node, survivor);
    world.place(1, node);
    world.pass_until(3_000, |world| world.serves(node));
    world.ask_first(1, Operation::Read);
    world.pass_until(600, |world| !world.waits(1));
}

/// Nodes 0 and 1 have gone on without 2, and all are stopped. The record from before is put back, and 2 starts alone and serves.
/// Returns the epoch that the others had reached.
fn stale_alone(world: &mut World) -> Epoch {
    world.begin(2);
    let old = world.record().clone();
    world.detach(2);
    world.tenants[0].node = None;
    world.kill(2, false);
    world.place(1, 0);
    world.pass_until(3_000, |world| world.serves(0));
    world.pass_until(3_000, |world| world.record().groups[0].in_sync.len() == 2);
    world.ask_first(1, Operation::Write);
    world.pass_until(600, |world| !world.waits(1));
    let newest = world.record().epoch;
    world.detach(0);
    world.tenants[1].node = None;
    world.branch_from(old);
    world.start(2);
    world.place(0, 2);
    world.pass_until(3_000, |world| world.serves(2));
    newest
}

/// A replica is sealed while what it has accepted is on its way to the device.
pub(super) fn accepted(world: &mut World) {
    world.begin(0);
    world.without_entries.insert((0, 1));
    world.ask_first(0, Operation::Write);
    world.weather.disk_slowest = 20 * MS;
    world.detach(0);
    world.place(1, 1);
    world.pass_until(3_000, |world| world.serves(1));
    world.without_entries.clear();
    world.pass(200);
}

/// The configuration store is restored from an old copy, and then put right: it holds what it held.
pub(super) fn put_right(world: &mut World) {
    let old = world.record().clone();
    world.begin(0);
    let newest = world.record().clone();
    world.detach(0);
    world.kill(0, false);
    world.config.push(old);
    world.place(1, 1);
    world.pass(400);
    world.must(world.is(1, Status::Blocked), "it sees that the store went back");
    world.config.push(newest);
    world.start(0);
    world.pass_until(1_000, |world| world.is(1, Status::Watching));
    // Its clients have lost the volume: it was attached more often than they knew.
    world.place(1, 1);
    world.pass_until(1_000, |world| world.serves(1));
}

/// An order is undecided when the volume is blocked, and a person decides elsewhere: it is answered.
pub(super) fn order_and_blocked(world: &mut World) {
    let old = world.record().clone();
    world.begin(0);
    world.without_config_answers.insert(0);
    let before = world.coverage.of("command", "answered");
    let command = VolumeCommand::Add { group: GroupIndex(0), replica: ReplicaId(99), home: NodeId(1) };
    world.step_volume(0, Event::Command(command));
    world.pass(20);
    world.config.push(old);
    world.without_config_answers.clear();
    world.pass(200);
    world.must(world.is(0, Status::Blocked), "it is blocked");
    world.place(1, 1);
    world.pass(300);
    let record = Box::new(world.record().clone());
    world.step_volume(
        1,
        Event::Command(VolumeCommand::Recover { record, survivors: [].into(), promised: Epoch(0) }),
    );
    world.pass_until(1_000, |world| world.serves(1));
    world.pass_until(1_000, |world| world.is(0, Status::Watching));
    world.must(world.coverage.of("command", "answered") == before + 2, "each command is answered");
}

/// The owner of three copies reaches the configuration store, and no other node. The other two serve the volume, and what is
/// acknowledged there is read afterwards.
pub(super) fn reaches_the_store_only(world: &mut World) {
    cut_off(world, 0);
}

/// The same, but one of them reaches it longer than the other does: as if the heartbeat of one had just arrived, and that of the
/// other had not yet.
pub(super) fn one_after_the_other(world: &mut World) {
    cut_off(world, 20);
}

/// The same, but they were silent for a moment before, and have answered that they reach the owner.
pub(super) fn answered_before(world: &mut World) {
    world.begin(0);
    world.pass(50);
    world.slow.extend([((1, 0), 60 * MS), ((2, 0), 60 * MS)]);
    world.pass(70);
    world.slow.clear();
    world.pass(30);
    is_left_alone(world, 0);
}

/// The hosts of two of three copies stop answering, and their addresses refuse nothing. The node of the third serves the volume.
pub(super) fn most_are_silent(world: &mut World) {
    world.begin(0);
    world.pass(50);
    world.pause(0, 60_000 * MS);
    world.pause(1, 60_000 * MS);
    world.place(1, 2);
    world.pass_until(3_000, |world| world.serves(2));
}

/// What the owner sends to the other two is answered with a reset, so it finds that the process of one has ended, and a moment later that
/// of the other. Both run, and reach each other.
pub(super) fn all_refuse(world: &mut World) {
    world.begin(0);
    world.pass(50);
    world.part(0, 1);
    world.part(0, 2);
    world.pass(17);
    world.step_volume(0, Event::Ended(NodeId(1)));
    world.pass(8);
    world.step_volume(0, Event::Ended(NodeId(2)));
    others_serve(world);
    // Connections to them are taken again.
    world.step_volume(0, Event::Started(NodeId(1)));
    world.step_volume(0, Event::Started(NodeId(2)));
}

fn cut_off(world: &mut World, between: u64) {
    world.begin(0);
    world.pass(50);
    is_left_alone(world, between);
}

fn is_left_alone(world: &mut World, between: u64) {
    world.part(0, 1);
    world.pass(between);
    world.part(0, 2);
    others_serve(world);
}

fn others_serve(world: &mut World) {
    world.pass(1_000);
    if world.record().groups[0].in_sync.len() < 3 {
        world.fail(Violation::Stuck("an owner that is cut off keeps the volume".into()));
        return;
    }
    world.place(1, 1);
    world.pass_until(3_000, |world| world.serves(1));
    world.ask_first(1, Operation::Write);
    world.pass_until(600, |world| !world.waits(1));
    let members = world.record().groups[0].in_sync.len();
    world.must(members == 2, "two copies have the write");
}
