//! Schedules in which a device has lost what it had, or a person continues with what is left.

use loadline_san_core::ids::{Epoch, NodeId, ReplicaId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::record::Departed;
use loadline_san_core::volume::{Event, Status, VolumeCommand};

use crate::store::Store;
use crate::time::MS;
use crate::world::World;
use crate::world::tenant::Operation;

pub(super) fn members(world: &World) -> Vec<ReplicaId> {
    world.record().groups[0].in_sync.iter().copied().collect()
}

/// A node's process dies, its device has lost the last entry, and it starts.
fn loses_and_starts(world: &mut World, node: usize) {
    world.kill(node, false);
    for (replica, store) in &mut world.nodes[node].stores {
        store.lose_last(true);
        world.lost_writes.insert(*replica);
    }
    world.start(node);
}

/// A record of a replica's log is corrupted, as soon as there is one that a later one covers.
pub(super) fn log_is_corrupted(world: &mut World, replica: ReplicaId) {
    let home = world.home(replica);
    let mut corrupts = false;
    for _ in 0..100 {
        let (rng, state) = (&mut world.rng, &mut world.nodes[home]);
        corrupts = corrupts || state.stores.get_mut(&replica).expect("it is there").corrupt_log(rng);
        if !corrupts {
            world.pass(1);
        }
    }
    world.must(corrupts, "something is in the log, and covered");
}

/// The same, and a start of its process finds it.
pub(super) fn rots_and_starts(world: &mut World, replica: ReplicaId) {
    let home = world.home(replica);
    log_is_corrupted(world, replica);
    world.kill(home, false);
    world.start(home);
}

/// A member loses what it had after it has reported, before the opening entry.
pub(super) fn lost_before_opening(world: &mut World) {
    let replicas = members(world);
    let (one, other) = (world.home(replicas[0]), world.home(replicas[1]));
    let owner = (0..3).find(|node| *node != one && *node != other).expect("there are three");
    world.begin(owner);
    world.ask_first(0, Operation::Write);
    world.pass(100);
    world.detach(owner);
    world.place(1, one);
    world.pass_until(600, |world| world.is(one, Status::Activating));
    loses_and_starts(world, other);
    // Until the takeover finds the loss, the oracle would report it.
    let until = world.now() + 300 * MS;
    while world.now() < until {
        world.run_until(world.now() + MS);
        world.violation = None;
    }
    let emptied = world.record().groups[0].departed.get(&replicas[1]) == Some(&Departed::EMPTY);
    let copied = world.coverage.of("message", "return") > 0;
    world.must(emptied || copied, "it was emptied");
    world.lost_writes.clear();
}

/// A replica that is away loses what it had before it left, and returns to the owner that removed it.
pub(super) fn away_and_lost(world: &mut World) {
    world.begin(0);
    world.ask_first(0, Operation::Write);
    world.pass(60);
    world.part(0, 1);
    world.pass(160);
    world.must(members(world).len() == 1, "one was removed");
    loses_and_starts(world, 1);
    world.cut.clear();
    world.pass_until(3_000, |world| members(world).len() == 2);
    world.lost_writes.clear();
    world.check_members();
}

/// A replica that is away misses so much that the list of changes arrives in several pages.
pub(super) fn pages(world: &mut World) {
    world.begin(0);
    world.part(0, 1);
    world.pass(160);
    world.must(members(world).len() == 1, "one was removed");
    for number in 0..20 {
        world.ask_for(0, 0, Operation::Write, number * 2 * 8, 8);
        if number % 4 == 3 {
            world.pass(1);
        }
    }
    world.pass(2);
    world.cut.clear();
    world.pass_until(3_000, |world| members(world).len() == 2);
    world.check_members();
}

/// What this replica has becomes what clients must read; a person orders that the volume continues with it.
pub(super) fn recover(world: &mut World, node: usize, survivor: ReplicaId) {
    let home = world.home(survivor);
    let store = &world.nodes[home].stores[&survivor];
    world.history.take_for_granted(|sector| {
        store.value_without_corruption(sector / 8).map_or(0, |block| block[(sector % 8) as usize])
    });
    world.forced = true;
    let record = Box::new(world.record().clone());
    let survivors = [(GroupIndex(0), survivor)].into();
    world.step_volume(node, Event::Command(VolumeCommand::Recover { record, survivors, promised: Epoch(0) }));
}

/// The only copy has lost its last entry; a person continues with it.
pub(super) fn forced_and_short(world: &mut World) {
    let replica = members(world)[0];
    let (home, owner) = (world.home(replica), 1 - world.home(replica));
    world.begin(owner);
    world.ask_first(0, Operation::Write);
    world.pass(200);
    world.detach(owner);
    world.kill(home, false);
    world.nodes[home].stores.values_mut().for_each(|store| store.lose_last(false));
    world.lost_writes.insert(replica);
    world.start(home);
    world.place(1, owner);
    world.pass(1_000);
    world.must(!world.serves(owner), "it waits for a person");
    recover(world, owner, replica);
    world.pass_until(2_000, |world| world.serves(owner));
    world.lost_writes.clear();
}

/// A record of the only copy's log is corrupt; a person continues with what is left.
pub(super) fn forced_and_corrupt(world: &mut World) {
    world.keeps_log = true;
    let replica = members(world)[0];
    let owner = 1 - world.home(replica);
    world.begin(owner);
    world.ask_first(0, Operation::Write);
    world.pass(20);
    world.detach(owner);
    rots_and_starts(world, replica);
    world.place(1, owner);
    world.pass(1_000);
    world.must(!world.serves(owner), "it waits for a person");
    recover(world, owner, replica);
    world.pass_until(2_000, |world| world.serves(owner));
    world.place(1, owner);
    world.pass(50);
    world.ask_first(1, Operation::Read);
    world.pass(100);
    world.must(!world.waits(1), "it is read");
}

/// A person continues with one copy while the other, which has more, is away. When that copy returns, it is emptied first.
pub(super) fn forced_and_the_other_lives(world: &mut World) {
    let replicas = members(world);
    let (left, other) = (replicas[0], replicas[1]);
    let (home, away) = (world.home(left), world.home(other));
    world.begin(away);
    world.part(away, home);
    world.pass(160);
    world.must(members(world) == [other], "one was removed");
    world.ask_for(0, away, Operation::Write, 40 * 8, 64);
    world.pass(100);
    world.must(!world.waits(0), "the other has more");
    world.kill(away, false);
    world.place(1, home);
    recover(world, home, left);
    world.pass_until(2_000, |world| world.serves(home));
    world.cut.clear();
    world.start(away);
    world.pass_until(3_000, |world| members(world).len() == 2);
    world.check_members();
    world.check_rest();
}

/// The last member is lost for good, and a person decides to continue with one that had departed before.
pub(super) fn forced(world: &mut World) {
    world.begin(0);
    world.part(0, 1);
    world.pass(160);
    world.must(world.record().groups[0].in_sync.len() == 1, "the other was removed");
    world.ask_first(0, Operation::Write);
    world.pass(20);
    world.nodes[0].stores.values_mut().for_each(Store::fail_next);
    world.cut.clear();
    world.ask_first(0, Operation::Write);
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
    world.step_volume(1, Event::Command(VolumeCommand::Recover { record, survivors, promised: Epoch(0) }));
    world.pass_until(600, |world| world.serves(1));
    world.pass(20);
    let before = world.coverage.of("client", "acknowledged");
    world.ask_first(1, Operation::Write);
    world.ask_first(1, Operation::Read);
    world.pass(40);
    world.must(world.coverage.of("client", "acknowledged") == before + 2, "it is served");
    world
        .must(world.record().groups[0].departed.values().all(|d| *d == Departed::EMPTY), "nothing is spared");
}

/// A device drops what it had reported as durable.
pub(super) fn loses_writes(world: &mut World) {
    world.begin(0);
    world.ask_first(0, Operation::Write);
    // So long that the commit point is in the log of the other.
    world.pass(400);
    world.kill(0, false);
    world.kill(1, false);
    for (replica, store) in &mut world.nodes[1].stores {
        store.lose_last(true);
        world.lost_writes.insert(*replica);
    }
    world.start(0);
    world.start(1);
    // A node that has just started reports late, and a late one is left out in any case.
    world.pass(150);
    world.place(0, 0);
    world.pass(400);
    world.must(world.serves(0), "it was taken over");
}

/// The order to continue with a damaged store arrives again, to a later life of the process: by then it has lost more, and
/// another copy is whole.
pub(super) fn late_salvage(world: &mut World) {
    world.keeps_log = true;
    let replicas = members(world);
    let (left, other) = (replicas[0], replicas[1]);
    let (home, owner) = (world.home(left), world.home(other));
    world.begin(owner);
    world.ask_first(0, Operation::Write);
    world.pass(2);
    world.detach(owner);
    rots_and_starts(world, left);
    world.pass(10);
    world.repeats.insert((owner, home), 3_000 * MS);
    world.place(1, owner);
    recover(world, owner, left);
    let sealed = world.now();
    world.pass_until(2_000, |world| world.serves(owner));
    world.repeats.clear();
    world.pass_until(2_000, |world| members(world).len() == 2);
    world.forced = false;
    world.pass(100);
    world.ask_first(1, Operation::Write);
    world.pass(1);
    world.must(!world.waits(1), "both have it");
    world.part(home, owner);
    world.cut_from_config.insert(owner);
    rots_and_starts(world, left);
    world.place(0, home);
    world.must(world.now() < sealed + 2_900 * MS, "it is in time");
    world.run_until(sealed + 4_500 * MS);
    world.must(!world.serves(home), "it waits for a person, or for the other");
}

/// A person's decision is carried out although the answer of the configuration store stays away for long.
pub(super) fn forced_late(world: &mut World) {
    world.keeps_log = true;
    let replica = members(world)[0];
    let owner = 1 - world.home(replica);
    world.begin(owner);
    world.ask_first(0, Operation::Write);
    world.pass(20);
    world.detach(owner);
    rots_and_starts(world, replica);
    world.pass(10);
    recover(world, owner, replica);
    world.without_config_answers.insert(owner);
    world.pass(300);
    world.without_config_answers.clear();
    world.pass_until(1_000, |world| world.serves(owner));
}

/// The clients go while a person's decision is carried out: it is carried out all the same.
pub(super) fn forced_and_detached(world: &mut World) {
    world.keeps_log = true;
    let replica = members(world)[0];
    let owner = 1 - world.home(replica);
    world.begin(owner);
    world.ask_first(0, Operation::Write);
    world.pass(20);
    world.detach(owner);
    rots_and_starts(world, replica);
    world.pass(10);
    recover(world, owner, replica);
    world.detach(owner);
    world.pass_until(1_000, |world| world.serves(owner));
}

/// A takeover finds that a member has lost something. Then the member that has lost nothing goes away: the takeover still counts
/// the loss.
pub(super) fn forgotten_loss(world: &mut World) {
    let replicas = members(world);
    let homes: Vec<usize> = replicas.iter().map(|replica| world.home(*replica)).collect();
    let bare = (0..3).find(|node| !homes.contains(node)).expect("there are three");
    world.begin(bare);
    world.ask_first(0, Operation::Write);
    world.pass(1);
    world.must(!world.waits(0), "both have it");
    // An entry that one has, and a commit point that one has.
    world.cut.insert((bare, homes[1]));
    world.pass(40);
    world.ask_for(0, bare, Operation::Write, 80, 8);
    world.pass(5);
    world.detach(bare);
    loses_and_starts(world, homes[1]);
    world.cut.clear();
    world.pass(120);
    world.place(1, bare);
    world.pass_until(1_000, |world| world.is(bare, Status::Equalizing));
    world.part(bare, homes[0]);
    world.pass(600);
    world.must(!world.serves(bare), "it waits for the one that has lost nothing");
}

/// A member reports late, and then loses what it had, before all are asked again: the takeover still counts its first report.
pub(super) fn loss_while_sealing(world: &mut World) {
    let replicas = members(world);
    let homes: Vec<usize> = replicas.iter().map(|replica| world.home(*replica)).collect();
    let bare = (0..3).find(|node| !homes.contains(node)).expect("there are three");
    world.begin(bare);
    world.pass(200);
    world.ask_first(0, Operation::Write);
    world.pass_until(20, |world| !world.waits(0));
    world.detach(bare);
    world.place(1, bare);
    world.pass_until(1_000, |world| world.is(bare, Status::Claiming));
    world.slow.insert((homes[1], bare), 40 * MS);
    world.pass_until(1_000, |world| world.is(bare, Status::Equalizing));
    world.hung.insert(replicas[0]);
    world.pass(60);
    world.must(world.is(bare, Status::Equalizing), "the other has reported late");
    world.slow.clear();
    loses_and_starts(world, homes[1]);
    world.part(bare, homes[0]);
    world.hung.clear();
    world.pass(3_000);
    world.must(!world.serves(bare), "it waits for the one that has lost nothing");
}

/// The configuration store loses the growth of the volume; a person continues with one copy, and the volume grows again.
pub(super) fn grown_again(world: &mut World) {
    let grow = |world: &mut World, node: usize| {
        world.step_volume(node, Event::Command(VolumeCommand::Grow { blocks: 64, added: vec![] }));
        world.pass(100);
        world.must(world.record().blocks == 64, "it has grown");
    };
    world.begin(0);
    let old = world.record().clone();
    grow(world, 0);
    world.ask_for(0, 0, Operation::Write, 62 * 8, 8);
    world.pass(100);
    world.must(!world.waits(0), "it is written behind the old end");
    world.detach(0);
    world.config.push(old);
    world.place(1, 1);
    world.pass(300);
    world.must(world.is(1, Status::Blocked), "it sees that the store went back");
    let survivor = members(world).into_iter().find(|replica| world.home(*replica) == 1);
    recover(world, 1, survivor.expect("it has one"));
    world.pass_until(2_000, |world| world.serves(1));
    world.pass_until(4_000, |world| members(world).len() == 2);
    world.pass(100);
    grow(world, 1);
    world.check_members();
}

/// The configuration store went back in time, and the only copy that is left is damaged, and has promised an epoch above all that are
/// known: a person's second order uses an epoch above that.
pub(super) fn damaged_and_ahead(world: &mut World) {
    world.keeps_log = true;
    world.begin(0);
    let old = world.record().clone();
    for number in 0..12 {
        let (group, replica, home) = (GroupIndex(0), ReplicaId(90 + number), NodeId(1));
        for command in [VolumeCommand::Add { group, replica, home }, VolumeCommand::Forget { group, replica }]
        {
            world.step_volume(0, Event::Command(command));
            world.pass(40);
        }
    }
    let left = members(world).into_iter().find(|replica| world.home(*replica) == 1).expect("it has one");
    world.ask_first(0, Operation::Write);
    world.pass(2);
    world.kill(0, false);
    rots_and_starts(world, left);
    world.config.push(old);
    world.place(1, 1);
    world.pass(300);
    for _ in 0..2 {
        recover(world, 1, left);
        world.pass(1_000);
    }
    world.must(world.serves(1), "a person has decided");
    world.start(0);
}

/// A member falls behind and comes back. Then its device is as it was before.
fn falls_behind_and_goes_back(world: &mut World) -> (usize, usize) {
    let replicas = members(world);
    let (stays, goes) = (world.home(replicas[0]), world.home(replicas[1]));
    world.begin(stays);
    world.pass(100);
    world.kill(goes, false);
    world.copy_devices(goes);
    world.pass_until(600, |world| members(world).len() == 1);
    world.ask_first(0, Operation::Write);
    world.pass(60);
    world.must(!world.waits(0), "a write was acknowledged without it");
    world.start(goes);
    world.pass_until(3_000, |world| members(world).len() == 2);
    world.pass(100);
    world.kill(goes, false);
    world.put_back(goes, replicas[1]);
    (stays, goes)
}

/// Only the node whose device went back starts: it must not serve what it has.
pub(super) fn device_goes_back_alone(world: &mut World) {
    let (stays, goes) = falls_behind_and_goes_back(world);
    world.kill(stays, false);
    world.start(goes);
    world.place(1, goes);
    world.pass(600);
    if world.serves(goes) {
        world.ask_first(1, Operation::Read);
        world.pass(60);
    }
}

/// Its process starts before the owner has removed it: it is removed, and copied in full.
pub(super) fn device_goes_back_before_its_removal(world: &mut World) {
    let (_, goes) = falls_behind_and_goes_back(world);
    world.start(goes);
    world.pass_until(3_000, |world| members(world).len() == 1 || world.went_back.is_empty());
    world.pass_until(6_000, |world| members(world).len() == 2);
    world.check_members();
}

/// The volume gets a second group, which a client writes to; the first group gets no write. Then all nodes are stopped, and the configuration
/// store is restored from a copy of before the growth.
pub(super) fn grown_and_restored(world: &mut World) {
    world.begin(0);
    let old = world.record().clone();
    super::stalls::grow_by_a_group(world);
    let newest = world.record().clone();
    (0..2).for_each(|node| world.kill(node, false));
    world.config.push(old);
    (0..2).for_each(|node| world.start(node));
    world.place(1, 1);
    world.pass(600);
    world.must(world.is(1, Status::Blocked), "it is not served with its former size");
    world.config.push(newest);
    world.pass_until(1_000, |world| world.is(1, Status::Watching));
    world.place(1, 1);
    world.pass_until(1_000, |world| world.serves(1));
}
