//! The load as people of fio and DISKSPD type it: `loadline bench F --bs 4k --iodepth 32`, or `-b4K -o32`.
//!
//! These words are taken out of the command line before clap reads it. An option of `loadline bench` goes before one of
//! fio or DISKSPD that has the same name.

use std::ffi::OsString;

use clap::Command;
use loadline_profile::{Invocation, Profile, ProfileError, diskspd, fio};

/// The flags of DISKSPD that are understood; `-h` is help, and `-p` the profile.
const FLAGS: &str = "bBcCdDeFfgIlLnoPrRsStvwWxzZ";
/// Those whose number may be the next word.
const WITH_NUMBER: &str = "bBcCdFfgotwW";

/// What is typed of a load, in the words of one other tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Typed {
    tool: Tool,
    words: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    Fio,
    DiskSpd,
}

impl Typed {
    /// What the words say; what they do not say is as in the default load of `loadline bench`.
    pub(crate) fn read(&self) -> Result<Invocation, ProfileError> {
        match self.tool {
            Tool::Fio => fio::parse_options(&self.words),
            Tool::DiskSpd => diskspd::parse_over(&self.words.join(" "), &Profile::default()),
        }
    }

    /// The tool whose words these are.
    pub(crate) fn tool(&self) -> &'static str {
        match self.tool {
            Tool::Fio => "fio",
            Tool::DiskSpd => "DISKSPD",
        }
    }

    /// The words as the whole line of that tool.
    pub(crate) fn line(&self) -> String {
        match self.tool {
            Tool::Fio => format!("fio --name=load {}", self.words.join(" ")),
            Tool::DiskSpd => self.words.join(" "),
        }
    }
}

/// Splits a command line: what clap is to read, and what is typed of a load in the words of another tool. `command` is
/// `loadline bench` as clap knows it. Words of other commands, and words after `--`, stay as they are.
pub(crate) fn take(
    words: Vec<OsString>,
    command: &Command,
) -> Result<(Vec<OsString>, Option<Typed>), String> {
    if words.get(1).is_none_or(|word| word != "bench") {
        return Ok((words, None));
    }
    let (mut own, mut of_fio, mut of_diskspd) = (Vec::new(), Vec::<String>::new(), Vec::<String>::new());
    let mut profile = None;
    let mut words = words.into_iter().peekable();
    own.extend(words.by_ref().take(2));
    while let Some(word) = words.next() {
        let Some(text) = word.to_str().map(str::to_string) else {
            own.push(word);
            continue;
        };
        if text == "--" {
            own.push(word);
            own.extend(words.by_ref());
        } else if let Some(takes_next) = own_option(command, &text) {
            if text.starts_with("-p") || text.starts_with("--profile") {
                profile.get_or_insert(text);
            }
            own.push(word);
            own.extend(takes_next.then(|| words.next()).flatten());
        } else if fio::is_option(&text) {
            let mut option = format!("--{}", text.trim_start_matches('-'));
            if fio::takes_next_word(&text)
                && let Some(value) = next_if(&mut words, |next| !next.starts_with('-'))
            {
                option = format!("{option}={value}");
            }
            match option.split_once('=') {
                // The load has no name, and the files are the command's targets.
                Some(("--name", _)) => {}
                Some(("--filename", files)) => own.extend(files.split(':').map(OsString::from)),
                _ => of_fio.push(option),
            }
        } else if let Some(letter) = flag(&text) {
            let mut flag = text.clone();
            if text.len() == 2
                && WITH_NUMBER.contains(letter)
                && let Some(value) =
                    next_if(&mut words, |next| next.starts_with(|c: char| c.is_ascii_digit()))
            {
                flag.push_str(&value);
            }
            of_diskspd.push(flag);
        } else {
            own.push(word);
        }
    }
    let typed = match (of_fio.is_empty(), of_diskspd.is_empty()) {
        (true, true) => return Ok((own, None)),
        (false, false) => {
            return Err(format!(
                "the load is given in options of fio ({}) and of DISKSPD ({}): give all of it in the options of one of them",
                of_fio.join(" "),
                of_diskspd.join(" ")
            ));
        }
        (false, true) => Typed { tool: Tool::Fio, words: of_fio },
        (true, false) => Typed { tool: Tool::DiskSpd, words: of_diskspd },
    };
    match profile {
        None => Ok((own, Some(typed))),
        Some(profile) => Err(format!(
            "the load is given by {profile} and by options of {} ({}): leave one of them out, or give the whole line as the \
             profile, in quotes: --profile '{}'",
            typed.tool(),
            typed.words.join(" "),
            typed.line()
        )),
    }
}

/// The next word, if there is one of which this is true.
fn next_if(
    words: &mut std::iter::Peekable<std::vec::IntoIter<OsString>>,
    is: impl Fn(&str) -> bool,
) -> Option<String> {
    words.next_if(|next| next.to_str().is_some_and(&is)).and_then(|next| next.into_string().ok())
}

/// Whether a word is an option of the command itself, and then whether its value is the next word.
fn own_option(command: &Command, word: &str) -> Option<bool> {
    if let Some(option) = word.strip_prefix("--") {
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        if matches!(name, "help" | "version") {
            return Some(false);
        }
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(name))?;
        return Some(value.is_none() && argument.get_action().takes_values());
    }
    let mut letters = word.strip_prefix('-')?.chars();
    let letter = letters.next()?;
    if letter == 'h' {
        return Some(false);
    }
    let argument = command.get_arguments().find(|argument| argument.get_short() == Some(letter))?;
    Some(letters.as_str().is_empty() && argument.get_action().takes_values())
}

/// The letter of a flag of DISKSPD, such as `-b4K`.
fn flag(word: &str) -> Option<char> {
    let letter = word.strip_prefix('-')?.chars().next()?;
    FLAGS.contains(letter).then_some(letter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args;

    fn split(line: &str) -> Result<(Vec<String>, Option<Typed>), String> {
        let words = line.split(' ').map(OsString::from).collect();
        let command = super::super::Args::augment_args(Command::new("bench"));
        let (own, typed) = take(words, &command)?;
        Ok((own.iter().map(|word: &OsString| word.to_string_lossy().into_owned()).collect(), typed))
    }

    fn load(line: &str) -> (String, Invocation) {
        let (own, typed) = split(line).expect(line);
        (own.join(" "), typed.expect(line).read().expect(line))
    }

    #[test]
    fn fios_options_are_the_load_and_the_rest_is_the_commands_own() {
        let (own, load) = load(
            "loadline bench F --bs 4k --iodepth 32 --json r.json --rw randrw --rwmixwrite 30 -numjobs 2 --runtime 60 --poll \
             --group_reporting G",
        );
        assert_eq!(own, "loadline bench F --json r.json --poll G");
        assert_eq!(load.profile.label(), "B4-T2-O32-W30-PR");
        assert_eq!(load.measure, Some("60s".parse().unwrap()));
    }

    #[test]
    fn diskspds_letters_are_the_load_with_their_numbers_beside_or_after() {
        let (own, load) = load("loadline bench -b 4k -o32 -w 30 -t 4 -d 60 -W 5 -Sh -L F --seed 7");
        assert_eq!(own, "loadline bench F --seed 7");
        assert_eq!(load.profile.label(), "B4-T4-O32-W30-PR-writethrough");
        assert_eq!((load.measure, load.warm_up), ("60s".parse().ok(), "5s".parse().ok()));
    }

    #[test]
    fn a_file_named_as_fio_does_is_a_target() {
        let (own, _) = load("loadline bench --filename=/dev/sdb:/dev/sdc --name=x --bs=8k");
        assert_eq!(own, "loadline bench /dev/sdb /dev/sdc");
    }

    #[test]
    fn a_load_that_is_given_twice_is_refused() {
        let mixed = split("loadline bench F --bs 4k -o 32").unwrap_err();
        assert!(mixed.contains("of fio (--bs=4k) and of DISKSPD (-o32)"), "{mixed}");
        let both = split("loadline bench F -p oltp -o 32 -w 0").unwrap_err();
        assert!(both.ends_with("in quotes: --profile '-o32 -w0'"), "{both}");
    }

    #[test]
    fn other_words_stay_as_they_are() {
        for line in [
            "loadline bench F -p -b4K",
            "loadline bench F --profile=x --rate 2000iops",
            "loadline bench F --fro 3s -- --bs",
            "loadline run study.toml --bs 4k",
            "loadline",
        ] {
            assert_eq!(split(line), Ok((line.split(' ').map(String::from).collect(), None)), "{line}");
        }
    }
}
