//! Colour on terminals: a word for a state is red, amber or green, and a title is bold. The text stays the
//! same, so that no meaning depends on colour alone.
//!
//! Colour is used if the output is a terminal, `TERM` names one that is not `dumb`, and `NO_COLOR` is not set or empty
//! (<https://no-color.org>).

use std::borrow::Cow;
use std::io::IsTerminal;
use std::sync::OnceLock;

/// How a word is shown: the parameters of the terminal's sequence that selects it (ECMA-48, SGR).
type Style = &'static str;

const RED: Style = "31";
const AMBER: Style = "33";
const GREEN: Style = "32";
const DIM: Style = "2";
const BOLD: Style = "1";

/// What a line may begin with, after its indentation.
const BEGINNINGS: [(&str, Style); 20] = [
    ("loadline: ", RED),
    ("Missed: ", RED),
    ("NO: ", RED),
    ("limit missed: ", RED),
    ("the storage failed: ", RED),
    ("Met in a closed loop only: ", AMBER),
    ("in a closed loop only: ", AMBER),
    ("A closed loop flatters this: ", AMBER),
    ("doubtful: ", AMBER),
    ("open: ", AMBER),
    ("unfinished: ", AMBER),
    ("skipped: ", AMBER),
    ("limited by the load generator", AMBER),
    ("Every criterion is met: ", GREEN),
    ("Met: ", GREEN),
    ("yes: ", GREEN),
    ("note: ", DIM),
    ("Carries ", BOLD),
    ("Fits ", BOLD),
    ("load line ", BOLD),
];

/// What a cell of a table may be. Cells are two spaces or more apart.
const CELLS: [(&str, Style); 20] = [
    ("bad", RED),
    ("blocked", RED),
    ("does not report", RED),
    ("slower", RED),
    ("unknown", RED),
    ("waiting", RED),
    ("degraded", AMBER),
    ("draining", AMBER),
    ("maintenance", AMBER),
    ("maintenance, draining", AMBER),
    ("does not report, maintenance", AMBER),
    ("not the same load", AMBER),
    ("resyncing", AMBER),
    ("slow", AMBER),
    ("too few repeats to tell", AMBER),
    ("faster", GREEN),
    ("healthy", GREEN),
    ("ok", GREEN),
    ("reports", GREEN),
    ("note", DIM),
];

/// Whether standard output is shown in colour.
pub(crate) fn on_stdout() -> bool {
    static SHOWN: OnceLock<bool> = OnceLock::new();
    *SHOWN.get_or_init(|| std::io::stdout().is_terminal() && is_wanted())
}

/// Whether standard error is shown in colour.
pub(crate) fn on_stderr() -> bool {
    static SHOWN: OnceLock<bool> = OnceLock::new();
    *SHOWN.get_or_init(|| std::io::stderr().is_terminal() && is_wanted())
}

fn is_wanted() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|terminal| terminal.is_empty() || terminal == "dumb");
    !is_set("NO_COLOR") && !is_dumb
}

/// Text in colour, line by line.
pub(crate) fn painted(text: &str) -> String {
    let mut painted = String::with_capacity(text.len() + text.len() / 8);
    for line in text.split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        painted.push_str(&line_of(line));
        painted.push_str(end);
    }
    painted
}

fn line_of(line: &str) -> Cow<'_, str> {
    let (indent, rest) = line.split_at(line.len() - line.trim_start().len());
    if let Some((word, style)) = BEGINNINGS.iter().find(|(word, _)| rest.starts_with(word)) {
        return format!("{indent}{}{}", shown(word, style), &rest[word.len()..]).into();
    }
    let is_title = |word: &str| word.chars().all(|c| c.is_ascii_lowercase() || c == ' ');
    if indent.is_empty() && rest.strip_suffix(':').is_some_and(is_title) {
        return shown(rest, BOLD).into();
    }
    cells_of(line)
}

/// A line of a table; unchanged if no cell has a word for a state.
fn cells_of(line: &str) -> Cow<'_, str> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < line.len() {
        let rest = &line[at..];
        let length = rest.find("  ").unwrap_or(rest.len());
        let cell = rest[..length].trim_start();
        let from = at + length - cell.len();
        let style = CELLS.iter().find(|(word, _)| *word == cell.trim_end()).map(|(_, style)| *style);
        found.extend(style.map(|style| (from, from + cell.trim_end().len(), style)));
        // To the end of the gap.
        at += length + rest[length..].len() - rest[length..].trim_start_matches(' ').len();
    }
    if found.is_empty() {
        return line.into();
    }
    let (mut painted, mut done) = (String::new(), 0);
    for (from, to, style) in found {
        painted.push_str(&line[done..from]);
        painted.push_str(&shown(&line[from..to], style));
        done = to;
    }
    painted.push_str(&line[done..]);
    painted.into()
}

fn shown(word: &str, style: Style) -> String {
    let trimmed = word.trim_end();
    format!("\x1b[{style}m{trimmed}\x1b[0m{}", &word[trimmed.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_for_a_state_has_its_colour() {
        assert_eq!(painted("  NO: x: 5\n"), "  \x1b[31mNO:\x1b[0m x: 5\n");
        assert_eq!(painted("verdict:\n"), "\x1b[1mverdict:\x1b[0m\n");
        assert_eq!(painted("v1  10GiB  healthy  2 of 2\n"), "v1  10GiB  \x1b[32mhealthy\x1b[0m  2 of 2\n");
        assert_eq!(painted("b  does not report   1"), "b  \x1b[31mdoes not report\x1b[0m   1");
        assert_eq!(painted("   x  1.0     slower\n"), "   x  1.0     \x1b[31mslower\x1b[0m\n");
        assert_eq!(painted("ok    clock: fine"), "\x1b[32mok\x1b[0m    clock: fine");
    }

    #[test]
    fn a_sentence_with_such_a_word_has_none() {
        for text in ["the volume is healthy again\n", "x: y\n", "", "\n\n", "  ", "results: runs/slower"] {
            assert_eq!(painted(text), text);
        }
    }

    proptest::proptest! {
        #[test]
        fn the_text_itself_is_never_changed(text in "( |  |note|note: |slow|ok|verdict:|é|≥|\n|x){0,20}") {
            let mut plain = painted(&text);
            for style in [RED, AMBER, GREEN, DIM, BOLD, "0"] {
                plain = plain.replace(&format!("\x1b[{style}m"), "");
            }
            assert_eq!(plain, text);
        }
    }
}
