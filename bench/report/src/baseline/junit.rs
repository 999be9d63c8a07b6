//! A run beside its baseline as JUnit XML: that of the comparison, or every load skipped if there is none.

use crate::baseline::gate::Gate;
use crate::compare::junit;

/// The whole file.
pub fn document(gate: &Gate) -> String {
    match &gate.comparison {
        Some(comparison) => junit::document(comparison),
        None => {
            let loads: Vec<String> = gate.trend.iter().map(|trend| trend.label.clone()).collect();
            let why = format!("nothing to compare with in the baseline {}", gate.baseline);
            junit::all_skipped(&gate.run.study, &loads, &why)
        }
    }
}
