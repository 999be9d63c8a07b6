//! How long a durable write takes: 4 KiB after 4 KiB, past the page cache, each acknowledged when it is on the medium, and the
//! next one begun then. That is how a log is written, and every write to a virtual SAN waits for two of them.

use std::sync::atomic::AtomicBool;

use loadline_base::clock::Nanos;
use loadline_base::figures::{latency, thousands};
use loadline_base::units::{ByteSize, TimeSpan};
use loadline_load::{Disk, Job, LoadError, Target, WritePermission, prepare, prepare_to_fill};
use loadline_measure::audit::FindingKind;
use loadline_measure::summary::LatencySummary;
use loadline_profile::{Pattern, Profile};
use nix::sys::statfs::{FsType, TMPFS_MAGIC, statfs};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::Check;
use crate::scratch::Scratch;

/// For how long it is measured.
const MEASURED: TimeSpan = TimeSpan::seconds(1);
/// How long a write that hangs is waited for.
const DRAIN: TimeSpan = TimeSpan::seconds(10);
/// The generator's thread gets so long to be ready.
const LEAD: Nanos = Nanos(100_000_000);
/// A median above this, microseconds, is slow for a log.
const SLOW_US: f64 = 1_000.0;
/// The magic number of ramfs.
const RAMFS: FsType = FsType(0x8584_58f6);

/// What a name of the check begins with.
pub const CHECK: &str = "durable write";

/// What durable writes of 4 KiB took, one after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SyncWrite {
    /// The folder in which a file was written to.
    pub folder: String,
    /// Writes a second.
    pub iops: f64,
    /// How long each took, microseconds. The 99th percentile needs 10,000 of them in the second that is measured; `deepest`
    /// names the deepest that there were enough for.
    pub latency_us: LatencySummary,
    /// Writes that failed, or did not come back.
    pub failed: u64,
    /// Whether they went past the page cache.
    pub direct: bool,
    /// Whether the folder is in memory (tmpfs): then they were durable nowhere.
    pub in_memory: bool,
}

/// Measures it on a file that was made for it, for some two seconds.
pub fn measure(scratch: &Scratch, stop: &AtomicBool) -> Result<SyncWrite, LoadError> {
    let profile = Profile {
        block_size: ByteSize::kib(4),
        threads: 1,
        outstanding: 1,
        write_percent: 100,
        pattern: Pattern::Sequential,
        write_through: true,
        ..Profile::default()
    };
    let disk =
        Disk { target: Target::Path(scratch.file.clone()), writes: WritePermission::Made(scratch.identity) };
    let job =
        Job { warm_up: TimeSpan::ZERO, measure: MEASURED, drain: DRAIN, ..Job::new(vec![disk], profile) };
    // A log's blocks are all there: the first write to one of a sparse file would be measured with the file system's work.
    prepare_to_fill(&job)?.fill(stop, &mut |_, _| {})?;
    let prepared = prepare(&job)?;
    let direct = !prepared.findings().iter().any(|finding| finding.kind == FindingKind::NotDirect);
    let outcome = prepared.run(Nanos::now() + LEAD, stop, &mut |_, _| {})?.whole()?;
    let figures = outcome.window.figures();
    let folder = scratch.file.parent().map(|folder| folder.display().to_string()).unwrap_or_default();
    let kind = statfs(&scratch.file).map(|system| system.filesystem_type());
    Ok(SyncWrite {
        folder,
        iops: figures.write.iops,
        latency_us: figures.write.latency_us,
        failed: outcome.window.errors().saturating_add(outcome.window.censored()),
        direct,
        in_memory: kind.is_ok_and(|kind| kind == TMPFS_MAGIC || kind == RAMFS),
    })
}

/// The median, or the mean where there were too few for one.
fn typical(latency_us: &LatencySummary) -> Option<(&'static str, f64)> {
    let median = latency_us.p50.map(|us| ("median", us));
    median.or(latency_us.mean.map(|us| ("mean", us)))
}

/// Judges it.
pub(crate) fn check(measured: &SyncWrite) -> Check {
    let SyncWrite { folder, iops, latency_us, failed, .. } = measured;
    let name = format!("{CHECK}: {folder}");
    let Some((of, typical)) = typical(latency_us).filter(|_| *iops > 0.0) else {
        return Check::bad(name, format!("no write completed in {MEASURED} ({failed} failed)"))
            .expected("hundreds a second or more")
            .costs("a node of the virtual SAN on this disk would be excluded because it hangs")
            .mend("the disk is stuck or failing, or very busy: the kernel log has details")
            .run("sudo dmesg | tail -n 50");
    };
    let deepest = latency_us.deepest_value().filter(|(name, _)| *name != "p50");
    let tail = match (latency_us.p99, deepest) {
        (Some(p99), _) => format!(", p99 {}", latency(p99)),
        (None, Some((name, value))) => format!(", {name} {} (too few for a p99)", latency(value)),
        (None, None) => " (too few for a percentile above it)".into(),
    };
    let found = format!("{of} {}{tail}, {} a second", latency(typical), thousands(*iops));
    if measured.in_memory || !measured.direct {
        let why =
            if measured.in_memory { "the folder is in memory" } else { "its file system does no direct I/O" };
        return Check::note(name, format!("{found}; but {why}"))
            .expected("a folder on the disk that is to be used, with direct I/O")
            .costs("the figure is that of memory and not of a disk")
            .mend("name a folder on the disk")
            .run("loadline doctor --folder /path/on/the/disk");
    }
    if *failed > 0 {
        return Check::bad(name, format!("{found}; {failed} failed"))
            .expected("none that fails")
            .costs("data are lost, or the disk stands still for seconds")
            .mend("see what the kernel says of the disk")
            .run("sudo dmesg | tail -n 50");
    }
    if typical <= SLOW_US {
        return Check::ok(name, found);
    }
    Check::slow(name, found)
        .expected(format!("a median of {} or less", latency(SLOW_US)))
        .costs(format!(
            "a write to a volume with two copies takes at least this: a program that writes one block after the \
             other gets no more than {} a second",
            thousands(1e6 / typical)
        ))
        .mend(
            "give the virtual SAN disks with power-loss protection; in a virtual machine, look at how its disk is \
             cached and limited",
        )
}

/// What is said where no folder was named: no disk is written to unasked.
pub(crate) fn not_done() -> Check {
    let found = "not measured: the measurement needs a folder for a file, because doctor never writes to a disk itself";
    Check::note(CHECK, found)
        .expected("a figure of the disk that is to be used")
        .costs("the duration of a durable write limits the speed of a virtual SAN, and is not known")
        .mend("name a folder on that disk; a file of 32 MiB is made there, and removed")
        .run("loadline doctor --folder /path/on/the/disk")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Severity;
    use crate::scratch::Removed;

    fn measured(median: f64, p99: Option<f64>) -> SyncWrite {
        let latency_us = LatencySummary { p50: Some(median), p99, ..LatencySummary::default() };
        let folder = "/data".into();
        SyncWrite { folder, iops: 1e6 / median, latency_us, failed: 0, direct: true, in_memory: false }
    }

    #[test]
    fn a_median_above_a_millisecond_is_slow_and_its_cost_is_said() {
        let fast = check(&measured(80.0, Some(250.0)));
        assert_eq!(fast.severity, Severity::Ok);
        assert_eq!(fast.found, "median 80.0 us, p99 250.0 us, 12,500 a second");
        let slow = check(&measured(4_000.0, None));
        assert_eq!(slow.severity, Severity::Slow);
        assert!(slow.costs.unwrap().contains("250 a second"));
        // A hundred a second are too few for a median, and slow all the same.
        let latency_us = LatencySummary { mean: Some(9_500.0), ..LatencySummary::default() };
        let few = check(&SyncWrite { iops: 105.0, latency_us, ..measured(1.0, None) });
        assert_eq!((few.severity, few.found.starts_with("mean 9.50 ms")), (Severity::Slow, true), "{few:?}");
    }

    #[test]
    fn a_figure_that_is_none_is_said_to_be_none() {
        let stuck = SyncWrite { iops: 0.0, failed: 1, ..measured(80.0, None) };
        assert_eq!(check(&stuck).severity, Severity::Bad);
        assert_eq!(check(&SyncWrite { failed: 3, ..measured(80.0, None) }).severity, Severity::Bad);
        let memory = SyncWrite { in_memory: true, ..measured(2.0, None) };
        assert_eq!(check(&memory).severity, Severity::Note);
        let cached = SyncWrite { direct: false, ..measured(2.0, None) };
        assert!(check(&cached).found.contains("no direct I/O"));
        assert!(not_done().run.unwrap().contains("--folder"));
    }

    #[test]
    fn it_is_measured_by_the_generator_on_its_own_file() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let made = Removed::make(folder.path()).unwrap();
        let found = measure(made.scratch(), &AtomicBool::new(false)).unwrap();
        assert!(found.iops > 0.0 && found.failed == 0, "{found:?}");
        assert!(found.folder.starts_with("/var/tmp"));
        let stopped = measure(made.scratch(), &AtomicBool::new(true)).unwrap_err();
        assert_eq!(stopped.kind, loadline_load::error::ErrorKind::Interrupted);
    }
}
