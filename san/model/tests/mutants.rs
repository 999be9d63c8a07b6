//! Each rule, left out, breaks something. The way there is printed: see it with `--nocapture`.
//!
//! The bounds are those of `whole.rs`, where nothing breaks with all rules kept.

use loadline_san_model::{Bounds, Rule, check, scenario};

fn is_needed(rule: Rule, bounds: Bounds) {
    let found = check(bounds, Some(rule));
    println!("without {rule:?}: {found}");
    assert!(found.counterexample.is_some(), "nothing breaks without {rule:?}");
}

#[test]
fn p1() {
    is_needed(Rule::P1, scenario::RETURN);
}

#[test]
fn p2() {
    is_needed(Rule::P2, scenario::RETURN);
}

#[test]
fn p3() {
    is_needed(Rule::P3, scenario::READS);
}

#[test]
fn w1() {
    is_needed(Rule::W1, scenario::READS);
}

#[test]
fn w2() {
    is_needed(Rule::W2, scenario::RETURN);
}

#[test]
fn w3() {
    is_needed(Rule::W3, scenario::RETURN);
}

#[test]
fn l1() {
    is_needed(Rule::L1, scenario::READS);
}

#[test]
fn l2() {
    is_needed(Rule::L2, scenario::READS);
}

#[test]
fn l3() {
    is_needed(Rule::L3, scenario::READS);
}

#[test]
fn t1() {
    is_needed(Rule::T1, scenario::TAKEOVERS);
}

#[test]
fn t2() {
    is_needed(Rule::T2, scenario::RETURN);
}

#[test]
fn t3() {
    is_needed(Rule::T3, scenario::TAKEOVERS);
}

#[test]
fn t4() {
    is_needed(Rule::T4, scenario::OVERWRITES);
}

#[test]
fn t5() {
    is_needed(Rule::T5, scenario::TAKEOVERS);
}

#[test]
fn refusal() {
    is_needed(Rule::Refusal, scenario::TAKEOVERS);
}

#[test]
fn r1() {
    is_needed(Rule::R1, scenario::RETURN);
}

#[test]
fn r2() {
    is_needed(Rule::R2, scenario::RETURN);
}

#[test]
fn r3() {
    is_needed(Rule::R3, scenario::RETURN);
}

#[test]
fn r8() {
    is_needed(Rule::R8, scenario::RETURN_AND_CRASH);
}

#[test]
fn c1() {
    is_needed(Rule::C1, scenario::RETURN);
}

#[test]
fn c2() {
    is_needed(Rule::C2, scenario::RETURN);
}

#[test]
fn c3() {
    is_needed(Rule::C3, scenario::RETURN);
}

#[test]
fn c4() {
    is_needed(Rule::C4, scenario::RETURN_AND_CRASH);
}

#[test]
fn list_after_promise() {
    is_needed(Rule::ListAfterPromise, scenario::RETURN);
}

#[test]
fn decided_before_session() {
    is_needed(Rule::DecidedBeforeSession, scenario::SESSIONS);
}

#[test]
fn one_session() {
    is_needed(Rule::OneSession, scenario::SESSIONS);
}
