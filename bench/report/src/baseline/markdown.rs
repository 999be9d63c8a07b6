//! A run beside its baseline as a page of Markdown: a CI's summary, or a comment on a change.

use crate::baseline::gate::Gate;
use crate::baseline::text::{is_slower, rows, sentences, title};
use crate::compare::Outcome;
use crate::compare::markdown::{body, escaped, table};

/// What every such page begins with: a comment that no reader sees. By it a CI finds its own comment again, and a file is
/// known that may be written over. The baseline's name follows.
pub const HEAD: &str = "<!-- loadline-baseline ";

/// The whole page.
pub fn page(gate: &Gate) -> String {
    let mut page = format!("{HEAD}{} -->\n", gate.baseline);
    let result = match gate.outcome() {
        None => "nothing to compare with",
        Some(Outcome::Slower) => "slower",
        Some(_) if is_slower(gate) => "slower, but not by more than is allowed for certain",
        Some(Outcome::Doubtful) => "not slower, but doubtful",
        Some(Outcome::Fine) => "not slower",
    };
    page.push_str(&format!("# Loadline: {}: {result}\n\n", escaped(&gate.run.study)));
    page.push_str(&format!("- {}\n", escaped(&title(gate))));
    if let Some(comparison) = &gate.comparison {
        page.push_str(&body(comparison));
    }
    page.push_str("\n## Baseline\n\n");
    page.push_str(&table(&rows(gate)));
    page.push('\n');
    for sentence in sentences(gate) {
        page.push_str(&format!("- {}\n", escaped(&sentence)));
    }
    page
}
