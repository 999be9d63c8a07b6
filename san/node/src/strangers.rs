//! Lines of the log that strangers cause. Everyone who reaches a port can cause them, and chooses a part of what they say: numbers, names,
//! protocol words. So they are bounded: each in its length and its characters, and those of one kind in their number, however they differ.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines of one kind and one reason in one [`WINDOW`].
const MOST: u32 = 10;
/// Reasons that are counted apart. Those that come first in a window are; all further ones are counted together.
const REASONS: usize = 32;
/// Reasons that begin with the same so many characters count as one: a reason begins with words of this program.
const REASON: usize = 24;
const WINDOW: Duration = Duration::from_secs(60);
/// Characters of a line.
const LONGEST: usize = 400;

/// What lines of this process strangers have caused, by their kinds and reasons.
static LINES: Mutex<Lines> = Mutex::new(Lines(BTreeMap::new()));

#[derive(Debug)]
struct Lines(BTreeMap<String, Counted>);

#[derive(Debug)]
struct Counted {
    /// When the window began.
    begun: Instant,
    written: u32,
    left_out: u64,
}

impl Lines {
    /// Whether another line of a kind, for a reason, is written: with how many that were left out before it.
    fn take(&mut self, kind: &'static str, reason: &str, now: Instant) -> Option<u64> {
        let new = || Counted { begun: now, written: 0, left_out: 0 };
        let mut key = format!("{kind}: {}", reason.chars().take(REASON).collect::<String>());
        if !self.0.contains_key(&key) && self.0.len() >= REASONS {
            self.0.retain(|_, counted| now.duration_since(counted.begun) < WINDOW || counted.left_out > 0);
            if self.0.len() >= REASONS {
                key = "further reasons".into();
            }
        }
        let counted = self.0.entry(key).or_insert_with(new);
        let mut left_out = 0;
        if now.duration_since(counted.begun) >= WINDOW {
            left_out = counted.left_out;
            *counted = new();
        }
        if counted.written == MOST {
            counted.left_out += 1;
            return None;
        }
        counted.written += 1;
        Some(left_out)
    }
}

/// Text that a stranger has a part in, for a log or a terminal: no more than `longest` characters, and none but those of ASCII that can be
/// seen.
pub(crate) fn shown(text: &str, longest: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(longest));
    for (number, character) in text.chars().enumerate() {
        if number == longest {
            shown += "...";
            break;
        }
        match character {
            ' '..='~' => shown.push(character),
            other => shown.extend(other.escape_unicode()),
        }
    }
    shown
}

/// What is to be logged of a line of this kind, for this reason, if it is.
fn line(kind: &'static str, reason: &str, text: &str) -> Option<String> {
    let left_out = LINES.lock().unwrap_or_else(PoisonError::into_inner).take(kind, reason, Instant::now())?;
    Some(with_left_out(shown(text, LONGEST), left_out))
}

/// A line, and how many lines of its kind were left out before it.
fn with_left_out(line: String, left_out: u64) -> String {
    match left_out {
        0 => line,
        1 => format!("{line} (1 more line of this kind was left out)"),
        more => format!("{line} ({more} more lines of this kind were left out)"),
    }
}

/// Logs a warning about something that a stranger did, for a reason. `from`: where it is, without what it chooses anew each time.
pub(crate) fn warn(kind: &'static str, reason: &str, from: &dyn Display, text: &str) {
    if let Some(line) = line(kind, reason, text) {
        tracing::warn!(client = %from, "{line}");
    }
}

/// Logs that a client has gone, for a reason that it has caused.
pub(crate) fn info(kind: &'static str, reason: &str, volume: Option<&str>, from: &str, text: &str) {
    if let Some(line) = line(kind, reason, text) {
        tracing::info!(volume, client = from, "{line}");
    }
}

/// Logs that a client of a volume is disconnected: bounded, if the client is a stranger or has a part in the text.
pub(crate) fn info_of_client(is_bounded: bool, reason: &str, volume: &str, from: &str, text: &str) {
    match is_bounded {
        true => info("sessions of clients", reason, Some(volume), from, text),
        false => tracing::info!(volume, client = from, "{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_kind_are_bounded_however_they_differ_and_those_of_another_are_written() {
        let (mut lines, begun) = (Lines(BTreeMap::new()), Instant::now());
        let of = |number: usize| format!("a client that chooses numbers: {number}");
        let written = (0..1000).filter(|n| lines.take("a", &of(*n), begun).is_some()).count();
        assert_eq!(written, MOST as usize);
        assert_eq!(lines.take("b", &of(0), begun), Some(0));
        assert_eq!(lines.take("a", "another reason", begun), Some(0));
        assert_eq!(lines.take("a", &of(0), begun + WINDOW), Some(1000 - u64::from(MOST)), "they are counted");
        assert_eq!(lines.take("a", &of(0), begun + WINDOW), Some(0));
    }

    #[test]
    fn one_line_that_was_left_out_is_one_line() {
        for (left_out, words) in [(1, "1 more line of this kind was"), (2, "2 more lines of this kind were")]
        {
            assert_eq!(with_left_out("it".into(), left_out), format!("it ({words} left out)"));
        }
        assert_eq!(with_left_out("it".into(), 0), "it");
    }

    #[test]
    fn reasons_that_strangers_could_make_up_are_bounded_too() {
        let (mut lines, begun) = (Lines(BTreeMap::new()), Instant::now());
        let written = (0..10_000).filter(|n| lines.take("a", &format!("{n}"), begun).is_some()).count();
        assert_eq!(written, REASONS + MOST as usize);
        assert!(lines.take("b", "known later", begun + WINDOW).is_some());
        assert!(lines.0.len() <= REASONS + 1);
    }

    #[test]
    fn what_strangers_say_is_shown_short_and_harmless() {
        assert_eq!(shown("volume db", 20), "volume db");
        assert_eq!(shown("a\nb\x1b[2J\u{202e}x", 40), r"a\u{a}b\u{1b}[2J\u{202e}x");
        assert_eq!(shown(&"x".repeat(1 << 20), 5), "xxxxx...");
    }

    #[test]
    fn lines_about_strangers_that_are_disconnected_are_bounded_and_those_about_others_are_not() {
        #[derive(Clone, Default)]
        struct Counts(std::sync::Arc<std::sync::atomic::AtomicUsize>);
        impl tracing::Subscriber for Counts {
            fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
                true
            }
            fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
                tracing::span::Id::from_u64(1)
            }
            fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
            fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
            fn event(&self, _: &tracing::Event<'_>) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            fn enter(&self, _: &tracing::span::Id) {}
            fn exit(&self, _: &tracing::span::Id) {}
        }
        for (is_bounded, written) in [(true, MOST as usize), (false, 100)] {
            let counts = Counts::default();
            tracing::subscriber::with_default(counts.clone(), || {
                for number in 0..100 {
                    let from = format!("[2001:db8::{number:x}]:7");
                    info_of_client(is_bounded, "a reason of this test", "d", &from, "it is disconnected");
                }
            });
            assert_eq!(counts.0.load(std::sync::atomic::Ordering::Relaxed), written);
        }
    }
}
