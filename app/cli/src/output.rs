//! What is printed, and the one way an error reaches a person. A reader that has gone (`loadline … | head`) is no
//! reason to fail, and none to panic, which would leave files behind; a disk that is full under a redirected output is
//! one to say so.
//!
//! Names and labels come from files and hosts of others. No control character of theirs reaches a terminal: everything that
//! is printed passes here, and only then is it given colour.

pub(crate) mod alike;
pub(crate) mod archive;
pub(crate) mod paint;
pub(crate) mod result_file;
pub(crate) mod text;
pub(crate) mod wrap;

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

use crate::process::exit::Exit;

/// Why standard output could not be written, once it could not.
static FAILED: OnceLock<String> = OnceLock::new();

thread_local! {
    /// What this thread prints on standard output, while it is captured.
    static CAPTURED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What `print` prints on standard output, as text: it is not printed.
pub(crate) fn captured(print: impl FnOnce()) -> String {
    CAPTURED.with_borrow_mut(|captured| *captured = Some(String::new()));
    print();
    CAPTURED.take().unwrap_or_default()
}

/// Prints a line on standard output.
macro_rules! print_line {
    () => { $crate::output::write(b"\n") };
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}

/// Prints a line on standard error.
macro_rules! eprint_line {
    ($($text:tt)*) => { $crate::output::error_line(format_args!($($text)*)) };
}

pub(crate) use {eprint_line, print_line};

pub(crate) fn line(text: Arguments<'_>) {
    write(format!("{text}\n").as_bytes());
}

pub(crate) fn error_line(text: Arguments<'_>) {
    let text = format!("{text}\n");
    let printed = printable(&text, |_| "?".into());
    let printed = match wrap::columns(&io::stderr()) {
        Some(columns) => wrap::wrapped(&printed, columns).into(),
        None => printed,
    };
    let printed = if paint::on_stderr() { paint::painted(&printed).into() } else { printed };
    // A failure here can be reported nowhere.
    let _ = io::stderr().write_all(printed.as_bytes());
}

/// Prints this text on standard output. Control characters but line feeds and tabs are shown as `?`.
pub(crate) fn write(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let printed = printable(&text, |_| "?".into());
    let is_captured = CAPTURED.with_borrow_mut(|captured| match captured {
        Some(all) => {
            all.push_str(&printed);
            true
        }
        None => false,
    });
    if is_captured {
        return;
    }
    let printed = match wrap::columns(&io::stdout()) {
        Some(columns) => wrap::wrapped(&printed, columns).into(),
        None => printed,
    };
    let printed = if paint::on_stdout() { paint::painted(&printed).into() } else { printed };
    note(io::stdout().write_all(printed.as_bytes()));
}

/// Prints a JSON document on standard output, and a line feed if it does not end with one. Control characters, which stand
/// in its strings only, are escaped.
pub(crate) fn document(text: &str) {
    let mut escaped = printable(text, |c| format!("\\u{:04x}", u32::from(c))).into_owned();
    if !escaped.ends_with('\n') {
        escaped.push('\n');
    }
    note(io::stdout().write_all(escaped.as_bytes()));
}

/// Text for a terminal that is not written here, such as a bar's.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    printable(text, |_| "?".into())
}

/// Text without what steers a terminal: control characters, and those that turn the direction of writing.
fn printable(text: &str, instead: impl Fn(char) -> String) -> Cow<'_, str> {
    let steers = |c: char| {
        c.is_control() && !matches!(c, '\n' | '\t')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut printed = String::with_capacity(text.len());
    for c in text.chars() {
        match steers(c) {
            true => printed.push_str(&instead(c)),
            false => printed.push(c),
        }
    }
    Cow::Owned(printed)
}

/// Prints `loadline: MESSAGE` on standard error, and returns the exit code.
pub(crate) fn print_error(exit: Exit, message: &str) -> Exit {
    eprint_line!("loadline: {message}");
    exit
}

/// How a command ends that would end so: failed, if what it printed is not where it should be.
pub(crate) fn finish(exit: Exit) -> Exit {
    note(io::stdout().flush());
    match (FAILED.get(), exit) {
        // Nothing failed, or a worse failure was reported already.
        (None, _) | (_, Exit::Usage | Exit::Failed | Exit::Interrupted) => exit,
        (Some(why), _) => print_error(Exit::Failed, &format!("standard output cannot be written: {why}")),
    }
}

fn note(result: io::Result<()>) {
    if let Err(error) = result
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = FAILED.set(error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_of_a_label_reaches_a_terminal() {
        let label = "qd1\u{1b}[2J\u{9b}31m\u{7}\r\u{7f}\u{202e}x\ty\n";
        assert_eq!(printable(label, |_| "?".into()), "qd1?[2J?31m????x\ty\n");
        let json = serde_json::to_string(&[label]).unwrap();
        let escaped = printable(&json, |c| format!("\\u{:04x}", u32::from(c)));
        assert!(!escaped.contains(char::is_control), "{escaped}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&escaped).unwrap()[0], label, "nothing is lost");
        assert!(matches!(printable("plain\n", |_| "?".into()), Cow::Borrowed(_)));
    }
}
