//! `loadline bench`: one process puts a load on disks.

pub(crate) mod typed;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use loadline_base::clock::Nanos;
use loadline_base::histogram::LatencyHistogram;
use loadline_base::units::{ByteSize, TimeSpan};
use loadline_load::error::ErrorKind;
use loadline_load::host::{HostSampler, Inventory};
use loadline_load::result::{BenchResult, Circumstances, wall_clock};
use loadline_load::target::check_room;
use loadline_load::{Disk, Engine, Job, LoadError, Prepared, StopIf, Target, WritePermission};
use loadline_measure::audit::{Finding, FindingKind, Severity};
use loadline_measure::interval::Interval;
use loadline_measure::window::OperationFigures;
use loadline_profile::{OfferedRate, Profile};
use loadline_report::orientation;
use loadline_report::own::BenchDocument;

use crate::measure::profile;
use crate::output::result_file::Place;
use crate::output::text::{self, counted};
use crate::output::{self, print_error, print_line};
use crate::process::exit::Exit;
use crate::process::interrupt;
use crate::process::made::Made;

/// The threads get so long to be ready before the load begins.
const LEAD: Nanos = Nanos(100_000_000);
/// How long the load runs before the window, and how long the window is, by default.
const WARM_UP: TimeSpan = TimeSpan::seconds(5);
const MEASURE: TimeSpan = TimeSpan::seconds(30);

/// Put a load on disks, and print IOPS, throughput, latencies and CPU time.
///
/// A disk is a file, a block device, a disk of a server (nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH,
/// vhost-user:SOCKET), an image of a Ceph cluster (rbd:POOL/IMAGE?user=NAME&conf=PATH&keyring=PATH&namespace=NAME), a
/// logical unit of an iSCSI target (iscsi://USER@HOST:PORT/IQN/LUN?secret=PATH&digest=crc32c&initiator=IQN), or
/// null:SIZE, which completes each request at once and so measures the generator itself. I/O is direct (past the page
/// cache). I/O uses io_uring, or threads if the host refuses io_uring. The secret by which USER logs in to an iSCSI target
/// (CHAP) is in the file of secret=PATH, or in the environment: LOADLINE_ISCSI_SECRET.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline bench --create 1GiB /data/test.img --profile B4-T2-O32-W30-PR\n  \
    loadline bench /dev/nvme1n1 --profile B4-T1-O1-W0-PR --for 60s --json result.json\n  \
    loadline bench /dev/sdb --destroy-data --fill --profile B64-T1-O8-W100-PS --rate 100MB/s\n  \
    loadline bench /dev/sdb --profile B8-T2-O16-W0-PR --rate 2000iops --stop-if 'p99>50ms'\n\n\
    Profile names: B<block in KiB>-T<threads per disk>-O<outstanding per thread>-W<write percent>-P<R random, \
    S sequential, SI sequential interleaved>; or a well-known name: 4k-randread, 8k-70-30, oltp (loadline profile list). See also: loadline profile show NAME.\n\n\
    In place of a profile, options of fio or flags of DISKSPD can describe the load. Everything that they leave out is as in B4-T1-O32-W0-PR:\n  \
    loadline bench /data/test.img --bs 4k --iodepth 32 --rw randread --runtime 60\n  \
    loadline bench /data/test.img -b4K -o32 -t4 -w0 -r -d60")]
pub(crate) struct Args {
    /// Files, block devices, nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, vhost-user:SOCKET, rbd:POOL/IMAGE, iscsi://HOST/IQN/LUN, or
    /// null:SIZE.
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<Target>,
    /// A name such as B4-T2-O32-W30-PR or oltp; a whole line of fio or DISKSPD in quotes; or a file with a line, a fio
    /// job or a TOML profile.
    #[arg(
        long,
        short,
        allow_hyphen_values = true,
        default_value = "B4-T1-O32-W0-PR",
        value_name = "NAME|FILE"
    )]
    profile: String,
    /// Load before the measured window. [default: 5s]
    #[arg(long, value_name = "TIME")]
    warm_up: Option<TimeSpan>,
    /// The measured window. [default: 30s]
    #[arg(long = "for", value_name = "TIME")]
    measure: Option<TimeSpan>,
    /// Issue I/Os at this rate, in total over all targets, however fast the disks are. With "2000iops poisson" the
    /// I/Os arrive at random moments.
    #[arg(long, value_name = "2000iops|100MB/s")]
    rate: Option<OfferedRate>,
    /// Write the result as JSON to this file, or to standard output with "-".
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
    /// Create each target as a file of this size, fill the file, and remove it at the end. The target must not exist
    /// yet.
    #[arg(long, value_name = "SIZE")]
    create: Option<ByteSize>,
    /// Write the whole working set once before the load.
    #[arg(long)]
    fill: bool,
    /// Allow writes to a device, or to a file that Loadline did not make. All data on the targets can be lost.
    #[arg(long)]
    destroy_data: bool,
    /// The seed of the random numbers. The result states the seed. [default: a new seed for each command]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// End the load with exit code 99 if one second exceeds this limit. This protects storage in production.
    #[arg(long, value_name = "p99>50ms|max>2s|errors>0")]
    stop_if: Vec<StopIf>,
    /// Tag every block that is written, check every block that is read, and scan all blocks after the load.
    #[arg(long)]
    verify: bool,
    /// The journal of --verify, one file for each target. A journal records which writes were acknowledged. If this
    /// process is killed, `loadline verify` checks the target with the journal. [default: new files in the temporary
    /// folder, removed at the end]
    #[arg(long, requires = "verify", value_name = "FILE")]
    journal: Vec<PathBuf>,
    /// How I/Os are issued to the kernel.
    #[arg(long, default_value = "auto", value_name = "auto|io_uring|threads", value_parser = parse_engine)]
    engine: Engine,
    /// Poll for completions and never sleep. This gives the lowest latency and uses a whole CPU for each thread.
    #[arg(long)]
    poll: bool,
    /// How long to wait, after the load, for I/Os that have not completed.
    #[arg(long, default_value = "30s", value_name = "TIME")]
    drain: TimeSpan,
}

pub(crate) fn parse_engine(text: &str) -> Result<Engine, String> {
    match text {
        "auto" => Ok(Engine::Auto),
        "io_uring" => Ok(Engine::IoUring),
        "threads" => Ok(Engine::Threads),
        _ => Err("write auto, io_uring or threads".into()),
    }
}

/// Puts the load on the targets. `typed` is the load where it is given in the words of another tool.
pub(crate) fn run(mut args: Args, typed: Option<&typed::Typed>) -> Exit {
    let stop = interrupt::flag();
    let profile = match typed {
        None => profile::one(&args.profile, args.targets.len()),
        Some(typed) => profile::typed(typed, args.targets.len()).and_then(|load| {
            let twice = [
                ("warm-up", "--warm-up", args.warm_up.is_some() && load.warm_up.is_some()),
                ("window", "--for", args.measure.is_some() && load.measure.is_some()),
                ("seed", "--seed", args.seed.is_some() && load.seed.is_some()),
            ];
            if let Some((what, option, _)) = twice.into_iter().find(|(.., twice)| *twice) {
                let tool = typed.tool();
                return Err(format!(
                    "the {what} is given by {option} and by an option of {tool}: leave one out"
                ));
            }
            args.warm_up = args.warm_up.or(load.warm_up);
            args.measure = args.measure.or(load.measure);
            args.seed = args.seed.or(load.seed);
            Ok(load.profile)
        }),
    };
    let profile = match profile {
        Ok(profile) => profile,
        Err(message) => return print_error(Exit::Usage, &message),
    };
    let place = args.json.as_deref().map(|name| Place::check(name, &args.targets, &args.journal));
    let place = match place.transpose() {
        Ok(place) => place,
        Err(error) => return print_error(error.kind.into(), &error.message),
    };
    let mut made = Made;
    let measured = match measure(&args, profile, &stop, &mut made) {
        Ok(measured) => measured,
        Err(error) => return print_error(error.kind.into(), &error.message),
    };
    let Measured { result, ended } = measured;
    let document = BenchDocument::of(result);
    // The result is printed first, whether or not the file can be written.
    if !matches!(place, Some(Place::Output)) {
        print(&document.result);
        output::write(orientation::text(&document.orientation).as_bytes());
    }
    let written = place.map_or(Ok(()), |place| write_json(&place, &document));
    match (written, &ended) {
        (Err(error), _) => print_error(error.kind.into(), &error.message),
        (Ok(()), Some(error)) => print_error(error.kind.into(), &error.message),
        (Ok(()), None) => conclude(&document.result),
    }
}

/// What a load and the scan after it came to.
struct Measured {
    result: BenchResult,
    /// Why it did not come to its end (Ctrl-C, a connection that ended): what was measured before stands.
    ended: Option<LoadError>,
}

/// The exit code of a result: failed, missed, findings, in this order.
fn conclude(result: &BenchResult) -> Exit {
    if let Some(verify) = result.verify.as_ref().filter(|v| v.bad() > 0) {
        return print_error(
            Exit::Failed,
            &match verify.bad() {
                1 => "1 block does not hold the data that was written to it: this storage loses data"
                    .to_owned(),
                bad => format!(
                    "{bad} blocks do not hold the data that was written to them: this storage loses data"
                ),
            },
        );
    }
    if result.figures.total.iops == 0.0 {
        return print_error(Exit::Failed, "nothing completed in the window");
    }
    if let Some(why) = &result.stopped {
        return print_error(Exit::Missed, &format!("stopped: {why}"));
    }
    if result.is_doubtful() { Exit::Findings } else { Exit::Done }
}

fn measure(
    args: &Args,
    mut profile: Profile,
    stop: &AtomicBool,
    made: &mut Made,
) -> Result<Measured, LoadError> {
    if args.rate.is_some() {
        profile.rate = args.rate;
    }
    if let Some(size) = args.create {
        check_room(args.targets.iter().filter_map(Target::path).map(|path| (path, size)))?;
    }
    let verify = args
        .verify
        .then(|| made.journals(&args.journal, args.targets.len(), args.create.is_some()))
        .transpose()?;
    let mut disks = Vec::new();
    for target in &args.targets {
        let writes = match (target, args.create) {
            (Target::Path(path), Some(size)) => WritePermission::Made(made.disk(path, size)?),
            _ if args.destroy_data => WritePermission::Destroy,
            _ => WritePermission::Refused,
        };
        disks.push(Disk { target: target.clone(), writes });
    }
    let mut job = Job::new(disks, profile);
    job.warm_up = args.warm_up.unwrap_or(WARM_UP);
    job.measure = args.measure.unwrap_or(MEASURE);
    job.drain = args.drain;
    job.seed = args.seed.unwrap_or_else(fresh_seed);
    job.engine = args.engine;
    job.poll = args.poll;
    job.stop_if = args.stop_if.clone();
    job.verify = verify;
    let bar = Bar::new(&job);
    let mut findings = Vec::new();
    if args.fill || args.create.is_some() {
        let mut prepared = loadline_load::prepare_to_fill(&job)?;
        prepared.fill(stop, &mut |done, total| bar.bytes("filling", done, total))?;
        findings.extend_from_slice(prepared.findings());
    }
    let prepared = loadline_load::prepare(&job)?;
    let (mut result, mut ended) = load(&job, prepared, stop, &bar)?;
    result.add_findings(findings);
    if args.fill || args.create.is_some() {
        // What this command has filled was written, also where a server does not say so.
        let is_unknown = |finding: &Finding| {
            finding.kind == FindingKind::UnwrittenReads && finding.severity == Severity::Note
        };
        result.findings.retain(|finding| !is_unknown(finding));
    }
    match &ended {
        Some(error) if job.verify.is_some() => result.add_findings([scan_incomplete(error)]),
        None if job.verify.is_some() && scan(&job, stop, &bar, &mut result) => {
            let message = "stopped while checking every block".into();
            ended = Some(LoadError { message, ..LoadError::interrupted() });
        }
        _ => {}
    }
    bar.clear();
    Ok(Measured { result, ended })
}

/// Checks every block, and adds what it finds to the load's result. Whatever becomes of the scan, that result stands.
/// Says whether Ctrl-C ended the scan.
fn scan(job: &Job, stop: &AtomicBool, bar: &Bar, result: &mut BenchResult) -> bool {
    let error = match loadline_load::prepare_to_scan_after_load(job) {
        Err(error) => Some(error),
        Ok(mut prepared) => {
            let mut progress = |done, total| bar.bytes("checking every block", done, total);
            let scan = prepared.scan(stop, &mut progress);
            result.verify.get_or_insert_default().merge(scan.report);
            result.add_findings(prepared.findings().iter().cloned());
            scan.incomplete
        }
    };
    match &error {
        Some(error) => result.add_findings([scan_incomplete(error)]),
        None => {
            result.add_findings(result.verify.iter().filter_map(|v| v.nothing_judged()).collect::<Vec<_>>())
        }
    }
    error.is_some_and(|e| e.kind == ErrorKind::Interrupted)
}

/// What was not checked may be lost.
pub(crate) fn scan_incomplete(error: &LoadError) -> Finding {
    let why = match error.kind {
        ErrorKind::Interrupted => "it was stopped",
        _ => error.message.as_str(),
    };
    Finding::doubt(
        FindingKind::Integrity,
        "every block that was written to be checked",
        format!("scan incomplete: {why}"),
        "The state of the other blocks is not known. With --journal, loadline verify can check them later.",
    )
}

/// Another seed each time, small enough that programs which read JSON numbers as doubles keep all of it.
fn fresh_seed() -> u64 {
    (wall_clock(Nanos::now()) * 1e6) as u64 & ((1 << 53) - 1)
}

/// What a load came to; and why it ended before its time, if it did.
fn load(
    job: &Job,
    prepared: Prepared,
    stop: &AtomicBool,
    bar: &Bar,
) -> Result<(BenchResult, Option<LoadError>), LoadError> {
    let inventory = Inventory::collect(&job.disks.iter().map(|d| d.target.clone()).collect::<Vec<_>>())
        .with_sizes(&prepared.sizes());
    let mut sampler = HostSampler::new(&inventory);
    let (mut seconds, mut host) = (Vec::new(), Vec::new());
    let start = Nanos::now() + LEAD;
    let open = start + Nanos::from(job.warm_up.0);
    let started_unix_s = wall_clock(open);
    let mut sink = |second: Option<i64>, records: Vec<Interval>| {
        if let Some(second) = second {
            host.push(sampler.sample(second));
            bar.second(second, &records);
        }
        seconds.extend(records.iter().map(Interval::encode));
    };
    let outcome = prepared.run(start, stop, &mut sink)?;
    let ended = outcome.ended_early.clone();
    Ok((BenchResult::new(job, outcome, Circumstances { started_unix_s, seconds, host, inventory }), ended))
}

/// Progress on standard error: a bar on a terminal, nothing elsewhere.
struct Bar {
    bar: ProgressBar,
    warm_up: i64,
    measure: i64,
}

impl Bar {
    fn new(job: &Job) -> Bar {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template("{bar:24} {msg}").expect("a valid template");
        bar.set_style(style.progress_chars("=> "));
        Bar { bar, warm_up: job.warm_up.0.as_secs() as i64, measure: job.measure.0.as_secs() as i64 }
    }

    fn bytes(&self, what: &str, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        self.bar.set_message(format!("{what}: {} of {} MiB", done >> 20, total >> 20));
    }

    fn second(&self, second: i64, records: &[Interval]) {
        let mut all = LatencyHistogram::new();
        records.iter().for_each(|i| {
            all.merge(&i.read.response);
            all.merge(&i.write.response);
        });
        let (phase, left) = if second < 0 {
            ("warming up", -second - 1)
        } else {
            ("measuring", (self.measure - second - 1).max(0))
        };
        self.bar.set_length((self.warm_up + self.measure) as u64);
        self.bar.set_position((second + self.warm_up + 1).clamp(0, self.warm_up + self.measure) as u64);
        self.bar.set_message(format!(
            "{phase}, {left} s left  {} IOPS  p99 {}",
            text::count(all.count() as f64),
            text::latency(all.quantile(0.99).map(Nanos::as_micros))
        ));
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}

fn write_json(place: &Place, document: &BenchDocument) -> Result<(), LoadError> {
    let text = serde_json::to_string_pretty(document).map_err(|e| LoadError::failed(e.to_string()))? + "\n";
    place.write(&text).map_err(|e| LoadError::failed(format!("the result cannot be written to {place}: {e}")))
}

fn print(result: &BenchResult) {
    let figures = &result.figures;
    print_line!(
        "{}  {}  {} s by {}  seed {}",
        result.profile.label(),
        result.targets.join(" "),
        figures.window_s,
        result.engine,
        result.seed
    );
    print_line!(
        "{:<6} {:>12} {:>12} {:>10} {:>10} {:>10} {:>10} {:>18} {:>10}",
        "",
        "IOPS",
        "throughput",
        "mean",
        "p50",
        "p99",
        "p99.9",
        "deepest",
        "max"
    );
    let row = |name: &str, f: &OperationFigures| {
        let latency = &f.latency_us;
        let deepest = latency
            .deepest_value()
            .map_or("-".into(), |(name, us)| format!("{name} {}", text::latency(Some(us))));
        print_line!(
            "{name:<6} {:>12} {:>12} {:>10} {:>10} {:>10} {:>10} {deepest:>18} {:>10}",
            text::count(f.iops),
            text::megabytes(f.bytes_per_s),
            text::latency(latency.mean),
            text::latency(latency.p50),
            text::latency(latency.p99),
            text::latency(latency.p99_9),
            text::latency(latency.max),
        );
    };
    let both = figures.read.iops > 0.0 && figures.write.iops > 0.0;
    if both || figures.write.iops == 0.0 {
        row("read", &figures.read);
    }
    if figures.write.iops > 0.0 {
        row("write", &figures.write);
    }
    if both {
        row("total", &figures.total);
    }
    let polling = match result.cpu.polling_s {
        0.0 => String::new(),
        polling => format!(", {polling:.2} s of this time spent polling for completions"),
    };
    let ios = figures.total.iops * figures.window_s;
    print_line!(
        "CPU {:.2} s of user and {:.2} s of system time ({:.2} us an I/O){polling}; longest stall {} ms; {}",
        result.cpu.user_s,
        result.cpu.system_s,
        if ios > 0.0 { result.cpu.used_s() * 1e6 / ios } else { 0.0 },
        figures.longest_stall_ms,
        counted(figures.errors, "error")
    );
    if let (Some(service), Some(lateness)) = (&figures.service_us, &figures.lateness_us) {
        print_line!(
            "response = completed - intended; service (completed - issued): mean {}, p99 {}; generator's lateness: \
             mean {}, p99 {}",
            text::latency(service.mean),
            text::latency(service.p99),
            text::latency(lateness.mean),
            text::latency(lateness.p99)
        );
    }
    if let Some(verify) = &result.verify {
        print_line!("verified: {verify}");
        verify.examples.iter().for_each(|e| print_line!("  {e}"));
    }
    result.findings.iter().for_each(|finding| print_line!("{finding}"));
}
