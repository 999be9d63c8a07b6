//! Schedules in which a client requests what blocks hold.

use loadline_san_core::ids::ReplicaId;

use crate::time::MS;
use crate::world::World;
use crate::world::tenant::Operation;

/// The nodes with the members of the first group, and the others.
fn nodes(world: &World) -> (Vec<usize>, Vec<usize>) {
    let members: Vec<ReplicaId> = world.record().groups[0].in_sync.iter().copied().collect();
    let homes: Vec<usize> = members.iter().map(|replica| world.home(*replica)).collect();
    let bare = (0..world.nodes.len()).filter(|node| !homes.contains(node)).collect();
    (homes, bare)
}

/// Nothing is destaged: what an acknowledged write has is only in the logs. Then it is destaged and trimmed, and the trim is only in
/// the logs.
pub(super) fn only_in_the_log(world: &mut World) {
    world.keeps_log = true;
    world.begin(0);
    world.ask_for(0, 0, Operation::Map, 0, 64);
    world.pass(8);
    world.must(!world.waits(0), "the map is answered");
    world.keeps_log = false;
    world.pass(400);
    world.keeps_log = true;
    world.ask_for(0, 0, Operation::Trim, 0, 8);
    world.pass(8);
    world.ask_for(0, 0, Operation::Write, 8, 8);
    world.pass(8);
    world.ask_for(0, 0, Operation::Map, 0, 64);
    world.pass(8);
    world.must(!world.waits(0), "the map is answered");
}

/// An owner requests a map and is stopped. When it gets the answer, another owner has written.
pub(super) fn late(world: &mut World) {
    let (homes, bare) = nodes(world);
    let (old, new) = (bare[0], bare[1]);
    world.begin(old);
    let maps = |world: &World| world.coverage.of("situation", "a map");
    homes.iter().for_each(|home| _ = world.slow.insert((*home, old), 20 * MS));
    world.ask_for(0, old, Operation::Map, 0, 64);
    world.pass(1);
    homes.iter().for_each(|home| _ = world.cut.insert((old, *home)));
    world.cut_from_config.insert(old);
    world.pause(old, 180 * MS);
    world.place(1, new);
    world.pass(130);
    world.must(world.serves(new), "the new owner serves");
    world.ask_for(1, new, Operation::Write, 8, 8);
    world.pass(10);
    world.must(!world.waits(1), "its write is acknowledged");
    world.must(maps(world) == 0, "the answer has not been read");
    world.pass(50);
    world.must(maps(world) == 1, "the answer has come");
    world.must(world.waits(0), "the old owner does not answer the map");
}

/// The member that is asked does not answer: the other one is asked.
pub(super) fn asked_again(world: &mut World) {
    let (homes, bare) = nodes(world);
    world.begin(bare[0]);
    world.part(bare[0], homes[0]);
    for _ in 0..2 {
        world.ask_for(0, bare[0], Operation::Map, 0, 64);
    }
    world.pass_until(300, |world| !world.waits(0));
    world.must(world.coverage.of("message", "map") > 2, "it was asked again");
}
