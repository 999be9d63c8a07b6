//! Schedules in which a forwarding node holds a write back: it is not carried out when its client has gone, its session was given
//! up, or an attach was ordered since.

use super::Schedule;
use crate::time::MS;
use crate::world::World;
use crate::world::forwarder::Rule;
use crate::world::tenant::Operation;

/// All of them, each with the rule of forwarding that it is about.
pub const FORWARDING: &[(Rule, Schedule)] = &[
    (
        Rule::F1,
        Schedule {
            name: "a forwarded write whose client has gone",
            rule: None,
            nodes: 3,
            copies: 2,
            drive: gone,
        },
    ),
    (
        Rule::F2,
        Schedule {
            name: "a forwarded write in a session that was given up",
            rule: None,
            nodes: 3,
            copies: 2,
            drive: given_up,
        },
    ),
    (
        Rule::F3,
        Schedule {
            name: "a forwarded write, and an attach is ordered",
            rule: None,
            nodes: 3,
            copies: 2,
            drive: fenced,
        },
    ),
];

/// A client writes at the owner. Another one writes through a node that has no copy, and cannot reach the owner now.
fn held_back(world: &mut World, opened: bool) -> (usize, usize) {
    let owner = *world.record().homes.values().next().expect("there is one");
    let owner = owner.0 as usize;
    let homes: Vec<usize> = world.record().homes.values().map(|home| home.0 as usize).collect();
    let from = (0..3).find(|node| !homes.contains(node)).expect("one has no copy");
    world.begin(owner);
    let connected = world.connect(1, from, owner);
    world.must(connected, "it is connected");
    world.pass(60);
    if opened {
        world.ask_first(1, Operation::Write);
        world.pass_until(100, |world| !world.waits(1));
    }
    world.part(from, owner);
    world.ask_first(1, Operation::Write);
    world.pass(20);
    world.must(world.waits(1), "it is queued");
    (from, owner)
}

/// The first client writes, the link heals, and the client reads what it wrote.
fn heals(world: &mut World) {
    world.ask_first(0, Operation::Write);
    world.pass_until(200, |world| !world.waits(0));
    world.cut.clear();
    world.pass(50);
    world.ask_first(0, Operation::Read);
    world.pass_until(200, |world| !world.waits(0));
}

/// The client of the write has gone.
fn gone(world: &mut World) {
    held_back(world, true);
    world.client_goes(1);
    heals(world);
}

/// The client of the write has gone, and the forwarding node is stopped: it does not notice. The owner gives the session up.
fn given_up(world: &mut World) {
    let (from, _) = held_back(world, false);
    world.pause(from, 2_000 * MS);
    world.client_goes(1);
    world.pass(700);
    heals(world);
    world.pass(2_000);
}

/// An attach is ordered at the owner before the connection arrives there.
fn fenced(world: &mut World) {
    let (_, owner) = held_back(world, false);
    world.order_attach(owner);
    world.pass(5);
    let before = world.coverage.of("client", "let in");
    world.place(0, owner);
    world.pass_until(300, |world| world.coverage.of("client", "let in") > before && world.serves(owner));
    heals(world);
}
