//! What a study was to find out, and what it found: criteria of success, load lines, capacities, shares of a ceiling.

use loadline_base::figures::{counted, thousands};
use loadline_measure::stats::median;
use loadline_study::network::MeasuredLink;

use crate::report::Report;

/// Sentences, in the order of the study: the decisions, the searches, the ceilings. None if it asked for none.
pub fn sentences(report: &Report) -> Vec<String> {
    let mut sentences = Vec::new();
    for verdict in &report.criteria {
        let word = match (verdict.held, &verdict.open_loop_missed) {
            (Some(true), None) => "yes",
            (Some(true), Some(_)) => "in a closed loop only",
            (Some(false), _) => "NO",
            (None, _) => "open",
        };
        sentences.push(format!("{word}: {}: {}", verdict.criterion, verdict.found));
    }
    for search in &report.searches {
        sentences.push(format!(
            "{}: {} ({})",
            search.label,
            search.found,
            counted(search.steps as u64, "step")
        ));
    }
    for load in &report.loads {
        let repeats = report.steps.iter().filter(|step| step.label == load.label);
        let shares: Vec<f64> = repeats.clone().filter_map(|step| step.of_ceiling).collect();
        if let (Some(share), Some(iops)) = (median(&shares), load.iops) {
            sentences.push(format!(
                "{}: {} IOPS are {:.0} % of the measured ceiling",
                load.label,
                thousands(iops.median),
                100.0 * share
            ));
        }
        let shares: Vec<f64> = repeats.filter_map(|step| step.of_network).collect();
        if let (Some(share), Some(bytes)) = (median(&shares), load.bytes_per_s) {
            sentences.push(format!(
                "{}: {} MB/s use {:.0} % of the slowest link between nodes",
                load.label,
                thousands(bytes.median / 1e6),
                100.0 * share
            ));
        }
    }
    sentences.extend(report.network.iter().map(link));
    sentences
}

/// What was found of the network from one node to the next.
fn link(link: &MeasuredLink) -> String {
    let way = format!("network from {} to {}", link.from, link.to);
    let Some(speed) = link.speed else {
        return format!("{way}: not measured: {}", link.why.as_deref().unwrap_or("no reason is known"));
    };
    let host = if link.one_host { " (one host: its loopback)" } else { "" };
    format!(
        "{way}: {} MB/s, {:.0} us there and back{host}",
        thousands(speed.bytes_per_s / 1e6),
        speed.round_trip_us
    )
}

/// The same as lines for a terminal, with a title; empty if there is nothing.
pub fn text(report: &Report) -> String {
    let sentences = sentences(report);
    if sentences.is_empty() {
        return String::new();
    }
    format!("found out:\n{}", sentences.iter().map(|sentence| format!("  {sentence}\n")).collect::<String>())
}
