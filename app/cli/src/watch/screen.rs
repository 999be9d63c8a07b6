//! The screen of `loadline watch`: what it shows is a function of a second, of the seconds before it, and of the keys that were pressed.

use loadline_base::figures::{listed, megabytes, thousands};
use loadline_base::units::ByteSize;
use loadline_console::figures::Rates;
use loadline_console::latency::Latency;
use loadline_console::view::{DeviceRow, EventRow, NodeRow, Now, Overall, Reports, VolumeRow};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table};

/// Seconds of the little charts.
pub(super) const SPAN: usize = 240;
/// Causes that are shown of a state that is not healthy.
const CAUSES: usize = 3;
/// Columns of a screen that has all figures.
const WIDE: u16 = 80;
/// Nodes that are named of those that are missing in the total.
const MISSING: usize = 3;

/// What the lower part lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    Nodes,
    Volumes,
    Devices,
    Events,
}

/// What the keys have chosen.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) list: List,
    /// Rows of the list that are above the screen.
    pub(super) above: usize,
    /// The screen stays as it is.
    pub(super) paused: bool,
}

/// What is shown.
pub(super) struct Shown<'s> {
    pub(super) name: &'s str,
    pub(super) now: &'s Now,
    /// IOPS of the seconds before, the newest last.
    pub(super) iops: &'s [u64],
    /// The events, the newest first.
    pub(super) events: &'s [EventRow],
    pub(super) chosen: &'s Chosen,
}

/// The colour of a state. Its word says the same.
fn colour(of: Overall) -> Color {
    match of {
        Overall::Healthy => Color::Green,
        Overall::Resyncing | Overall::Degraded | Overall::Unknown => Color::Yellow,
        Overall::Ended => Color::Gray,
        Overall::Waiting | Overall::Blocked => Color::Red,
    }
}

/// A state as one word, for a table.
fn short_word(of: Overall) -> &'static str {
    match of {
        Overall::Waiting => "waiting",
        Overall::Blocked => "blocked",
        other => word(other),
    }
}

fn word(of: Overall) -> &'static str {
    match of {
        Overall::Healthy => "healthy",
        Overall::Resyncing => "resyncing",
        Overall::Degraded => "degraded",
        Overall::Unknown => "unknown",
        Overall::Waiting => "a volume is not served",
        Overall::Blocked => "a volume is blocked",
        Overall::Ended => "ended",
    }
}

/// A time of the day, UTC.
fn clock(seconds: u64) -> String {
    let of_day = seconds % 86_400;
    format!("{:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// A rate in eight characters at most.
fn rate(of: f64) -> String {
    if of >= 999_999.5 { format!("{:.2}M", of / 1e6) } else { thousands(of) }
}

/// A latency in eight characters at most.
fn latency(us: f64) -> String {
    if (99_995.0..1e6).contains(&us) {
        return format!("{:.0} ms", (us / 1e3).min(999.0));
    }
    loadline_base::figures::latency(us)
}

/// A text in so many columns. What is cut off is shown to be.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// The p99; nothing was done: a dash.
fn p99(of: Option<Latency>) -> String {
    of.map_or("-".into(), |of| latency(of.p99))
}

fn moved(rates: &Rates) -> String {
    megabytes(rates.read_bytes + rates.write_bytes)
}

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame, shown: &Shown) {
    let now = shown.now;
    let why = causes(now, usize::from(frame.area().width));
    let lines = if now.is_reported() {
        totals(now)
    } else {
        vec![Line::from("no node reports what it does: nothing is known of this second")]
    };
    let chart = if frame.area().height >= 20 { 3 } else { 0 };
    let heights = [1, why.len() as u16, lines.len().max(4) as u16, chart, 1].map(Constraint::Length);
    let [top, reasons, figures, curve, tabs, list, keys] =
        Layout::vertical(heights.into_iter().chain([Constraint::Min(3), Constraint::Length(1)]))
            .areas(frame.area());
    frame.render_widget(head(shown, usize::from(top.width)), top);
    frame.render_widget(Paragraph::new(why).style(Style::new().fg(colour(now.overall))), reasons);
    frame.render_widget(Paragraph::new(lines), figures);
    let first = shown.iops.len().saturating_sub(usize::from(curve.width));
    frame.render_widget(
        Sparkline::default().data(&shown.iops[first..]).style(Style::new().fg(Color::Cyan)),
        curve,
    );
    frame.render_widget(titles(shown.chosen.list), tabs);
    match shown.chosen.list {
        List::Nodes => nodes(frame, list, shown),
        List::Volumes => volumes(frame, list, shown),
        List::Devices => devices(frame, list, shown),
        List::Events => events(frame, list, shown),
    }
    let narrow = format!(" {} of {WIDE} columns: figures are left out or cut. q quit", frame.area().width);
    let keys_of = match frame.area().width < WIDE {
        true => &narrow,
        false => " q quit  n nodes  v volumes  d devices  e events  up/down scroll  space pause",
    };
    frame.render_widget(Paragraph::new(keys_of).style(Style::new().add_modifier(Modifier::DIM)), keys);
}

/// Why the state is not healthy: a line each, and how many more there are.
fn causes(now: &Now, width: usize) -> Vec<Line<'static>> {
    let shown = now.why.len().min(CAUSES);
    let lines = now.why.iter().take(CAUSES).map(|why| Line::from(cut(&format!("  {why}"), width)));
    let more = now.why_total.max(now.why.len()) - shown;
    let more = (more > 0).then(|| Line::from(format!("  and {more} more: loadline san status")));
    lines.chain(more).collect()
}

fn head(shown: &Shown, width: usize) -> Paragraph<'static> {
    let now = shown.now;
    let state = Style::new().fg(colour(now.overall)).add_modifier(Modifier::BOLD);
    let counts = |[nodes, volumes, devices]: [&str; 3]| match now.known {
        true => format!(
            "   {} {nodes}, {} {volumes}, {} {devices}",
            now.nodes.len(),
            now.volumes_total,
            now.devices_total
        ),
        false => String::new(),
    };
    let paused = if shown.chosen.paused { "   PAUSED" } else { "" };
    let before = format!("   {} UTC   ", clock(now.at));
    let (long, short) = (word(now.overall), short_word(now.overall));
    let (many, few) = (counts(["nodes", "volumes", "devices"]), counts(["n", "v", "d"]));
    let all = [(long, many.clone()), (short, many), (short, few), (short, String::new())];
    let others = shown.name.chars().count() + before.chars().count() + paused.len();
    let fits = |(word, counts): &(&str, String)| others + word.len() + counts.len() <= width;
    let (word, counts) = all.iter().find(|of| fits(of)).cloned().unwrap_or((short, String::new()));
    // The state is seen in any case.
    let room = width.saturating_sub(before.chars().count() + paused.len() + word.len() + counts.len());
    Paragraph::new(Line::from(vec![
        Span::styled(cut(shown.name, room.max(4)), Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(before),
        Span::styled(word, state),
        Span::raw(format!("{paused}{counts}")),
    ]))
}

fn totals(now: &Now) -> Vec<Line<'static>> {
    let of = &now.total.unwrap_or_default();
    let missing = (!now.missing.is_empty())
        .then(|| format!("these figures are without {}", listed(&now.missing, MISSING)));
    let left = (now.resync_left > 0).then(|| {
        let time =
            now.resync_seconds.map_or("it is not known how long".into(), |of| format!("about {of:.0} s"));
        format!("resync: {} left, {time}", ByteSize(now.resync_left).rounded())
    });
    let latencies = |of: Option<Latency>| {
        of.map_or("-".into(), |of| {
            format!("p50 {}  p99 {}  p99.9 {}", latency(of.p50), latency(of.p99), latency(of.p999))
        })
    };
    let mut lines = vec![
        Line::from(format!(
            "IOPS {} ({} reads, {} writes)   {} MB/s   CPU {:.2}",
            thousands(of.reads + of.writes + of.others),
            thousands(of.reads),
            thousands(of.writes),
            moved(of),
            now.cpu.unwrap_or_default()
        )),
        Line::from(format!("reads   {}", latencies(of.read_latency))),
        Line::from(format!("writes  {}", latencies(of.write_latency))),
        Line::from(format!(
            "behind it, MB/s: log {}  destaged {}  scrub {}  resync {}",
            megabytes(of.log_bytes),
            megabytes(of.destage_bytes),
            megabytes(of.scrub_bytes),
            megabytes(of.resync_bytes)
        )),
    ];
    lines.extend(missing.into_iter().chain(left).map(Line::from));
    lines
}

fn titles(chosen: List) -> Line<'static> {
    let all = [
        (List::Nodes, "Nodes"),
        (List::Volumes, "Volumes, worst first"),
        (List::Devices, "Devices, slowest first"),
        (List::Events, "Events"),
    ];
    let title = |(list, name): (List, &'static str)| {
        let style = if list == chosen { Modifier::REVERSED } else { Modifier::DIM };
        [Span::styled(format!(" {name} "), Style::new().add_modifier(style)), Span::raw(" ")]
    };
    Line::from(all.into_iter().flat_map(title).collect::<Vec<_>>())
}

/// A table, of which the rows above the chosen one are left out, and the last columns for which there is no room.
fn table(
    frame: &mut Frame,
    area: Rect,
    titles: &[&'static str],
    widths: &[u16],
    rows: Vec<(Vec<String>, Option<Color>)>,
    above: usize,
) {
    let above = above.min(rows.len().saturating_sub(1));
    let mut taken = 0;
    let fits = |width: &&u16| {
        taken += **width + 1;
        taken <= area.width + 1
    };
    let widths: Vec<u16> = widths.iter().take_while(fits).copied().collect();
    let text = |(cells, colour): (Vec<String>, Option<Color>)| {
        // All but the first two columns are figures: they end at the same place.
        let aligned = cells.into_iter().zip(&widths).enumerate().map(|(n, (cell, width))| {
            let (width, cell) = (usize::from(*width), cut(&cell, usize::from(*width)));
            Cell::from(if n < 2 { cell } else { format!("{cell:>width$}") })
        });
        Row::new(aligned.collect::<Vec<Cell>>()).style(colour.map_or(Style::new(), |of| Style::new().fg(of)))
    };
    let head = text((titles.iter().map(|title| (*title).to_owned()).collect(), None));
    let widths_of = widths.iter().map(|width| Constraint::Length(*width));
    let body: Vec<Row> = rows.into_iter().skip(above).map(text).collect();
    frame.render_widget(
        Table::new(body, widths_of).header(head.style(Style::new().add_modifier(Modifier::DIM))),
        area,
    );
}

fn nodes(frame: &mut Frame, area: Rect, shown: &Shown) {
    let row = |node: &NodeRow| {
        let (state, of) = match &node.reports {
            Reports::Now if node.fault.is_some() => ("has a fault".into(), Some(Color::Yellow)),
            Reports::Now if node.maintenance => ("maintenance".into(), None),
            Reports::Now if node.draining => ("draining".into(), None),
            Reports::Now => ("reports".into(), None),
            Reports::NotYet => ("not yet".into(), Some(Color::Yellow)),
            Reports::Late => ("late".into(), None),
            Reports::NeverReached { .. } => ("not reached".into(), Some(Color::Yellow)),
            Reports::UnknownSince { at_ms, .. } => {
                (format!("? {}", clock(at_ms / 1000)), Some(Color::Yellow))
            }
        };
        let figure = |of: Option<String>| of.unwrap_or_else(|| "?".into());
        let rates = node.rates.as_ref();
        let cells = vec![
            node.name.clone(),
            state,
            figure(rates.map(|of| rate(of.reads))),
            figure(rates.map(|of| rate(of.writes))),
            figure(rates.map(moved)),
            figure(rates.map(|of| p99(of.read_latency))),
            figure(rates.map(|of| p99(of.write_latency))),
            figure(node.cpu.map(|of| format!("{of:.2}"))),
            figure(node.log_fill.map(|of| format!("{:.0} %", 100.0 * of))),
        ];
        (cells, of)
    };
    let mut rows: Vec<_> = shown.now.nodes.iter().map(row).collect();
    if let Some(total) = &shown.now.total {
        rows.push(total_row(shown.now, total));
    }
    let titles = ["NODE", "STATE", "READS/S", "WRITES/S", "MB/S", "R P99", "W P99", "CPU", "LOG"];
    table(frame, area, &titles, &[12, 11, 8, 8, 7, 8, 8, 5, 5], rows, shown.chosen.above);
}

fn total_row(now: &Now, total: &Rates) -> (Vec<String>, Option<Color>) {
    (
        vec![
            "total".into(),
            String::new(),
            rate(total.reads),
            rate(total.writes),
            moved(total),
            p99(total.read_latency),
            p99(total.write_latency),
            now.cpu.map_or("?".into(), |of| format!("{of:.2}")),
            String::new(),
        ],
        None,
    )
}

fn volumes(frame: &mut Frame, area: Rect, shown: &Shown) {
    let row = |volume: &VolumeRow| {
        let figure = |of: Option<String>| {
            of.unwrap_or_else(|| if volume.attached.is_some() { "?" } else { "-" }.into())
        };
        let rates = volume.rates.as_ref();
        let cells = vec![
            volume.name.clone(),
            volume.health.map_or("new", short_word).into(),
            figure(rates.map(|of| p99(of.read_latency))),
            figure(rates.map(|of| p99(of.write_latency))),
            figure(rates.map(|of| rate(of.reads))),
            figure(rates.map(|of| rate(of.writes))),
            figure(rates.map(moved)),
            format!("{}/{}", volume.in_sync, volume.copies),
            volume.owner.clone().unwrap_or_else(|| "-".into()),
        ];
        (cells, volume.health.filter(|of| *of != Overall::Healthy).map(colour))
    };
    let rows = shown.now.volumes.iter().map(row).collect();
    let titles = ["VOLUME", "STATE", "R P99", "W P99", "READS/S", "WRITES/S", "MB/S", "SYNC", "OWNER"];
    table(frame, area, &titles, &[13, 9, 8, 8, 8, 8, 6, 4, 8], rows, shown.chosen.above);
}

fn devices(frame: &mut Frame, area: Rect, shown: &Shown) {
    let row = |device: &DeviceRow| {
        let is_wrong = device.errors_so_far > 0 || device.corrupt_so_far > 0;
        // The reasons are among the causes of the state.
        let state = match &device.fault {
            Some(_) if device.taken.is_none() => "no report",
            Some(_) => "fault",
            None if is_wrong => "errors",
            None => &device.role,
        };
        let mean = |of: Option<f64>| of.map_or("-".into(), latency);
        let figure = |of: Option<String>| of.unwrap_or_else(|| "?".into());
        let share = |of: u64| format!("{:.0} %", 100.0 * of as f64 / device.bytes.max(1) as f64);
        let cells = vec![
            format!("{} {}", device.id, device.node),
            state.to_owned(),
            figure(device.reads.map(|of| rate(of.ios as f64))),
            figure(device.reads.map(|of| mean(of.mean_us))),
            figure(device.writes.map(|of| rate(of.ios as f64))),
            figure(device.writes.map(|of| mean(of.mean_us))),
            ByteSize(device.bytes).rounded(),
            share(device.promised),
            figure(device.taken.map(share)),
        ];
        (cells, (is_wrong || device.fault.is_some()).then_some(Color::Yellow))
    };
    let rows = shown.now.devices.iter().map(row).collect();
    let titles = ["DEVICE", "STATE", "READS/S", "R MEAN", "WRITES/S", "W MEAN", "SIZE", "PROM", "TAKEN"];
    table(frame, area, &titles, &[13, 10, 7, 8, 8, 8, 8, 5, 5], rows, shown.chosen.above);
}

fn events(frame: &mut Frame, area: Rect, shown: &Shown) {
    let above = shown.chosen.above.min(shown.events.len().saturating_sub(1));
    let line = |event: &EventRow| {
        let of = match event.level.as_str() {
            "error" => Style::new().fg(Color::Red),
            "warning" => Style::new().fg(Color::Yellow),
            _ => Style::new(),
        };
        let from = event.from.as_deref().unwrap_or("watch");
        Line::styled(format!("{} {from}: {}", clock(event.at), event.message), of)
    };
    let lines: Vec<Line> = shown.events.iter().skip(above).map(line).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use loadline_console::cluster::Cluster;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn screen(now: &Now, list: List, size: (u16, u16)) -> String {
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("it is memory");
        let chosen = Chosen { list, above: 0, paused: false };
        let event = EventRow {
            number: 1,
            at: 3661,
            from: Some("node-1".into()),
            level: "warning".into(),
            message: "node node-2 is not reachable".into(),
            volume: None,
            device: None,
            node: None,
        };
        let shown = Shown { name: "lab", now, iops: &[1, 5, 3], events: &[event], chosen: &chosen };
        terminal.draw(|frame| draw(frame, &shown)).expect("it is memory");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..size.0).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..size.1).map(|y| line(y).trim_end().to_owned() + "\n").collect()
    }

    /// A second of a cluster with a node that reports and one that does not.
    fn second() -> Now {
        let mut now = Cluster::default().tick(Instant::now(), 3_661_000);
        let node = |name: &str, reports, rates: Option<Rates>| NodeRow {
            rates,
            cpu: rates.map(|_| 0.5),
            log_fill: rates.map(|_| 0.25),
            ..NodeRow::unreported(name, reports)
        };
        let latency = Latency { mean: 100.0, p50: 90.0, p99: 1234.0, p999: 5678.0 };
        let rates =
            Rates { reads: 1234.0, read_bytes: 5_054_464.0, read_latency: Some(latency), ..Rates::default() };
        now.total = Some(rates);
        now.cpu = Some(0.5);
        now.missing = vec!["node-2".into()];
        let lost = Reports::UnknownSince { at_ms: 3_600_000, why: "it is gone".into() };
        now.nodes = vec![node("node-1", Reports::Now, Some(rates)), node("node-2", lost, None)];
        now
    }

    #[test]
    fn eighty_columns_have_the_state_the_total_and_each_node_and_what_is_not_known_is_no_0() {
        let shown = screen(&second(), List::Nodes, (80, 24));
        assert!(shown.starts_with("lab   01:01:01 UTC   unknown"), "{shown}");
        assert!(
            shown.contains("IOPS 1,234 (1,234 reads, 0 writes)   5.1 MB/s")
                && shown.contains("without node-2"),
            "{shown}"
        );
        let row =
            |name: &str| shown.lines().find(|line| line.starts_with(name)).expect("it is there").to_owned();
        let words: Vec<String> = row("node-1").split_whitespace().map(Into::into).collect();
        assert_eq!(words[..4], ["node-1", "reports", "1,234", "0"], "{shown}");
        assert!(row("node-1").ends_with("25 %"), "{shown}");
        let words: Vec<String> = row("node-2").split_whitespace().map(Into::into).collect();
        assert_eq!(words, ["node-2", "?", "01:00:00", "?", "?", "?", "?", "?", "?", "?"], "{shown}");
    }

    #[test]
    fn every_list_fits_a_small_screen() {
        for list in [List::Nodes, List::Volumes, List::Devices, List::Events] {
            for size in [(80, 24), (40, 10), (20, 4), (1, 1)] {
                screen(&second(), list, size);
            }
        }
        assert!(
            screen(&second(), List::Events, (80, 24))
                .contains("01:01:01 node-1: node node-2 is not reachable")
        );
    }

    fn volume(name: &str, health: Overall) -> VolumeRow {
        VolumeRow {
            name: name.into(),
            health: Some(health),
            bytes: 1 << 30,
            copies: 2,
            in_sync: 0,
            stripes: 1,
            owner: Some("node-1".into()),
            attached: Some("node-1".into()),
            rates: None,
            unanswered: None,
            limited: false,
            reason: None,
            note: None,
        }
    }

    fn device(node: &str, fault: Option<&str>) -> DeviceRow {
        DeviceRow {
            id: 1,
            node: node.into(),
            path: "/dev/x".into(),
            role: "both".into(),
            bytes: 1 << 30,
            promised: 1 << 29,
            taken: fault.is_none().then_some(1 << 28),
            reads: None,
            writes: None,
            errors: None,
            errors_so_far: 0,
            corrupt_so_far: 0,
            full: None,
            model: None,
            fault: fault.map(Into::into),
        }
    }

    #[test]
    fn nothing_is_cut_in_the_middle_of_a_word_at_eighty_columns() {
        let mut now = second();
        now.known = true;
        now.overall = Overall::Waiting;
        now.why = (1..=8).map(|n| format!("volume v-{n}: {}", "long words ".repeat(9))).collect();
        now.why_total = 11;
        let total = now.total.as_mut().unwrap();
        (total.reads, total.writes) = (12_345_678.0, 999_999.9);
        total.write_latency = Some(Latency { mean: 1.0, p50: 123_456.0, p99: 999_999.0, p999: 5e6 });
        now.volumes = vec![volume("database-of-the-shop", Overall::Waiting), volume("b", Overall::Blocked)];
        now.devices = vec![device("node-1", None), device("node-2", Some("its node does not report"))];
        (now.volumes_total, now.devices_total) = (12, 4);
        let shown = |list| screen(&now, list, (80, 30));
        let text = shown(List::Volumes);
        let first = text.lines().next().unwrap();
        assert_eq!(first, "lab   01:01:01 UTC   a volume is not served   2 nodes, 12 volumes, 4 devices");
        assert!(text.contains("  and 8 more: loadline san status"), "{text}");
        let row =
            |text: &str, name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        let words = |of: String| of.split_whitespace().map(Into::into).collect::<Vec<String>>();
        assert_eq!(words(row(&text, "database"))[..2], ["database-of-…", "waiting"], "{text}");
        assert_eq!(words(row(&text, "b "))[1], "blocked");
        assert!(row(&text, "b ").ends_with("node-1"), "{text}");
        let text = shown(List::Devices);
        assert!(
            row(&text, "1 node-1").contains("both") && row(&text, "1 node-1").ends_with("25 %"),
            "{text}"
        );
        assert!(row(&text, "1 node-2").contains("no report"), "{text}");
        let text = shown(List::Nodes);
        let total = row(&text, "total");
        assert!(total.contains("12.35M") && total.contains("1.00M") && total.contains(" 999 ms"), "{text}");
        // A column is shown whole or not at all, and the screen says that it is narrow.
        let text = screen(&now, List::Devices, (60, 30));
        assert!(
            text.contains("60 of 80 columns") && !text.contains("TAK") && text.contains("W MEAN"),
            "{text}"
        );
        assert!(text.lines().next().unwrap().contains("waiting"), "{text}");
    }
}
