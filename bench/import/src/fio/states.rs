//! The intermediate states that `--status-interval` writes before a run's final one.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{entries, identity};

/// Seconds by which writing a result may lag behind its last I/O.
const LAG_S: f64 = 2.0;
/// A counter may grow so many times as fast as over the whole run.
const FASTER: f64 = 5.0;
/// Runtimes are rounded to milliseconds, and counters are read one after the other: milliseconds that may be missing.
const UNEVEN_MS: f64 = 20.0;
const SIDES: [&str; 4] = ["read", "write", "trim", "mixed"];

/// Which results are intermediate states of the run that the next one is of.
///
/// It began before they were written, has run longer by as much as lies between the two writings, and each counter
/// has grown by what can be done in that time. Results of hosts that ran together are alike in all else.
pub(super) fn superseded(results: &[Value]) -> BTreeSet<usize> {
    let pairs = results.windows(2).enumerate();
    pairs.filter(|(_, pair)| matches!(pair, [a, b] if same_run(a, b))).map(|(at, _)| at).collect()
}

fn same_run(earlier: &Value, later: &Value) -> bool {
    let Some(apart) = seconds(later).zip(seconds(earlier)).map(|(later, earlier)| later - earlier) else {
        return false;
    };
    let [before, after] = [earlier, later].map(ran_s);
    let near = |before: f64, after: f64| (after - before - apart).abs() <= LAG_S;
    (0.0..0.9 * after.1.max(after.0)).contains(&apart)
        && (near(before.0, after.0) || near(before.1, after.1))
        && entries(earlier).map(identity).eq(entries(later).map(identity))
        && entries(earlier).zip(entries(later)).all(|(earlier, later)| grown(earlier, later))
}

/// When a result was written.
fn seconds(result: &Value) -> Option<f64> {
    let milliseconds = result.get("timestamp_ms").and_then(Value::as_f64).map(|ms| ms / 1e3);
    milliseconds.or_else(|| result.get("timestamp").and_then(Value::as_f64))
}

fn of_side(entry: &Value, side: &str, key: &str) -> f64 {
    entry.get(side).and_then(|side| side.get(key)?.as_f64()).unwrap_or(0.0)
}

/// How long a result's jobs ran: the longest of all, and the sum over groups that ran one after the other.
fn ran_s(result: &Value) -> (f64, f64) {
    let mut groups: BTreeMap<Option<u64>, f64> = BTreeMap::new();
    for entry in entries(result) {
        let longest = SIDES.map(|side| of_side(entry, side, "runtime") / 1e3).into_iter().fold(0.0, f64::max);
        let group = groups.entry(entry.get("groupid").and_then(Value::as_u64)).or_default();
        *group = group.max(longest);
    }
    (groups.values().copied().fold(0.0, f64::max), groups.values().sum())
}

/// Whether each counter of an entry has grown, and no faster than is possible.
fn grown(earlier: &Value, later: &Value) -> bool {
    SIDES.iter().all(|side| {
        let of = |key| (of_side(earlier, side, key), of_side(later, side, key));
        let ((ios_before, ios), (ran_before, ran)) = (of("total_ios"), of("runtime"));
        let possible = FASTER * ios / ran.max(1.0) * ((ran - ran_before).max(0.0) + UNEVEN_MS);
        (0.0..=possible.max(1.0)).contains(&(ios - ios_before))
    })
}
