//! One load by both generators, in turn.

use std::path::{Path, PathBuf};

use crate::program::{self, number};

pub(crate) struct Context {
    pub(crate) program: PathBuf,
    pub(crate) pairs: u32,
    pub(crate) seconds: u32,
}

/// 4 KiB random I/O by one thread on one file.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Where the file is: `memory` or `disk`.
    pub(crate) on: &'static str,
    outstanding: u32,
    write: bool,
    poll: bool,
    wanted: &'static [Wanted],
}

enum Wanted {
    Iops(Bound),
    CpuPerIo(Bound),
    MeanLatency(Bound),
}

#[derive(Clone, Copy)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}
use Bound::{AtLeast, AtMost};

pub(crate) const SCENARIOS: [Scenario; 6] = [
    Scenario {
        name: "memory read, 32 outstanding",
        on: "memory",
        outstanding: 32,
        write: false,
        poll: false,
        wanted: &[Wanted::Iops(AtLeast(1.25)), Wanted::CpuPerIo(AtMost(0.80))],
    },
    Scenario {
        name: "memory write, 32 outstanding",
        on: "memory",
        outstanding: 32,
        write: true,
        poll: false,
        wanted: &[Wanted::Iops(AtLeast(1.05)), Wanted::CpuPerIo(AtMost(0.85))],
    },
    Scenario {
        name: "memory latency, 1 outstanding",
        on: "memory",
        outstanding: 1,
        write: false,
        poll: false,
        wanted: &[Wanted::MeanLatency(AtMost(1.03))],
    },
    Scenario {
        name: "memory latency, 1 outstanding, polling",
        on: "memory",
        outstanding: 1,
        write: false,
        poll: true,
        wanted: &[Wanted::MeanLatency(AtMost(0.65))],
    },
    Scenario {
        name: "disk read, 32 outstanding",
        on: "disk",
        outstanding: 32,
        write: false,
        poll: false,
        wanted: &[Wanted::Iops(AtLeast(0.97)), Wanted::CpuPerIo(AtMost(0.85))],
    },
    Scenario {
        name: "disk write, 32 outstanding",
        on: "disk",
        outstanding: 32,
        write: true,
        poll: false,
        wanted: &[Wanted::Iops(AtLeast(0.97)), Wanted::CpuPerIo(AtMost(0.85))],
    },
];

/// What one run came to.
struct Figures {
    iops: f64,
    cpu_us_per_io: f64,
    mean_us: f64,
}

impl Scenario {
    pub(crate) fn measure(&self, context: &Context, file: &Path) -> Result<(), String> {
        let pairs = in_turn(context.pairs, || self.loadline(context, file), || self.fio(context, file))?;
        for wanted in self.wanted {
            let (what, bound, of): (_, _, fn(&Figures) -> f64) = match wanted {
                Wanted::Iops(bound) => ("IOPS", *bound, |f| f.iops),
                Wanted::CpuPerIo(bound) => ("CPU us/IO", *bound, |f| f.cpu_us_per_io),
                Wanted::MeanLatency(bound) => ("mean us", *bound, |f| f.mean_us),
            };
            let values: Vec<(f64, f64)> = pairs.iter().map(|(ours, theirs)| (of(ours), of(theirs))).collect();
            print_row(self.name, what, &values, bound);
        }
        Ok(())
    }

    fn loadline(&self, context: &Context, file: &Path) -> Result<Figures, String> {
        let profile = format!("B4-T1-O{}-W{}-PR", self.outstanding, if self.write { 100 } else { 0 });
        let mut arguments = words("bench --warm-up 0s --drain 5s --json - --profile");
        arguments.extend([
            profile,
            "--for".into(),
            format!("{}s", context.seconds),
            file.display().to_string(),
        ]);
        if self.write {
            arguments.push("--destroy-data".into());
        }
        if self.poll {
            arguments.push("--poll".into());
        }
        let done = program::run(&context.program, &arguments)?;
        let iops = number(&done.json, "total/iops")?;
        Ok(Figures {
            iops,
            cpu_us_per_io: done.cpu_s * 1e6 / (iops * number(&done.json, "window_s")?),
            mean_us: number(&done.json, "total/latency_us/mean")?,
        })
    }

    fn fio(&self, context: &Context, file: &Path) -> Result<Figures, String> {
        let (rw, direction) = if self.write { ("randwrite", "write") } else { ("randread", "read") };
        let mut arguments = words(
            "--name=compare --direct=1 --ioengine=io_uring --registerfiles --fixedbufs --bs=4k --thread --time_based \
             --norandommap --randrepeat=0 --output-format=json",
        );
        arguments.extend([
            format!("--rw={rw}"),
            format!("--iodepth={}", self.outstanding),
            format!("--runtime={}", context.seconds),
            format!("--filename={}", file.display()),
        ]);
        let done = program::run(Path::new("fio"), &arguments)?;
        let job = |path: &str| number(&done.json, &format!("jobs/0/{direction}/{path}"));
        Ok(Figures {
            iops: job("iops")?,
            cpu_us_per_io: done.cpu_s * 1e6 / job("total_ios")?,
            mean_us: job("lat_ns/mean")? / 1e3,
        })
    }
}

/// The generators by themselves: nothing below them.
pub(crate) fn null_target(context: &Context) -> Result<(), String> {
    let ours = || {
        let mut arguments = words("bench null:1GiB --warm-up 0s --json - --profile B4-T1-O32-W0-PR --for");
        arguments.push(format!("{}s", context.seconds));
        number(&program::run(&context.program, &arguments)?.json, "total/iops")
    };
    let theirs = || {
        let mut arguments = words(
            "--name=compare --size=1g --ioengine=null --bs=4k --rw=randread --iodepth=32 --thread --time_based \
             --norandommap --output-format=json",
        );
        arguments.push(format!("--runtime={}", context.seconds));
        number(&program::run(Path::new("fio"), &arguments)?.json, "jobs/0/read/iops")
    };
    let values = in_turn(context.pairs, ours, theirs)?;
    print_row("null target, 32 outstanding", "IOPS", &values, AtLeast(5.0));
    Ok(())
}

/// So many pairs. Each of the two goes first in turn, so that neither always finds what the other left.
pub(crate) fn in_turn<T>(
    pairs: u32,
    ours: impl Fn() -> Result<T, String>,
    theirs: impl Fn() -> Result<T, String>,
) -> Result<Vec<(T, T)>, String> {
    let pair = |number: u32| {
        if number.is_multiple_of(2) {
            return Ok((ours()?, theirs()?));
        }
        let theirs = theirs()?;
        Ok((ours()?, theirs))
    };
    (0..pairs).map(pair).collect()
}

pub(crate) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}

/// The middle one; of an even number, the mean of the two in the middle.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { (sorted[middle - 1] + sorted[middle]) / 2.0 } else { sorted[middle] }
}

pub(crate) fn print_row(name: &str, what: &str, values: &[(f64, f64)], bound: Bound) {
    let ratios: Vec<f64> = values.iter().map(|(ours, theirs)| ours / theirs).collect();
    let (low, high) = ratios.iter().fold((f64::MAX, 0f64), |(l, h), r| (l.min(*r), h.max(*r)));
    let ratio = median(ratios);
    let (met, wanted) = match bound {
        AtLeast(least) => (ratio >= least, format!("at least {least}")),
        AtMost(most) => (ratio <= most, format!("at most {most}")),
    };
    let number = |n: f64| if n < 1000.0 { format!("{n:.2}") } else { format!("{n:.0}") };
    println!(
        "{:<44} {:>12} {:>12}  {:<20} {wanted}: {}",
        format!("{name}: {what}"),
        number(median(values.iter().map(|v| v.0))),
        number(median(values.iter().map(|v| v.1))),
        format!("{ratio:.2} ({low:.2}..{high:.2})"),
        if met { "met" } else { "NOT MET" }
    );
}
