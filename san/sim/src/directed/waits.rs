//! Schedules in which something waited for ever, or was given up without need.

use loadline_san_core::ids::ReplicaId;
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::record::Departed;
use loadline_san_core::volume::{Event, Status, VolumeCommand};

use crate::time::MS;
use crate::world::World;
use crate::world::tenant::Operation;

/// The members of the first group, and the nodes of the first two; a node that has none.
fn places(world: &World) -> (Vec<ReplicaId>, usize, usize, usize) {
    let members: Vec<ReplicaId> = world.record().groups[0].in_sync.iter().copied().collect();
    let (one, other) = (world.home(members[0]), world.home(members[1]));
    let bare = (0..3).find(|node| *node != one && *node != other).expect("there are three");
    (members, one, other, bare)
}

fn members(world: &World) -> usize {
    world.record().groups[0].in_sync.len()
}

/// The answer with the changes since a position arrives late, for an attempt that was given up; a later attempt must not use it.
pub(super) fn stale_answer(world: &mut World) {
    let (_, source, target, owner) = places(world);
    world.begin(owner);
    world.part(owner, target);
    world.pass(160);
    world.must(members(world) == 1, "one was removed");
    let asked = world.coverage.of("message", "changed");
    let late = 110 + world.rng.below(40);
    world.slow.insert((source, owner), late * MS);
    world.cut.clear();
    world.pass_until(300, |world| world.coverage.of("message", "changed") > asked);
    world.pass(1);
    world.slow.clear();
    world.kill(target, false);
    world.ask_for(0, owner, Operation::Write, 40 * 8, 8);
    world.pass(4);
    world.must(!world.waits(0), "the other has it");
    world.start(target);
    world.pass(60);
    world.slow.insert((source, owner), 20 * MS);
    world.pass_until(900, |world| members(world) == 2);
    world.check_members();
}

/// A request waits at a node that cannot reach the configuration store. Its client goes elsewhere, and writes there. What
/// waited is not carried out after that.
pub(super) fn waited(world: &mut World) {
    let let_in = |world: &World| world.coverage.of("client", "let in") > 0;
    world.place(0, 0);
    world.pass_until(50, let_in);
    world.cut_from_config.insert(0);
    world.ask_first(0, Operation::Write);
    world.pass(50);
    world.place(1, 1);
    world.pass(300);
    world.must(world.serves(1), "the other serves");
    world.ask_first(1, Operation::Write);
    world.pass(20);
    world.must(!world.waits(1), "the newer write is acknowledged");
    world.pass(2_000);
    world.cut_from_config.clear();
    world.pass(400);
    let replica = *world.record().groups[0].in_sync.first().expect("there is one");
    let value = world.store(replica).and_then(|store| store.value(0)).map(|block| block[0]);
    world.must(value == Some(8193), "the newer write has come last");
    world.must(!world.waits(0), "the older one was refused");
}

/// The member that has a block whole is removed while it is asked for it.
pub(super) fn hung_read(world: &mut World) {
    let (replicas, one, other, _) = places(world);
    // A round of destaging that holds the block in memory would mend it.
    world.keeps_log = true;
    world.begin(one);
    world.pass(100);
    world.nodes[one].stores.get_mut(&replicas[0]).expect("it is there").corrupt_block(0);
    world.part(one, other);
    world.ask_first(0, Operation::Read);
    world.pass(400);
    world.keeps_log = false;
    world.must(members(world) == 1, "the other was removed");
    world.must(!world.waits(0), "the read has ended: no other replica has the block");
}

/// The source takes longer than the owner waits before it sends the request again.
pub(super) fn slow_source(world: &mut World) {
    let (_, source, target, owner) = places(world);
    world.begin(owner);
    world.part(owner, target);
    world.pass(160);
    world.must(members(world) == 1, "one was removed");
    world.cut.clear();
    world.slow.insert((source, owner), 35 * MS);
    world.pass_until(3_000, |world| members(world) == 2);
}

/// A replica that is coming back is struck off. The others come back all the same.
pub(super) fn struck_off(world: &mut World) {
    let replicas: Vec<ReplicaId> = world.record().groups[0].in_sync.iter().copied().collect();
    let homes: Vec<usize> = replicas.iter().map(|replica| world.home(*replica)).collect();
    world.begin(homes[0]);
    world.part(homes[0], homes[1]);
    world.part(homes[0], homes[2]);
    world.pass(160);
    world.must(members(world) == 1, "the others were removed");
    world.ask_first(0, Operation::Write);
    world.pass(5);
    let returns = world.coverage.of("message", "return");
    world.cut.remove(&(homes[0], homes[1]));
    world.cut.remove(&(homes[1], homes[0]));
    world.slow.insert((homes[1], homes[0]), 10 * MS);
    world.pass_until(300, |world| world.coverage.of("message", "return") > returns);
    let command = VolumeCommand::Forget { group: GroupIndex(0), replica: replicas[1] };
    world.step_volume(homes[0], Event::Command(command));
    world.pass(50);
    world.slow.clear();
    world.cut.clear();
    world.pass_until(2_000, |world| world.record().groups[0].in_sync.contains(&replicas[2]));
    world.must(!world.record().homes.contains_key(&replicas[1]), "it is struck off");
}

/// The only member's process starts anew, and an old greeting makes it open a session that its owner has never begun with
/// it.
pub(super) fn only_member(world: &mut World) {
    let home = world.home(*world.record().groups[0].in_sync.first().expect("there is one"));
    let owner = 1 - home;
    world.begin(owner);
    world.kill(home, false);
    world.start(home);
    let greeted = world.coverage.of("message", "hello");
    world.repeats.insert((owner, home), 60 * MS);
    world.pass_until(200, |world| world.coverage.of("message", "hello") > greeted);
    world.pass(2);
    world.repeats.clear();
    world.part(owner, home);
    world.kill(home, false);
    world.start(home);
    world.pass(70);
    world.cut.clear();
    world.ask_first(0, Operation::Read);
    world.pass_until(2_000, |world| !world.waits(0));
}

/// The owner reaches one group and not the other. Others reach both.
pub(super) fn half_reached(world: &mut World) {
    let homes: Vec<usize> = world
        .record()
        .groups
        .iter()
        .map(|group| world.home(*group.in_sync.first().expect("it has one")))
        .collect();
    if homes[0] == homes[1] {
        return;
    }
    for node in 0..world.nodes.len() {
        world.step_volume(node, Event::Watch(true));
    }
    world.begin(homes[0]);
    world.part(homes[0], homes[1]);
    world.pass_until(5_000, |world| (0..4).any(|node| node != homes[0] && world.serves(node)));
}

/// A node steps down, and its clients continue elsewhere. When the node reaches the store again, it does not disturb them.
pub(super) fn moved(world: &mut World) {
    world.begin(0);
    world.cut_from_config.insert(0);
    world.part(0, 2);
    world.pass(600);
    world.place(1, 1);
    world.pass(600);
    world.must(world.serves(1), "the new node serves");
    world.cut.clear();
    world.cut_from_config.clear();
    world.pass(1_000);
    world.must(world.serves(1) && !world.serves(0), "it still does");
}

/// A member that was made equal dies before the opening entry has come: it has lost nothing.
pub(super) fn before_opening(world: &mut World) {
    let (_, one, other, owner) = places(world);
    world.begin(owner);
    world.pass(100);
    world.detach(owner);
    world.place(1, one);
    let activates = |world: &World| {
        let volume = world.nodes[one].process.as_ref().map(|process| process.volume.status());
        volume == Some(Status::Activating)
    };
    world.pass_until(600, activates);
    world.part(one, other);
    world.pass(200);
    for _ in 0..300 {
        let emptied = world.record().groups[0].departed.values().any(|departed| *departed == Departed::EMPTY);
        world.must(!emptied, "no replica has lost anything");
        world.pass(1);
        world.cut.clear();
    }
}

/// Two blocks are corrupt, each at another member: together they are whole.
pub(super) fn rotten_apart(world: &mut World) {
    let (replicas, one, other, _) = places(world);
    world.begin(one);
    for block in 0..4 {
        world.ask_for(0, one, Operation::Write, block * 8, 8);
    }
    world.pass(200);
    world.nodes[one].stores.get_mut(&replicas[0]).expect("it is there").corrupt_block(1);
    world.nodes[other].stores.get_mut(&replicas[1]).expect("it is there").corrupt_block(2);
    world.ask_for(0, one, Operation::Read, 0, 32);
    world.pass(100);
    world.must(!world.waits(0), "it is answered");
    world.must(world.coverage.of("client", "every copy is corrupt") == 0, "and well");
    world.must(!world.nodes[one].stores[&replicas[0]].is_corrupt(), "and mended");
}

/// A block of a copy is corrupted, and no client reads it: the scrub finds it, and it is mended from the other copy.
pub(super) fn corrupt_unread(world: &mut World) {
    let (replicas, one, other, _) = places(world);
    world.begin(one);
    for block in 0..4 {
        world.ask_for(0, one, Operation::Write, block * 8, 8);
    }
    world.pass(1_000);
    let store = world.nodes[other].stores.get_mut(&replicas[1]).expect("it is there");
    store.corrupt_block(2);
    let found = world.coverage.of("answer", "corrupt");
    let is_mended = |world: &World| !world.nodes[other].stores[&replicas[1]].is_corrupt();
    world.pass_until(5_000, is_mended);
    world.must(world.coverage.of("answer", "corrupt") > found, "it is found");
    world.must(is_mended(world), "and mended");
}
