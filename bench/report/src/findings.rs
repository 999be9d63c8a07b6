//! What a reader should know, in sentences: findings, missed limits, what is missing.

use loadline_base::figures::listed;
use loadline_measure::audit::{Finding, FindingKind, Severity};

use crate::report::Report;

/// How many steps are named one by one.
const MOST_NAMED: usize = 12;

/// Sentences about the whole report, the gravest first. The same finding in several steps is one sentence, in the
/// words of the first.
pub fn sentences(report: &Report) -> Vec<String> {
    let mut sentences = Vec::new();
    if !report.missing.is_empty() {
        sentences.push(format!(
            "unfinished: {} of {} steps are complete; missing: {}",
            report.complete,
            report.planned,
            listed(&report.missing, MOST_NAMED)
        ));
    }
    for step in &report.steps {
        for verdict in step.verdicts.iter().filter(|verdict| !verdict.held) {
            sentences.push(format!(
                "limit missed: step {} ({}): {}, found {}",
                step.step, step.label, verdict.limit, verdict.found
            ));
        }
    }
    let mut groups: Vec<(&Finding, Vec<u32>)> = Vec::new();
    for step in &report.steps {
        for finding in &step.findings {
            let same = |(known, _): &&mut (&Finding, Vec<u32>)| {
                (known.severity, known.kind, &known.cause) == (finding.severity, finding.kind, &finding.cause)
            };
            match groups.iter_mut().find(same) {
                // Several workers of a step may have it.
                Some((_, steps)) if steps.last() == Some(&step.step) => {}
                Some((_, steps)) => steps.push(step.step),
                None => groups.push((finding, vec![step.step])),
            }
        }
    }
    groups.sort_by_key(|(finding, _)| {
        (finding.kind != FindingKind::Integrity, std::cmp::Reverse(finding.severity))
    });
    for (finding, steps) in groups {
        let severity = match finding.severity {
            Severity::Doubt => "doubtful",
            Severity::Note => "note",
        };
        let (which, first) = match steps.as_slice() {
            [one] => (format!("step {one}"), ""),
            many => (format!("steps {}", listed(many, MOST_NAMED)), " (in the first of them)"),
        };
        sentences.push(format!(
            "{severity}: {which}: expected {}; found {}{first}. {}",
            finding.expected, finding.found, finding.cause
        ));
    }
    sentences.extend(report.notices.iter().map(|notice| format!("note: {notice}. No figure comes from it.")));
    sentences
}
