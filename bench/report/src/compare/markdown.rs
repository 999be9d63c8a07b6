//! A comparison as a page of Markdown: what a CI shows as its summary, or a ticket quotes.

use crate::compare::Comparison;
use crate::compare::text::{SAME_CONFIGURATION, differences, legend, rows, run};

/// What every such page begins with: by it one is known that may be written over.
pub const HEAD: &str = "# Two runs of Loadline compared\n";

/// The whole page.
pub fn page(comparison: &Comparison) -> String {
    format!("{HEAD}\n{}", body(comparison))
}

/// The page without its title.
pub(crate) fn body(comparison: &Comparison) -> String {
    let mut page = String::new();
    for (name, side) in [("A", &comparison.runs.a), ("B", &comparison.runs.b)] {
        page.push_str(&format!("- {name}: {}\n", escaped(&run(side))));
    }
    for doubt in &comparison.doubts {
        page.push_str(&format!("- doubtful: {}.\n", escaped(doubt)));
    }
    page.push_str("\n## Loads\n\n");
    page.push_str(&table(&rows(comparison)));
    page.push_str(&format!("\n{}\n\n", escaped(&legend(comparison))));
    for sentence in comparison.sentences() {
        page.push_str(&format!("- {}\n", escaped(&sentence)));
    }
    page.push_str("\n## Configuration, A -> B\n\n");
    if comparison.configuration.is_empty() {
        page.push_str(&format!("{SAME_CONFIGURATION}\n"));
    }
    for line in differences(&comparison.configuration) {
        page.push_str(&format!("- {}\n", escaped(&line)));
    }
    page
}

/// A table, its titles first: the first column to the left, the others to the right.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let line = |cells: &Vec<String>| {
        let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let columns = rows.first().map_or(0, Vec::len);
    let rule: Vec<&str> = (0..columns).map(|column| if column == 0 { "---" } else { "---:" }).collect();
    let lines: String = rows.iter().skip(1).map(line).collect();
    format!("{}| {} |\n{lines}", rows.first().map(line).unwrap_or_default(), rule.join(" | "))
}

/// Without what Markdown would take for its own, in one line.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '|' | '*' | '<' | '\\' | '`' | '[' | ']') {
            escaped.push('\\');
        }
        escaped.push(if c.is_control() { ' ' } else { c });
    }
    escaped
}
