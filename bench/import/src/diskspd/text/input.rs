//! What a run's text states of its load.

use loadline_profile::Pattern;

use super::load::{Span, Target};
use crate::numbers::{is_figure, number, whole};

/// A run's parameters.
#[derive(Debug, Default)]
pub(super) struct Input {
    /// The arguments of the command line.
    arguments: Vec<String>,
    pub(super) spans: Vec<Stated>,
    /// Whether a limit is stated in the parameters, which newer versions do.
    limits_stated: bool,
    /// The computer's name, which newer versions state.
    computer: String,
    /// Whether the description of the system has begun.
    system: bool,
}

/// How lines begin that say how much of a load there is, and when.
const NOT_THE_LOAD: [&str; 7] = [
    "number of outstanding I/O operations",
    "throughput rate-limited to",
    "duration:",
    "warm up time:",
    "cool down time:",
    "random seed:",
    "gathering IOPS",
];

/// One time span as its parameters state it.
#[derive(Debug, Default)]
pub(super) struct Stated {
    targets: Vec<Target>,
    /// Lines that say neither depth nor rate nor times.
    lines: Vec<String>,
    /// Targets that say how many threads they have.
    with_threads: usize,
}

impl Input {
    /// Of a command line.
    pub(super) fn of(command: &str) -> Input {
        Input { arguments: command.split_whitespace().map(String::from).collect(), ..Input::default() }
    }

    /// Takes a line of the parameters.
    pub(super) fn line(&mut self, line: &str) {
        if line.starts_with("timespan:") {
            self.spans.push(Stated::default());
            return;
        }
        if let Some(name) = line.strip_prefix("computer name:") {
            self.computer = name.trim().to_string();
        }
        // What follows is of the system.
        self.system |= line.starts_with("System information:");
        let Some(span) = self.spans.last_mut().filter(|_| !self.system) else { return };
        if !NOT_THE_LOAD.iter().any(|begin| line.starts_with(begin)) {
            span.lines.push(line.to_string());
        }
        if line.starts_with("path:") {
            // As DISKSPD has it by default.
            span.targets.push(Target {
                block: 65_536.0,
                requests: 2.0,
                threads: 1.0,
                write_percent: 0.0,
                pattern: None,
                rate: None,
                thinks: false,
            });
            return;
        }
        let Some(target) = span.targets.last_mut() else { return };
        let after = |begin: &str| line.strip_prefix(begin).map(str::trim);
        let figure = |text: &str| number(text).filter(|value| *value > 0.0);
        if let Some(text) = after("block size:") {
            target.block = bytes(text).unwrap_or(target.block);
        } else if let Some(text) = after("number of outstanding I/O operations per thread:")
            .or_else(|| after("number of outstanding I/O operations:"))
        {
            target.requests = figure(text).unwrap_or(target.requests);
        } else if let Some(text) = after("threads per file:") {
            target.threads = figure(text).unwrap_or(target.threads);
            span.with_threads += 1;
        } else if let Some(text) = after("think time:") {
            target.thinks = figure(text.trim_end_matches("ms")).is_some();
        } else if line == "performing read test" {
            target.write_percent = 0.0;
        } else if line == "performing write test" {
            target.write_percent = 100.0;
        } else if let Some(text) = after("performing mix test (") {
            target.write_percent = writes(text).unwrap_or(target.write_percent);
        } else if let Some(text) = after("throughput rate-limited to") {
            target.rate = limit(text, target.block);
            self.limits_stated = true;
        } else if line.starts_with("using") && line.contains("I/O (") {
            target.pattern = pattern(line);
        }
    }

    /// What time span `number` (from 1) asks for; `threads` and `requests` are what its results state.
    pub(super) fn span(&self, number: usize, threads: Option<f64>, requests: Option<f64>) -> Option<Span> {
        let stated = self.spans.get(number.checked_sub(1)?).filter(|span| !span.targets.is_empty())?;
        let mut targets = stated.targets.clone();
        if !self.limits_stated
            && let Some(rate) = self
                .arguments
                .iter()
                .find_map(|argument| argument.strip_prefix(['-', '/'])?.strip_prefix('g'))
        {
            targets.iter_mut().for_each(|target| target.rate = given(rate, target.block));
        }
        // Threads that serve every target are not stated of the targets.
        let fixed = threads.filter(|_| stated.with_threads == 0);
        Some(Span {
            targets,
            fixed,
            shared: requests.filter(|_| fixed.is_some()),
            stated: format!("{} {:?}", self.computer, stated.lines),
        })
    }

    /// Whether the rate may have been limited without a word of it: by an XML profile, in the text of older versions.
    pub(super) fn may_be_limited(&self) -> bool {
        let profile =
            |argument: &String| argument.strip_prefix(['-', '/']).is_some_and(|a| a.starts_with('X'));
        !self.limits_stated && self.arguments.iter().any(profile)
    }
}

/// `65536`, `64KiB`, `1.50MiB` or `512B`, above 0.
fn bytes(text: &str) -> Option<f64> {
    let units = [("GiB", 1024.0 * 1024.0 * 1024.0), ("MiB", 1024.0 * 1024.0), ("KiB", 1024.0), ("B", 1.0)];
    let unit = units.into_iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)));
    let (digits, scale) = unit.unwrap_or((text, 1.0));
    number(digits).map(|value| value * scale).filter(|value| is_figure(*value) && *value >= 1.0)
}

/// Percent of writes: `read/write ratio: 70/30)`, or `write/read ratio: 30/100)` of older versions.
fn writes(text: &str) -> Option<f64> {
    let (what, ratio) = text.trim_end_matches(')').split_once(':')?;
    let (first, second) = ratio.trim().split_once('/')?;
    let (first, second) = (whole::<u8>(first)?, whole::<u8>(second)?);
    let writes = match what.trim() {
        "read/write ratio" if u16::from(first) + u16::from(second) == 100 => second,
        "write/read ratio" => first,
        _ => return None,
    };
    (writes <= 100).then_some(f64::from(writes))
}

/// I/Os a second of each thread: `1000 B/ms`, or `1000 IOPS`.
fn limit(text: &str, block: f64) -> Option<f64> {
    let (digits, unit) = text.split_once(' ')?;
    let value = number(digits)?;
    let rate = match unit.trim() {
        "B/ms" => value * 1e3 / block,
        "IOPS" => value,
        _ => return None,
    };
    Some(rate).filter(|rate| is_figure(*rate) && *rate > 0.0)
}

/// The same of an argument: `1000` bytes a millisecond, or `1000i` I/Os a second.
fn given(text: &str, block: f64) -> Option<f64> {
    match text.strip_suffix('i') {
        Some(digits) => limit(&format!("{digits} IOPS"), block),
        None => limit(&format!("{text} B/ms"), block),
    }
}

fn pattern(line: &str) -> Option<Pattern> {
    if let Some(rest) = line.strip_prefix("using mixed random/sequential I/O (") {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        return whole(&digits)
            .filter(|percent| *percent <= 100)
            .map(|random_percent| Pattern::Mixed { random_percent });
    }
    match line.split(" (").next()? {
        "using random I/O" => Some(Pattern::Random),
        "using sequential I/O" => Some(Pattern::Sequential),
        "using interlocked sequential I/O" => Some(Pattern::SequentialInterleaved),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_shares_and_limits_of_old_and_new_versions_are_read() {
        assert_eq!(bytes("65536"), Some(65_536.0));
        assert_eq!(
            (bytes("64KiB"), bytes("1.5MiB"), bytes("512B")),
            (Some(65_536.0), Some(1_572_864.0), Some(512.0))
        );
        assert_eq!((bytes("0"), bytes("x")), (None, None));
        assert_eq!(writes("read/write ratio: 70/30)"), Some(30.0));
        assert_eq!(writes("write/read ratio: 30/100)"), Some(30.0));
        assert_eq!(writes("read/write ratio: 70/40)"), None);
        assert_eq!(limit("4096 B/ms", 4096.0), Some(1_000.0));
        assert_eq!(given("250i", 4096.0), Some(250.0));
        assert_eq!(
            pattern("using mixed random/sequential I/O (70% random) (stride: 4KiB)"),
            Some(Pattern::Mixed { random_percent: 70 })
        );
    }
}
