//! `steps.csv`: one line for each complete step (RFC 4180), raw units in the names of the columns.

use loadline_load::VerifyReport;
use loadline_measure::audit::Severity;
use loadline_measure::summary::PERCENTILES;

use loadline_study::planned_step::Purpose;

use crate::report::Report;

/// The complete steps. An empty field is a figure that there honestly is not.
pub fn steps(report: &Report) -> String {
    let mut titles: Vec<String> = [
        "step",
        "profile",
        "repeat",
        "workers",
        "iops",
        "bytes_per_s",
        "cpu_cores",
        "mean_us",
        "min_us",
        "max_us",
    ]
    .map(String::from)
    .to_vec();
    titles.extend(PERCENTILES.iter().map(|(name, _)| format!("{name}_us")));
    titles.extend(
        [
            "deepest",
            "deepest_us",
            "longest_stall_ms",
            "errors",
            "lost_workers",
            "doubts",
            "limits_missed",
            "longest_worker_stall_ms",
            "blocks_checked",
            "blocks_lost",
            "blocks_corrupt",
            "blocks_foreign",
            "blocks_unreadable",
            "blocks_unjudged",
            "purpose",
            "policy",
            "condition",
            "fill_level_percent",
            "unaligned_percent",
            "of_ceiling",
            "of_network",
            "volume_limit",
            "predicted_iops_low",
            "predicted_iops_high",
        ]
        .map(String::from),
    );
    let mut text = line(&titles);
    for step in &report.steps {
        let latency = &step.latency_us;
        let figure = |value: Option<f64>| value.map(|v| v.to_string()).unwrap_or_default();
        let doubts = step.findings.iter().filter(|finding| finding.severity == Severity::Doubt).count();
        let mut fields = vec![
            step.step.to_string(),
            step.label.clone(),
            step.repeat.to_string(),
            step.workers.to_string(),
            step.iops.to_string(),
            step.bytes_per_s.to_string(),
            step.cpu_cores.to_string(),
            figure(latency.mean),
            figure(latency.min),
            figure(latency.max),
        ];
        fields.extend(PERCENTILES.iter().map(|(name, _)| figure(latency.percentile(name))));
        fields.extend([
            latency.deepest.clone().unwrap_or_default(),
            figure(latency.deepest_value().map(|(_, value)| value)),
            step.longest_stall_ms.to_string(),
            step.errors.to_string(),
            step.lost_workers.to_string(),
            doubts.to_string(),
            step.verdicts.iter().filter(|verdict| !verdict.held).count().to_string(),
            step.longest_worker_stall_ms.map(|ms| ms.to_string()).unwrap_or_default(),
        ]);
        let blocks = |count: fn(&VerifyReport) -> u64| {
            step.verify.as_ref().map(|verify| count(verify).to_string()).unwrap_or_default()
        };
        fields.extend([
            blocks(|v| v.checked),
            blocks(|v| v.lost),
            blocks(|v| v.corrupt),
            blocks(|v| v.foreign),
            blocks(|v| v.unreadable),
            blocks(|v| v.unjudged),
        ]);
        let purpose = match step.purpose {
            Purpose::Load => "load",
            Purpose::Ceiling => "ceiling",
            Purpose::Search { .. } => "search",
        };
        fields.extend([
            purpose.to_string(),
            step.policy.as_ref().map(ToString::to_string).unwrap_or_default(),
            step.condition.as_ref().map(ToString::to_string).unwrap_or_default(),
            figure(step.fill_level),
            step.unaligned_percent.to_string(),
            figure(step.of_ceiling),
            figure(step.of_network),
            step.volume_limit.map(|limit| limit.to_string()).unwrap_or_default(),
            figure(step.prediction.as_ref().map(|prediction| prediction.iops.low)),
            figure(step.prediction.as_ref().map(|prediction| prediction.iops.high)),
        ]);
        text.push_str(&line(&fields));
    }
    text
}

fn line(fields: &[String]) -> String {
    let quoted = |field: &String| match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.clone(),
    };
    format!("{}\r\n", fields.iter().map(quoted).collect::<Vec<_>>().join(","))
}
