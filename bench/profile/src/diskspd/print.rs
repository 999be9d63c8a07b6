//! Printing a DISKSPD command line.

use loadline_base::units::{ByteSize, Rate, TimeSpan};

use crate::{Arrival, Data, Extent, HotSpot, Invocation, Pattern, Printed, Profile, ProfileError};

/// Prints the command line that comes closest, with a note on everything that it cannot say.
pub fn print(invocation: &Invocation) -> Result<Printed, ProfileError> {
    let profile = &invocation.profile;
    profile.validate()?;
    let mut flags = vec![
        "diskspd".to_string(),
        format!("-b{}", size(profile.block_size)),
        format!("-t{}", profile.threads),
        format!("-o{}", profile.outstanding),
        format!("-w{}", profile.write_percent),
    ];
    let mut notes = Vec::new();
    pattern(profile, &mut flags);
    if matches!(profile.pattern, Pattern::Mixed { .. }) && !matches!(profile.write_percent, 0 | 100) {
        notes.push(super::RUNS.into());
    }
    hot_spots(profile, &mut flags, &mut notes);
    region(invocation, &mut flags, &mut notes);
    rate(invocation, &mut flags, &mut notes);
    flags.push(
        match (profile.direct, profile.write_through) {
            (true, true) => "-Sh",
            (true, false) => "-Su",
            (false, true) => "-Sbw",
            (false, false) => "-Sb",
        }
        .into(),
    );
    data(profile, &mut flags, &mut notes);
    if let Some(writes) = profile.flush_every {
        notes.push(format!(
            "DISKSPD has no flush after every {}; this line writes without flushes",
            if writes == 1 { "write".into() } else { format!("{writes} writes") }
        ));
    }
    time("-W", "the warm-up", invocation.warm_up, &mut flags, &mut notes);
    if invocation.measure == Some(TimeSpan::seconds(0)) {
        notes.push("DISKSPD measures for at least 1 s; this line says nothing and means 10 s".into());
    } else {
        time("-d", "the measurement", invocation.measure, &mut flags, &mut notes);
    }
    time("-C", "the cool-down", invocation.cool_down, &mut flags, &mut notes);
    if let Some(size_of_file) = invocation.create_size {
        flags.push(format!("-c{}", size(size_of_file)));
    }
    match invocation.seed {
        Some(seed) if u32::try_from(seed).is_ok() => flags.push(format!("-z{seed}")),
        Some(seed) => notes.push(format!("the seed {seed} has more than DISKSPD's 32 bits and is left out")),
        None => {}
    }
    // Without it DISKSPD reports no latencies.
    flags.push("-L".into());
    for target in &invocation.targets {
        flags.push(quoted(target)?);
    }
    if invocation.targets.is_empty() {
        notes.push(
            "add the target at the end of the line: a file, #1 for disk 1, or a drive letter with a colon"
                .into(),
        );
    }
    Ok(Printed { text: flags.join(" "), notes })
}

fn pattern(profile: &Profile, flags: &mut Vec<String>) {
    let step = profile.alignment.map(size).unwrap_or_default();
    match profile.pattern {
        Pattern::Random => flags.push(format!("-r{step}")),
        Pattern::Sequential => flags.push(format!("-s{step}")),
        Pattern::SequentialInterleaved => flags.push(format!("-si{step}")),
        Pattern::Mixed { random_percent } => {
            flags.push(format!("-rs{random_percent}"));
            if !step.is_empty() {
                flags.push(format!("-r{step}"));
            }
        }
    }
}

fn hot_spots(profile: &Profile, flags: &mut Vec<String>, notes: &mut Vec<String>) {
    if profile.hot_spots.is_empty() {
        return;
    }
    let whole = |spot: &HotSpot| matches!(spot.extent, Extent::Percent(percent) if percent.fract() == 0.0);
    let pairs: Option<Vec<String>> = if profile.hot_spots.iter().all(whole) {
        flags.push("-rdpct".into());
        profile
            .hot_spots
            .iter()
            .map(|spot| match spot.extent {
                Extent::Percent(percent) => Some(format!("{}/{percent}", spot.io_percent)),
                Extent::Bytes(_) => None,
            })
            .collect()
    } else {
        flags.push("-rdabs".into());
        profile
            .hot_spots
            .iter()
            .map(|spot| match (spot.extent, profile.working_set) {
                (Extent::Bytes(bytes), _) => Some(format!("{}/{}", spot.io_percent, size(bytes))),
                (Extent::Percent(percent), Some(Extent::Bytes(all))) => {
                    let bytes = (all.bytes() as f64 * percent / 100.0) as u64;
                    Some(format!("{}/{bytes}", spot.io_percent))
                }
                (Extent::Percent(_), _) => None,
            })
            .collect()
    };
    match (pairs, flags.last_mut()) {
        (Some(pairs), Some(flag)) => flag.push_str(&pairs.join(":")),
        _ => {
            flags.pop();
            notes.push("DISKSPD takes whole percents only; the hot spots are left out of this line".into());
        }
    }
}

fn region(invocation: &Invocation, flags: &mut Vec<String>, notes: &mut Vec<String>) {
    let profile = &invocation.profile;
    let from = profile.base_offset;
    if from.bytes() > 0 {
        flags.push(format!("-B{}", size(from)));
    }
    let used = match (profile.working_set, invocation.create_size) {
        (None, _) => return,
        (Some(Extent::Bytes(used)), _) => used,
        (Some(Extent::Percent(percent)), Some(all)) => {
            ByteSize((all.bytes() as f64 * percent / 100.0) as u64)
        }
        (Some(Extent::Percent(percent)), None) => {
            notes.push(format!(
                "DISKSPD takes a size, not a share: add -f with the byte at which the used {percent} % of the disk end"
            ));
            return;
        }
    };
    // -f counts from the target's beginning, not from -B.
    flags.push(format!("-f{}", size(ByteSize(from.bytes().saturating_add(used.bytes())))));
}

fn rate(invocation: &Invocation, flags: &mut Vec<String>, notes: &mut Vec<String>) {
    let Some(offered) = invocation.profile.rate else { return };
    let threads = invocation.total_threads();
    let each = offered.rate.times(1.0 / threads);
    let (exact, unit) = match each {
        Rate::Iops(iops) => (iops, "i"),
        Rate::BytesPerSecond(bytes) => (bytes / 1000.0, ""),
    };
    let rounded = exact.round().clamp(1.0, f64::from(i32::MAX));
    flags.push(format!("-g{rounded}{unit}"));
    if (rounded - exact).abs() > 1e-9 * exact {
        let total = match each {
            Rate::Iops(_) => Rate::Iops(rounded * threads),
            Rate::BytesPerSecond(_) => Rate::BytesPerSecond(rounded * 1000.0 * threads),
        };
        notes.push(format!(
            "-g takes whole numbers for each thread and target; this line offers {total} in all, not {}",
            offered.rate
        ));
    }
    if invocation.targets.is_empty() {
        notes.push("-g counts for each thread and target; it is computed for one target".into());
    }
    if offered.arrival == Arrival::Poisson {
        notes.push("DISKSPD has no Poisson arrivals; this line spaces the I/Os of each thread evenly".into());
    }
    notes.push("DISKSPD takes the latency of an I/O from when it is issued, after -g held it back; Loadline takes it from \
         when it was due".into());
}

fn data(profile: &Profile, flags: &mut Vec<String>, notes: &mut Vec<String>) {
    match profile.data {
        Data::CountingBytes => {}
        Data::Zeros => flags.push("-Z".into()),
        Data::Random => flags.push("-Zr".into()),
        Data::Compressible { ratio } => {
            flags.push("-Zr".into());
            notes.push(format!(
                "DISKSPD makes no data that compresses {ratio} to 1; this line writes random data"
            ));
        }
    }
}

/// Whole seconds, rounded up: a time that is too short could measure nothing.
fn time(flag: &str, what: &str, span: Option<TimeSpan>, flags: &mut Vec<String>, notes: &mut Vec<String>) {
    let Some(span) = span else { return };
    let duration = span.duration();
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    flags.push(format!("{flag}{seconds}"));
    if duration.subsec_nanos() > 0 {
        notes.push(format!("DISKSPD takes whole seconds; {what} of {span} became {seconds} s"));
    }
}

/// The shortest exact form: `4K`, `10G`, `512`.
fn size(size: ByteSize) -> String {
    let text = size.to_string();
    text.strip_suffix("iB").map(str::to_string).unwrap_or(text)
}

fn quoted(target: &str) -> Result<String, ProfileError> {
    let unsafe_start = target.starts_with('-');
    if target.is_empty() || unsafe_start || target.contains('"') || target.chars().any(char::is_control) {
        return Err(ProfileError::unsupported(
            format!("target \"{}\"", target.escape_debug()),
            "a DISKSPD line cannot name it",
            "use a path that is not empty, does not begin with a hyphen and has neither quotes nor control characters",
        ));
    }
    Ok(if target.contains(char::is_whitespace) { format!("\"{target}\"") } else { target.to_string() })
}
