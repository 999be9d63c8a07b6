//! The last lines of this process's log, for `GET /v1/support`: also of a node whose standard error is read by no one. Whoever writes
//! the log gives each line here too.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lines that are kept, and their bytes together, at most.
const MOST_LINES: usize = 2000;
const MOST_BYTES: usize = 256 << 10;
/// Bytes that are kept of one line.
const LONGEST: usize = 4 << 10;

static LINES: Mutex<Lines> = Mutex::new(Lines { lines: VecDeque::new(), bytes: 0 });

#[derive(Debug)]
struct Lines {
    lines: VecDeque<String>,
    bytes: usize,
}

impl Lines {
    fn add(&mut self, line: &str) {
        let most = LONGEST.min(line.len());
        let end = (0..=most).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
        let line = &line[..end];
        self.bytes += line.len();
        self.lines.push_back(line.to_owned());
        while self.lines.len() > MOST_LINES || self.bytes > MOST_BYTES {
            let Some(oldest) = self.lines.pop_front() else { return };
            self.bytes -= oldest.len();
        }
    }
}

fn lines() -> MutexGuard<'static, Lines> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a line of the log.
pub fn add(line: &str) {
    lines().add(line);
}

/// The lines that are kept, the oldest first.
pub(crate) fn all() -> Vec<String> {
    lines().lines.iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_within_both_bounds() {
        let mut kept = Lines { lines: VecDeque::new(), bytes: 0 };
        for number in 0..MOST_LINES + 10 {
            kept.add(&format!("line {number}"));
        }
        assert_eq!((kept.lines.len(), kept.lines[0].as_str()), (MOST_LINES, "line 10"));
        for _ in 0..100 {
            kept.add(&"é".repeat(LONGEST));
        }
        assert!(kept.bytes <= MOST_BYTES);
        assert_eq!(kept.bytes, kept.lines.iter().map(String::len).sum::<usize>());
        assert!(kept.lines.iter().all(|line| line.len() <= LONGEST));
    }
}
