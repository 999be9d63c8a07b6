//! A store that is cut anywhere is found again with all that it had reported as durable; and each rule of the store is needed for that.

use loadline_san_core::rule::Rule;
use loadline_san_sim::cutting::{Cuts, run, stale_record};

/// Lives without a fault in the store.
const LIVES: u64 = 24;
/// Each mutant is caught in one of so many lives.
const BUDGET: u64 = 60;

/// Rules that clusters need, and a single store keeps.
const OF_BOTH: &[Rule] = &[Rule::R1, Rule::R1Free, Rule::R4, Rule::R8, Rule::C1];

#[test]
fn a_store_that_is_cut_anywhere_is_found_with_all_that_it_reported() {
    let mut all = Cuts::default();
    for seed in 1..=LIVES {
        let cuts = run(seed, None).unwrap_or_else(|why| panic!("{why}"));
        all = Cuts {
            cuts: all.cuts + cuts.cuts,
            later: all.later + cuts.later,
            corrupt: all.corrupt + cuts.corrupt,
        };
    }
    println!("{all:?}");
    assert!(all.cuts > 5_000 && all.later > 500 && all.corrupt > 100, "{all:?}");
}

#[test]
fn a_whole_record_behind_a_lost_one_does_not_continue_the_next_life() {
    assert_eq!(stale_record(None), Ok(()));
    let without = stale_record(Some(Rule::R5));
    println!("R5: {without:?}");
    assert!(without.is_err(), "without rule R5 it is taken for a continuation");
}

#[test]
fn without_any_rule_of_the_store_something_is_lost() {
    let mut missed = Vec::new();
    for rule in Rule::OF_STORES.iter().chain(OF_BOTH).filter(|rule| **rule != Rule::R5) {
        let caught =
            |seed| std::panic::catch_unwind(|| run(seed, Some(*rule))).unwrap_or(Err("panic".into())).err();
        match (1..=BUDGET).find_map(caught) {
            Some(how) => println!("{rule:?}: {how}"),
            None => missed.push(*rule),
        }
    }
    assert!(missed.is_empty(), "left out, and no violation in {BUDGET} lives: {missed:?}");
}
