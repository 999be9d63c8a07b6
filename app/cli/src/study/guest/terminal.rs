//! The user's terminal while a machine's shell has it: every key goes to the machine, except the one that ends it.

use std::io::{self, IsTerminal, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use loadline_guest::session::{Size, Terminal};
use ratatui::crossterm::terminal::{disable_raw_mode, enable_raw_mode, size};

/// Ctrl-]
const ESCAPE: u8 = 0x1d;

/// Whether a user sits at both ends.
pub(super) fn is_there() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// The kind and size of the terminal.
pub(super) fn kind() -> Terminal {
    let kind = std::env::var("TERM").unwrap_or_else(|_| "vt102".into());
    Terminal { kind, size: now() }
}

/// The size of the terminal; 80 columns and 24 rows if that is unknown.
pub(super) fn now() -> Size {
    let (columns, rows) = size().unwrap_or((80, 24));
    Size { rows, columns }
}

/// The terminal without its own line editing and signals. Dropping it restores it.
pub(super) struct Raw;

impl Raw {
    pub(super) fn begin() -> io::Result<Raw> {
        enable_raw_mode().map(|()| Raw)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = disable_raw_mode();
    }
}

/// What is typed. The key that ends the machine is counted, and not passed on.
pub(super) struct Keys<R> {
    from: R,
    escapes: Arc<AtomicU32>,
}

impl<R: Read> Keys<R> {
    pub(super) fn new(from: R, escapes: Arc<AtomicU32>) -> Keys<R> {
        Keys { from, escapes }
    }
}

impl<R: Read> Read for Keys<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.from.read(bytes)?;
            let mut kept = 0;
            for at in 0..read {
                match bytes[at] {
                    ESCAPE => drop(self.escapes.fetch_add(1, Ordering::Relaxed)),
                    byte => {
                        bytes[kept] = byte;
                        kept += 1;
                    }
                }
            }
            // Nothing would be the end of the input.
            if kept > 0 || read == 0 {
                return Ok(kept);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_that_ends_the_machine_is_counted_and_every_other_byte_is_passed_on() {
        let escapes = Arc::default();
        let mut keys = Keys::new(&b"ls\r\x03\x1d\x1dx\x1d"[..], Arc::clone(&escapes));
        let mut text = Vec::new();
        keys.read_to_end(&mut text).unwrap();
        assert_eq!(text, b"ls\r\x03x");
        assert_eq!(escapes.load(Ordering::Relaxed), 3);
    }
}
