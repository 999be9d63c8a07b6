//! Reading a DISKSPD command line.

use loadline_base::units::{ByteSize, Rate, TimeSpan};

use super::words::{MOST_TARGETS, Word, words};
use crate::{Arrival, Data, Extent, HotSpot, Invocation, OfferedRate, Pattern, Profile, ProfileError};

/// Reads a command line, with or without `diskspd` in front. What is not said is as DISKSPD has it.
///
/// Flags that change only what DISKSPD prints are accepted and named in the notes; a flag that would change the
/// load in a way that Loadline has no counterpart for is an error.
pub fn parse(args: &str) -> Result<Invocation, ProfileError> {
    let profile = Profile {
        block_size: ByteSize::kib(64),
        outstanding: 2,
        pattern: Pattern::Sequential,
        data: Data::CountingBytes,
        direct: false,
        ..Profile::default()
    };
    let invocation = Invocation {
        warm_up: Some(TimeSpan::seconds(5)),
        measure: Some(TimeSpan::seconds(10)),
        cool_down: Some(TimeSpan::seconds(0)),
        ..Invocation::of(profile)
    };
    read(args, invocation)
}

/// Reads flags with or without `diskspd` in front, as [`parse`] does, but what is not said is as in `base`, and no times
/// are assumed.
pub fn parse_over(args: &str, base: &Profile) -> Result<Invocation, ProfileError> {
    read(args, Invocation::of(base.clone()))
}

fn read(args: &str, base: Invocation) -> Result<Invocation, ProfileError> {
    let words = words(args)?;
    let is_flag = |word: &Word| word.text.starts_with('-');
    let first_target = words.iter().position(|word| !is_flag(word)).unwrap_or(words.len());
    let (flags, targets) = words.split_at(first_target);
    if let Some(late) = targets.iter().find(|word| is_flag(word)) {
        return Err(late.syntax("a flag after a target", "write all flags first, then the targets"));
    }
    if targets.len() > MOST_TARGETS {
        return Err(targets[MOST_TARGETS].syntax("too many targets", format!("give at most {MOST_TARGETS}")));
    }
    targets.iter().try_for_each(not_a_disguised_flag)?;

    let mut line = Line::new(base);
    line.profile.block_size = block_size(flags, line.profile.block_size)?;
    for flag in flags {
        line.flag(flag)?;
    }
    line.invocation(targets)
}

/// `/b4K` and an en dash before a flag (from a web page) would pass as targets and take the flag's effect away.
fn not_a_disguised_flag(word: &Word) -> Result<(), ProfileError> {
    let mut chars = word.text.chars();
    let (first, second, third) = (chars.next(), chars.next(), chars.next());
    if matches!(first, Some('–' | '—' | '−')) {
        return Err(
            word.syntax("a dash that is not a hyphen", "write flags with the ASCII hyphen, such as -b4K")
        );
    }
    let like_flag =
        second.is_some_and(|c| "bBcCdDfFgLorRsStwWZ".contains(c)) && third.is_none_or(|c| c.is_ascii_digit());
    if first == Some('/') && like_flag && !word.text[1..].contains('/') {
        return Err(word.syntax(
            "a flag written with a slash, which on Linux is a path",
            "write flags with a hyphen, such as -b4K; for a file in the root directory write //file",
        ));
    }
    Ok(())
}

/// The block size comes first, since other flags may count in blocks.
fn block_size(flags: &[Word], unsaid: ByteSize) -> Result<ByteSize, ProfileError> {
    let is_size = |flag: &&Word| flag.text.starts_with("-b") && !flag.text.starts_with("-bs");
    match flags.iter().find(is_size) {
        None => Ok(unsaid),
        Some(flag) => {
            flag.size(&flag.text[2..], ByteSize(0)).ok().filter(|size| size.bytes() > 0).ok_or_else(|| {
                flag.syntax(
                    "the block size cannot be read",
                    "write a whole number and K, M or G, such as -b4K",
                )
            })
        }
    }
}

/// What the flags have said so far.
struct Line {
    profile: Profile,
    seen: Vec<String>,
    /// The word with `-F`, if it was there.
    fixed_threads: Option<Word>,
    stride: Option<Word>,
    random: bool,
    random_percent: Option<u32>,
    end: Option<(ByteSize, Word)>,
    each: Option<Rate>,
    invocation: Invocation,
}

impl Line {
    fn new(invocation: Invocation) -> Line {
        Line {
            profile: invocation.profile.clone(),
            seen: Vec::new(),
            fixed_threads: None,
            stride: None,
            random: false,
            random_percent: None,
            end: None,
            each: None,
            invocation,
        }
    }

    fn flag(&mut self, word: &Word) -> Result<(), ProfileError> {
        let Some(letter) = word.text[1..].chars().next() else {
            return Err(word.syntax("a hyphen without a flag", "write the flag right after it, such as -b4K"));
        };
        let value = &word.text[1 + letter.len_utf8()..];
        let block = self.profile.block_size;
        self.once(word, letter, value)?;
        match letter {
            'b' if matches!(value, "sn" | "sp") => {
                self.note(word, "is how DISKSPD lays out its buffers; Loadline has its own way");
            }
            'b' => {}
            't' => self.profile.threads = word.number(value, "a number of threads")?,
            'F' => {
                self.profile.threads = word.number(value, "a number of threads")?;
                self.fixed_threads = Some(word.clone());
            }
            'o' if value.starts_with('c') => {
                self.note(
                    word,
                    "is how many completions DISKSPD takes at once; Loadline takes all there are",
                );
            }
            'o' => self.profile.outstanding = word.number(value, "a number of outstanding I/Os")?,
            'w' => self.profile.write_percent = percent(word, value)?,
            'r' => self.random_flag(word, value)?,
            's' => {
                let (pattern, stride) = match value.strip_prefix('i') {
                    Some(stride) => (Pattern::SequentialInterleaved, stride),
                    None => (Pattern::Sequential, value),
                };
                self.profile.pattern = pattern;
                self.stride = Some(word.clone());
                self.align(word, stride)?;
            }
            'B' => {
                let (base, length) = match value.split_once(':') {
                    Some((base, length)) => (base, Some(word.size(length, block)?)),
                    None => (value, None),
                };
                self.profile.base_offset = word.size(base, block)?;
                self.profile.working_set = length.map(Extent::Bytes);
            }
            'f' if value.starts_with(|c: char| c.is_ascii_digit()) => {
                self.end = Some((word.size(value, block)?, word.clone()));
            }
            'f' if !value.is_empty() && value.chars().all(|c| "rst".contains(c)) => {
                self.note(word, "is a hint to the Windows cache; Loadline gives none");
            }
            'c' => self.invocation.create_size = Some(word.size(value, block)?),
            'd' => {
                let seconds = word.number(value, "a number of seconds")?;
                if seconds == 0 {
                    return Err(word.syntax("a measurement of 0 seconds", "give at least -d1"));
                }
                self.invocation.measure = Some(TimeSpan::seconds(seconds.into()));
            }
            'W' => {
                self.invocation.warm_up =
                    Some(TimeSpan::seconds(word.number(value, "a number of seconds")?.into()))
            }
            'C' => {
                self.invocation.cool_down =
                    Some(TimeSpan::seconds(word.number(value, "a number of seconds")?.into()))
            }
            'g' => self.rate(word, value)?,
            'S' | 'h' => self.cache(word, letter, value)?,
            'Z' => self.data(word, value)?,
            'z' if value.is_empty() => self.note(word, "draws the seed from the clock"),
            'z' => self.invocation.seed = Some(word.number(value, "a seed")?.into()),
            'D' if value.is_empty() || word.number(value, "a number of milliseconds").is_ok() => {
                self.note(word, "asks for IOPS over time; Loadline always records them, each second");
            }
            'L' if value.is_empty() => self.note(word, "asks for latencies; Loadline always records them"),
            'R' if matches!(value, "text" | "xml") => {
                self.note(word, "is DISKSPD's output format; it does not change the load");
            }
            'v' | 'P' | 'e' => {
                self.note(word, "changes only what DISKSPD reports; it does not change the load")
            }
            'a' | 'n' | 'l' | 'x' => {
                self.note(
                    word,
                    "is how DISKSPD uses processors, memory or completions; Loadline has its own way",
                );
            }
            'I' if value == "3" => {}
            other => return Err(unknown(word, other)),
        }
        Ok(())
    }

    /// A second `-t4` would win over the first in silence; DISKSPD itself refuses some and takes others.
    fn once(&mut self, word: &Word, letter: char, value: &str) -> Result<(), ProfileError> {
        let kind = match (letter, value.chars().next()) {
            ('r', Some(second @ ('s' | 'd'))) => format!("-r{second}"),
            ('f', Some('r' | 's' | 't')) | ('b', Some('s')) | ('o', Some('c')) | ('e' | 'a', _) => {
                return Ok(());
            }
            // Cache modes build up over several flags and are checked where they are read.
            ('S' | 'h', _) => return Ok(()),
            _ => format!("-{letter}"),
        };
        let threads_twice =
            matches!(letter, 't' | 'F') && self.seen.iter().any(|seen| seen == "-t" || seen == "-F");
        if threads_twice || self.seen.contains(&kind) {
            let what = if threads_twice { "the number of threads" } else { kind.as_str() };
            return Err(word.syntax(
                format!("{what} is given a second time"),
                "give it once; -t and -F exclude each other",
            ));
        }
        self.seen.push(kind);
        Ok(())
    }

    fn note(&mut self, word: &Word, meaning: &str) {
        let shown: String = word.text.chars().take(40).collect();
        self.invocation.notes.push(format!("{shown} {meaning}"));
    }

    fn align(&mut self, word: &Word, value: &str) -> Result<(), ProfileError> {
        if value.is_empty() {
            return Ok(());
        }
        let size = word.size(value, self.profile.block_size)?;
        if size.bytes() == 0 {
            return Err(word.unsupported("a step of 0 would use one block only", "give at least 512"));
        }
        // The same as saying nothing, so that equal loads are equal profiles.
        self.profile.alignment = Some(size).filter(|size| *size != self.profile.block_size);
        Ok(())
    }

    fn random_flag(&mut self, word: &Word, value: &str) -> Result<(), ProfileError> {
        if let Some(share) = value.strip_prefix('s') {
            let share = word.number(share, "a percentage")?;
            if !(1..=100).contains(&share) {
                return Err(
                    word.syntax(format!("{share} % random I/O"), "give -rs1 to -rs100, or -s for sequential")
                );
            }
            self.random_percent = Some(share);
        } else if let Some(distribution) = value.strip_prefix('d') {
            self.profile.hot_spots = distribution_of(word, distribution, self.profile.block_size)?;
        } else {
            self.random = true;
            self.align(word, value)?;
        }
        Ok(())
    }

    fn rate(&mut self, word: &Word, value: &str) -> Result<(), ProfileError> {
        let (digits, in_iops) = match value.strip_suffix('i') {
            Some(digits) => (digits, true),
            None => (value, false),
        };
        let number = f64::from(word.number(digits, "a rate")?);
        if number == 0.0 {
            return Err(word.syntax("a rate of 0", "give one above it, or leave -g out for no limit"));
        }
        self.each = Some(if in_iops { Rate::Iops(number) } else { Rate::BytesPerSecond(number * 1000.0) });
        Ok(())
    }

    fn cache(&mut self, word: &Word, letter: char, value: &str) -> Result<(), ProfileError> {
        let modes = match (letter, value) {
            ('S', "") => "u",
            ('S', modes) => modes,
            (_, "") => "h",
            _ => return Err(unknown(word, letter)),
        };
        for mode in modes.chars() {
            let sets: &[&str] = match mode {
                'b' => &["cache b"],
                'u' => &["cache u"],
                'w' => &["through"],
                'h' => &["cache u", "through"],
                'm' | 'r' | 'y' | 'Y' => {
                    return Err(word.unsupported(
                        format!("-S{mode} is a way of Windows to reach files"),
                        "use -Su to bypass the page cache, or -Sb to use it",
                    ));
                }
                other => {
                    let problem = format!("-S has no mode '{}'", other.escape_debug());
                    return Err(word.syntax(problem, "it takes b, u, w or h"));
                }
            };
            for set in sets {
                let topic = set.split(' ').next().unwrap_or(set);
                if self.seen.iter().any(|seen| seen == topic) {
                    return Err(word.syntax(
                        format!("-S{mode} says something about caching that was said before"),
                        "give each of the page cache (b or u) and write-through (w) once; h is u and w",
                    ));
                }
                self.seen.push(topic.to_string());
                match *set {
                    "cache u" => self.profile.direct = true,
                    "cache b" => self.profile.direct = false,
                    "through" => self.profile.write_through = true,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn data(&mut self, word: &Word, value: &str) -> Result<(), ProfileError> {
        self.profile.data = match value {
            "" => Data::Zeros,
            "r" => Data::Random,
            size if size.contains(',') => {
                return Err(word.unsupported(
                    "write data from a file",
                    "use -Zr (random), -Z (zeros), or a profile with data = { compressible = { ratio = 2.0 } }",
                ));
            }
            size => {
                word.size(size, self.profile.block_size)?;
                self.note(word, "repeats one random buffer; Loadline writes new random data each time");
                Data::Random
            }
        };
        Ok(())
    }

    fn invocation(mut self, targets: &[Word]) -> Result<Invocation, ProfileError> {
        if let Some(stride) = &self.stride
            && (self.random || self.random_percent.is_some())
        {
            return Err(stride.syntax(
                "sequential -s with random -r",
                "give one of them; -r sets the step of both under -rs",
            ));
        }
        match self.random_percent {
            Some(share) if share < 100 => {
                self.profile.pattern = Pattern::Mixed { random_percent: share as u8 }
            }
            Some(_) => self.profile.pattern = Pattern::Random,
            None if self.random => self.profile.pattern = Pattern::Random,
            None => {}
        }
        if let Some((end, word)) = &self.end {
            if self.profile.working_set.is_some() {
                return Err(word.syntax("-f with a length in -B", "give one of them: -B1G -f3G is -B1G:2G"));
            }
            let from = self.profile.base_offset;
            let left = end.bytes().checked_sub(from.bytes()).filter(|left| *left > 0).ok_or_else(|| {
                word.syntax(
                    format!("the used part ends at {end}, before it begins at {from} (-B)"),
                    "make -f larger than -B",
                )
            })?;
            self.profile.working_set = Some(Extent::Bytes(ByteSize(left)));
        }
        self.invocation.targets = targets.iter().map(|word| word.text.clone()).collect();
        if let Some(word) = self.fixed_threads.take()
            && targets.len() > 1
        {
            self.note(
                &word,
                "has each thread serve every target; Loadline gives each target as many threads of its own, \
                              with the same number outstanding on it",
            );
        }
        if matches!(self.profile.pattern, Pattern::Mixed { .. })
            && !matches!(self.profile.write_percent, 0 | 100)
        {
            self.invocation.notes.push(super::RUNS.into());
        }
        self.invocation.profile = self.profile;
        if let Some(each) = self.each {
            let rate = each.times(self.invocation.total_threads());
            self.invocation.profile.rate = Some(OfferedRate { rate, arrival: Arrival::Uniform });
            self.invocation.notes.push(
                "DISKSPD takes the latency of an I/O from when it is issued, after -g held it back; Loadline takes it \
                 from when it was due".into(),
            );
        }
        self.invocation.profile.validate().map_err(|error| {
            let place = format!("DISKSPD line, {}", error.place);
            ProfileError { place, ..error }
        })?;
        Ok(self.invocation)
    }
}

fn percent(word: &Word, value: &str) -> Result<u8, ProfileError> {
    whole_percent(value).ok_or_else(|| {
        word.syntax("the share of writes is not a percentage", "write -w0 to -w100, such as -w30")
    })
}

/// 0 to 100, without a sign.
fn whole_percent(text: &str) -> Option<u8> {
    let digits = text.bytes().all(|c| c.is_ascii_digit());
    text.parse().ok().filter(|percent| digits && *percent <= 100)
}

/// `pct90/10:5/20` or `abs90/10G`.
fn distribution_of(word: &Word, text: &str, block: ByteSize) -> Result<Vec<HotSpot>, ProfileError> {
    let advice = "write -rdpct90/10:5/20 (percent of I/O / percent of the target) or -rdabs90/10G (/ size)";
    let bad = |problem: String| word.syntax(problem, advice);
    let (in_percent, pairs) = match (text.strip_prefix("pct"), text.strip_prefix("abs")) {
        (Some(pairs), _) => (true, pairs),
        (_, Some(pairs)) => (false, pairs),
        _ => return Err(bad("the distribution is neither pct nor abs".into())),
    };
    let mut spots = Vec::new();
    for pair in pairs.split(':') {
        let shown = pair.escape_debug();
        let (io, extent) = pair.split_once('/').ok_or_else(|| bad(format!("\"{shown}\" has no slash")))?;
        let io_percent = whole_percent(io)
            .ok_or_else(|| bad(format!("\"{shown}\" does not begin with 0 to 100 percent")))?;
        let extent = if in_percent {
            let share = whole_percent(extent).filter(|share| *share > 0);
            Extent::Percent(
                share.ok_or_else(|| bad(format!("\"{shown}\" does not end with 1 to 100 percent")))?.into(),
            )
        } else {
            Extent::Bytes(word.size(extent, block)?)
        };
        spots.push(HotSpot { io_percent, extent });
    }
    Ok(spots)
}

fn unknown(word: &Word, letter: char) -> ProfileError {
    let advice = match letter {
        'u' => "leave it out; Loadline always uses io_uring",
        'T' => "threads that start apart have no counterpart; use -si, where they share one offset",
        'O' => "use -t and -o, which count for each target",
        'i' | 'j' => "bursts have no counterpart; use -g for a steady rate",
        'p' => "leave it out; -o keeps several I/Os outstanding",
        'X' => "give the flags of the profile instead of the XML file",
        'N' => "memory-mapped I/O has no counterpart; leave it out",
        'I' => "I/O priorities have no counterpart; leave it out",
        'y' => "Windows events have no counterpart; a study starts all workers at one instant",
        _ => "Loadline reads -b -t -F -o -w -r -rs -rd -s -si -B -f -c -d -W -C -g -S -Z -z -D -L -R",
    };
    word.unsupported(format!("the flag -{} with this value is not supported", letter.escape_debug()), advice)
}
