//! The last lines of this process's log, for `GET /v1/support`, and for those who follow the node (`GET /v1/stream`): also of a node whose
//! standard error is read by no one. Whoever writes the log gives each line here too.

use std::collections::VecDeque;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Lines that are kept, and their bytes together, at most.
const MOST_LINES: usize = 2000;
const MOST_BYTES: usize = 256 << 10;
/// Bytes that are kept of one line.
const LONGEST: usize = 4 << 10;

/// A line of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    /// Its number: one more than that of the line before, in this process. The first one has 1.
    pub number: u64,
    /// The line for people: time, level and message.
    pub text: String,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// `error`, `warning` or `info`.
    pub level: String,
    /// The message alone.
    pub message: String,
    /// The volume that it is about, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// The device that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The other node that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

impl LogLine {
    fn bytes(&self) -> usize {
        let of = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        self.text.len() + self.message.len() + of(&self.volume) + of(&self.device) + of(&self.node)
    }

    fn shorten(&mut self) {
        for text in [&mut self.text, &mut self.message] {
            let most = LONGEST.min(text.len());
            text.truncate((0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
        }
    }
}

static LINES: Mutex<Lines> = Mutex::new(Lines { lines: VecDeque::new(), bytes: 0, count: 0 });
/// The number of the last line.
static NEWEST: LazyLock<watch::Sender<u64>> = LazyLock::new(watch::Sender::default);

#[derive(Debug)]
struct Lines {
    lines: VecDeque<LogLine>,
    bytes: usize,
    count: u64,
}

impl Lines {
    fn add(&mut self, mut line: LogLine) -> u64 {
        line.shorten();
        self.count += 1;
        line.number = self.count;
        self.bytes += line.bytes();
        self.lines.push_back(line);
        while self.lines.len() > MOST_LINES || self.bytes > MOST_BYTES {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.bytes -= oldest.bytes();
        }
        self.count
    }
}

fn lines() -> MutexGuard<'static, Lines> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a line of the log. Its number is chosen here.
pub fn add(line: LogLine) {
    let mut lines = lines();
    let number = lines.add(line);
    // Under the lock, so that the number never goes back.
    NEWEST.send_replace(number);
}

/// The lines that are kept, the oldest first, as people read them.
pub(crate) fn texts() -> Vec<String> {
    lines().lines.iter().map(|line| line.text.clone()).collect()
}

/// The lines that are kept with a number larger than this, the oldest first.
pub(crate) fn after(number: u64) -> Vec<LogLine> {
    lines().lines.iter().filter(|line| line.number > number).cloned().collect()
}

/// Tells the number of the last line, whenever there is a new one.
pub(crate) fn newest() -> watch::Receiver<u64> {
    NEWEST.subscribe()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> LogLine {
        LogLine { text: text.into(), ..LogLine::default() }
    }

    #[test]
    fn the_last_lines_are_kept_within_both_bounds() {
        let mut kept = Lines { lines: VecDeque::new(), bytes: 0, count: 0 };
        for number in 0..MOST_LINES + 10 {
            kept.add(line(&format!("line {number}")));
        }
        assert_eq!((kept.lines.len(), kept.lines[0].text.as_str()), (MOST_LINES, "line 10"));
        assert_eq!((kept.lines[0].number, kept.count), (11, MOST_LINES as u64 + 10));
        for _ in 0..100 {
            // A character that the limit of a line would cut.
            kept.add(line(&format!("{}\u{20ac}{}", "x".repeat(LONGEST - 1), "x".repeat(10_000))));
        }
        assert!(kept.bytes <= MOST_BYTES && kept.lines.len() < MOST_LINES);
        assert_eq!(kept.bytes, kept.lines.iter().map(LogLine::bytes).sum::<usize>());
        assert_eq!(kept.lines.back().map(|line| line.text.len()), Some(LONGEST - 1));
    }
}
