//! Makes one result of what the workers of a step measured: windows merged, CPU added, findings gathered, the audit.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use loadline_fleet::{FleetKind, Loss, StepOutcome, WorkerInfo};
use loadline_load::Job;
use loadline_load::VerifyReport;
use loadline_measure::audit::level::disturbed;
use loadline_measure::audit::{Finding, FindingKind, RequestedLoad, Severity, audit};
use loadline_measure::steady::{ROUNDS, rounds, steadiness};
use loadline_measure::window::{Window, WindowSecond};
use loadline_profile::Arrival;

use crate::faults::has_faults;
use crate::file::Study;
use crate::fleet::ResolvedFleet;
use crate::folder::result::{NodeFigures, StartSpread, StepResult, WorkerResult};
use crate::planned_step::Purpose;
use crate::when::When;

/// The longest list of lost workers in one sentence.
const MOST_NAMED: usize = 8;

/// Fills a result with what the workers measured, in the order of `order`.
pub(crate) fn collect(
    result: &mut StepResult,
    study: &Study,
    fleet: &ResolvedFleet,
    outcome: StepOutcome,
    order: &[WorkerInfo],
    job: &Job,
) {
    let mut window = Window::new(study.phases.measure.0.into());
    let mut findings = Vec::new();
    let mut outcomes = outcome.workers;
    let mut nodes: BTreeMap<String, (u32, Window)> = BTreeMap::new();
    for info in order {
        let Some(worker) = outcomes.remove(&info.id) else { continue };
        window.merge(&worker.window);
        let (workers, of_node) = nodes
            .entry(worker.worker.node.clone())
            .or_insert_with(|| (0, Window::new(study.phases.measure.0.into())));
        *workers += 1;
        of_node.merge(&worker.window);
        if let Some(cpu) = worker.cpu {
            result.cpu += cpu;
        }
        if let Some(report) = worker.verify {
            result.verify.get_or_insert_default().merge(report);
        }
        findings.extend(worker.findings.iter().cloned());
        result.workers.push(WorkerResult {
            worker: worker.worker,
            figures: worker.window.figures(),
            clock_error_ns: worker.clock_error.map(|error| error.0),
            began_late_ns: worker.began_late.map(|late| late.0),
            cpu: worker.cpu,
            host_cpu: worker.host_cpu,
            engine: worker.engine,
            findings: worker.findings,
            lost: worker.lost,
        });
    }
    result.start = StartSpread::of(&result.workers);
    result.began = When::at(UNIX_EPOCH + Duration::from_millis(outcome.start_unix_ms));
    result.hosts = outcome.hosts;
    result.figures = window.figures();
    result.histograms = window.histograms();
    result.nodes =
        nodes.into_iter().map(|(node, (workers, window))| (node, of_node(workers, &window))).collect();
    result.seconds = window.seconds();
    result.heat = Some(window.heat().clone());
    let iops: Vec<f64> = result.seconds.iter().map(WindowSecond::iops).collect();
    // A window in which things are done to the storage is not to be steady; its timeline says how it was.
    let is_calm = !has_faults(study, &result.step);
    result.steadiness = rounds(&iops, ROUNDS)
        .filter(|_| is_calm && iops.len() >= 2 * ROUNDS)
        .and_then(|rounds| steadiness(&rounds));
    result.findings = lost(&result.workers).into_iter().collect();
    result.findings.extend(audit(&result.figures, &requested_load(study, fleet, result, job)));
    result.findings.extend(gathered(findings));
    if is_calm {
        result.findings.extend(disturbed(&iops, result.figures.longest_stall_ms));
    }
    // Ceilings and searches go beyond what the study's loads must keep, by design.
    if result.step.purpose == Purpose::Load {
        result.verdicts = study.run.limits.iter().map(|limit| limit.judge(&result.figures)).collect();
    }
    if matches!(result.step.purpose, Purpose::Search { .. }) {
        let too_much = result.findings.iter_mut().filter(|f| f.kind == FindingKind::RateNotMet);
        too_much.for_each(|finding| finding.severity = Severity::Note);
    }
}

fn of_node(workers: u32, window: &Window) -> NodeFigures {
    let total = window.figures().total;
    NodeFigures { workers, iops: total.iops, bytes_per_s: total.bytes_per_s, latency_us: total.latency_us }
}

/// What was asked of the fleet as a whole, given what one worker was asked.
fn requested_load(study: &Study, fleet: &ResolvedFleet, result: &StepResult, job: &Job) -> RequestedLoad {
    let workers = result.workers.len() as f64;
    let rate = job.profile.rate.map(|offered| offered.rate.iops(job.profile.block_size));
    // Of a fleet that lost workers neither the one nor the other was offered for the whole window; that it lost
    // them is a finding already.
    let whole = result.lost() == 0 && !has_faults(study, &result.step);
    let on_nothing = result.workers.iter().any(|worker| worker.engine.as_deref() == Some("null"));
    RequestedLoad {
        poisson: job.profile.rate.is_some_and(|offered| offered.arrival == Arrival::Poisson),
        // A flush takes a slot and is in no figure, so that Little's law says nothing of a load with flushes; and
        // nothing is outstanding where everything completes at once.
        outstanding: (whole && !on_nothing && rate.is_none() && job.profile.flush_every.is_none())
            .then(|| job.outstanding() as f64 * workers),
        rate_iops: rate.filter(|_| whole).map(|rate| rate * workers),
        generator_cpu: cores_at_most(fleet, result, job)
            // A generator that polls uses all of its CPUs, by design.
            .filter(|_| whole && !job.poll)
            .map(|cores| (result.cpu.working_s(), cores)),
        steal: result.workers.iter().filter_map(|w| w.host_cpu.map(|cpu| cpu.steal)).reduce(f64::max),
        study: true,
    }
}

/// The CPU that workers could use which share some CPUs.
#[derive(Default)]
struct NodeCpu {
    /// Threads of all of them.
    threads: f64,
    /// CPUs that they may run on.
    allowed: f64,
    /// Cores that they may use together, if they are limited.
    limit: Option<f64>,
}

/// How many cores the workers could have used at the most: their threads, as far as what each node is bound and
/// limited to and their host's CPUs go. `None` if a host does not report it.
fn cores_at_most(fleet: &ResolvedFleet, result: &StepResult, job: &Job) -> Option<f64> {
    // By host: its CPUs, and its nodes.
    let mut hosts: BTreeMap<&str, (f64, BTreeMap<&str, NodeCpu>)> = BTreeMap::new();
    for worker in &result.workers {
        let cpu = worker.host_cpu?;
        let cpus = f64::from(cpu.cpus);
        let threads = job.most_cpus(worker.engine.as_deref().unwrap_or_default());
        let (_, nodes) = hosts.entry(&worker.worker.host).or_insert((cpus, BTreeMap::new()));
        let share = fleet.placement.cpu_share(&worker.worker);
        let node = nodes.entry(share.name).or_default();
        node.threads += threads as f64;
        node.allowed = node.allowed.max(cpu.allowed.unwrap_or(cpus));
        node.limit = share.limit;
    }
    let of_host = |(cpus, nodes): &(f64, BTreeMap<&str, NodeCpu>)| {
        let of_node =
            |node: &NodeCpu| node.threads.min(node.allowed).min(node.limit.unwrap_or(f64::INFINITY));
        nodes.values().map(of_node).sum::<f64>().min(*cpus)
    };
    Some(hosts.values().map(of_host).sum())
}

/// That workers were lost. They are counted, never dropped.
fn lost(workers: &[WorkerResult]) -> Option<Finding> {
    let lost: Vec<(&WorkerInfo, &Loss)> =
        workers.iter().filter_map(|w| Some((&w.worker, w.lost.as_ref()?))).collect();
    if lost.is_empty() {
        return None;
    }
    let named: Vec<String> = lost
        .iter()
        .take(MOST_NAMED)
        .map(|(worker, loss)| format!("{} ({})", worker.id, loss.message))
        .collect();
    let more = match lost.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(Finding::doubt(
        FindingKind::LostWorkers,
        match workers.len() {
            1 => "the worker to measure to the end".to_owned(),
            all => format!("all {all} workers to measure to the end"),
        },
        format!("{} did not: {}{more}", lost.len(), named.join(", ")),
        "The figures include what these workers measured before they were lost. After that their load is missing: the storage had less work.",
    ))
}

/// The same finding of many workers is one finding.
fn gathered(findings: Vec<Finding>) -> Vec<Finding> {
    let mut distinct: Vec<(Finding, usize)> = Vec::new();
    for finding in findings {
        match distinct.iter_mut().find(|(known, _)| *known == finding) {
            Some((_, count)) => *count += 1,
            None => distinct.push((finding, 1)),
        }
    }
    let worded = |(finding, count): (Finding, usize)| match count {
        1 => finding,
        _ => Finding { found: format!("{} (by {count} workers)", finding.found), ..finding },
    };
    distinct.into_iter().map(worded).collect()
}

/// What the checks of blocks found, as a finding; `None` if there were blocks to judge, and every one of them was as
/// it should be.
pub(crate) fn integrity(report: &VerifyReport) -> Option<Finding> {
    if report.bad() == 0 && report.checked == report.unjudged {
        return Some(Finding::doubt(
            FindingKind::Integrity,
            "blocks that can be checked",
            format!("{} checked, and {} of them could not be judged", report.checked, report.unjudged),
            "Only what was written under this run's journals is checked: say fill = true, or measure a load that \
             writes first.",
        ));
    }
    (report.bad() > 0).then(|| {
        Finding::doubt(
            FindingKind::Integrity,
            format!("all {} checks of blocks to find the last acknowledged data", report.checked),
            format!(
                "{} older than acknowledged (writes lost), {} corrupt, {} from elsewhere, {} unreadable: {}",
                report.lost,
                report.corrupt,
                report.foreign,
                report.unreadable,
                report.examples.iter().take(3).cloned().collect::<Vec<_>>().join("; ")
            ),
            "The storage lost or damaged data, or something else wrote to the disks.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use crate::plan::Plan;
    use crate::read::parse;
    use loadline_base::clock::Nanos;
    use loadline_fleet::{HostCpu, WorkerId, WorkerOutcome};
    use loadline_load::CpuTime;
    use loadline_load::{Disk, Target, WritePermission};
    use loadline_measure::interval::{Interval, Phase};

    /// Two workers of one disk each, 1000 reads a second of 1 ms in each: one outstanding.
    fn result(profile: &str, host_cpu: HostCpu) -> (StepResult, RequestedLoad) {
        let text = format!("name = \"s\"\n[[profile]]\n{profile}\n[phases]\nmeasure = \"2s\"");
        let study = parse("s.toml", &text).unwrap();
        let step = Plan::of(&study).unwrap().steps.remove(0);
        let disk = Disk {
            target: Target::Null(loadline_base::units::ByteSize::GIB),
            writes: WritePermission::Refused,
        };
        let job = Job::new(vec![disk], step.profile.clone());
        let mut window = Window::new(Nanos(2 * Nanos::SECOND.0));
        for second in 0..2 {
            let mut interval = Interval::new(second, Phase::Measure, 0);
            for number in 0..1000 {
                interval.read.response.record(Nanos::MILLISECOND);
                interval.completions.set(Nanos(number * Nanos::MILLISECOND.0));
            }
            window.add(&interval);
        }
        let note = Finding::note(FindingKind::Fallback, "io_uring", "threads", "The kernel refused it.");
        let info = |name: &str| WorkerInfo {
            id: WorkerId(name.into()),
            node: "n".into(),
            host: "h".into(),
            pid: 1,
            version: "0".into(),
        };
        let outcome = |name: &str| WorkerOutcome {
            worker: info(name),
            window: window.clone(),
            clock_error: None,
            began_late: Some(Nanos(0)),
            cpu: Some(CpuTime { user_s: 0.5, system_s: 0.25, polling_s: 0.0 }),
            host_cpu: Some(host_cpu),
            findings: vec![note.clone()],
            engine: Some("io_uring".into()),
            verify: None,
            lost: None,
        };
        let names = ["n/0", "n/1"];
        let workers: BTreeMap<_, _> =
            names.iter().map(|name| (WorkerId((*name).into()), outcome(name))).collect();
        let mut result = StepResult::empty("run", &step, When::now());
        let order: Vec<WorkerInfo> = names.iter().map(|name| info(name)).collect();
        let outcome = StepOutcome { start_unix_ms: 500, workers, hosts: BTreeMap::new() };
        let fleet = ResolvedFleet::of(&study.fleet).unwrap();
        collect(&mut result, &study, &fleet, outcome, &order, &job);
        let requested_load = requested_load(&study, &fleet, &result, &job);
        (result, requested_load)
    }

    const CPUS: HostCpu = HostCpu { cpus: 8, allowed: Some(8.0), busy: 0.5, steal: 0.02 };

    #[test]
    fn a_fleets_figures_are_the_sum_of_its_workers() {
        let (result, requested_load) = result("outstanding = 1", CPUS);
        assert_eq!(result.figures.total.iops, 2000.0);
        assert_eq!(result.figures.total.latency_us.mean, Some(1000.0));
        assert_eq!((result.cpu.user_s, result.cpu.system_s, result.cores()), (1.0, 0.5, 0.75));
        assert_eq!(
            (requested_load.outstanding, requested_load.rate_iops, requested_load.steal),
            (Some(2.0), None, Some(0.02))
        );
        assert_eq!(
            requested_load.generator_cpu,
            Some((1.5, 4.0)),
            "one thread each, and one for it in the kernel"
        );
        assert_eq!(result.began.as_str(), "1970-01-01T00:00:00.500Z", "when warm-up began");
        let kinds: Vec<FindingKind> = result.findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [FindingKind::Fallback], "Little's law holds, and the same finding is one finding");
        assert_eq!(result.findings[0].found, "threads (by 2 workers)");
    }

    #[test]
    fn cpus_are_counted_by_node_and_by_host() {
        let ceiling = |change: &dyn Fn(&mut StepResult), study: &str| {
            let text = format!("name = \"s\"\nprofiles = [\"B4-T4-O8-W0-PR\"]\n{study}");
            let study = parse("s.toml", &text).unwrap();
            let (mut result, _) = result("outstanding = 1", CPUS);
            change(&mut result);
            let disk = Disk {
                target: Target::Null(loadline_base::units::ByteSize::GIB),
                writes: WritePermission::Refused,
            };
            let job = Job::new(vec![disk], Plan::of(&study).unwrap().steps.remove(0).profile);
            cores_at_most(&ResolvedFleet::of(&study.fleet).unwrap(), &result, &job)
        };
        let two_nodes = "[[fleet.node]]\nname = \"a\"\n[[fleet.node]]\nname = \"b\"\ncpu_limit = 1.5";
        let bound = |result: &mut StepResult, nodes: [&str; 2]| {
            for (worker, node) in result.workers.iter_mut().zip(nodes) {
                worker.worker.node = node.into();
                worker.host_cpu = Some(HostCpu { allowed: Some(4.0), ..CPUS });
            }
        };
        assert_eq!(ceiling(&|r| bound(r, ["c", "d"]), two_nodes), Some(8.0), "four CPUs each");
        assert_eq!(ceiling(&|r| bound(r, ["c", "c"]), two_nodes), Some(4.0), "one node's four CPUs");
        assert_eq!(ceiling(&|r| bound(r, ["a", "b"]), two_nodes), Some(5.5), "four, and a limit of 1.5");
        assert_eq!(ceiling(&|r| bound(r, ["c", "c"]), "[fleet]\njoin = 2"), Some(8.0), "each its own four");
        assert_eq!(ceiling(&|r| r.workers[0].host_cpu = None, two_nodes), None);
    }

    #[test]
    fn what_polls_or_measures_nothing_is_not_judged_by_what_it_cannot_show() {
        let (mut result, _) = result("outstanding = 1", CPUS);
        let study = parse("s.toml", "name = \"s\"\nprofiles = [\"B4-T1-O1-W0-PR\"]").unwrap();
        let fleet = ResolvedFleet::of(&study.fleet).unwrap();
        let disk = Disk {
            target: Target::Null(loadline_base::units::ByteSize::GIB),
            writes: WritePermission::Refused,
        };
        let mut job = Job::new(vec![disk], Plan::of(&study).unwrap().steps.remove(0).profile);
        assert!(requested_load(&study, &fleet, &result, &job).outstanding.is_some());
        let saturated = |result: &StepResult| {
            let requested_load = requested_load(&study, &fleet, result, &job);
            audit(&result.figures, &requested_load)
                .iter()
                .any(|finding| finding.kind == FindingKind::GeneratorBound)
        };
        // Two workers, each on a CPU of its own.
        result
            .workers
            .iter_mut()
            .for_each(|w| w.host_cpu = Some(HostCpu { cpus: 2, allowed: Some(2.0), ..CPUS }));
        result.cpu = CpuTime { user_s: 3.0, system_s: 0.95, polling_s: 0.05 };
        result.workers[0].engine = Some("vhost-user, polling before sleeping".into());
        assert!(saturated(&result), "that one of them polled says nothing of the fleet");
        result.cpu.polling_s = 2.0;
        assert!(!saturated(&result), "half of its time it only polled");
        job.poll = true;
        assert_eq!(requested_load(&study, &fleet, &result, &job).generator_cpu, None);
        result.workers.iter_mut().for_each(|worker| worker.engine = Some("null".into()));
        assert_eq!(requested_load(&study, &fleet, &result, &job).outstanding, None);
    }

    #[test]
    fn a_check_that_judged_nothing_is_doubtful() {
        let report = VerifyReport { checked: 3, unjudged: 3, ..VerifyReport::default() };
        assert!(integrity(&report).unwrap().found.starts_with("3 checked"));
        assert!(integrity(&VerifyReport::default()).is_some());
        assert_eq!(integrity(&VerifyReport { checked: 4, ..report }), None);
    }

    #[test]
    fn a_rate_is_each_workers_own() {
        let (result, requested_load) = result("rate = \"1500iops\"", HostCpu { cpus: 1, ..CPUS });
        assert_eq!((requested_load.outstanding, requested_load.rate_iops), (None, Some(3000.0)));
        assert_eq!(
            requested_load.generator_cpu,
            Some((1.5, 1.0)),
            "two threads share the one CPU of their host"
        );
        assert!(result.findings.iter().any(|finding| finding.kind == FindingKind::RateNotMet));
    }
}
