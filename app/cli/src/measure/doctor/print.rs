//! A report for people: the worst first, as wide as the terminal.

use loadline_doctor::report::HostReport;
use loadline_doctor::{Check, DoctorReport, Severity};

use crate::output::text::counted;
use crate::output::wrap;

/// How wide it is where there is no terminal.
const WIDTH: usize = 100;
/// Lines longer than this are hard to read, and below this there is no room.
const WIDTHS: std::ops::RangeInclusive<usize> = 60..=120;
/// What a check's lines are indented by: the width of its severity.
const INDENT: usize = 6;
/// The same of its parts: the width of `expected`.
const DEEP: usize = INDENT + 10;

/// How wide the terminal is that standard output goes to.
pub(super) fn width() -> usize {
    match wrap::columns(&std::io::stdout()) {
        Some(columns) => columns.clamp(*WIDTHS.start(), *WIDTHS.end()),
        None => WIDTH,
    }
}

/// A check, and the workers that found it; none, without a fleet.
struct Line<'a> {
    check: &'a Check,
    workers: Vec<&'a str>,
}

/// The whole report.
pub(super) fn text(report: &DoctorReport, width: usize) -> String {
    let mut text = String::new();
    for host in &report.hosts {
        text.push_str(&wrapped(&header(host), width, 0, INDENT));
    }
    let lines = lines(report);
    for severity in [Severity::Bad, Severity::Slow, Severity::Note] {
        for line in lines.iter().filter(|line| line.check.severity == severity) {
            text.push('\n');
            text.push_str(&finding(line, width));
        }
    }
    text.push('\n');
    for line in lines.iter().filter(|line| line.check.severity == Severity::Ok) {
        let what = format!("{:<INDENT$}{}: {}", "ok", title(line), line.check.found);
        text.push_str(&wrapped(&what, width, 0, INDENT));
    }
    text.push('\n');
    text.push_str(&wrapped(&summary(&lines), width, 0, 0));
    text
}

/// What a host is, in a line.
fn header(host: &HostReport) -> String {
    let of = &host.inventory;
    let name = match (&host.worker, &of.host) {
        (Some(worker), Some(host)) => format!("{worker} ({host})"),
        _ => host.name().to_string(),
    };
    let cpu = of.cpu.as_ref().map(|cpu| format!(" ({cpu})")).unwrap_or_default();
    let memory = of.memory.map(|bytes| format!(", {:.1} GiB of memory", bytes as f64 / f64::from(1 << 30)));
    let kernel = of.kernel.as_deref().unwrap_or("unknown");
    format!("{name}: Linux {kernel}, {}{cpu}{}", counted(of.cpus.into(), "CPU"), memory.unwrap_or_default())
}

/// Every check once, in the order in which they were made, with all workers that found the same.
fn lines(report: &DoctorReport) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for host in &report.hosts {
        for check in &host.checks {
            let worker = host.worker.as_deref();
            match lines.iter_mut().find(|line| line.check == check) {
                Some(line) => line.workers.extend(worker),
                None => lines.push(Line { check, workers: worker.into_iter().collect() }),
            }
        }
    }
    lines.extend(report.between.iter().map(|check| Line { check, workers: Vec::new() }));
    lines
}

fn title(line: &Line<'_>) -> String {
    match line.workers.is_empty() {
        true => line.check.check.clone(),
        false => format!("[{}] {}", line.workers.join(", "), line.check.check),
    }
}

fn finding(line: &Line<'_>, width: usize) -> String {
    let Check { severity, found, expected, costs, mend, run, .. } = line.check;
    let mut text = wrapped(&format!("{:<INDENT$}{}", severity.word(), title(line)), width, 0, INDENT);
    let parts = [
        ("found", Some(found)),
        ("expected", expected.as_ref()),
        ("costs", costs.as_ref()),
        ("mend", mend.as_ref()),
    ];
    for (what, part) in parts.into_iter().filter_map(|(what, part)| Some((what, part?))) {
        text.push_str(&wrapped(&format!("{what:<10}{part}"), width, INDENT, DEEP));
    }
    if let Some(command) = run {
        // To be copied: whatever its length, it is one line.
        text.push_str(&format!("{:INDENT$}{:<10}{command}\n", "", "run"));
    }
    text
}

fn summary(lines: &[Line<'_>]) -> String {
    let count = |severity| lines.iter().filter(|line| line.check.severity == severity).count();
    let (bad, slow, notes) = (count(Severity::Bad), count(Severity::Slow), count(Severity::Note));
    let notes = if notes == 1 { "1 note".into() } else { format!("{notes} notes") };
    let found = match bad + slow {
        0 => "Nothing is bad or slow".into(),
        _ => format!("{bad} bad, {slow} slow"),
    };
    format!("{found}; {notes}; {} ok.", count(Severity::Ok))
}

/// Words in lines of this width: the first line indented by `first`, the others by `rest`. Blanks inside of the first line
/// stay, so that its columns do.
fn wrapped(text: &str, width: usize, first: usize, rest: usize) -> String {
    let mut all = " ".repeat(first);
    let mut column = first;
    let mut is_fresh = true;
    for word in text.split(' ') {
        let length = word.chars().count();
        if !is_fresh && column + 1 + length > width {
            all.truncate(all.trim_end().len());
            all.push('\n');
            all.push_str(&" ".repeat(rest));
            column = rest;
            is_fresh = true;
        }
        if !is_fresh {
            all.push(' ');
            column += 1;
        }
        all.push_str(word);
        column += length;
        is_fresh = false;
    }
    all.push('\n');
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_doctor::Examination;

    fn host(worker: Option<&str>, checks: Vec<Check>) -> HostReport {
        let mut host = HostReport::new(
            Examination { checks, ..Examination::default() },
            worker.map(Into::into),
            worker.map(|_| 0.0),
        );
        (host.inventory.host, host.inventory.cpus) = (Some("left".into()), 4);
        host
    }

    fn slow() -> Check {
        let check = Check::slow("CPU: governor", "powersave").expected("performance");
        let run = "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor";
        check.costs("latency is higher than it need be ".repeat(5).trim()).mend("set it").run(run)
    }

    #[test]
    fn the_worst_comes_first_and_nothing_but_a_command_is_wider_than_the_terminal() {
        let checks = vec![
            Check::ok("kernel", "6.1"),
            slow(),
            Check::bad("io_uring", "refused"),
            Check::note("a", "b"),
        ];
        let report = DoctorReport::new(vec![host(None, checks)], Vec::new(), Vec::new());
        for width in [60, 80, 120] {
            let text = text(&report, width);
            let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("no {word} in {text}"));
            assert!(
                at("left: Linux") < at("bad   io_uring") && at("bad   io_uring") < at("slow  CPU"),
                "{text}"
            );
            assert!(at("slow  CPU") < at("note  a") && at("note  a") < at("ok    kernel: 6.1"), "{text}");
            assert!(text.ends_with("1 bad, 1 slow; 1 note; 1 ok.\n"), "{text}");
            let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > width).collect();
            assert!(wide.iter().all(|line| line.trim_start().starts_with("run ")), "{wide:?}");
            assert!(text.contains("\n      expected  performance\n"), "{text}");
            assert!(text.lines().all(|line| line.trim_end() == line), "blanks at the end: {text}");
        }
    }

    #[test]
    fn what_several_workers_found_is_printed_once() {
        let hosts = vec![host(Some("a"), vec![slow()]), host(Some("b"), vec![slow()])];
        let text = text(&DoctorReport::new(hosts, Vec::new(), Vec::new()), 100);
        assert_eq!(text.matches("CPU: governor").count(), 1, "{text}");
        assert!(text.contains("slow  [a, b] CPU: governor"), "{text}");
        assert!(
            text.contains("a (left): Linux") && text.contains("ok    hosts: kernel: the same on all"),
            "{text}"
        );
    }
}
