//! fio job files and command lines.
//!
//! Every option of a section is one of three: it shapes the load, and is read with fio's meaning (its manual,
//! "Job file parameters", checked against fio 3.33); it changes only how fio works or what it reports, and is
//! accepted and named in the notes; or it has no counterpart here, and is an error that names it and its place.
//!
//! Meanings that surprise:
//! - A job's clones (`numjobs`) are our threads, and each has `iodepth` I/Os outstanding *over all* its files.
//!   With an engine that waits for each I/O (`psync`, fio's default) `iodepth` has no effect.
//! - Without `filename` each clone has a file of its own.
//! - `rate` and `rate_iops` count for each clone, and for reads and writes *separately*: one number in a mixed
//!   job makes the mix half and half.
//! - `size` is both the part of the file that is used and, without `time_based`, how much is done. `filesize`
//!   is the part that is used and the size of a file that has to be created.
//! - `4k` and `4kb` are 4096 bytes and `4kib` is 4000, unless `kb_base=1000` turns that around.
//! - Random offsets visit each block once before any comes again, unless `norandommap` is set.
//! - With `buffer_compress_percentage` above 0, `zero_buffers` has no effect, and a `buffer_pattern` fills only the
//!   part that compresses.
//! - Zones of `random_distribution=zoned:` without a size share what the other zones leave, in whole percents.
//! - A job is called after its section, whatever `name` in `[global]` says; its own `name` changes only the report.

mod build;
mod options;
mod others;
mod print;
mod syntax;
mod values;
mod words;

pub use print::{print_command, print_job};

use crate::{Invocation, ProfileError};
use syntax::Section;

/// Reads a job file: one invocation for each job section, with what `[global]` sections before it say.
pub fn parse(text: &str) -> Result<Vec<Invocation>, ProfileError> {
    jobs(syntax::job_file(text)?)
}

/// Reads a command line such as `fio --name=a --rw=randread --bs=4k`, with or without `fio` in front: one
/// invocation for each `--name`. Quotes are read as a shell does. As in fio, options may begin with one hyphen
/// (`-rw=randread`), and a value may be the next word (`--bs 4k`).
pub fn parse_command(line: &str) -> Result<Vec<Invocation>, ProfileError> {
    jobs(syntax::command_line(line)?)
}

/// Whether a word is an option of fio with its hyphens, such as `--bs=4k`, `-rw` or `-iodepth`. Single letters are not:
/// those are flags of DISKSPD.
pub fn is_option(word: &str) -> bool {
    let Some(option) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else { return false };
    let key = option.split_once('=').map_or(option, |(key, _)| key);
    words::takes(key).is_some()
}

/// Whether the value of this option may be the next word of a command line, as in `--bs 4k`.
pub fn takes_next_word(word: &str) -> bool {
    !word.contains('=') && words::takes(word.trim_start_matches('-')) == Some(words::Takes::Value)
}

/// What is so where options stand without a job: the load of [`crate::Profile::default`].
const WITHOUT_A_JOB: [&str; 9] = [
    "--filename=target",
    "--rw=randread",
    "--bs=4k",
    "--iodepth=32",
    "--ioengine=io_uring",
    "--direct=1",
    "--norandommap=1",
    "--refill_buffers=1",
    "--time_based=1",
];

/// Reads options that stand without a job, such as `--bs=4k`, each a word with its value. What they do not say is as in
/// [`crate::Profile::default`], and not as fio has it. The invocation has no name, no targets and no size of new files; a rate in it is for
/// one target.
pub fn parse_options(options: &[String]) -> Result<Invocation, ProfileError> {
    let section = syntax::without_a_job(&WITHOUT_A_JOB, options)?;
    let mut read = options::Options::default();
    section.entries.iter().try_for_each(|entry| read.set(entry))?;
    read.check()?;
    let said = read.runtime;
    // That no time is said changes nothing here, and needs no note.
    read.runtime = said.or(Some(loadline_base::units::TimeSpan::seconds(1)));
    read.ending();
    let invocation = build::invocation(&section, read)?;
    Ok(Invocation { name: None, targets: Vec::new(), measure: said, create_size: None, ..invocation })
}

fn jobs(sections: Vec<Section>) -> Result<Vec<Invocation>, ProfileError> {
    let together = sections.len() > 1;
    let mut invocations = Vec::with_capacity(sections.len());
    for section in sections {
        let mut options = options::Options::default();
        options.notes.clone_from(&section.notes);
        for entry in &section.entries {
            options.set(entry)?;
        }
        options.check()?;
        options.ending();
        if together && !options.alone {
            options.notes.push("fio runs this job together with the other jobs of the file".into());
        }
        invocations.push(build::invocation(&section, options)?);
    }
    Ok(invocations)
}
