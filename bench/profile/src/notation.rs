//! Finding out which notation a text is in, and reading it.

use std::fmt;

use serde::Deserialize;

use crate::plain::{FileWords, explain};
use crate::{Invocation, Profile, ProfileError, diskspd, fio, known};

/// A way to write a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Notation {
    /// `B4-T2-O32-W0-PR`, `b4t2o32w0pr`, or a name that people know, such as `oltp`.
    Name,
    /// A TOML table with a profile's fields, at the top or under `[profile]`.
    Toml,
    /// A DISKSPD command line.
    DiskSpd,
    /// A fio job file.
    FioJob,
    /// A fio command line.
    FioCommand,
}

impl fmt::Display for Notation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Notation::Name => "name",
            Notation::Toml => "TOML profile",
            Notation::DiskSpd => "DISKSPD command line",
            Notation::FioJob => "fio job file",
            Notation::FioCommand => "fio command line",
        })
    }
}

/// What was read, and in which notation.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The notation that the text was in.
    pub notation: Notation,
    /// The load that a text describes: one invocation, or one for each job of a fio file.
    pub invocations: Vec<Invocation>,
}

/// Reads a name, or what a file holds: a TOML profile, a DISKSPD command line, a fio job file or command line.
///
/// Lines that begin with `#` above a command line are comments.
pub fn read(text: &str) -> Result<Reading, ProfileError> {
    let notation = notation_of(text)?;
    let line = || content(text).collect::<Vec<_>>().join(" ");
    let invocations = match notation {
        Notation::Name => match known::invocations(&line()) {
            Some(known) => known?,
            None => vec![Invocation::of(line().parse()?)],
        },
        Notation::Toml => vec![Invocation::of(toml_profile(text)?)],
        Notation::DiskSpd => vec![diskspd::parse(&line())?],
        Notation::FioJob => fio::parse(text)?,
        Notation::FioCommand => fio::parse_command(&line())?,
    };
    Ok(Reading { notation, invocations })
}

/// The lines that say something, without the backslash or caret that continues a command on the next.
fn content(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';']));
    lines.map(|line| line.strip_suffix(" \\").or_else(|| line.strip_suffix(" ^")).unwrap_or(line))
}

fn notation_of(text: &str) -> Result<Notation, ProfileError> {
    let Some(first) = content(text).next() else {
        return Err(ProfileError::syntax("profile", "there is nothing in it", KNOWN));
    };
    // A path in quotes may hold blanks.
    let word = match first.strip_prefix('"') {
        Some(rest) => rest.split('"').next(),
        None => first.split_whitespace().next(),
    }
    .unwrap_or_default();
    if first.starts_with("[[") {
        return Ok(Notation::Toml);
    }
    if first.starts_with('[') {
        return Ok(if first == "[profile]" && is_toml_profile(text) {
            Notation::Toml
        } else {
            Notation::FioJob
        });
    }
    if word == "fio" || word.ends_with("/fio") || word.starts_with("--") || fio::is_option(word) {
        return Ok(Notation::FioCommand);
    }
    // A dash from a web page is let through to the reader, which says what is wrong with it.
    if diskspd::is_program(word) || word.starts_with(['-', '–', '—']) {
        return Ok(Notation::DiskSpd);
    }
    if first.contains('=') {
        return Ok(Notation::Toml);
    }
    if first == word {
        return Ok(Notation::Name);
    }
    let shown: String = first.chars().take(40).collect();
    Err(ProfileError::syntax(
        "profile",
        format!("\"{}\" is in no notation known here", shown.escape_debug()),
        KNOWN,
    ))
}

const KNOWN: &str = "give a name such as B4-T2-O32-W0-PR or oltp, a TOML table, a DISKSPD or fio command line, or a fio job file";

/// A profile under a heading of its own, as in a study.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Headed {
    profile: Profile,
}

/// `[profile]` may also be a fio job of that name; then it holds none of a profile's fields.
fn is_toml_profile(text: &str) -> bool {
    content(text).any(|line| line.split_once('=').is_some_and(|(key, _)| FIELDS.contains(&key.trim())))
}

/// The fields that no fio job has too: `rate` and `direct` are left out.
const FIELDS: [&str; 12] = [
    "block_size",
    "threads",
    "outstanding",
    "write_percent",
    "pattern",
    "alignment",
    "working_set",
    "base_offset",
    "hot_spots",
    "data",
    "write_through",
    "flush_every",
];

fn toml_profile(text: &str) -> Result<Profile, ProfileError> {
    let fault = |error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let place = match before {
            Some(before) => format!("TOML profile, line {}", before.matches('\n').count() + 1),
            None => "TOML profile".to_string(),
        };
        let line = before.map_or("", |before| {
            text[before.rfind('\n').map_or(0, |at| at + 1)..].lines().next().unwrap_or("")
        });
        let words = FileWords {
            keys_of: &|_| Vec::new(),
            lists_tables: &|key| key == "hot_spots",
            section_of: &|_| None,
        };
        let problem = explain(error.message(), line, &words);
        ProfileError::syntax(place, problem, "write keys such as block_size = \"4KiB\"")
    };
    let headed = content(text).any(|line| line == "[profile]");
    let profile = if headed {
        toml::from_str::<Headed>(text).map(|headed| headed.profile)
    } else {
        toml::from_str(text)
    };
    let profile = profile.map_err(fault)?;
    profile.validate().map_err(|error| {
        let place = format!("TOML profile, {}", error.place);
        ProfileError { place, ..error }
    })?;
    Ok(profile)
}
