//! Sentences as wide as the terminal. Tables, pictures and commands to copy stay as they are.

use std::os::fd::AsRawFd;

use nix::libc;

/// Sentences are no wider than this: longer lines are hard to read.
const WIDEST: usize = 110;
/// On a narrower terminal nothing is wrapped.
const NARROWEST: usize = 40;

mod ioctl {
    nix::ioctl_read_bad!(window_size, nix::libc::TIOCGWINSZ, nix::libc::winsize);
}

/// How many columns the terminal has to which this file is connected; `None` if it is no terminal, or does not report its width.
pub(crate) fn columns(file: &impl AsRawFd) -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the request writes one winsize (TIOCGWINSZ), which lives through the call.
    let known = unsafe { ioctl::window_size(file.as_raw_fd(), &mut size) };
    (known.is_ok() && size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Text with its sentences wrapped to so many columns. The rest of a sentence is indented by two more than its beginning.
pub(crate) fn wrapped(text: &str, columns: usize) -> String {
    let width = columns.min(WIDEST);
    let mut wrapped = String::with_capacity(text.len() + text.len() / 16);
    for line in text.split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        match width >= NARROWEST && line.chars().count() > width && is_sentence(line) {
            true => wrap(line, width, &mut wrapped),
            false => wrapped.push_str(line),
        }
        wrapped.push_str(end);
    }
    wrapped
}

/// Whether a line is prose: a table has columns, two spaces apart; a command to copy has options; a path has no space.
fn is_sentence(line: &str) -> bool {
    let text = line.trim_start();
    !text.contains("  ") && !text.contains(" --") && !text.contains(" | ") && text.split(' ').count() > 6
}

fn wrap(line: &str, width: usize, into: &mut String) {
    let indent = line.len() - line.trim_start().len();
    let (mut used, mut is_first) = (indent, true);
    into.push_str(&line[..indent]);
    for word in line.trim_start().split(' ') {
        let length = word.chars().count();
        if !is_first && used + 1 + length > width {
            into.push('\n');
            into.push_str(&" ".repeat(indent + 2));
            used = indent + 2;
        } else if !is_first {
            into.push(' ');
            used += 1;
        }
        into.push_str(word);
        used += length;
        is_first = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_wrapped_at_words_and_its_rest_is_indented() {
        let text =
            "  doubtful: expected one level of IOPS over the window; found another from second 12 on\n";
        let lines = wrapped(text, 50);
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines[0], "  doubtful: expected one level of IOPS over the");
        assert!(lines[1].starts_with("    window; found") && lines.iter().all(|line| line.len() <= 50));
        let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
        assert_eq!(words(&wrapped(text, 50)), words(text), "no word is lost");
    }

    #[test]
    fn tables_commands_and_short_lines_stay() {
        for text in [
            "step  profile                              rep     IOPS  MB/s   CPU  mean us  p50 us  p99 us",
            "to go on: loadline run --resume /a/folder/with/a/long/name/that/does/not/fit/in/the/width/of/it",
            "a short line",
            "",
        ] {
            assert_eq!(wrapped(text, 60), text);
        }
    }
}
