//! Asks on a terminal what options do not answer.

use std::io::{self, BufRead, Read, Write};

use loadline_question::form::{FormField, Input};
use loadline_question::{Answers, Field, faults, questions};

use crate::output::plain;

/// The longest answer, bytes.
const LONGEST: u64 = 4096;

/// Asks for each answer that is needed and not given, and again for each that has a fault. `refuse` says what is wrong with the name.
/// Returns false if the input ended before the last answer.
pub(super) fn complete(
    answers: &mut Answers,
    input: &mut impl BufRead,
    out: &mut impl Write,
    refuse: &dyn Fn(&Answers) -> Option<String>,
) -> io::Result<bool> {
    let mut dialogue = Dialogue { input, out, refuse };
    let form = questions().fields;
    for asked in &form {
        let field = asked.field;
        if !answers.needs(field) {
            continue;
        }
        let fault = dialogue.fault(answers, field).filter(|_| answers.given(field).is_some());
        if let Some(fault) = &fault {
            dialogue.say(&format!("{}: {fault}\n", asked.label))?;
        }
        let is_open = answers.given(field).is_none() && !asked.advanced;
        if (fault.is_some() || is_open) && !dialogue.ask(answers, asked)? {
            return Ok(false);
        }
    }
    // Answers that do not go together are known when all are there.
    while let Some(fault) = faults(answers).into_iter().next() {
        let Some(asked) = form.iter().find(|asked| asked.field == fault.field) else { break };
        dialogue.say(&format!("{}: {}\n", asked.label, fault.message))?;
        if !answers.needs(fault.field) {
            if answers.given(fault.field).is_none() {
                break;
            }
            answers.set(fault.field, None);
        } else if !dialogue.ask(answers, asked)? {
            return Ok(false);
        }
    }
    Ok(true)
}

struct Dialogue<'a, R, W> {
    input: &'a mut R,
    out: &'a mut W,
    refuse: &'a dyn Fn(&Answers) -> Option<String>,
}

impl<R: BufRead, W: Write> Dialogue<'_, R, W> {
    /// Asks until there is an answer that can be used; false if the input ends.
    fn ask(&mut self, answers: &mut Answers, asked: &FormField) -> io::Result<bool> {
        answers.set(asked.field, None);
        let default = answers.value(asked.field);
        self.say(&format!("\n{}{}", asked.label, choices(asked, false)))?;
        loop {
            let shown = match (&default, asked.optional) {
                (Some(default), _) => format!(" [{default}]"),
                (None, true) => " [none]".into(),
                (None, false) => String::new(),
            };
            self.say(&format!("{shown}: "))?;
            let Some(text) = self.line()? else {
                self.say("\n")?;
                return Ok(false);
            };
            let wrong = match text.as_str() {
                "?" => format!("{}{}", asked.help, choices(asked, true)),
                "" if default.is_none() && !asked.optional => "This needs an answer; ? explains.".into(),
                _ => {
                    answers.set(asked.field, Some(chosen(asked, text)));
                    match self.fault(answers, asked.field) {
                        None => return Ok(true),
                        Some(why) => {
                            answers.set(asked.field, None);
                            why
                        }
                    }
                }
            };
            self.say(&format!("{}\n{}", wrong.trim_end(), asked.label))?;
        }
    }

    /// What is wrong with this answer, as far as the answers so far say.
    fn fault(&self, answers: &Answers, field: Field) -> Option<String> {
        let fault = faults(answers).into_iter().find(|fault| fault.field == field).map(|fault| fault.message);
        fault.or_else(|| (field == Field::Name).then(|| (self.refuse)(answers)).flatten())
    }

    /// A line without its end; `None` at the end of the input.
    fn line(&mut self) -> io::Result<Option<String>> {
        let mut bytes = Vec::new();
        let read = self.input.by_ref().take(LONGEST).read_until(b'\n', &mut bytes)?;
        Ok((read > 0).then(|| String::from_utf8_lossy(&bytes).trim().to_string()))
    }

    fn say(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(plain(text).as_bytes())?;
        self.out.flush()
    }
}

/// The values of a choice, a line each; with what they mean if `explained`.
fn choices(asked: &FormField, explained: bool) -> String {
    let Input::Choice { choices, other } = &asked.input else { return String::new() };
    let width = choices.iter().map(|choice| choice.value.len()).max().unwrap_or(0);
    let line = |(at, choice): (usize, &loadline_question::form::Choice)| {
        let means = if explained { choice.help } else { choice.label };
        format!("\n  {}  {:<width$}  {means}", at + 1, choice.value)
    };
    let all: String = choices.iter().enumerate().map(line).collect();
    let other = other.map_or(String::new(), |other| format!("\n     or {other}"));
    let end = if explained { "" } else { "\nNumber or word" };
    format!("{all}{other}{end}")
}

/// The value that a person means: a number is a place in the list.
fn chosen(asked: &FormField, text: String) -> String {
    let Input::Choice { choices, .. } = &asked.input else { return text };
    let place = text.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    place.and_then(|place| choices.get(place)).map_or(text, |choice| choice.value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers a dialogue; returns whether it came to its end, the answers, and what it showed.
    fn answered(mut answers: Answers, lines: &str) -> (bool, Answers, String) {
        let mut shown = Vec::new();
        let refuse =
            |answers: &Answers| (answers.value(Field::Name)? == "taken").then(|| "taken exists".into());
        let done = complete(&mut answers, &mut lines.as_bytes(), &mut shown, &refuse).unwrap();
        (done, answers, String::from_utf8(shown).unwrap())
    }

    #[test]
    fn empty_lines_take_the_defaults_in_brackets() {
        let (done, answers, shown) = answered(Answers::default(), "1\n\n\n\n\n\n\n\n");
        assert!(done && faults(&answers).is_empty(), "{shown}");
        assert_eq!(answers.question.as_deref(), Some("capacity"));
        assert!(
            shown.contains("Latency limit [10ms]: ") && shown.contains("Name of the study [capacity]: "),
            "{shown}"
        );
        assert!(!shown.contains("API of a node") && !shown.contains("Disk of each machine"), "{shown}");
    }

    #[test]
    fn what_was_given_is_not_asked_and_a_wrong_answer_is_explained_and_asked_again() {
        let given = Answers { nodes: Some("1".into()), effort: Some("quick".into()), ..Answers::default() };
        let lines = "why\nnode-down\ncluster\nmany\n2\n\n\ntaken\nfree\n";
        let (done, answers, shown) = answered(given, lines);
        assert!(done, "{shown}");
        assert!(shown.contains("\"why\" is unknown: give one of capacity"), "{shown}");
        assert!(
            shown.contains("at least 2 nodes, not 1") && shown.contains("\"many\" is not a number"),
            "{shown}"
        );
        assert!(!shown.contains("How long, and how sure?") && shown.contains("taken exists"), "{shown}");
        assert_eq!((answers.nodes.as_deref(), answers.name.as_deref()), (Some("2"), Some("free")));
    }

    #[test]
    fn a_question_mark_explains() {
        let (_, _, shown) = answered(Answers::default(), "?\n");
        assert!(
            shown.contains("Each question has a study of its own.") && shown.contains("Kills a node"),
            "{shown}"
        );
    }

    #[test]
    fn an_end_of_the_input_ends_it_and_no_control_character_comes_back() {
        for lines in ["", "capacity\n", "\u{1b}[2J\u{7}\n\n"] {
            let (done, _, shown) = answered(Answers::default(), lines);
            assert!(!done && !shown.contains(['\u{1b}', '\u{7}']), "{shown}");
        }
    }

    #[test]
    fn answers_that_do_not_go_together_are_asked_again_at_the_end() {
        // The log of a quick study is too small for such blocks.
        let lines = "capacity\n\n\nB8192-T1-O1-W100-PR\n\n\nquick\n\ndatabase\n";
        let (done, answers, shown) = answered(Answers::default(), lines);
        assert!(done && answers.load.as_deref() == Some("database"), "{shown}");
    }
}
