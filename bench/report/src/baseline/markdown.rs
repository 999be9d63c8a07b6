//! A run beside its baseline as a page of Markdown: a CI's summary, or a comment on a change.

use crate::baseline::gate::Gate;
use crate::baseline::text::{rows, sentences, title};
use crate::compare::markdown::{body, escaped, table};
use crate::compare::{Outcome, Verdict};

/// What every such page begins with: a comment that no reader sees. By it a CI finds its own comment again, and a file is
/// known that may be written over. The baseline's name follows.
pub const HEAD: &str = "<!-- loadline-baseline ";

/// The comparison in a few words, which say no more than its intervals do.
fn result(gate: &Gate) -> String {
    let mut loads = gate.comparison.iter().flat_map(|comparison| &comparison.loads);
    let has = |verdict: Verdict| loads.clone().any(|load| load.verdict == verdict);
    let (slower, faster) = (has(Verdict::Slower), has(Verdict::Faster));
    let all_faster = loads.all(|load| load.verdict == Verdict::Faster);
    let words = match gate.outcome() {
        None => return "nothing to compare with".into(),
        Some(Outcome::Slower) => return "slower".into(),
        Some(_) if slower => "slower, but not shown to be slower by more than is allowed",
        Some(_) if all_faster => "faster",
        Some(_) if faster => "faster or no difference shown",
        Some(_) => "no difference shown",
    };
    let doubtful = if gate.outcome() == Some(Outcome::Doubtful) { ", doubtful" } else { "" };
    format!("{words}{doubtful}")
}

/// The whole page.
pub fn page(gate: &Gate) -> String {
    let mut page = format!("{HEAD}{} -->\n", gate.baseline);
    page.push_str(&format!("# Loadline: {}: {}\n\n", escaped(&gate.run.study), result(gate)));
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
