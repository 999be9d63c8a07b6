//! From the options of a section to an invocation.

use loadline_base::units::{ByteSize, Rate};

use super::options::Options;
use super::syntax::Section;
use crate::{Arrival, Data, Extent, HotSpot, Invocation, OfferedRate, Pattern, Profile, ProfileError};

/// As many clones as a profile may have threads.
const MOST_CLONES: u32 = 1024;

pub(super) fn invocation(section: &Section, mut options: Options) -> Result<Invocation, ProfileError> {
    if options.clones > MOST_CLONES {
        let problem = format!("numjobs={} is more than Loadline starts", options.clones);
        return Err(ProfileError::rule(
            section.place.clone(),
            problem,
            format!("give at most {MOST_CLONES}"),
        ));
    }
    let targets = targets(section, &options);
    let region = region(section, &mut options, &targets)?;
    let pattern = pattern(&mut options);
    let mut profile = Profile {
        block_size: options.block,
        threads: if options.files.is_empty() { 1 } else { options.clones },
        outstanding: outstanding(section, &mut options)?,
        write_percent: match (options.direction.reads, options.direction.writes) {
            (true, true) => options.write_percent,
            (false, true) => 100,
            _ => 0,
        },
        pattern,
        alignment: alignment(&mut options, pattern),
        working_set: region.working_set,
        base_offset: options.offset,
        hot_spots: hot_spots(&mut options, pattern, region.working_set),
        rate: None,
        data: Data::default(),
        direct: options.direct,
        write_through: options.write_through,
        flush_every: None,
    };
    rate(&mut options, &mut profile)?;
    profile.flush_every = flush(section, &mut options)?;
    profile.data = data(&mut options, profile.write_percent > 0);
    profile.validate().map_err(|error| {
        let place = format!("{}, {}", section.place, error.place);
        ProfileError { place, ..error }
    })?;
    Ok(Invocation {
        profile,
        name: Some(options.name.take().unwrap_or_else(|| section.name.clone())),
        targets,
        warm_up: options.ramp,
        measure: options.runtime,
        cool_down: None,
        create_size: region.create,
        seed: options.seed,
        notes: options.notes,
    })
}

/// The files as fio would open them: named, or made up from the job's name, one for each clone.
fn targets(section: &Section, options: &Options) -> Vec<String> {
    let names: Vec<String> = if options.files.is_empty() {
        (0..options.clones).map(|clone| format!("{}.{clone}.0", section.name)).collect()
    } else {
        options.files.clone()
    };
    match &options.directory {
        None => names,
        Some(directory) => {
            names.iter().map(|name| format!("{}/{name}", directory.trim_end_matches('/'))).collect()
        }
    }
}

struct Region {
    working_set: Option<Extent>,
    create: Option<ByteSize>,
}

fn region(section: &Section, options: &mut Options, targets: &[String]) -> Result<Region, ProfileError> {
    let devices = targets.iter().all(|target| target.starts_with("/dev/"));
    let from = options.offset.bytes();
    if let Some(all) = options.file_size {
        if let Some(size) = options.size {
            options.notes.push(format!(
                "with filesize, size={size} is only how much is done; the part that is used is the whole file"
            ));
        }
        let used = all.bytes().checked_sub(from).filter(|used| *used > 0).ok_or_else(|| {
            let problem = format!("offset={from} is not inside filesize={}", all.bytes());
            ProfileError::rule(section.place.clone(), problem, "make filesize larger")
        })?;
        let create = Some(all).filter(|_| !devices);
        return Ok(Region { working_set: Some(Extent::Bytes(ByteSize(used))), create });
    }
    Ok(match options.size {
        None => Region { working_set: None, create: None },
        Some(Extent::Percent(percent)) => {
            Region { working_set: Some(Extent::Percent(percent)).filter(|_| percent < 100.0), create: None }
        }
        Some(Extent::Bytes(size)) => {
            // Shared out among the named files; a made-up file has all of it.
            let each = ByteSize(size.bytes() / options.files.len().max(1) as u64);
            let create = from.checked_add(each.bytes()).map(ByteSize).filter(|_| !devices);
            Region { working_set: Some(Extent::Bytes(each)), create }
        }
    })
}

fn pattern(options: &mut Options) -> Pattern {
    match (options.direction.random, options.random_percent) {
        (true, None | Some(100)) => {
            if options.random_map {
                options.notes.push(
                    "without norandommap fio visits each block once before any comes again; Loadline draws each offset \
                     independently".into(),
                );
            }
            Pattern::Random
        }
        (true, Some(random_percent @ 1..)) => Pattern::Mixed { random_percent },
        (random, share) => {
            if !random && share.is_some() {
                options.notes.push("percentage_random has no effect on a sequential job".into());
            }
            if options.direction.reads && options.direction.writes {
                options.notes.push(
                    "fio's reads and writes each walk by themselves from the beginning; Loadline's share one walk".into(),
                );
            }
            Pattern::Sequential
        }
    }
}

/// A clone's depth is shared among its files; a profile counts for each disk.
fn outstanding(section: &Section, options: &mut Options) -> Result<u32, ProfileError> {
    let depth = if options.waits_for_each { 1 } else { options.depth };
    if options.waits_for_each && options.depth > 1 {
        options.notes.push(format!(
            "ioengine={} waits for each I/O, so iodepth={} means 1 outstanding",
            options.engine, options.depth
        ));
    }
    if !options.waits_for_each && !options.direct && depth > 1 {
        options.notes.push(format!(
            "ioengine={} with the page cache often waits for each I/O, so fewer than {depth} may be outstanding",
            options.engine
        ));
    }
    match u32::try_from(options.files.len()) {
        Ok(0 | 1) => Ok(depth),
        Ok(files) if depth.is_multiple_of(files) => {
            options.notes.push(format!(
                "fio's clones share iodepth={depth} among {files} files; Loadline keeps {} outstanding on each",
                depth / files
            ));
            Ok(depth / files)
        }
        _ => Err(ProfileError::unsupported(
            section.place.clone(),
            format!("{depth} outstanding I/Os shared among {} files", options.files.len()),
            "write a job for each file, or use ioengine=io_uring with an iodepth that is a multiple of their number",
        )),
    }
}

fn alignment(options: &mut Options, pattern: Pattern) -> Option<ByteSize> {
    let step = if pattern == Pattern::Sequential {
        if options.alignment.is_some() {
            options.notes.push("blockalign has no effect on a sequential job".into());
        }
        options.skip.and_then(|skip| options.block.bytes().checked_add(skip)).map(ByteSize)
    } else {
        options.alignment
    };
    step.filter(|step| *step != options.block)
}

fn hot_spots(options: &mut Options, pattern: Pattern, working_set: Option<Extent>) -> Vec<HotSpot> {
    let mut zones = std::mem::take(&mut options.zones);
    if pattern == Pattern::Sequential && !zones.is_empty() {
        options.notes.push("random_distribution has no effect on a sequential job".into());
        return Vec::new();
    }
    let covered = zones.iter().try_fold(0.0, |sum, zone| match (zone.extent, working_set) {
        (Extent::Percent(percent), _) => Some(sum + percent / 100.0),
        (Extent::Bytes(size), Some(Extent::Bytes(all))) => {
            Some(sum + size.bytes() as f64 / all.bytes() as f64)
        }
        _ => None,
    });
    // fio writes the rest as a zone; a profile leaves it out. Sizes are compared as shares of one total, which
    // is exact for every size that a disk has.
    if covered.is_some_and(|covered: f64| (covered - 1.0).abs() < 1e-12) {
        zones.pop();
    }
    zones
}

fn rate(options: &mut Options, profile: &mut Profile) -> Result<(), ProfileError> {
    let stated = [options.rate.take(), options.rate_iops.take()].into_iter().flatten();
    let mut stated = stated.filter(|limit| limit.each.iter().any(Option::is_some));
    let Some(limit) = stated.next() else { return Ok(()) };
    if let Some(second) = stated.next() {
        let advice = "give one of them: with one block size each says the other";
        return Err(second.entry.unsupported("both rate and rate_iops", advice));
    }
    let each = match (limit.each, profile.write_percent) {
        ([None, _], 0) | ([_, None], 100) => return Ok(()),
        ([Some(reads), _], 0) => reads as f64,
        ([_, Some(writes)], 100) => writes as f64,
        ([Some(reads), Some(writes)], mix) => {
            let total = reads as f64 + writes as f64;
            let share = writes as f64 * 100.0 / total;
            // Rounded to 1 to 99: there are both.
            profile.write_percent = share.round().clamp(1.0, 99.0) as u8;
            if (share - f64::from(mix)).abs() > 1e-9 {
                options.notes.push(format!(
                    "{} limits reads and writes separately, so the mix is {share:.1} % writes whatever rwmixwrite says",
                    limit.entry.shown()
                ));
            }
            total
        }
        _ => {
            return Err(limit.entry.unsupported(
                format!("{} leaves one of reads and writes without a limit", limit.entry.shown()),
                "give both, such as rate_iops=70,30",
            ));
        }
    };
    let total = each * f64::from(options.clones);
    let rate = if limit.in_iops { Rate::Iops(total) } else { Rate::BytesPerSecond(total) };
    let arrival = if options.poisson { Arrival::Poisson } else { Arrival::Uniform };
    profile.rate = Some(OfferedRate { rate, arrival });
    Ok(())
}

fn flush(section: &Section, options: &mut Options) -> Result<Option<u32>, ProfileError> {
    match (options.flush, options.data_flush) {
        (Some(_), Some(_)) => Err(ProfileError::unsupported(
            section.place.clone(),
            "both fsync and fdatasync",
            "give one of them; Loadline flushes with fdatasync",
        )),
        (Some(writes), None) => {
            options
                .notes
                .push(format!("fsync={writes} also flushes a file's metadata; Loadline uses fdatasync"));
            Ok(Some(writes))
        }
        (None, data) => Ok(data),
    }
}

fn data(options: &mut Options, writes: bool) -> Data {
    // The order is fio's: a share that compresses comes first, then a pattern, then zeros.
    let data = match (options.compress_percent, options.counting_pattern, options.zero_buffers) {
        (0, false, false) => Data::Random,
        (0, true, _) => Data::CountingBytes,
        (0, false, true) => Data::Zeros,
        (100, true, _) => Data::CountingBytes,
        (100, false, _) => Data::Zeros,
        (percent, ..) => Data::Compressible { ratio: 100.0 / (100.0 - f64::from(percent)) },
    };
    let overruled = [
        (options.zero_buffers && options.counting_pattern, "zero_buffers", "buffer_pattern"),
        (options.zero_buffers && options.compress_percent > 0, "zero_buffers", "buffer_compress_percentage"),
    ];
    if let Some((_, option, by)) = overruled.iter().rev().find(|(both, ..)| *both) {
        options.notes.push(format!("{option} has no effect in fio beside {by}"));
    }
    if options.counting_pattern && (1..100).contains(&options.compress_percent) {
        options.notes.push(
            "fio fills what compresses with buffer_pattern; Loadline fills it with zeros, which compress as well".into(),
        );
    }
    if writes && !options.refill && matches!(data, Data::Random | Data::Compressible { .. }) {
        options.notes.push(
            "without refill_buffers fio reuses its buffers, slightly changed; Loadline writes new data each time".into(),
        );
    }
    data
}
