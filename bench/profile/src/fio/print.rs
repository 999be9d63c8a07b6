//! Printing a fio job file and a fio command line.

use std::fmt::Write;

use loadline_base::units::{ByteSize, Rate, TimeSpan};

use crate::{Arrival, Data, Extent, Invocation, Pattern, Printed, Profile, ProfileError};

/// Options in fio's spelling, and what they cannot say.
#[derive(Default)]
struct Job {
    options: Vec<(&'static str, String)>,
    notes: Vec<String>,
}

/// Prints a job file, with a section for each target so that each has threads of its own.
pub fn print_job(invocation: &Invocation) -> Result<Printed, ProfileError> {
    let job = job(invocation)?;
    let targets =
        invocation.targets.iter().map(|target| file_name(target, true)).collect::<Result<Vec<_>, _>>()?;
    let mut text = String::from("[global]\n");
    for (key, value) in &job.options {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{key}={value}");
    }
    for (name, target) in sections(invocation, &targets) {
        let _ = writeln!(text, "\n[{name}]");
        if let Some(target) = target {
            let _ = writeln!(text, "filename={target}");
        }
    }
    Ok(Printed { text, notes: job.notes })
}

/// Prints a command line for a POSIX shell, with a job for each target.
pub fn print_command(invocation: &Invocation) -> Result<Printed, ProfileError> {
    let job = job(invocation)?;
    let targets =
        invocation.targets.iter().map(|target| file_name(target, false)).collect::<Result<Vec<_>, _>>()?;
    let options = job.options.iter().map(|(key, value)| format!("--{key}={value}"));
    let one = |(name, target): (String, Option<&String>)| {
        let target = target.map(|target| quoted(&format!("--filename={target}")));
        [format!("--name={name}")].into_iter().chain(target)
    };
    let sections = sections(invocation, &targets);
    let words: Vec<String> = if sections.len() > 1 {
        let global = std::iter::once("--name=global".to_string()).chain(options);
        global.chain(sections.into_iter().flat_map(one)).collect()
    } else {
        sections.into_iter().flat_map(one).chain(options).collect()
    };
    Ok(Printed { text: format!("fio {}", words.join(" ")), notes: job.notes })
}

/// The bytes 0 to 255 as fio's `buffer_pattern` takes them.
pub(super) fn counting_pattern() -> String {
    (0..=u8::MAX).fold(String::from("0x"), |text, byte| text + &format!("{byte:02x}"))
}

fn sections<'a>(invocation: &Invocation, targets: &'a [String]) -> Vec<(String, Option<&'a String>)> {
    let label = invocation.name.clone().unwrap_or_else(|| invocation.profile.label());
    let safe = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
    let name: String = label.chars().map(|c| if safe(c) { c } else { '_' }).collect();
    // A job of this name would be read as options for all jobs.
    let name = if name.is_empty() || name == "global" { "job".to_string() } else { name };
    match targets {
        [] => vec![(name, None)],
        [target] => vec![(name, Some(target))],
        targets => targets
            .iter()
            .enumerate()
            .map(|(at, target)| (format!("{name}-{}", at + 1), Some(target)))
            .collect(),
    }
}

fn job(invocation: &Invocation) -> Result<Job, ProfileError> {
    let profile = &invocation.profile;
    profile.validate()?;
    let mut job = Job::default();
    job.pattern(profile);
    job.add("bs", size(profile.block_size));
    job.add("numjobs", profile.threads);
    job.add("ioengine", "io_uring");
    job.add("iodepth", profile.outstanding);
    job.add("direct", u8::from(profile.direct));
    job.region(invocation);
    job.hot_spots(profile);
    job.rate(invocation);
    if profile.write_percent > 0 {
        job.data(profile.data);
    }
    if profile.write_through {
        job.add("sync", "dsync");
    }
    if let Some(writes) = profile.flush_every {
        job.add("fdatasync", writes);
    }
    job.times(invocation);
    if let Some(seed) = invocation.seed {
        job.add("randseed", seed);
    }
    job.add("group_reporting", 1);
    if invocation.targets.is_empty() {
        job.notes
            .push("add filename, the file or device; without it fio makes a file for each thread".into());
    }
    Ok(job)
}

impl Job {
    fn add(&mut self, key: &'static str, value: impl ToString) {
        self.options.push((key, value.to_string()));
    }

    fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    fn pattern(&mut self, profile: &Profile) {
        let random = matches!(profile.pattern, Pattern::Random | Pattern::Mixed { .. });
        let mut direction = match (random, profile.write_percent) {
            (false, 0) => "read",
            (false, 100) => "write",
            (false, _) => "rw",
            (true, 0) => "randread",
            (true, 100) => "randwrite",
            (true, _) => "randrw",
        }
        .to_string();
        if !random && let Some(step) = profile.alignment {
            match step.bytes().checked_sub(profile.block_size.bytes()) {
                Some(skip) => direction.push_str(&format!(":{}", size(ByteSize(skip)))),
                None => self.note(format!(
                    "fio does not advance by {step}, less than a block; this job advances by whole blocks"
                )),
            }
        }
        self.add("rw", direction);
        if !matches!(profile.write_percent, 0 | 100) {
            self.add("rwmixwrite", profile.write_percent);
            if !random {
                self.note("fio's reads and writes each walk by themselves from the beginning; in the profile they share one walk");
            }
        }
        if random {
            self.add("norandommap", 1);
            if let Some(step) = profile.alignment {
                self.add("blockalign", size(step));
            }
        }
        match profile.pattern {
            Pattern::Mixed { random_percent } => {
                self.add("percentage_random", random_percent);
                if profile.alignment.is_some() {
                    self.note(
                        "fio aligns only the jumps; the sequential I/Os between them advance by whole blocks",
                    );
                }
            }
            Pattern::SequentialInterleaved if profile.threads > 1 => {
                self.note("fio's jobs do not share an offset; in this job each thread walks by itself");
            }
            _ => {}
        }
    }

    fn region(&mut self, invocation: &Invocation) {
        let profile = &invocation.profile;
        let from = profile.base_offset;
        if from.bytes() > 0 {
            self.add("offset", size(from));
        }
        let used = match (profile.working_set, invocation.create_size) {
            (Some(Extent::Percent(percent)), _) if percent.fract() == 0.0 => {
                self.add("size", format!("{percent}%"));
                None
            }
            (Some(Extent::Percent(percent)), _) => {
                self.note(format!(
                    "fio takes whole percents only: set size to {percent} % of the disk, in bytes"
                ));
                return;
            }
            (Some(Extent::Bytes(used)), _) => Some(used),
            (None, Some(all)) => Some(ByteSize(all.bytes().saturating_sub(from.bytes()))),
            (None, None) => None,
        };
        if let Some(used) = used {
            self.add("size", size(used));
        }
        let made = used.and_then(|used| from.bytes().checked_add(used.bytes()));
        if let Some(create) = invocation.create_size
            && made != Some(create.bytes())
        {
            self.note(format!(
                "fio creates a file only as large as it uses; create it with {create} beforehand"
            ));
        }
    }

    fn hot_spots(&mut self, profile: &Profile) {
        let spots = &profile.hot_spots;
        if spots.is_empty() {
            return;
        }
        let io_left = 100 - spots.iter().map(|spot| u32::from(spot.io_percent)).sum::<u32>().min(100);
        let mut zones: Vec<String> = Vec::new();
        let mut in_percent = false;
        let mut covered_percent = 0.0;
        let mut covered = 0_u64;
        for spot in spots {
            let extent = match spot.extent {
                Extent::Percent(percent) if percent.fract() == 0.0 => {
                    in_percent = true;
                    covered_percent += percent;
                    format!("{percent}")
                }
                Extent::Percent(_) => {
                    self.note("fio takes whole percents only; the hot spots are left out of this job");
                    return;
                }
                Extent::Bytes(bytes) => {
                    covered = covered.saturating_add(bytes.bytes());
                    size(bytes)
                }
            };
            zones.push(format!("{}/{extent}", spot.io_percent));
        }
        if io_left > 0 {
            let rest = match profile.working_set {
                _ if in_percent => Some(format!("{}", 100.0 - covered_percent)),
                Some(Extent::Bytes(all)) => Some(size(ByteSize(all.bytes().saturating_sub(covered)))),
                _ => None,
            };
            let Some(rest) = rest else {
                self.note("fio needs the size of the rest of the disk to spread I/O by size; give the working set in bytes, \
                           or the hot spots in percent. They are left out of this job");
                return;
            };
            zones.push(format!("{io_left}/{rest}"));
        }
        let kind = if in_percent { "zoned" } else { "zoned_abs" };
        self.add("random_distribution", format!("{kind}:{}", zones.join(":")));
    }

    fn rate(&mut self, invocation: &Invocation) {
        let profile = &invocation.profile;
        let Some(offered) = profile.rate else { return };
        let threads = invocation.total_threads();
        let (key, total) = match offered.rate {
            Rate::Iops(iops) => ("rate_iops", iops),
            Rate::BytesPerSecond(bytes) => ("rate", bytes),
        };
        let writes = f64::from(profile.write_percent) / 100.0;
        // fio limits each direction of each clone by itself.
        let parts: Vec<f64> = match profile.write_percent {
            0 | 100 => vec![total / threads],
            _ => vec![total * (1.0 - writes) / threads, total * writes / threads],
        };
        let whole: Vec<f64> = parts.iter().map(|part| part.round().clamp(1.0, f64::from(u32::MAX))).collect();
        self.add(key, whole.iter().map(|part| part.to_string()).collect::<Vec<_>>().join(","));
        if parts.iter().zip(&whole).any(|(part, whole)| (part - whole).abs() > 1e-9 * part) {
            let sum = whole.iter().sum::<f64>() * threads;
            let offers = match offered.rate {
                Rate::Iops(_) => Rate::Iops(sum),
                Rate::BytesPerSecond(_) => Rate::BytesPerSecond(sum),
            };
            self.note(format!(
                "fio takes whole numbers for each thread; this job offers {offers} in all, not {}",
                offered.rate
            ));
        }
        if offered.arrival == Arrival::Poisson {
            self.add("rate_process", "poisson");
        }
        if invocation.targets.is_empty() {
            self.note(format!("{key} counts for each thread of each target; it is computed for one target"));
        }
    }

    fn data(&mut self, data: Data) {
        match data {
            Data::Random => self.add("refill_buffers", 1),
            Data::Zeros => self.add("zero_buffers", 1),
            Data::CountingBytes => self.add("buffer_pattern", counting_pattern()),
            Data::Compressible { ratio } => {
                let exact = 100.0 - 100.0 / ratio;
                let percent = exact.round().clamp(1.0, 99.0);
                self.add("refill_buffers", 1);
                self.add("buffer_compress_percentage", percent);
                if (percent - exact).abs() > 1e-9 {
                    self.note(format!(
                        "fio takes whole percents: its data compresses {:.2} to 1, not {ratio}",
                        100.0 / (100.0 - percent)
                    ));
                }
            }
        }
    }

    fn times(&mut self, invocation: &Invocation) {
        match invocation.measure {
            Some(span) => {
                self.add("time_based", 1);
                self.time("runtime", span);
            }
            None => self.note(
                "add time_based=1 and runtime; without them fio stops after one pass over the working set",
            ),
        }
        if let Some(span) = invocation.warm_up {
            self.time("ramp_time", span);
        }
        if let Some(span) = invocation.cool_down.filter(|span| !span.duration().is_zero()) {
            self.note(format!("fio has no cool-down; the {span} of it are left out"));
        }
    }

    fn time(&mut self, key: &'static str, span: TimeSpan) {
        let nanos = span.duration().as_nanos();
        let micros = nanos.div_ceil(1_000);
        self.add(
            key,
            match micros {
                micros if micros % 1_000_000 == 0 => format!("{}s", micros / 1_000_000),
                micros if micros % 1_000 == 0 => format!("{}ms", micros / 1_000),
                micros => format!("{micros}us"),
            },
        );
        if !nanos.is_multiple_of(1_000) {
            self.note(format!("fio takes whole microseconds; {key} of {span} was rounded up"));
        }
    }
}

/// The shortest exact form in fio's default base: `4k`, `10g`, `512`.
fn size(size: ByteSize) -> String {
    let text = size.to_string();
    text.strip_suffix("iB").map(str::to_ascii_lowercase).unwrap_or(text)
}

/// A target as fio's `filename` takes it, with its colons protected.
fn file_name(target: &str, in_file: bool) -> Result<String, ProfileError> {
    let comment = in_file && (target.contains(['#', ';']) || target.contains("${"));
    let unsafe_ends = target.trim() != target || target.is_empty() || target == "-";
    if comment
        || unsafe_ends
        || target.ends_with('\\')
        || target.contains("${")
        || target.chars().any(char::is_control)
    {
        return Err(ProfileError::unsupported(
            format!("target \"{}\"", target.escape_debug()),
            "a fio job cannot name it",
            "use a path without control characters, blanks or a backslash at its ends, ${, and in a job file # and ;",
        ));
    }
    Ok(target.replace(':', "\\:"))
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,+@%".contains(c);
    if word.chars().all(plain) { word.to_string() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}
