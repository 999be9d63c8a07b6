//! With no rule left out nothing breaks, and the model reaches what it is for. Each search prints how large
//! it was.

use loadline_san_model::{Bounds, check, properties, scenario};

fn holds(bounds: Bounds, reaches: &[&str]) {
    let found = check(bounds, None);
    println!("{bounds:?}\n  {found}");
    assert_eq!(found.counterexample, None);
    for wanted in reaches {
        assert!(found.reached.contains(wanted), "the search is too small: not {wanted}");
    }
}

#[test]
fn takeovers() {
    holds(scenario::TAKEOVERS, &[properties::TAKEN_OVER, properties::NESTED, properties::UNKNOWN]);
}

#[test]
fn blocks() {
    holds(scenario::BLOCKS, &[properties::TAKEN_OVER, properties::AT_REST]);
}

#[test]
fn overwrites() {
    holds(scenario::OVERWRITES, &[properties::NESTED, properties::LEFT_BEHIND, properties::AT_REST]);
}

#[test]
fn reads() {
    holds(scenario::READS, &[properties::TAKEN_OVER, properties::AT_REST]);
}

#[test]
fn a_return() {
    holds(scenario::RETURN, &[properties::LEFT_BEHIND, properties::SURVIVOR_RETURNED, properties::UNKNOWN]);
}

#[test]
fn a_return_and_a_crash() {
    holds(scenario::RETURN_AND_CRASH, &[properties::LEFT_BEHIND, properties::AT_REST]);
}

#[test]
fn sessions() {
    holds(scenario::SESSIONS, &[properties::LEFT_BEHIND, properties::AT_REST]);
}

/// Nine steps are little. `LOADLINE_MODEL_DEPTH=14` sees eight million states: that takes a few GB, and a
/// minute or so if `CARGO_PROFILE_TEST_OPT_LEVEL=3` is given too, else eight times as long.
#[test]
fn everything_to_a_depth() {
    let depth = std::env::var("LOADLINE_MODEL_DEPTH").map_or(9, |depth| depth.parse().expect("a number"));
    holds(scenario::everything(depth), &[properties::UNKNOWN]);
}
