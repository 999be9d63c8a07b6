//! Replicas that a start finds damaged (rule C12): they are emptied and copied in full, and only where others have the data.

use loadline_san_core::ids::ReplicaId;
use loadline_san_core::record::Departed;

use super::losses::{log_is_corrupted, members, recover, rots_and_starts};
use crate::store::Store;
use crate::time::{MS, US};
use crate::world::World;
use crate::world::tenant::Operation;

/// Lets time pass until a replica has been emptied once more, at most so long. Whether one was.
fn emptied_within(world: &mut World, ms: u64) -> bool {
    let before = world.coverage.of("situation", "a damaged store was emptied");
    let until = world.now() + ms * MS;
    while world.coverage.of("situation", "a damaged store was emptied") == before && world.now() < until {
        world.run_until(world.now() + 20 * US);
    }
    world.coverage.of("situation", "a damaged store was emptied") > before
}

fn is_damaged(world: &World, replica: ReplicaId) -> bool {
    world.store(replica).is_some_and(Store::is_damaged)
}

/// Two members, and a node without one, which owns the volume and has written to it: a block that both have destaged, and one
/// that their logs have.
fn owned_elsewhere(world: &mut World) -> (usize, Vec<ReplicaId>) {
    let replicas = members(world);
    let homes: Vec<usize> = replicas.iter().map(|replica| world.home(*replica)).collect();
    let bare = (0..3).find(|node| !homes.contains(node)).expect("there are three");
    world.begin(bare);
    world.ask_first(0, Operation::Write);
    world.pass(400);
    let destaged = |replica: &ReplicaId| world.store(*replica).is_some_and(|store| store.stamp(0).is_some());
    world.must(replicas.iter().all(destaged), "it is destaged");
    world.keeps_log = true;
    for block in 40..43 {
        world.ask_for(0, bare, Operation::Write, block * 8, 8);
        world.pass(20);
    }
    world.must(!world.waits(0), "both have them");
    (bare, replicas)
}

/// A replica that is away is found damaged when it starts, and its owner cannot reach the configuration store. Emptied at once,
/// the next owner would take it for one that only missed what was written since it left.
pub(super) fn emptied_early(world: &mut World) {
    let (bare, replicas) = owned_elsewhere(world);
    let (left, away) = (world.home(replicas[0]), replicas[1]);
    let home = world.home(away);
    log_is_corrupted(world, away);
    world.corrupted.insert(away);
    world.kill(home, false);
    world.pass_until(600, |world| members(world).len() == 1);
    world.pass(20);
    world.cut_from_config.insert(bare);
    world.start(home);
    world.must(is_damaged(world, away), "its start finds the damage");
    emptied_within(world, 200);
    world.kill(bare, false);
    world.place(1, left);
    world.pass_until(5_000, |world| members(world).len() == 2);
    world.check_members();
}

/// A record in a member's log is corrupted. Its start finds it, and it is rebuilt.
pub(super) fn member(world: &mut World) {
    world.keeps_log = true;
    world.begin(0);
    world.ask_first(0, Operation::Write);
    world.pass(60);
    let replica = members(world).into_iter().find(|replica| world.home(*replica) == 1).expect("it has one");
    rots_and_starts(world, replica);
    world.must(is_damaged(world, replica), "its start finds the damage");
    let emptied = |world: &World| world.record().groups[0].departed.get(&replica) == Some(&Departed::EMPTY);
    world.pass_until(1_000, emptied);
    world.pass_until(3_000, |world| members(world).len() == 2);
    world.check_members();
    // What it has now is found again.
    world.kill(1, true);
    world.start(1);
    world.must(!is_damaged(world, replica), "it is whole");
}

/// The same of a slot.
pub(super) fn slot(world: &mut World) {
    world.begin(0);
    world.ask_first(0, Operation::Write);
    world.pass(300);
    let replica = members(world).into_iter().find(|replica| world.home(*replica) == 1).expect("it has one");
    world.kill(1, false);
    let corrupts = {
        let (rng, state) = (&mut world.rng, &mut world.nodes[1]);
        state.stores.get_mut(&replica).expect("it is there").corrupt_slot(rng)
    };
    world.must(corrupts, "it has slots");
    world.start(1);
    world.must(is_damaged(world, replica), "its start finds the damage");
    world.corrupted.insert(replica);
    let emptied = |world: &World| world.record().groups[0].departed.get(&replica) == Some(&Departed::EMPTY);
    world.pass_until(1_000, emptied);
    world.pass_until(5_000, |world| members(world).len() == 2);
    world.check_members();
    world.kill(1, true);
    world.start(1);
    world.must(!is_damaged(world, replica), "it is whole");
}

/// It is killed again and again while it is emptied.
pub(super) fn dies_meanwhile(world: &mut World) {
    world.keeps_log = true;
    world.begin(0);
    world.ask_first(0, Operation::Write);
    world.pass(60);
    let replica = members(world).into_iter().find(|replica| world.home(*replica) == 1).expect("it has one");
    rots_and_starts(world, replica);
    world.must(is_damaged(world, replica), "its start finds the damage");
    for round in 0..6 {
        let until = world.now() + 2_000 * MS;
        while is_damaged(world, replica) && world.now() < until {
            world.run_until(world.now() + 5 * US);
        }
        let more = world.rng.below(100 * (round + 1)) * US;
        world.run_until(world.now() + more);
        world.kill(1, true);
        world.start(1);
        if world.violation().is_some() {
            return;
        }
    }
    world.pass_until(8_000, |world| members(world).len() == 2);
    world.check_members();
}

/// Both are damaged. Nothing is emptied before a person chooses the copy that is left; then the other one is rebuilt.
pub(super) fn both(world: &mut World) {
    world.keeps_log = true;
    world.begin(0);
    world.ask_first(0, Operation::Write);
    world.pass(60);
    let replicas = members(world);
    world.detach(0);
    replicas.iter().for_each(|replica| rots_and_starts(world, *replica));
    world.must(replicas.iter().all(|replica| is_damaged(world, *replica)), "both are damaged");
    world.place(1, 1);
    world.pass(2_000);
    world.must(replicas.iter().all(|replica| is_damaged(world, *replica)), "they are left as they are");
    recover(world, 1, replicas[0]);
    world.pass_until(2_000, |world| world.serves(1));
    world.pass_until(5_000, |world| members(world).len() == 2);
    world.forced = false;
    world.check_members();
}

/// A replica is away and copied in full when the only one that has the data is found damaged: the volume waits for a person, and
/// the damaged one is not emptied.
pub(super) fn the_last(world: &mut World) {
    world.keeps_log = true;
    world.begin(0);
    world.ask_first(0, Operation::Write);
    world.pass(60);
    let replicas = members(world);
    let (last, other) = (replicas[0], replicas[1]);
    let (home, away) = (world.home(last), world.home(other));
    world.part(away, home);
    world.pass_until(600, |world| members(world).len() == 1);
    let last = members(world)[0];
    let home = world.home(last);
    world.cut.clear();
    world.cut_from_config.extend([0, 1]);
    rots_and_starts(world, last);
    world.cut_from_config.clear();
    world.place(1, home);
    world.pass(2_000);
    world.must(is_damaged(world, last), "it is left as it is");
    world.must(!world.serves(home), "it waits for a person");
    recover(world, home, last);
    world.pass_until(2_000, |world| world.serves(home));
    world.pass_until(5_000, |world| members(world).len() == 2);
    world.forced = false;
    world.check_members();
}
