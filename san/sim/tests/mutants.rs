//! With any one rule of the design left out, something is violated, within a stated budget: so each rule is needed, and the
//! simulator is good enough to see it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use loadline_san_core::rule::Rule;
use loadline_san_sim::directed::{self, SCHEDULES};
use loadline_san_sim::run::run;
use loadline_san_sim::settings::Settings;

/// Each mutant is caught by one of the directed schedules, or by one of so many seeds.
const BUDGET: u64 = 800;
/// Each directed schedule has delays from so many seeds.
const DELAYS: u64 = 8;

/// How a mutant is caught.
fn caught(rule: Rule) -> Option<String> {
    let schedules = SCHEDULES.iter().filter(|schedule| schedule.rule == Some(rule));
    let mut tries = schedules.flat_map(|schedule| (1..=DELAYS).map(move |seed| (schedule, seed)));
    let directed = tries.find_map(|(schedule, seed)| {
        let violation = directed::run(schedule, seed, Some(rule), false).violation?;
        Some(format!("\"{}\", {seed}: {violation}", schedule.name))
    });
    directed.or_else(|| {
        (1..=BUDGET).find_map(|seed| {
            let violation = run(&Settings::of_seed(seed), seed, Some(rule), false).violation?;
            Some(format!("seed {seed}: {violation}"))
        })
    })
}

#[test]
fn each_rule_is_missed_when_it_is_left_out() {
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(rule) = Rule::OF_CLUSTERS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match caught(*rule) {
                        Some(how) => println!("{rule:?}: {how}"),
                        None => missed.lock().unwrap().push(*rule),
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "left out, and no violation in {BUDGET} seeds: {missed:?}");
}

#[test]
fn the_directed_schedules_violate_nothing_with_all_rules() {
    for schedule in SCHEDULES {
        for seed in 1..=DELAYS {
            let violation = directed::run(schedule, seed, None, false).violation;
            let violation = violation.map(|violation| violation.to_string());
            assert_eq!(violation, None, "{}, seed {seed}", schedule.name);
        }
    }
}
