//! One round of a soak: a study whose window has random faults. The same seed and number give the same study.

use std::fmt::Write;
use std::time::Duration;

use crate::random::Random;

/// The window of each round, seconds.
pub(crate) const WINDOW_S: u64 = 60;
pub(crate) const NODES: u64 = 4;
/// Kinds of faults, each with the milliseconds that are left after its return for copies to be in sync again, at the least.
pub(crate) const KINDS: [(&str, u64); 6] = [
    ("kill", 3_500),
    ("freeze", 3_000),
    ("cut", 2_500),
    ("fail-device", 6_500),
    ("slow-device", 1_500),
    ("fill", 1_500),
];
/// Loads, as a study and a reader names them; the blocks of each are checked.
const LOADS: [(&str, &str); 5] = [
    ("4K 50% writes", "B4-T1-O4-W50-PR"),
    ("8K 30% writes", "B8-T1-O4-W30-PR"),
    ("256K seq writes", "B256-T1-O2-W100-PS"),
    ("4K writes", "B4-T1-O8-W100-PR"),
    ("64K 50% writes", "B64-T1-O2-W50-PR"),
];
/// Nodes with a log device and a capacity device: slow enough that logs fill up, and fast enough to bring copies back in a round.
const HYBRID: &str = ", node = { log_model = \"intel-p4800x\", model = { name = \"a drive of 2,000 I/Os a second\", read = { iops = 2000, \
                      per_second = \"200MB\", latency = \"300us\" }, write = { iops = 2000, per_second = \"200MB\", latency = \"300us\" } } }";
/// Nothing is done before, and nothing returns later than this before the end, milliseconds.
const BEFORE_MS: u64 = 2_000;
const AFTER_MS: u64 = 8_000;

/// What a round is.
pub(crate) struct Round {
    pub(crate) load: &'static str,
    /// The study file.
    pub(crate) study: String,
    /// Faults and returns.
    pub(crate) planned: usize,
}

impl Round {
    pub(crate) fn of(seed: u64, number: u64) -> Round {
        // Every load and kind comes once before any comes again.
        let in_turn = |cycle: u64, way: u64, length: usize| {
            let mut order: Vec<usize> = (0..length).collect();
            Random::of(seed, way + 2 * cycle).shuffle(&mut order);
            order
        };
        let loads = LOADS.len() as u64;
        let (load, profile) = LOADS[in_turn(number / loads, 1 << 40, LOADS.len())[(number % loads) as usize]];
        let mut random = Random::of(seed, number);
        let faults = faults(&mut random);
        let mut study = format!(
            "name = \"soak\"\ndescription = \"Round {number} of seed {seed}: {load}\"\nprofiles = [\"{profile}\"]\n\
             faults = [\n"
        );
        for fault in &faults {
            // Text grows in memory.
            let _ = writeln!(study, "    {fault},");
        }
        // Every other round with the least log that there can be, which is full all the time.
        let log = if number % 2 == 1 { ", log = \"32MiB\"" } else { "" };
        // And every third with logs on a fast device of each node, before data on a slow one.
        let nodes = if number % 3 == 2 { HYBRID } else { "" };
        let _ = write!(
            study,
            "]\n\n[target]\nsan = {{ copies = 2{log}{nodes} }}\n\n[fleet]\nnodes = {NODES}\nworkers_per_node = 2\ndisk_size = \
             \"16MiB\"\n\n[phases]\nwarm_up = \"1s\"\nmeasure = \"{WINDOW_S}s\"\ncool_down = \"1s\"\n\n[run]\nrepeats = \
             1\nverify = true\nseed = {}\n",
            random.below(1 << 31)
        );
        Round { load, study, planned: faults.len() }
    }

    /// How long its windows take.
    pub(crate) fn windows() -> Duration {
        Duration::from_secs(WINDOW_S + 2)
    }
}

/// One fault after the other, each with its return, never two nodes at once.
fn faults(random: &mut Random) -> Vec<String> {
    let mut all = Vec::new();
    let mut kinds: Vec<(&str, u64)> = Vec::new();
    let mut at = BEFORE_MS + random.below(2_000);
    loop {
        if kinds.is_empty() {
            kinds = KINDS.to_vec();
            random.shuffle(&mut kinds);
        }
        let Some((kind, rest)) = kinds.pop() else { return all };
        let back = at + random.within(1_000, 8_000);
        if back + AFTER_MS > WINDOW_S * 1_000 {
            return all;
        }
        let node = random.within(1, NODES);
        let what = match kind {
            "slow-device" => format!("{{ slow-device = {{ by = \"{}ms\" }} }}", random.within(1, 20)),
            kind => format!("\"{kind}\""),
        };
        all.push(format!("{{ at = \"{at}ms\", do = {what}, node = \"node-{node}\" }}"));
        all.push(format!("{{ at = \"{back}ms\", do = \"return\", node = \"node-{node}\" }}"));
        at = back + rest + random.below(2_500);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_rounds_and_another_one_others() {
        let text = |seed, number| Round::of(seed, number).study;
        assert_eq!(text(7, 3), text(7, 3));
        assert_ne!(text(7, 3), text(7, 4));
        assert_ne!(text(7, 3), text(8, 3));
    }

    #[test]
    fn every_round_is_a_study_in_which_something_is_done_and_taken_back() {
        for (seed, number) in (0..40).flat_map(|seed| (0..5).map(move |number| (seed, number))) {
            let round = Round::of(seed, number);
            let study = loadline_study::read::parse("soak.toml", &round.study).unwrap();
            assert!(loadline_study::Plan::of(&study).is_ok(), "{}", round.study);
            assert!(round.planned >= 6 && round.planned.is_multiple_of(2), "{}", round.study);
            assert_eq!(round.study.contains("log_model"), number % 3 == 2, "{}", round.study);
        }
    }
}
