//! With any one rule of forwarding left out, a write is carried out after its time, and the history shows it.

use loadline_san_core::rule::leave_out;
use loadline_san_sim::directed::{FORWARDING, run_forwarding};
use loadline_san_sim::world::forwarder::Rule;

/// Each schedule has delays from so many seeds.
const DELAYS: u64 = 8;

#[test]
fn each_rule_of_forwarding_is_missed_when_it_is_left_out() {
    leave_out(None);
    for rule in Rule::ALL {
        let (_, schedule) = FORWARDING.iter().find(|(about, _)| about == rule).expect("it has one");
        for seed in 1..=DELAYS {
            let violation = run_forwarding(schedule, seed, Some(*rule), false).violation;
            let violation = violation.map(|violation| violation.to_string()).unwrap_or_default();
            println!("{rule:?}, {seed}: {violation}");
            let is_ghost = violation.starts_with("a read: ");
            assert!(is_ghost, "left out, and no read shows it: {rule:?}, seed {seed}: {violation:?}");
        }
    }
}

#[test]
fn with_all_rules_of_forwarding_nothing_is_violated() {
    leave_out(None);
    for (_, schedule) in FORWARDING {
        for seed in 1..=DELAYS {
            let violation = run_forwarding(schedule, seed, None, false).violation;
            let violation = violation.map(|violation| violation.to_string());
            assert_eq!(violation, None, "{}, seed {seed}", schedule.name);
        }
    }
}
