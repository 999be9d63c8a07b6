//! Writes TOML with comments.

use std::fmt::Write;

/// The longest line of a comment, characters.
const WIDTH: usize = 110;

/// The text of a study that grows line by line.
#[derive(Debug, Default)]
pub(crate) struct Sheet {
    text: String,
}

/// A text as TOML writes it, with quotes.
pub(crate) fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

/// Texts as an array of TOML.
pub(crate) fn list<T: AsRef<str>>(texts: &[T]) -> String {
    let all: Vec<String> = texts.iter().map(|text| quoted(text.as_ref())).collect();
    format!("[{}]", all.join(", "))
}

impl Sheet {
    /// Adds a comment, in lines of a readable width.
    pub(crate) fn comment(&mut self, text: &str) {
        let mut line = String::from("#");
        // What separates lines elsewhere separates words here: a comment cannot end before its end.
        for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty())
        {
            if line.chars().count() + 1 + word.chars().count() > WIDTH {
                self.line(&line);
                line = String::from("#");
            }
            line.push(' ');
            line.push_str(word);
        }
        self.line(&line);
    }

    /// Adds an empty line.
    pub(crate) fn gap(&mut self) {
        self.text.push('\n');
    }

    /// Begins a table: its header, such as `[fleet]`, after an empty line.
    pub(crate) fn table(&mut self, header: &str) {
        self.gap();
        self.line(header);
    }

    /// Begins a table whose comment is above its header.
    pub(crate) fn table_here(&mut self, header: &str) {
        self.line(header);
    }

    /// Adds a key; the value is TOML.
    pub(crate) fn key(&mut self, key: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.text, "{key} = {value}");
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// The text.
    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_text_leaves_its_quotes_or_its_comment(text in "[ -~\n\r\t\u{0}\u{85}\u{2028}\u{e4}]{0,80}") {
            let mut sheet = Sheet::default();
            sheet.comment(&text);
            sheet.key("x", quoted(&text));
            sheet.key("y", list(&[&text]));
            let read: toml::Table = toml::from_str(&sheet.into_text()).unwrap();
            prop_assert_eq!(read.len(), 2);
            prop_assert_eq!(read["x"].as_str(), Some(text.as_str()));
            prop_assert_eq!(read["y"][0].as_str(), Some(text.as_str()));
        }
    }
}
