//! A small cluster, in seconds; and that what is checked can fail.

use super::faults::Cause;
use super::figures::Role;
use super::*;

const TOO_MANY: &str = "writes for a volume, and at most 3 are allowed";

fn small(copies: usize) -> Cluster {
    Cluster { nodes: 5, volumes: 12, copies, seed: 1 }
}

/// A cluster with only this fault.
fn only(cluster: Cluster, cause: impl Fn(&World) -> Cause) -> Measured {
    let mut world = World::new(cluster);
    let (attach, steady) = settle(&mut world);
    let cause = cause(&world);
    let fault = world.fault(cause);
    measured(world, attach, steady, vec![fault])
}

#[test]
fn a_fault_costs_the_store_few_writes_for_each_volume_and_none_for_others() {
    for copies in [2, 3] {
        let measured = measure(small(copies), None);
        assert_eq!(measured.violations, [""; 0]);
        assert_eq!(measured.steady.commits, 0);
        for fault in &measured.faults {
            let is_about_some = fault.during.volumes.iter().any(|of| of.role != Role::Other);
            assert!(is_about_some, "{} is about no volume", fault.name);
        }
        let lost = &measured.faults[0];
        let owned = lost.during.volumes.iter().find(|of| of.role == Role::Owner).expect("it owned some");
        assert!(owned.writes > 0 && lost.after.redundant_s > Some(0.0), "{lost:?}");
    }
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    let json = |seed| {
        let measured = only(Cluster { seed, ..small(3) }, |_| Cause::Host(1));
        serde_json::to_string(&measured).expect("it has numbers and names")
    };
    assert_eq!(json(1), json(1));
    assert_ne!(json(1), json(2));
}

#[test]
fn more_writes_for_a_volume_than_a_fault_may_cost_are_noticed() {
    let flaps = |world: &World| {
        let (one, other) = world.busiest_link();
        Cause::Flapping(one, other)
    };
    let violations = only(small(3), flaps).violations;
    assert!(violations.iter().any(|why| why.contains(TOO_MANY)), "{violations:?}");
}

#[test]
fn owners_that_are_not_sealed_write_for_ever_and_that_is_noticed() {
    leave_out(Some(Rule::T5));
    let violations = only(small(2), |_| Cause::Host(0)).violations;
    leave_out(None);
    for what in [TOO_MANY, "writes to the configuration store while nothing happens"] {
        assert!(violations.iter().any(|why| why.contains(what)), "{what}: {violations:?}");
    }
}
