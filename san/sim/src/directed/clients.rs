//! Schedules in which a write waits at one node while its client goes to another: what waited is never carried out after
//! what was acknowledged later (rule T12).

use loadline_san_core::ids::{Epoch, NodeId, ReplicaId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::volume::{Event, Status, VolumeCommand};

use crate::world::World;
use crate::world::tenant::Operation;

/// A client at a node, which is let in.
fn comes(world: &mut World, tenant: usize, node: usize) {
    let before = world.coverage.of("client", "let in");
    world.place(tenant, node);
    world.pass_until(600, |world| world.coverage.of("client", "let in") > before);
}

/// It writes the first block, and waits for the acknowledgement.
fn writes(world: &mut World, tenant: usize) {
    let waiting = world.tenants[tenant].outstanding.len();
    world.ask_first(tenant, Operation::Write);
    world.pass(50);
    world.must(world.tenants[tenant].outstanding.len() == waiting, "it is acknowledged");
}

/// The first block has what this write wrote.
fn has(world: &World, write: u64, when: &str) {
    let replica = *world.record().groups[0].in_sync.first().expect("there is one");
    let value = world.store(replica).and_then(|store| store.value(0)).map(|block| block[0] >> 12);
    assert_eq!(value, Some(write), "the newest acknowledged write is the last, {when}");
}

fn recover(world: &mut World, node: usize) {
    world.forced = true;
    let record = Box::new(world.record().clone());
    let survivor = record.groups[0].in_sync.iter().find(|replica| world.home(**replica) == node);
    let survivors = survivor.map(|replica| (GroupIndex(0), *replica)).into_iter().collect();
    world.step_volume(node, Event::Command(VolumeCommand::Recover { record, survivors, promised: Epoch(0) }));
}

/// The second client is let in at node 1, which then cannot claim the volume: its write waits there.
fn waits_at_1(world: &mut World) {
    // It does not claim the volume before the other node's replica has answered it (rule P4).
    world.part(0, 1);
    comes(world, 1, 1);
    world.cut_from_config.insert(1);
    world.cut.clear();
    world.ask_first(1, Operation::Write);
    world.pass(5);
    world.must(world.waits(1), "it waits");
}

/// A person decides at node 0 that its record is what is left, and both clients go there.
fn recovered_at_0(world: &mut World) {
    let record = Box::new(world.record().clone());
    world.step_volume(
        0,
        Event::Command(VolumeCommand::Recover { record, survivors: [].into(), promised: Epoch(0) }),
    );
    comes(world, 0, 0);
    world.pass_until(600, |world| world.serves(0));
    comes(world, 1, 0);
    writes(world, 1);
}

/// It goes to where other clients are already.
pub(super) fn joins_others(world: &mut World) {
    comes(world, 1, 1);
    world.pass(250);
    world.part(0, 1);
    comes(world, 0, 0);
    world.cut_from_config.insert(0);
    world.cut.clear();
    world.ask_first(0, Operation::Write);
    world.pass(50);
    world.must(world.serves(1) && world.waits(0), "it waits at one node, and the other serves");
    comes(world, 0, 1);
    writes(world, 0);
    has(world, 2, "when it is acknowledged");
    world.pass(1_000);
    world.cut_from_config.clear();
    world.pass(600);
    has(world, 2, "when the first node reaches the configuration store again");
}

/// The configuration store was restored, and does not know how often the volume was attached.
pub(super) fn forgotten_attachment(world: &mut World) {
    let old = world.record().clone();
    world.begin(0);
    waits_at_1(world);
    world.config.push(old);
    world.part(0, 1);
    world.pass(250);
    world.must(world.is(0, Status::Blocked), "the owner sees that the store went back");
    world.cut.clear();
    recovered_at_0(world);
    has(world, 3, "when it is acknowledged");
    world.pass(300);
    world.cut_from_config.clear();
    world.pass(800);
    has(world, 3, "when the first node sees the record of now");
}

/// The node at which it waits is blocked, and let go by what a person decides elsewhere.
pub(super) fn blocked_meanwhile(world: &mut World) {
    let old = world.record().clone();
    world.begin(0);
    waits_at_1(world);
    world.config.push(old);
    world.cut_from_config.clear();
    world.pass(100);
    world.must(world.is(1, Status::Blocked), "where it waits, the store is seen to have gone back");
    world.cut_from_config.insert(1);
    world.part(0, 1);
    world.pass(250);
    world.cut.clear();
    recovered_at_0(world);
    world.cut_from_config.clear();
    world.pass(200);
    world.must(!world.waits(1), "what waited was refused");
    world.detach(0);
    comes(world, 1, 1);
    world.pass(600);
    has(world, 3, "when the volume is attached where it had waited");
}

/// A person recovers the volume by force at the node where it waits.
pub(super) fn recovered_meanwhile(world: &mut World) {
    comes(world, 0, 0);
    world.cut_from_config.insert(0);
    world.ask_first(0, Operation::Write);
    world.pass(50);
    comes(world, 1, 1);
    world.pass(300);
    comes(world, 0, 1);
    writes(world, 0);
    has(world, 2, "when it is acknowledged");
    world.kill(1, false);
    world.pass(300);
    world.cut_from_config.clear();
    recover(world, 0);
    world.pass_until(600, |world| world.serves(0));
    world.pass(50);
    has(world, 2, "after the recovery");
}

/// A recovery is ordered twice: each command is answered.
pub(super) fn two_recoveries(world: &mut World) {
    world.begin(0);
    world.kill(0, false);
    world.without_config_answers.insert(1);
    for _ in 0..2 {
        recover(world, 1);
        world.pass(20);
    }
    world.without_config_answers.clear();
    world.pass(3_000);
    world.must(world.coverage.of("command", "answered") == 2, "each command is answered");
}

/// It goes to the owner, whose last swap let in another client: that swap did not count it.
pub(super) fn after_another(world: &mut World) {
    world.begin(0);
    comes(world, 0, 0);
    waits_at_1(world);
    comes(world, 1, 0);
    writes(world, 1);
    world.cut_from_config.clear();
    world.pass(800);
    has(world, 3, "when the first node reaches the configuration store again");
}

/// The same, before the owner has received the answer that the swap has committed.
pub(super) fn while_another_commits(world: &mut World) {
    world.begin(0);
    let epoch = world.record().epoch;
    world.without_config_answers.insert(0);
    world.step_volume(0, Event::Attach);
    world.pass_until(100, |world| world.record().epoch > epoch);
    waits_at_1(world);
    let before = world.coverage.of("client", "let in");
    world.place(1, 0);
    world.without_config_answers.clear();
    world.pass_until(600, |world| world.coverage.of("client", "let in") > before);
    writes(world, 1);
    world.cut_from_config.clear();
    world.pass(800);
    has(world, 3, "when the first node reaches the configuration store again");
}

/// The node at which it waits has claimed the volume of a record that never was: the configuration store had gone back in
/// time, and is put right.
pub(super) fn on_a_branch(world: &mut World) {
    world.begin(0);
    let old = world.record().clone();
    world.part(0, 1);
    world.pass(160);
    let (group, home) = (GroupIndex(0), NodeId(1));
    for replica in [ReplicaId(98), ReplicaId(99)] {
        for command in [VolumeCommand::Add { group, replica, home }, VolumeCommand::Forget { group, replica }]
        {
            world.step_volume(0, Event::Command(command));
            world.pass(50);
        }
    }
    let newest = world.record().clone();
    world.config.push(old);
    comes(world, 1, 1);
    world.ask_first(1, Operation::Write);
    world.pass_until(1_000, |world| world.is(1, Status::Claiming));
    world.cut.clear();
    world.pass_until(1_000, |world| world.is(1, Status::Blocked));
    world.config.push(newest);
    world.pass_until(1_000, |world| !world.is(1, Status::Blocked));
    world.must(!world.waits(1), "what waited was refused");
    // The copy at node 1 has promised to follow an owner that the newest record does not have (rule R11).
    world.pass(600);
    recover(world, 0);
    world.pass_until(1_000, |world| world.record().groups[0].in_sync.len() == 2);
}

/// A write waits for a second copy in sync. Another client reads what was there before.
fn held(world: &mut World, ends: impl Fn(&mut World)) {
    world.begin(0);
    world.part(0, 1);
    world.pass_until(600, |world| world.record().groups[0].in_sync.len() == 1);
    world.ask_first(0, Operation::Write);
    world.pass(50);
    world.must(world.waits(0), "the write is held");
    ends(world);
    world.place(1, 0);
    world.pass_until(1_000, |world| world.serves(0));
    world.pass(50);
    world.ask_first(1, Operation::Read);
    world.pass_until(600, |world| !world.waits(1));
    world.cut.clear();
    world.pass_until(3_000, |world| world.record().groups[0].in_sync.len() == 2);
    world.pass(50);
    world.ask_first(1, Operation::Read);
    world.pass_until(600, |world| !world.waits(1));
}

/// The client of the write has gone: it is not carried out later.
pub(super) fn held_and_gone(world: &mut World) {
    held(world, |world| world.client_goes(0));
}

/// An attach is ordered at the same node: nothing from before is carried out after it.
pub(super) fn held_and_fenced(world: &mut World) {
    held(world, |world| world.order_attach(0));
}
