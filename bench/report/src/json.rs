//! `report.json`: the report for programs, and its schema.

use serde_json::Value;

use crate::report::Report;

/// The whole report.
pub fn document(report: &Report) -> String {
    // Every key is text and every figure finite or null: it cannot fail.
    let mut text = serde_json::to_string_pretty(report).unwrap_or_default();
    text.push('\n');
    text
}

/// The schema of [`document`].
pub fn schema() -> Value {
    loadline_study::json_schema::of::<Report>()
}
