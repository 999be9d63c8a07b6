//! A person at the terminal is asked to do something.

use std::fs::File;
use std::io::{ErrorKind as IoKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use loadline_base::units::TimeSpan;
use nix::fcntl::OFlag;

use crate::error::{ErrorKind, TargetError};

/// Asks a person to do something, and waits until that is done; an error of kind `Interrupted` when the flag turns true.
pub type Prompt = Box<dyn FnMut(&str, &AtomicBool) -> Result<(), TargetError> + Send>;

/// How often the terminal, and whether to continue waiting, is checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Bytes that an operator may have typed before the question: more than a terminal keeps.
const MOST_TYPED: usize = 64 << 10;

/// Asks at the terminal of this process, whatever its standard input is. An error of kind `Usage` when it is asked and
/// there is no terminal.
pub fn terminal_prompt() -> Prompt {
    Box::new(|question, stop| {
        let mut options = File::options();
        // Reading must not keep from looking whether it is to stop.
        options.read(true).write(true).custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits());
        let mut terminal = options.open("/dev/tty").map_err(|e| {
            TargetError::usage(format!(
                "no person can be asked \"{question}\": there is no terminal ({e}). Run it at one, or give a command"
            ))
        })?;
        ask_at(&mut terminal, question, stop)
    })
}

fn ask_at(terminal: &mut (impl Read + Write), question: &str, stop: &AtomicBool) -> Result<(), TargetError> {
    let lost = |e: std::io::Error| TargetError::failed(format!("the terminal is gone: {e}"));
    // What was typed before the question is no answer to it.
    let mut bytes = [0; 512];
    let mut typed = 0;
    while typed < MOST_TYPED {
        match terminal.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(count) => typed += count,
        }
    }
    terminal.write_all(format!("\n{question}\n").as_bytes()).map_err(lost)?;
    loop {
        match terminal.read(&mut bytes) {
            Ok(0) => return Err(lost(IoKind::UnexpectedEof.into())),
            // It gives whole lines: whatever it is, Enter was pressed.
            Ok(count) if bytes[..count].contains(&b'\n') => return Ok(()),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), IoKind::WouldBlock | IoKind::Interrupted) => {}
            Err(error) => return Err(lost(error)),
        }
        if stop.load(Ordering::Relaxed) {
            return Err(TargetError::interrupted());
        }
        sleep(LOOK_EVERY);
    }
}

/// Asks, and ends the waiting when it is to stop and at the limit. Whether it was answered within that.
pub(crate) fn ask_within(
    prompt: &mut Prompt,
    question: &str,
    limit: TimeSpan,
    stop: &AtomicBool,
) -> Result<bool, TargetError> {
    let over = AtomicBool::new(stop.load(Ordering::Relaxed));
    let answered = AtomicBool::new(false);
    let result = scope(|scope| {
        scope.spawn(|| {
            let begun = Instant::now();
            while !answered.load(Ordering::Relaxed) {
                if stop.load(Ordering::Relaxed) || begun.elapsed() >= limit.0 {
                    over.store(true, Ordering::Relaxed);
                    return;
                }
                sleep(LOOK_EVERY);
            }
        });
        let _ends = Ends(&answered);
        prompt(question, &over)
    });
    match result {
        Err(error) if error.kind == ErrorKind::Interrupted && !stop.load(Ordering::Relaxed) => Ok(false),
        other => other.map(|()| true),
    }
}

/// The thread that watches the clock ends too, even if the thread that asks does not return.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
