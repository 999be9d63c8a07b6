//! The log of a daemon, on standard error: a node's and a worker's. Libraries log with `tracing`; here it is decided what is
//! written, and how: lines for people, or one JSON object a line for programs.
//!
//! Something that happens again and again, such as a node of another cluster that connects each second, is logged a few times a
//! minute: [`Repeats`].

use std::collections::HashMap;
use std::fmt::Debug;
use std::io::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use loadline_san_node::recent::{self, LogLine};
use loadline_study::when::When;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::output::eprint_line;

/// Lines that say the same are written at most [`MOST`] times in this time.
const WINDOW: Duration = Duration::from_secs(60);
/// Lines that say the same, in one [`WINDOW`].
const MOST: u32 = 5;
/// So many different lines are remembered; of more, the oldest are forgotten.
const REMEMBERED: usize = 256;

/// What is logged, and how. Shared by the commands that run as daemons.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LogArgs {
    /// Log messages of this level and of all more severe levels, on standard error.
    #[arg(long = "log", value_name = "LEVEL", env = "LOADLINE_LOG", default_value = "info")]
    level: LogLevel,
    /// Log plain text, or one JSON object for each line with the volume, replica, node and client as fields.
    #[arg(long = "log-format", value_name = "FORMAT", env = "LOADLINE_LOG_FORMAT", default_value = "text")]
    format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogLevel {
    /// Nothing.
    Off,
    /// Errors that stop the process or a part of it, such as an unusable device or a blocked volume.
    Error,
    /// Also conditions that need attention, such as an unusable copy or an unreachable node.
    Warn,
    /// Also normal events, such as a volume that is now served or a client that disconnects.
    Info,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

impl LogArgs {
    /// From now on this process logs so. Only the first call has an effect.
    pub(crate) fn begin(&self) {
        let level = match self.level {
            LogLevel::Off => LevelFilter::OFF,
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
        };
        let lines = Lines { format: self.format, repeats: Mutex::default() };
        let _ = tracing_subscriber::registry().with(lines.with_filter(level)).try_init();
    }
}

/// Writes each event as a line.
struct Lines {
    format: LogFormat,
    repeats: Mutex<Repeats>,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut logged = LogEvent::default();
        event.record(&mut logged);
        let mut repeats = self.repeats.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(repeated) = repeats.take(Instant::now(), &logged.message) else { return };
        // Under the lock, so that lines are in the order of their times.
        let time = When::now();
        let line = text(&time, *event.metadata().level(), &logged, repeated);
        recent::add(logged.keep(line.clone(), *event.metadata().level()));
        match self.format {
            LogFormat::Text => eprint_line!("{line}"),
            LogFormat::Json => {
                let line = json(&time, *event.metadata().level(), logged, repeated);
                // A failure here can be reported nowhere.
                let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
            }
        }
    }
}

/// The content of an event.
#[derive(Debug, Default)]
struct LogEvent {
    /// The sentence. It names everything that the fields have, for people.
    message: String,
    fields: Map<String, Value>,
}

impl LogEvent {
    /// What those read who ask the node for its log.
    fn keep(&self, text: String, level: Level) -> LogLine {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let field = |name: &str| match self.fields.get(name)? {
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        LogLine {
            text,
            at_ms: since.as_millis() as u64,
            level: name(level).into(),
            message: self.message.replace(char::is_control, " "),
            volume: field("volume"),
            device: field("device"),
            node: field("node"),
            ..LogLine::default()
        }
    }
}

impl Visit for LogEvent {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = value.into(),
            name => _ = self.fields.insert(name.into(), value.into()),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.fields.insert(field.name().into(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.fields.insert(field.name().into(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.fields.insert(field.name().into(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// What is added to lines that repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Repeated {
    /// Equal lines that were left out before this one.
    left_out: u64,
    /// Further ones are left out until the window is over.
    is_last: bool,
}

/// Counts equal lines: at most [`MOST`] of them are written in a [`WINDOW`]. Numbers after a colon are not compared,
/// because a host that connects again comes from another port.
#[derive(Debug, Default)]
struct Repeats(HashMap<String, Seen>);

#[derive(Debug)]
struct Seen {
    /// When the window began.
    begun: Instant,
    written: u32,
    left_out: u64,
}

impl Repeats {
    /// Whether this line is written, and what is added to it.
    fn take(&mut self, now: Instant, message: &str) -> Option<Repeated> {
        let key = without_ports(message);
        if !self.0.contains_key(&key) && self.0.len() >= REMEMBERED {
            let oldest = self.0.iter().min_by_key(|(_, seen)| seen.begun).map(|(key, _)| key.clone());
            oldest.map(|key| self.0.remove(&key));
        }
        let seen = self.0.entry(key).or_insert(Seen { begun: now, written: 0, left_out: 0 });
        let mut left_out = 0;
        if now.duration_since(seen.begun) >= WINDOW {
            left_out = seen.left_out;
            *seen = Seen { begun: now, written: 0, left_out: 0 };
        }
        if seen.written == MOST {
            seen.left_out += 1;
            return None;
        }
        seen.written += 1;
        Some(Repeated { left_out, is_last: seen.written == MOST })
    }
}

/// A message without the numbers that follow a colon.
fn without_ports(message: &str) -> String {
    let mut after_colon = false;
    let kept = message.chars().filter(|c| {
        let is_port = after_colon && c.is_ascii_digit();
        after_colon = is_port || *c == ':';
        !is_port
    });
    kept.collect()
}

fn name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        _ => "info",
    }
}

fn text(time: &When, level: Level, event: &LogEvent, repeated: Repeated) -> String {
    let mut line =
        format!("{} {}: {}", time.as_str(), name(level), event.message.replace(char::is_control, " "));
    if repeated.left_out > 0 {
        line += &format!(" ({} more such lines were left out)", repeated.left_out);
    }
    if repeated.is_last {
        line += " (further such lines are left out, for a minute)";
    }
    line
}

fn json(time: &When, level: Level, event: LogEvent, repeated: Repeated) -> Value {
    let mut line = event.fields;
    line.insert("time".into(), time.as_str().into());
    line.insert("level".into(), name(level).into());
    line.insert("message".into(), event.message.into());
    if repeated.left_out > 0 {
        line.insert("left_out".into(), repeated.left_out.into());
    }
    Value::Object(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONCE: Repeated = Repeated { left_out: 0, is_last: false };

    #[test]
    fn a_line_that_repeats_is_written_five_times_a_minute_and_the_others_are_counted() {
        let (mut repeats, begun) = (Repeats::default(), Instant::now());
        let mut written = Vec::new();
        for second in 0..150 {
            let from = format!("10.0.0.7:{} is disconnected", 40_000 + second);
            if let Some(repeated) = repeats.take(begun + Duration::from_secs(second), &from) {
                written.push((second, repeated));
            }
        }
        let last = Repeated { is_last: true, ..ONCE };
        let first = Repeated { left_out: 55, is_last: false };
        let minute =
            |at, first| [(at, first), (at + 1, ONCE), (at + 2, ONCE), (at + 3, ONCE), (at + 4, last)];
        assert_eq!(written, [minute(0, ONCE), minute(60, first), minute(120, first)].concat());
    }

    #[test]
    fn lines_that_say_something_else_are_written_whatever_repeats() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        for _ in 0..100 {
            repeats.take(now, "node b is not reached");
        }
        assert_eq!(repeats.take(now, "node c is not reached"), Some(ONCE));
        assert_eq!(repeats.take(now, "node b is reached again"), Some(ONCE));
    }

    #[test]
    fn what_is_remembered_of_lines_is_bounded() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        for number in 0..10_000 {
            assert_eq!(repeats.take(now, &format!("line {number}")), Some(ONCE));
        }
        assert_eq!(repeats.0.len(), REMEMBERED);
    }

    #[test]
    fn a_line_of_text_has_time_level_and_sentence_and_one_of_json_has_the_fields_too() {
        let time = When::at(std::time::UNIX_EPOCH);
        let event = || LogEvent {
            message: "volume a\nb is\x1bblocked".into(),
            fields: Map::from_iter([("volume".into(), "a\nb".into())]),
        };
        let repeated = Repeated { left_out: 3, is_last: false };
        assert_eq!(
            text(&time, Level::WARN, &event(), repeated),
            "1970-01-01T00:00:00.000Z warning: volume a b is blocked (3 more such lines were left out)"
        );
        let line = json(&time, Level::WARN, event(), repeated).to_string();
        assert!(!line.contains('\n'), "{line}");
        let read: Value = serde_json::from_str(&line).unwrap();
        let meant = serde_json::json!({"time": "1970-01-01T00:00:00.000Z", "level": "warning", "left_out": 3,
            "message": "volume a\nb is\u{1b}blocked", "volume": "a\nb"});
        assert_eq!(read, meant);
    }
}
