//! Tests of the judge of service.
#![cfg(test)]

use std::collections::BTreeSet;

use super::clients::{Action, Micros, Op, Outcome};
use super::cluster::Sample;
use super::script::Volume;
use super::service::{Expected, Moment, World, expected, judge, store_decides};

const S: Micros = 1_000_000;

fn sample(members: &[usize]) -> Sample {
    let in_sync = vec![members.iter().copied().collect()];
    Sample { in_sync, homes: BTreeSet::from([0, 1, 2]), owner: 0, least: 1 }
}

fn volume(copies: usize) -> Volume {
    Volume { name: "disk-1".into(), copies, stripes: 1, mib: 16 }
}

fn cut(world: &mut World, a: usize, b: usize) {
    (world.open[a][b], world.open[b][a]) = (false, false);
}

fn isolated(host: usize) -> World {
    let mut world = World::whole(3);
    (0..3).filter(|peer| *peer != host).for_each(|peer| cut(&mut world, host, peer));
    world
}

fn at(hosts: &[usize], writes: bool) -> Option<Expected> {
    Some(Expected { at: hosts.iter().copied().collect(), writes })
}

#[test]
fn the_store_decides_between_an_owner_and_a_host_that_reach_as_many_copies() {
    assert!(store_decides(&isolated(0), &sample(&[0, 1]), 1));
    assert!(!store_decides(&isolated(0), &sample(&[0, 1, 2]), 1), "there are two copies on its side");
    let mut world = World::whole(3);
    assert!(!store_decides(&world, &sample(&[0, 1]), 1), "they reach each other");
    cut(&mut world, 0, 1);
    assert!(store_decides(&world, &sample(&[0, 1]), 1));
    world.runs[0] = false;
    assert!(!store_decides(&world, &sample(&[0, 1]), 1), "the owner does not run");
}

#[test]
fn the_side_with_most_copies_must_serve() {
    assert_eq!(expected(&World::whole(3), &sample(&[0, 1, 2]), 3), at(&[0, 1, 2], true));
    assert_eq!(expected(&isolated(0), &sample(&[0, 1, 2]), 3), at(&[1, 2], true));
    // One copy on each side: either may serve, and of three copies one is too few to write to.
    assert_eq!(expected(&isolated(0), &sample(&[0, 1]), 2), at(&[0, 1, 2], true));
    assert_eq!(expected(&isolated(0), &sample(&[0, 1]), 3), at(&[0, 1, 2], false));
    // One link is cut, in one direction: there are no sides.
    let mut world = World::whole(3);
    world.open[0][1] = false;
    assert_eq!(expected(&world, &sample(&[0, 1, 2]), 3), at(&[0, 1, 2], true));
    // A node that does not run cannot serve, and a copy that went back in time does not count.
    let mut world = World::whole(3);
    world.runs[0] = false;
    assert_eq!(expected(&world, &sample(&[0]), 2), None);
    assert_eq!(expected(&world, &sample(&[0, 1]), 2), at(&[1, 2], true));
    world.rolled_back.insert(1);
    assert_eq!(expected(&world, &sample(&[0, 1]), 2), None);
    // Without the store nothing can change; if nothing else is wrong, nothing needs to.
    let mut world = World { store: false, ..World::whole(3) };
    assert_eq!(expected(&world, &sample(&[0, 1]), 2), at(&[0, 1, 2], true));
    world.runs[2] = false;
    assert_eq!(expected(&world, &sample(&[0, 1]), 2), None);
    assert_eq!(expected(&World { restored: true, ..World::whole(3) }, &sample(&[0, 1]), 2), None);
}

fn op(host: usize, action: Action, invoked: Micros, ended: Micros, outcome: Outcome) -> Op {
    Op { client: host, host, node: host, volume: 0, block: 0, action, connected: 0, invoked, ended, outcome }
}

/// A read and a write on a host, answered at once.
fn both(host: usize, at: Micros) -> [Op; 2] {
    let done = |action| op(host, action, at, at + 1000, Outcome::Done);
    [done(Action::Read(0)), done(Action::Write(1))]
}

fn moment(at: Micros, world: World, before: &[usize], after: &[usize]) -> Moment {
    let (before, samples) = (Some(vec![sample(before)]), Some(vec![sample(after)]));
    Moment { what: "x".into(), kind: "x", begun: at, done: at, world, before, samples }
}

fn kinds(moments: &[Moment], copies: usize, ops: &[Op]) -> Vec<&'static str> {
    judge(moments, &[volume(copies)], ops, 60 * S).into_iter().map(|fault| fault.kind).collect()
}

#[test]
fn a_volume_that_is_not_served_in_time_is_found() {
    let moments = [moment(10 * S, World::whole(3), &[0, 1], &[0, 1])];
    assert_eq!(kinds(&moments, 2, &both(1, 14 * S)), [""; 0]);
    assert_eq!(kinds(&moments, 2, &both(1, 15 * S)), ["not served"]);
    assert_eq!(kinds(&moments, 2, &both(1, 9 * S)), ["not served"]);
    assert_eq!(kinds(&moments, 2, &both(1, 14 * S)[..1]), ["not served"]);
    assert_eq!(kinds(&moments, 2, &both(1, 14 * S)[1..]), ["not served"]);
    // An owner that is alone excludes the others: they must serve all the same.
    let moments = [moment(10 * S, isolated(0), &[0, 1, 2], &[0])];
    assert_eq!(kinds(&moments, 3, &both(1, 14 * S)), [""; 0]);
    assert_eq!(kinds(&moments, 3, &both(0, 14 * S)), ["too few copies", "not served"]);
    // After a configuration went back nothing is served.
    let restored = World { restored: true, ..World::whole(3) };
    assert_eq!(kinds(&[moment(10 * S, restored.clone(), &[0], &[0])], 2, &[]), [""; 0]);
    assert_eq!(kinds(&[moment(10 * S, restored, &[0], &[0])], 2, &both(1, 14 * S)[..1]), ["served"]);
}

#[test]
fn an_error_and_an_operation_that_hangs_are_found() {
    let fine = both(0, 11 * S);
    let moments = |world: World| {
        [moment(0, World::whole(3), &[0, 1], &[0, 1]), moment(10 * S, world, &[0, 1], &[0, 1])]
    };
    let with = |world: World, op: Op| {
        let ops = [&fine[..], &both(0, S), &[op]].concat();
        kinds(&moments(world), 2, &ops)
    };
    let read = |invoked, ended, outcome| op(1, Action::Read(0), invoked, ended, outcome);
    assert_eq!(with(World::whole(3), read(11 * S, 16 * S, Outcome::Lost)), [""; 0]);
    assert_eq!(with(World::whole(3), read(11 * S, 18 * S, Outcome::Done)), ["hang"]);
    assert_eq!(with(World::whole(3), read(5 * S, 12 * S, Outcome::Left)), ["hang"]);
    assert_eq!(with(World::whole(3), read(11 * S, 12 * S, Outcome::Error(108))), ["error"]);
    // Its own node did not run for most of the time, or nothing could be served.
    let mut stopped = World::whole(3);
    stopped.runs[1] = false;
    assert_eq!(with(stopped, read(5 * S, 20 * S, Outcome::Done)), [""; 0]);
    // Its own node reached no host that knows which node serves the volume.
    assert_eq!(with(isolated(1), read(11 * S, 18 * S, Outcome::Lost)), ["hang"], "the store knows");
    let gone = World { gone: BTreeSet::from([1]), ..isolated(1) };
    assert_eq!(with(gone, read(11 * S, 18 * S, Outcome::Lost)), [""; 0]);
    let mut none = World::whole(3);
    (none.runs[0], none.runs[1]) = (false, false);
    assert_eq!(with(none, op(2, Action::Read(0), 5 * S, 20 * S, Outcome::Done)), [""; 0]);
}

#[test]
fn a_write_on_too_few_copies_is_found() {
    let moments = [moment(10 * S, isolated(2), &[0, 1, 2], &[0, 1])];
    assert_eq!(kinds(&moments, 3, &both(0, 12 * S)), [""; 0]);
    let ops = [both(0, 12 * S), both(2, 12 * S)].concat();
    assert_eq!(kinds(&moments, 3, &ops), ["too few copies"]);
    assert_eq!(kinds(&moments, 2, &ops), [""; 0], "two copies may be one for a time");
}

#[test]
fn a_write_that_waits_for_a_second_copy_does_not_hang_and_a_read_does() {
    // Of three copies two are in sync, and their nodes do not reach each other.
    let whole = |at| moment(at, World::whole(3), &[0, 1], &[0, 1]);
    let moments = [whole(0), moment(10 * S, isolated(0), &[0, 1], &[0, 1]), whole(17 * S)];
    let reads = |at| op(0, Action::Read(0), at, at + S / 100, Outcome::Done);
    let fine = [&both(0, S)[..], &[reads(11 * S)], &both(0, 18 * S)].concat();
    let with = |op: Op| kinds(&moments, 3, &[&fine[..], &[op]].concat());
    assert_eq!(with(op(1, Action::Write(7), 11 * S, 18 * S, Outcome::Done)), [""; 0]);
    assert_eq!(with(op(1, Action::Read(7), 11 * S, 18 * S, Outcome::Done)), ["hang"]);
}
