//! The shape of a job file and of a command line: sections of options, each with its place.

use super::words::{Takes, takes};
use crate::ProfileError;

/// Far more than any job file; it bounds what a reader holds in memory.
const LARGEST_FILE: usize = 1 << 20;
const MOST_SECTIONS: usize = 1024;
/// Options of `[global]` are copied into each section, so their product is bounded too.
const MOST_ENTRIES: usize = 1024;

/// An option as written.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value: Option<String>,
    pub(super) place: String,
}

/// A job, with the options of the global sections before its own.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) place: String,
    pub(super) entries: Vec<Entry>,
    /// What is to be said about options that have no effect.
    pub(super) notes: Vec<String>,
}

/// Collects sections while options come in.
#[derive(Default)]
struct Collector {
    global: Vec<Entry>,
    jobs: Vec<Section>,
    in_job: bool,
    notes: Vec<String>,
}

impl Collector {
    fn job(&mut self, name: &str, place: String) -> Result<(), ProfileError> {
        if self.jobs.len() == MOST_SECTIONS {
            return Err(ProfileError::syntax(
                place,
                "too many jobs",
                format!("give at most {MOST_SECTIONS}"),
            ));
        }
        let (entries, notes) = (self.global.clone(), self.notes.clone());
        self.jobs.push(Section { name: name.to_string(), place, entries, notes });
        self.in_job = true;
        Ok(())
    }

    fn entry(&mut self, entry: Entry) -> Result<(), ProfileError> {
        let entries = match self.jobs.last_mut() {
            Some(job) if self.in_job => &mut job.entries,
            _ => &mut self.global,
        };
        if entries.len() == MOST_ENTRIES {
            return Err(ProfileError::syntax(
                entry.place,
                "too many options",
                format!("give at most {MOST_ENTRIES}"),
            ));
        }
        entries.push(entry);
        Ok(())
    }

    fn finish(self, what: &str) -> Result<Vec<Section>, ProfileError> {
        if self.jobs.is_empty() {
            let advice = "begin a job with a section such as [job1], or on a command line with --name=job1";
            return Err(ProfileError::syntax(what, "there is no job", advice));
        }
        Ok(self.jobs)
    }
}

pub(super) fn job_file(text: &str) -> Result<Vec<Section>, ProfileError> {
    bounded(text, "fio job file")?;
    let mut collector = Collector::default();
    let mut section: Option<String> = None;
    for (at, line) in text.lines().enumerate() {
        // Comments begin anywhere in a line, as in fio, whose option values cannot hold these characters either.
        let line = line.split(['#', ';']).next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let number = at + 1;
        if let Some(rest) = line.strip_prefix('[') {
            let place = format!("fio job file, line {number}");
            let name = rest.strip_suffix(']').filter(|name| !name.trim().is_empty()).ok_or_else(|| {
                ProfileError::syntax(
                    place.clone(),
                    "a section without an end or a name",
                    "write it as [job1]",
                )
            })?;
            section = Some(shortened(name));
            if name == "global" {
                collector.in_job = false;
            } else {
                collector.job(name, format!("fio job file, [{}], line {number}", shortened(name)))?;
            }
            continue;
        }
        let Some(section) = &section else {
            return Err(ProfileError::syntax(
                format!("fio job file, line {number}"),
                format!("\"{}\" stands before any section", shortened(line)),
                "write [global] or a job's name in brackets above it",
            ));
        };
        let place = format!("fio job file, [{section}], line {number}");
        if line == "include" || line.starts_with("include ") {
            return Err(ProfileError::unsupported(
                place,
                "include",
                "put the other file's text in its place",
            ));
        }
        let entry = entry(line, place)?;
        if entry.key.eq_ignore_ascii_case("name") && !collector.in_job {
            let note =
                format!("{} in [global] has no effect: fio calls each job after its section", entry.shown());
            collector.notes.push(note);
            continue;
        }
        collector.entry(entry)?;
    }
    collector.finish("fio job file")
}

pub(super) fn command_line(line: &str) -> Result<Vec<Section>, ProfileError> {
    bounded(line, "fio command line")?;
    let words = shell_words(line)?;
    let named = words.first().is_some_and(|word| word == "fio" || word.ends_with("/fio"));
    let mut collector = Collector::default();
    let mut words = words.into_iter().enumerate().skip(usize::from(named)).peekable();
    while let Some((at, word)) = words.next() {
        let place = format!("fio command line, word {}", at + 1);
        let Some(option) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
            return Err(ProfileError::syntax(
                place,
                format!("\"{}\" is not an option", shortened(&word)),
                "write options as --bs=4k; a job file is read by giving it alone",
            ));
        };
        let mut option = entry(option, place.clone())?;
        // fio also takes the value as the next word, unless the option may stand without one.
        if option.value.is_none()
            && takes(&option.key) != Some(Takes::ValueOrNothing)
            && let Some((_, value)) = words.next_if(|(_, next)| !next.starts_with('-'))
        {
            option.value = Some(value);
        }
        match (option.key.as_str(), &option.value) {
            // fio's own way to give options to all jobs that follow.
            ("name", Some(name)) if name == "global" => collector.in_job = false,
            ("name", Some(name)) => collector.job(name, format!("{place}, job \"{}\"", shortened(name)))?,
            _ => collector.entry(option)?,
        }
    }
    collector.finish("fio command line")
}

/// Options without a job, after those that are so without them.
pub(super) fn without_a_job(defaults: &[&str], options: &[String]) -> Result<Section, ProfileError> {
    let words = defaults.iter().copied().chain(options.iter().map(String::as_str));
    let entries = words.map(|word| {
        let place = format!("fio option {}", shortened(word));
        entry(word.trim_start_matches('-'), place)
    });
    Ok(Section {
        name: "load".into(),
        place: "fio options".into(),
        entries: entries.collect::<Result<_, _>>()?,
        notes: Vec::new(),
    })
}

fn entry(text: &str, place: String) -> Result<Entry, ProfileError> {
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key.trim(), Some(value.trim().to_string())),
        None => (text.trim(), None),
    };
    if key.is_empty() || key.contains(char::is_whitespace) {
        let problem = format!("\"{}\" is not an option", shortened(text));
        return Err(ProfileError::syntax(place, problem, "write option=value"));
    }
    if value.as_ref().is_some_and(|value| value.contains("${")) {
        let problem = format!("{key} takes its value from the environment");
        return Err(ProfileError::unsupported(place, problem, "write the value itself"));
    }
    Ok(Entry { key: key.to_string(), value, place })
}

fn bounded(text: &str, what: &str) -> Result<(), ProfileError> {
    if text.len() > LARGEST_FILE {
        let problem = format!("{} bytes are too many", text.len());
        return Err(ProfileError::syntax(what, problem, "give at most 1 MiB"));
    }
    Ok(())
}

/// What was written, short enough to quote.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(40).collect::<String>().escape_debug().to_string()
}

/// Splits as a POSIX shell does, without expansions: blanks, quotes of both kinds, and the backslash.
fn shell_words(line: &str) -> Result<Vec<String>, ProfileError> {
    let mut words: Vec<String> = Vec::new();
    let mut inside = false;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if quote.is_none() && c.is_whitespace() {
            inside = false;
            continue;
        }
        if !inside {
            words.push(String::new());
            inside = true;
        }
        let Some(word) = words.last_mut() else { continue };
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            ('\'' | '"', None) => quote = Some(c),
            ('\\', None) => word.extend(chars.next().filter(|next| *next != '\n')),
            // Inside double quotes a backslash stands for itself unless it protects one of these.
            ('\\', Some('"')) => match chars.clone().next() {
                Some(next @ ('"' | '\\' | '$' | '`')) => {
                    chars.next();
                    word.push(next);
                }
                _ => word.push(c),
            },
            (c, _) => word.push(c),
        }
    }
    match quote {
        Some(quote) => Err(ProfileError::syntax(
            "fio command line",
            format!("a quote ({quote}) is not closed"),
            "close it with another",
        )),
        None => Ok(words),
    }
}
