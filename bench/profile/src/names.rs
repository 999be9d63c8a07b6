//! Names: `B4-T2-O32-W0-PR`, and `b4t2o32w0pr` as VMFleet 1 writes it.
//!
//! | letter | what | unit |
//! | --- | --- | --- |
//! | B | block size | KiB; half a KiB (one sector of 512 bytes) is `B0.5` |
//! | T | threads on each disk | |
//! | O | outstanding I/Os of each thread | |
//! | W | share of writes | percent |
//! | P | pattern: R random, S sequential, SI sequential interleaved | |
//!
//! A name says these five and nothing else; all the rest is as in [`Profile::default`].

use std::str::FromStr;

use loadline_base::units::ByteSize;

use crate::grammar::GRAMMAR;
use crate::known;
use crate::{Arrival, Data, Extent, HotSpot, Pattern, Profile, ProfileError};

/// Longer than any name can be.
const LONGEST_NAME: usize = 64;

impl FromStr for Profile {
    type Err = ProfileError;

    /// Reads a name that people know ([`crate::known`]), or one of either form with letters. The letters may come in any
    /// order and in either case, each exactly once.
    fn from_str(text: &str) -> Result<Self, ProfileError> {
        let text = text.trim();
        match known::profile(text) {
            Some(known) => known,
            // Similar names are looked for only here, where a person reads the message.
            None if text.len() <= LONGEST_NAME && !text.is_empty() && !has_letters_with_values(text) => {
                Err(known::unknown(text))
            }
            None => Profile::of_letters(text),
        }
    }
}

impl Profile {
    /// Reads a name of either form with letters, and no other: a result of another program may be called as one of
    /// [`crate::known`], and be something else.
    pub fn of_letters(text: &str) -> Result<Profile, ProfileError> {
        let text = text.trim();
        if text.is_empty() || text.len() > LONGEST_NAME || !has_letters_with_values(text) {
            let shown: String = text.chars().take(20).collect();
            let problem = format!("\"{}\" ({} bytes) is not a name", shown.escape_debug(), text.len());
            return Err(ProfileError::syntax("profile name", problem, GRAMMAR));
        }
        let chars: Vec<char> = text.chars().collect();
        let fault = |at: usize, problem: String| {
            let place = format!("profile name \"{}\", character {}", text.escape_debug(), at + 1);
            ProfileError::syntax(place, problem, GRAMMAR)
        };
        let mut profile = Profile::default();
        let mut seen = Vec::new();
        let mut at = 0;
        while at < chars.len() {
            // A hyphen stands between two parts, never doubled, first or last.
            if chars[at] == '-' && at > 0 && chars.get(at + 1).is_some_and(|next| *next != '-') {
                at += 1;
            }
            let letter = chars[at].to_ascii_uppercase();
            let start = at + 1;
            let part_of = |wanted: fn(char) -> bool| -> String {
                chars[start..].iter().take_while(|c| wanted(**c)).collect()
            };
            let value = match letter {
                'P' => part_of(|c| c.is_ascii_alphabetic()).to_ascii_uppercase(),
                'B' | 'T' | 'O' | 'W' => part_of(|c| c.is_ascii_digit() || c == '.'),
                other => {
                    let problem =
                        format!("unknown letter '{}': there are B, T, O, W and P", other.escape_debug());
                    return Err(fault(at, problem));
                }
            };
            if seen.contains(&letter) {
                return Err(fault(at, format!("'{letter}' is there twice")));
            }
            seen.push(letter);
            let bad = |what: &str| fault(start, format!("after '{letter}', \"{value}\" is not {what}"));
            let count = || value.parse::<u32>().map_err(|_| bad("a whole number"));
            match letter {
                'B' => {
                    profile.block_size =
                        kib(&value).ok_or_else(|| bad("a number of KiB, such as 4 or 0.5"))?
                }
                'T' => profile.threads = count()?,
                'O' => profile.outstanding = count()?,
                'W' => {
                    let percent = value.parse::<u8>().ok().filter(|percent| *percent <= 100);
                    profile.write_percent = percent.ok_or_else(|| bad("a percentage, 0 to 100"))?;
                }
                _ => {
                    profile.pattern = match value.as_str() {
                        "R" => Pattern::Random,
                        "S" => Pattern::Sequential,
                        "SI" => Pattern::SequentialInterleaved,
                        _ => return Err(bad("a pattern: R random, S sequential, SI sequential interleaved")),
                    }
                }
            }
            at = start + value.len();
        }
        if let Some(missing) = ['B', 'T', 'O', 'W', 'P'].iter().find(|letter| !seen.contains(letter)) {
            let place = format!("profile name \"{}\"", text.escape_debug());
            return Err(ProfileError::syntax(place, format!("'{missing}' is missing"), GRAMMAR));
        }
        profile.validate()?;
        Ok(profile)
    }
}

/// Whether a text begins as a name of letters does: with one of them and a value, such as `B4` or `PR`.
fn has_letters_with_values(text: &str) -> bool {
    let mut chars = text.chars();
    match (chars.next().map(|c| c.to_ascii_uppercase()), chars.next()) {
        (Some('P'), next) => {
            next.is_none_or(|c| c.eq_ignore_ascii_case(&'r') || c.eq_ignore_ascii_case(&'s'))
        }
        (Some('B' | 'T' | 'O' | 'W'), next) => next.is_none_or(|c| c.is_ascii_digit() || "-.".contains(c)),
        _ => false,
    }
}

/// `"4"` → 4096, `"0.5"` → 512. `None` unless it is a whole number of bytes.
fn kib(text: &str) -> Option<ByteSize> {
    let bytes = text.parse::<f64>().ok()? * 1024.0;
    (bytes.fract() == 0.0 && (0.0..9e15).contains(&bytes)).then_some(ByteSize(bytes as u64))
}

impl Profile {
    /// The name, such as `B4-T2-O32-W0-PR`, if a name says all there is to say about this profile.
    pub fn name(&self) -> Option<String> {
        let named = Profile {
            block_size: self.block_size,
            threads: self.threads,
            outstanding: self.outstanding,
            write_percent: self.write_percent,
            pattern: self.pattern,
            ..Profile::default()
        };
        let says_all = named == *self && !matches!(self.pattern, Pattern::Mixed { .. });
        (says_all && self.validate().is_ok()).then(|| self.core())
    }

    /// Always something to head a table's row with or to call a file: the name, or its five parts followed by
    /// what differs from [`Profile::default`] beyond them. Letters, digits, dots and hyphens only. Not read back.
    pub fn label(&self) -> String {
        let mut parts = vec![self.core()];
        let mut add = |part: String| parts.push(part);
        if let Some(alignment) = self.alignment {
            add(format!("A{}", in_kib(alignment)));
        }
        if let Some(extent) = self.working_set {
            add(format!("WS{}", extent_label(extent)));
        }
        if self.base_offset.bytes() > 0 {
            add(format!("AT{}", self.base_offset));
        }
        for HotSpot { io_percent, extent } in &self.hot_spots {
            add(format!("HS{io_percent}to{}", extent_label(*extent)));
        }
        if let Some(offered) = self.rate {
            let arrival = if offered.arrival == Arrival::Poisson { "-poisson" } else { "" };
            add(format!("{}{arrival}", offered.rate.to_string().replace('/', "p")));
        }
        match self.data {
            Data::Random => {}
            Data::Compressible { ratio } => add(format!("compressible{ratio}")),
            Data::Zeros => add("zeros".into()),
            Data::CountingBytes => add("counting".into()),
        }
        if !self.direct {
            add("buffered".into());
        }
        if self.write_through {
            add("writethrough".into());
        }
        if let Some(writes) = self.flush_every {
            add(format!("flush{writes}"));
        }
        parts.join("-")
    }

    /// What the loads of one sweep have in common: the label without threads, outstanding I/Os and rate.
    pub fn family(&self) -> String {
        let label = Profile { rate: None, ..self.clone() }.label();
        let beyond = label.strip_prefix(&self.core()).unwrap_or_default();
        let core = self.core();
        let kept: Vec<&str> = core.split('-').filter(|part| !part.starts_with(['T', 'O'])).collect();
        format!("{}{beyond}", kept.join("-"))
    }

    fn core(&self) -> String {
        let pattern = match self.pattern {
            Pattern::Random => "R".to_string(),
            Pattern::Sequential => "S".to_string(),
            Pattern::SequentialInterleaved => "SI".to_string(),
            Pattern::Mixed { random_percent } => format!("M{random_percent}"),
        };
        format!(
            "B{}-T{}-O{}-W{}-P{pattern}",
            in_kib(self.block_size),
            self.threads,
            self.outstanding,
            self.write_percent
        )
    }
}

fn in_kib(size: ByteSize) -> f64 {
    size.bytes() as f64 / 1024.0
}

fn extent_label(extent: Extent) -> String {
    match extent {
        Extent::Percent(percent) => format!("{percent}pct"),
        Extent::Bytes(size) => size.to_string(),
    }
}
