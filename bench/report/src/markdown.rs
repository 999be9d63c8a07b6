//! `report.md`: the tables and the findings, to paste into a page or a ticket.

use crate::capacity;
use crate::faults;
use crate::findings::sentences;
use crate::goals;
use crate::orientation::{self, Orientation};
use crate::report::Report;
use crate::table::{Unit, level, load_cells, load_titles, step_cells, verified};

/// The whole report.
pub fn page(report: &Report) -> String {
    let unit = Unit::of(report);
    let name = unit.name();
    let mut page = format!("# {}\n\n", report.study);
    if let Some(description) = &report.description {
        page.push_str(&format!("{}\n\n", escaped(description)));
    }
    if let Some(asks) = &report.asks {
        page.push_str(&format!("Asked: *{}*\n\n", escaped(asks)));
    }
    page.push_str(&format!(
        "Measured with Loadline {}, begun {}, {}. {} of {} steps are complete.\n\n",
        report.loadline,
        report.begun.as_str(),
        report.finished.as_ref().map_or("not finished".into(), |when| format!("finished {}", when.as_str())),
        report.complete,
        report.planned
    ));
    for tile in report.tiles.all() {
        page.push_str(&format!("**{}: {}**\n\n", tile.title, escaped(&tile.headline)));
        tile.sentences.iter().for_each(|sentence| page.push_str(&format!("- {}\n", escaped(sentence))));
        page.push('\n');
    }
    page.push_str("## Verdict\n\n");
    let verdict = &report.verdict;
    for sentence in verdict.carries.iter().chain(&verdict.limited_by).chain(&verdict.beside) {
        page.push_str(&format!("{}\n\n", escaped(sentence)));
    }
    page.push_str("## Steps\n\n");
    let titles = [
        "step".to_string(),
        "profile".into(),
        "repeat".into(),
        "IOPS".into(),
        "MB/s".into(),
        "CPU cores".into(),
        format!("mean {name}"),
        format!("p50 {name}"),
        format!("p99 {name}"),
        format!("deepest {name}"),
        "longest stall ms".into(),
        "longest stall of a worker ms".into(),
        "errors".into(),
        "lost workers".into(),
    ];
    let rows = report.steps.iter().map(|step| with_name(report, step_cells(step, unit), 1));
    page.push_str(&table(&titles, &rows.collect::<Vec<_>>(), 1));
    if report.has_repeats() {
        let rows = report.loads.iter().map(|load| with_name(report, load_cells(load, unit), 0));
        let rows: Vec<Vec<String>> = rows.collect();
        page.push_str(&format!("\n## Loads\n\n{}\n\n{}", level(report), table(&load_titles(unit), &rows, 0)));
    }
    if !report.capacity.is_empty() {
        let titles = capacity::TITLES.map(String::from);
        let table = table(&titles, &capacity::cells(&report.capacity), 0);
        page.push_str(&format!(
            "\n## Predicted, measured, published\n\n{}\n\n{table}",
            capacity::level(&report.capacity)
        ));
    }
    let done = faults::cells(&report.faults);
    if !done.is_empty() {
        let titles = faults::TITLES.map(String::from);
        page.push_str(&format!("\n## Faults\n\n{}", table(&titles, &done, 0)));
    }
    let goals = goals::sentences(report);
    if !goals.is_empty() {
        page.push_str("\n## Found out\n\n");
        goals.iter().for_each(|sentence| page.push_str(&format!("- {}\n", escaped(sentence))));
    }
    page.push_str(&oriented(&report.orientation));
    let verified = verified(report);
    if !verified.is_empty() {
        page.push_str(&format!("\n{}", escaped(verified.trim_end())));
        page.push('\n');
    }
    let sentences = sentences(report);
    if !sentences.is_empty() {
        page.push_str("\n## Findings\n\n");
        sentences.iter().for_each(|sentence| page.push_str(&format!("- {}\n", escaped(sentence))));
    }
    page.push_str(
        "\nIOPS and MB/s (10^6 bytes) count what completed inside the measured window; latencies are response times \
         of the I/Os intended inside it, from merged histograms. A percentile is printed if at least 100 I/Os lie \
         beyond it; `deepest` is the deepest such one.\n",
    );
    page
}

/// A row whose column `load` has the load's name before its code.
fn with_name(report: &Report, mut cells: Vec<String>, load: usize) -> Vec<String> {
    let name = report.names.get(&cells[load]).filter(|name| **name != cells[load]);
    if let Some(name) = name {
        cells[load] = format!("{name} ({})", cells[load]);
    }
    cells
}

/// What loads compare with; empty if none is compared.
fn oriented(orientation: &Orientation) -> String {
    if orientation.loads.is_empty() {
        return String::new();
    }
    let mut page = format!("\n## Orientation\n\nOrientation only: {}.\n\n", escaped(&orientation.caveat));
    for load in &orientation.loads {
        match &load.refused {
            Some(why) => {
                let line = format!("{}: not compared: {why}", load.label);
                page.push_str(&format!("- {}\n", escaped(&line)));
            }
            None => page.push_str(&format!("- {}\n", escaped(&orientation::title(load)))),
        }
        load.sentences.iter().for_each(|sentence| page.push_str(&format!("  - {}\n", escaped(sentence))));
    }
    page
}

fn table(titles: &[String], rows: &[Vec<String>], text: usize) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule: Vec<&str> = (0..titles.len()).map(|i| if i == text { "---" } else { "---:" }).collect();
    let rows: String = rows.iter().map(|row| line(row)).collect();
    format!("{}| {} |\n{rows}", line(titles), rule.join(" | "))
}

/// What Markdown would take for its own.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '|' | '*' | '<' | '\\') {
            escaped.push('\\');
        }
        escaped.push(if c == '\n' { ' ' } else { c });
    }
    escaped
}
