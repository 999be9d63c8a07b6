//! Copies of the program to hosts, in words.

use std::time::Duration;

use loadline_base::units::TimeSpan;
use loadline_fleet::{ProgramCopies, ProgramCopy};

/// Hosts that a line names; it counts the others.
const NAMED: usize = 4;

/// Bytes that were sent, and those of all copies.
pub(super) fn bytes(copies: &ProgramCopies) -> (u64, u64) {
    copies.0.values().fold((0, 0), |(sent, total), copy| {
        (u64::saturating_add(sent, copy.sent), u64::saturating_add(total, copy.total))
    })
}

/// How long the copy takes that began first.
pub(super) fn longest(copies: &ProgramCopies) -> Duration {
    copies.0.values().map(|copy| copy.began.elapsed()).max().unwrap_or_default()
}

/// Which hosts get the program, how much of it they have, and how long it still takes.
pub(super) fn going_on(copies: &ProgramCopies) -> String {
    let (sent, total) = bytes(copies);
    let going_on = || copies.0.iter().filter(|(_, copy)| !copy.is_complete);
    let left = going_on().map(|(_, copy)| left(copy, copy.began.elapsed())).max().flatten();
    let left = left.map(|left| format!(", {} left", TimeSpan::seconds(left))).unwrap_or_default();
    let names = listed(going_on().map(|(name, _)| name));
    format!("copying the program to {names}: {} of {} MiB{left}", sent >> 20, total >> 20)
}

/// Which hosts have the program now; `None` if none was copied.
pub(super) fn complete(copies: &ProgramCopies) -> Option<String> {
    let (_, total) = bytes(copies);
    let names = listed(copies.0.keys());
    (!copies.0.is_empty()).then(|| format!("copied the program to {names} ({} MiB)", total >> 20))
}

/// Seconds until all of a copy is sent, at the speed it had so far; `None` as long as the speed is unknown.
fn left(copy: &ProgramCopy, elapsed: Duration) -> Option<u64> {
    let is_known = elapsed >= Duration::from_secs(1) && copy.sent > 0;
    let rest = copy.total.saturating_sub(copy.sent) as f64;
    is_known.then(|| (rest / copy.sent as f64 * elapsed.as_secs_f64()).ceil() as u64)
}

fn listed<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<&str> = names.map(String::as_str).collect();
    let named = names[..names.len().min(NAMED)].join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn copy(sent: u64) -> ProgramCopy {
        ProgramCopy { sent: sent << 20, total: 100 << 20, began: Instant::now(), is_complete: sent == 100 }
    }

    #[test]
    fn a_line_names_the_hosts_that_wait_and_counts_the_bytes_of_all() {
        let hosts = [("a", 100), ("b", 10), ("c", 20)].map(|(name, sent)| (name.into(), copy(sent)));
        let copies = ProgramCopies(hosts.into());
        assert_eq!(going_on(&copies), "copying the program to b, c: 130 of 300 MiB");
        let many = ProgramCopies((0..6).map(|host| (format!("h{host}"), copy(100))).collect());
        assert_eq!(complete(&many).unwrap(), "copied the program to h0, h1, h2, h3 and 2 more (600 MiB)");
        assert_eq!(complete(&ProgramCopies::default()), None);
    }

    #[test]
    fn the_time_left_is_that_at_the_speed_so_far() {
        assert_eq!(left(&copy(10), Duration::from_secs(3)), Some(27));
        assert_eq!(left(&copy(10), Duration::from_millis(900)), None);
        assert_eq!(left(&copy(0), Duration::from_secs(3)), None);
    }
}
