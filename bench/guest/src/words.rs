//! What a machine's console and what started it printed last: it says why they ended.

use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How many bytes of what was printed are kept: a kernel that panics prints many lines after its reason.
const MOST: usize = 64 << 10;
/// How many lines of them an error has.
const LAST_LINES: usize = 3;
/// How long it may take to read what was printed by what has ended.
const LIMIT: Duration = Duration::from_secs(1);

/// The last that was printed, from any number of outputs.
#[derive(Debug, Default)]
pub(crate) struct Words {
    kept: Arc<Mutex<Vec<u8>>>,
    /// The threads that read the outputs; each ends with its output.
    readers: Vec<JoinHandle<()>>,
}

impl Words {
    /// Reads this output, by a thread of its own, until it ends.
    pub(crate) fn read(&mut self, output: impl Read + Send + 'static) -> std::io::Result<()> {
        let kept = Arc::clone(&self.kept);
        let keep = move || keep_last(output, &kept);
        self.readers.push(thread::Builder::new().name("console".into()).spawn(keep)?);
        Ok(())
    }

    /// The last lines, at most [`LAST_LINES`]. With `ended`, all outputs have ended or are about to, and that is waited for.
    pub(crate) fn last(&self, ended: bool) -> String {
        let limit = Instant::now() + LIMIT;
        while ended && !self.readers.iter().all(JoinHandle::is_finished) && Instant::now() < limit {
            thread::sleep(Duration::from_millis(2));
        }
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        last_lines(&String::from_utf8_lossy(&kept))
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // A kernel that panics says why in one line. What follows is for its makers; what its first process said is before it.
    let panic = lines.iter().position(|line| line.contains("Kernel panic"));
    let end = panic.map_or(lines.len(), |panic| panic + 1);
    lines[end.saturating_sub(LAST_LINES)..end].join(" | ")
}

fn keep_last(mut output: impl Read, kept: &Mutex<Vec<u8>>) {
    let mut bytes = [0; 1024];
    while let Ok(read @ 1..) = output.read(&mut bytes) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&bytes[..read]);
        let surplus = kept.len().saturating_sub(MOST);
        kept.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines_end_with_the_panic_of_a_kernel_and_begin_before_it() {
        assert_eq!(last_lines("1\n\n2\r\n3\n4\n"), "2 | 3 | 4");
        assert_eq!(
            last_lines("1\n2\n3\n[ 2.0] Kernel panic: why\nCPU: 0\nCall Trace:\n"),
            "2 | 3 | [ 2.0] Kernel panic: why"
        );
        assert_eq!(last_lines(""), "");
    }
}
