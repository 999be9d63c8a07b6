//! A command line's words, and the sizes and numbers in its flags.

use loadline_base::units::ByteSize;

use crate::ProfileError;

/// Longer than any shell takes.
const LONGEST_LINE: usize = 128 << 10;
pub(super) const MOST_TARGETS: usize = 4096;

/// One word of the line, counted from 1.
#[derive(Debug, Clone)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) number: usize,
}

impl Word {
    pub(super) fn place(&self) -> String {
        let shown: String = self.text.chars().take(40).collect();
        format!("DISKSPD line, word {} \"{}\"", self.number, shown.escape_debug())
    }

    pub(super) fn syntax(&self, problem: impl Into<String>, advice: impl Into<String>) -> ProfileError {
        ProfileError::syntax(self.place(), problem, advice)
    }

    pub(super) fn unsupported(&self, problem: impl Into<String>, advice: impl Into<String>) -> ProfileError {
        ProfileError::unsupported(self.place(), problem, advice)
    }

    /// A whole number; nothing at all is not one.
    pub(super) fn number(&self, text: &str, what: &str) -> Result<u32, ProfileError> {
        let digits = text.bytes().all(|c| c.is_ascii_digit());
        text.parse().ok().filter(|_| digits).ok_or_else(|| {
            self.syntax(
                format!("\"{}\" is not {what}", text.escape_debug()),
                "write a whole number right after the flag",
            )
        })
    }

    /// A size; `block` is what the unit `b` stands for.
    pub(super) fn size(&self, text: &str, block: ByteSize) -> Result<ByteSize, ProfileError> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let scale = match unit.to_ascii_uppercase().as_str() {
            "" => Some(1),
            "K" => Some(1 << 10),
            "M" => Some(1 << 20),
            "G" => Some(1 << 30),
            "T" => Some(1 << 40),
            "B" => Some(block.bytes()),
            _ => None,
        };
        let size =
            number.parse::<u64>().ok().zip(scale).and_then(|(number, scale)| number.checked_mul(scale));
        size.map(ByteSize).ok_or_else(|| {
            self.syntax(
                format!("\"{}\" is not a size", text.escape_debug()),
                "write a whole number and K, M, G, T or b (blocks), such as 64K",
            )
        })
    }
}

/// Splits a line into words. Double quotes keep blanks together; a backslash is a character like any other, as
/// in `X:\file.dat`. A leading `diskspd` is left out.
pub(super) fn words(line: &str) -> Result<Vec<Word>, ProfileError> {
    if line.len() > LONGEST_LINE {
        let problem = format!("{} bytes are too long for a command line", line.len());
        return Err(ProfileError::syntax("DISKSPD line", problem, "give one line of at most 128 KiB"));
    }
    let mut words: Vec<String> = Vec::new();
    let (mut inside, mut quoted) = (false, false);
    for c in line.chars() {
        if c.is_whitespace() && !quoted {
            inside = false;
            continue;
        }
        if !inside {
            words.push(String::new());
            inside = true;
        }
        match (c, words.last_mut()) {
            ('"', _) => quoted = !quoted,
            (c, Some(word)) => word.push(c),
            (_, None) => {}
        }
    }
    if quoted {
        return Err(ProfileError::syntax(
            "DISKSPD line",
            "a double quote is not closed",
            "close it with another",
        ));
    }
    let named = words.first().is_some_and(|word| is_program(word));
    let numbered = words.into_iter().enumerate().map(|(at, text)| Word { text, number: at + 1 });
    Ok(numbered.skip(usize::from(named)).collect())
}

/// Whether a word is DISKSPD itself, with or without a path: `C:\tools\diskspd.exe`.
pub(crate) fn is_program(word: &str) -> bool {
    let name = word.rsplit(['/', '\\']).next().unwrap_or(word).to_ascii_lowercase();
    matches!(name.as_str(), "diskspd" | "diskspd.exe")
}
