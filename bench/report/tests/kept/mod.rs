//! Kept results whose figures are made up.

use std::collections::{BTreeMap, BTreeSet};

use loadline_report::baseline::{Addition, BaselineName, BaselineStore, History, KeptResult, Pin};
use loadline_report::compare::RunRecord;
use loadline_report::compare::record::{LoadRecord, RepeatRecord};

pub(crate) fn name() -> BaselineName {
    "mirror".parse().unwrap()
}

/// A run of six repeats around these IOPS, as the `number`-th of a day.
pub(crate) fn record(number: usize, iops: f64) -> RunRecord {
    let begun = format!("2026-01-{:02}T{:02}:00:00.123Z", 1 + number / 24, number % 24);
    let repeat = |jitter: f64| RepeatRecord {
        iops: iops * jitter,
        mean_us: Some(1e6 / iops / jitter),
        p99_us: Some(3e6 / iops / jitter),
    };
    RunRecord {
        place: format!("runs/{number}"),
        run_id: format!("202601{:02}-{:02}0000-7", 1 + number / 24, number % 24),
        study: "mirror-study".into(),
        loadline: "0.1.0".into(),
        begun: serde_json::from_value(begun.into()).unwrap(),
        complete: 6,
        planned: 6,
        damaged: 0,
        missing: Vec::new(),
        versions: BTreeSet::from(["0.1.0".to_string()]),
        disks: 1,
        steal: None,
        cpu_pressure: None,
        configuration: BTreeMap::new(),
        fleet: BTreeMap::new(),
        hosts: BTreeMap::new(),
        engines: BTreeMap::new(),
        planned_loads: BTreeSet::from(["4k".to_string()]),
        searches: false,
        loads: vec![LoadRecord {
            label: "4k".into(),
            keys: BTreeMap::from([("block_size".to_string(), "4KiB".to_string())]),
            has_rate: false,
            doubtful: 0,
            repeats: [1.0, 1.004, 0.995, 1.008, 0.991, 1.002].map(repeat).to_vec(),
        }],
    }
}

/// The `number`-th run as it is kept, compared with the first.
pub(crate) fn kept(number: usize, iops: f64) -> KeptResult {
    let kept = |number| KeptResult::new(record(number, iops), Some("0123456789abcdef0123".into()));
    let first = (number > 0).then(|| kept(0).file());
    KeptResult { compared_with: first, ..kept(number) }
}

#[allow(dead_code)]
pub(crate) fn addition(kept: &KeptResult, pin: Pin) -> Addition {
    Addition { file: kept.file(), text: kept.text(), pin }
}

#[allow(dead_code)]
pub(crate) fn history(store: &dyn BaselineStore) -> History {
    History::read(store, &name()).unwrap()
}
