//! Schedules in which a replica comes back, or a block is repaired.

use loadline_san_core::ids::ReplicaId;

use crate::store::new_store;
use crate::time::MS;
use crate::world::World;
use crate::world::tenant::Operation;

/// A block is corrupt. While it is repaired, a client writes it anew.
pub(super) fn late_repair(world: &mut World) {
    let members: Vec<ReplicaId> = world.record().groups[0].in_sync.iter().copied().collect();
    let (corrupt, whole) = (world.home(members[0]), world.home(members[1]));
    let owner = (0..3).find(|node| *node != corrupt && *node != whole).expect("there are three");
    world.begin(owner);
    world.nodes[corrupt].stores.get_mut(&members[0]).expect("it is there").corrupt_block(0);
    world.slow.insert((whole, owner), 5 * MS);
    world.ask_first(0, Operation::Read);
    world.pass(2);
    world.slow.insert((owner, corrupt), 40 * MS);
    world.pass(5);
    world.slow.clear();
    world.ask_first(0, Operation::Write);
    world.pass(120);
    world.check_members();
}

/// A client writes a block that is still to be copied: the entry replaces the copy. When all the rest is copied, the entry has
/// reached no other replica, and so is not acknowledged.
pub(super) fn spared(world: &mut World) {
    world.begin(0);
    world.part(0, 1);
    world.part(1, 2);
    world.pass(160);
    world.must(world.record().groups[0].in_sync.len() == 2, "one was removed");
    // More extents than are copied at once.
    for extent in 0..7 {
        world.ask_for(0, 0, Operation::Write, extent * 64, 8);
        world.pass(2);
    }
    world.cut.clear();
    world.slow.insert((1, 0), 20 * MS);
    let copies = world.coverage.of("message", "out_of_band");
    world.pass_until(400, |world| world.coverage.of("message", "out_of_band") >= copies + 4);
    world.without_entries.extend([(0, 1), (0, 2)]);
    world.ask_for(0, 0, Operation::Write, 6 * 64, 8);
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
    world.ask_first(0, Operation::Write);
    world.pass(5);
    world.repeats.insert((0, 1), 60 * MS);
    world.cut.clear();
    world.pass_until(140, |world| world.record().groups[0].in_sync.len() == 2);
    world.pass(2);
    world.repeats.clear();
}

/// Greeting and order come again, to a process that has started since, of a replica that is a member since.
pub(super) fn late_order(world: &mut World) {
    depart_and_return(world);
    world.ask_first(0, Operation::Write);
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
pub(super) fn doubled_order(world: &mut World) {
    depart_and_return(world);
    for _ in 0..80 {
        world.ask_first(0, Operation::Write);
        world.pass(2);
        world.check_members();
    }
}

/// In the last extent, a block is corrupted that the volume does not have.
pub(super) fn rotten_behind_the_end(world: &mut World) {
    let members: Vec<ReplicaId> = world.record().groups[0].in_sync.iter().copied().collect();
    let (source, other) = (world.home(members[0]), world.home(members[1]));
    world.begin(source);
    world.part(source, other);
    world.pass(160);
    world.must(world.record().groups[0].in_sync.len() == 1, "one was removed");
    world.ask_for(0, source, Operation::Write, 61 * 8, 8);
    world.pass(60);
    world.nodes[source].stores.get_mut(&members[0]).expect("it is there").corrupt_block(63);
    world.cut.clear();
    world.pass_until(1_000, |world| world.record().groups[0].in_sync.len() == 2);
}

/// The members have trimmed what fills the device of one that was away, and have written as much elsewhere, before it.
pub(super) fn to_a_full_device(world: &mut World) {
    world.begin(0);
    world.ask_for(0, 0, Operation::Trim, 0, 8);
    world.pass(200);
    let extent = 4 * 8;
    // Some, and some more that are in flight when the device is reported full.
    for numbers in [8..12, 12..15] {
        numbers.for_each(|number| world.ask_for(0, 0, Operation::Write, number * extent, 8));
        world.pass(200);
        world.must(!world.waits(0), "it is written");
    }
    world.part(0, 1);
    world.pass(160);
    world.must(world.record().groups[0].in_sync.len() == 1, "one was removed");
    world.ask_for(0, 0, Operation::Trim, 8 * extent, 7 * 32);
    world.pass(300);
    for number in 0..4 {
        world.ask_for(0, 0, Operation::Write, 2 * number * extent, 8);
    }
    world.pass(300);
    world.must(!world.waits(0), "there is room at the other");
    world.cut.clear();
    // Clients write meanwhile, and their writes wait for no replica that has no room.
    for _ in 0..200 {
        world.ask_for(0, 0, Operation::Write, 0, 8);
        world.pass(50);
        world.must(!world.waits(0), "a write waits for a replica that it does not need");
    }
    world.pass_until(20_000, |world| world.record().groups[0].in_sync.len() == 2);
    world.must(world.record().groups[0].in_sync.len() == 2, "it returns");
}

/// The device of a replica that was away is full, and what the members have changed frees no room on it. The changes are copied all
/// the same, because they are few; and so are the writes that were put off meanwhile.
pub(super) fn to_a_device_that_stays_full(world: &mut World) {
    // The owner's own device has room.
    world.kill(0, false);
    for (replica, store) in &mut world.nodes[0].stores {
        *store = new_store(*replica, false);
    }
    world.start(0);
    world.begin(0);
    let extent = 4 * 8;
    for numbers in [8..12, 12..15] {
        numbers.for_each(|number| world.ask_for(0, 0, Operation::Write, number * extent, 8));
        world.pass(200);
        world.must(!world.waits(0), "it is written");
    }
    world.part(0, 1);
    world.pass(160);
    world.must(world.record().groups[0].in_sync.len() == 1, "one was removed");
    let put_off = |world: &World| world.coverage.of("message", "entry, its data put off");
    for number in 8..12 {
        world.ask_for(0, 0, Operation::Write, number * extent, 8);
    }
    world.pass(300);
    world.must(!world.waits(0), "there is room at the owner's");
    let returns = world.coverage.of("message", "return");
    world.cut.clear();
    world.pass_until(2_000, |world| world.coverage.of("message", "return") > returns);
    // Clients write what is to be copied, and what is not.
    for number in 8..16 {
        world.ask_for(0, 0, Operation::Write, number % 15 * extent, 8);
        world.pass(3);
        world.must(!world.waits(0), "a write waits for a replica that it does not need");
    }
    world.must(put_off(world) == 8, "no data goes to a replica that has no room");
    world.pass_until(2_000, |world| world.record().groups[0].in_sync.len() == 2);
    world.check_members();
}

/// One request turns all of a volume to zeroes, of which a part would fit.
pub(super) fn zeroes_on_a_small_device(world: &mut World) {
    world.begin(0);
    world.ask_for(0, 0, Operation::WriteZeroes, 0, 62 * 8);
    world.pass_until(2_000, |world| !world.waits(0));
    world.must(!world.waits(0), "zeroes where nothing is need no room");
}
