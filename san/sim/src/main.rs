//! `./dev sim`: many clusters, each from a seed, with every fault.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use loadline_san_core::rule::Rule;
use loadline_san_sim::coverage::Coverage;
use loadline_san_sim::directed::{self, FORWARDING, SCHEDULES};
use loadline_san_sim::print_line;
use loadline_san_sim::run::{Verdict, run};
use loadline_san_sim::scale::{self, Cluster, LEAST_NODES, MOST_VOLUMES};
use loadline_san_sim::settings::Settings;

/// Simulates clusters of the virtual SAN: nodes, networks, disks and clients in one thread, from a seed, with
/// every fault, and checks after each step that nothing happens that must never happen.
#[derive(Debug, Parser)]
#[command(
    name = "./dev sim",
    after_help = "Exit codes: 0 all is well, 1 something was violated, 2 the command line."
)]
struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 200, conflicts_with = "seed")]
    seeds: u64,
    /// The first one.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Only this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Prints everything that happens; with --seed or --directed.
    #[arg(long)]
    trace: bool,
    /// No seed is begun after so many minutes.
    #[arg(long)]
    minutes: Option<f64>,
    /// So many nodes, 16 at the most, or with --scale 1000; otherwise each seed has its own number.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    nodes: Option<u64>,
    /// So many copies; otherwise each seed has its own number.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=3))]
    copies: Option<u64>,
    /// Client requests of each seed.
    #[arg(long)]
    operations: Option<u64>,
    /// Threads; otherwise as many as there are cores.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=256))]
    threads: Option<u64>,
    /// Only the directed schedules, each with delays from the first seed; of these, those with WORDS in their names.
    #[arg(long, value_name = "WORDS", num_args = 0..=1, default_missing_value = "")]
    directed: Option<String>,
    /// Leaves a rule of the design out, by its name there (W1), to see what comes of it.
    #[arg(long, value_parser = rule)]
    leave_out: Option<Rule>,
    /// Prints what of the protocol was seen.
    #[arg(long)]
    coverage: bool,
    /// Measures what faults cost large clusters, and how that grows: a list of clusters, or the one of --nodes, --volumes and
    /// --copies.
    #[arg(long, conflicts_with_all = ["seeds", "trace", "minutes", "operations", "threads", "directed", "coverage"])]
    scale: bool,
    /// So many volumes.
    #[arg(long, requires = "scale", value_parser = clap::value_parser!(u64).range(1..=MOST_VOLUMES as u64))]
    volumes: Option<u64>,
    /// Prints JSON.
    #[arg(long, requires = "scale")]
    json: bool,
}

impl Arguments {
    fn settings(&self, seed: u64) -> Settings {
        let mut settings = Settings::of_seed(seed);
        if let Some(nodes) = self.nodes {
            settings.nodes = nodes as usize;
        }
        if let Some(copies) = self.copies {
            settings.copies = copies as usize;
        }
        settings.nodes = settings.nodes.max(self.copies.unwrap_or(1) as usize);
        settings.copies = settings.copies.min(settings.nodes);
        settings.least = settings.least.min(settings.copies as u32);
        if let Some(operations) = self.operations {
            settings.operations = operations;
        }
        settings
    }
}

fn rule(name: &str) -> Result<Rule, String> {
    let all = || Rule::OF_CLUSTERS.iter().chain(Rule::OF_STORES);
    let names = || all().map(|rule| format!("{rule:?}"));
    let known = all().zip(names()).find(|(_, known)| known.eq_ignore_ascii_case(name));
    known
        .map(|(rule, _)| *rule)
        .ok_or_else(|| format!("the rules are {}", names().collect::<Vec<_>>().join(", ")))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.scale {
        return measure(&arguments);
    }
    if arguments.nodes.is_some_and(|nodes| nodes > 16) {
        eprintln!("more than 16 nodes are simulated with --scale only");
        return ExitCode::from(2);
    }
    if let (Some(nodes), Some(copies)) = (arguments.nodes, arguments.copies)
        && copies > nodes
    {
        eprintln!(
            "{copies} copies need {copies} nodes, and there are {nodes}: ask for fewer copies, or more nodes"
        );
        return ExitCode::from(2);
    }
    if arguments.trace && arguments.seed.is_none() && arguments.directed.is_none() {
        eprintln!("--trace needs one run: name a seed with --seed, or give --directed");
        return ExitCode::from(2);
    }
    if let Some(seed) = arguments.seed {
        let settings = arguments.settings(seed);
        print_line!("seed {seed}: {settings:?}");
        let verdict = run(&settings, seed, arguments.leave_out, arguments.trace);
        report(seed, &verdict);
        if arguments.coverage {
            print_line!("{}", verdict.coverage);
        }
        return if verdict.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    if let Some(words) = &arguments.directed {
        let mut violated = false;
        let all = || SCHEDULES.iter().chain(FORWARDING.iter().map(|(_, schedule)| schedule));
        let chosen = || all().filter(|schedule| schedule.name.contains(words.as_str()));
        if chosen().next().is_none() {
            eprintln!("no schedule has {words:?} in its name: --directed alone runs and names them all");
            return ExitCode::from(2);
        }
        for schedule in chosen() {
            let verdict = directed::run(schedule, arguments.first, arguments.leave_out, arguments.trace);
            violated |= verdict.violation.is_some();
            print_line!(
                "{}: {}",
                schedule.name,
                verdict.violation.map_or("all is well".to_owned(), |v| v.to_string())
            );
        }
        return if violated { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    // Of many seeds, each panic is reported with its seed, in one line.
    std::panic::set_hook(Box::new(|_| {}));
    many(&arguments)
}

/// The clusters of --scale: nodes, volumes and copies.
const CLUSTERS: [(usize, usize, usize); 10] = [
    (4, 10, 2),
    (4, 10, 3),
    (4, 100, 2),
    (4, 100, 3),
    (10, 100, 2),
    (10, 100, 3),
    (30, 300, 2),
    (30, 300, 3),
    (100, 1000, 2),
    (100, 1000, 3),
];

fn measure(arguments: &Arguments) -> ExitCode {
    let seed = arguments.seed.unwrap_or(arguments.first);
    let (nodes, volumes, copies) = (arguments.nodes, arguments.volumes, arguments.copies);
    let clusters: Vec<Cluster> = match (nodes, volumes, copies) {
        (None, None, None) => CLUSTERS.to_vec(),
        _ => {
            vec![(nodes.unwrap_or(4) as usize, volumes.unwrap_or(100) as usize, copies.unwrap_or(3) as usize)]
        }
    }
    .into_iter()
    .map(|(nodes, volumes, copies)| Cluster { nodes, volumes, copies, seed })
    .collect();
    if clusters.iter().any(|cluster| cluster.nodes < LEAST_NODES || cluster.copies < 2) {
        eprintln!("a cluster that is measured has at least {LEAST_NODES} nodes and 2 copies of each volume");
        return ExitCode::from(2);
    }
    let mut all = Vec::new();
    for cluster in clusters {
        let began = Instant::now();
        let measured = scale::measure(cluster, arguments.leave_out);
        let Cluster { nodes, volumes, copies, .. } = cluster;
        eprintln!(
            "{nodes} nodes, {volumes} volumes, {copies} copies: simulated in {:.1} s",
            began.elapsed().as_secs_f64()
        );
        if !arguments.json {
            print_line!("{}", scale::print::cluster(&measured));
        }
        all.push(measured);
    }
    if arguments.json {
        print_line!("{}", serde_json::to_string_pretty(&all).expect("it has numbers and names"));
    } else if all.len() > 1 {
        print_line!("{}", scale::print::growth(&all));
    }
    if all.iter().any(|measured| !measured.violations.is_empty()) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn report(seed: u64, verdict: &Verdict) {
    let (ms, operations) = (verdict.at / 1_000_000, verdict.operations);
    match &verdict.violation {
        Some(violation) => print_line!(
            "seed {seed}: after {ms} ms and {operations} requests: {violation}\n  ./dev sim --seed {seed} --trace"
        ),
        None => print_line!("seed {seed}: all is well after {ms} ms and {operations} requests"),
    }
}

struct Sum {
    coverage: Coverage,
    operations: u64,
    lost: u64,
    violated: Vec<u64>,
}

fn many(arguments: &Arguments) -> ExitCode {
    let began = Instant::now();
    let end =
        arguments.minutes.map(|minutes| began + Duration::from_secs_f64(minutes.clamp(0.0, 1e6) * 60.0));
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    let sum = Mutex::new(Sum { coverage: Coverage::default(), operations: 0, lost: 0, violated: Vec::new() });
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads.unwrap_or(cores) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) && end.is_none_or(|end| Instant::now() < end) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= arguments.seeds {
                        return;
                    }
                    let seed = arguments.first + number;
                    let verdict = run(&arguments.settings(seed), seed, arguments.leave_out, false);
                    let mut sum = sum.lock().expect("no thread panics while it has it");
                    sum.coverage.add(&verdict.coverage);
                    sum.operations += verdict.operations;
                    sum.lost += u64::from(verdict.lost);
                    if verdict.violation.is_some() {
                        report(seed, &verdict);
                        sum.violated.push(seed);
                        // A few are enough to see what they have in common.
                        stop.fetch_or(sum.violated.len() >= 10, Ordering::Relaxed);
                    }
                    let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                    if done.is_multiple_of(500) {
                        let took = began.elapsed().as_secs_f64();
                        let left = took / done as f64 * (arguments.seeds - done) as f64;
                        eprintln!("{done} of {} seeds, about {:.0} s left", arguments.seeds, left);
                    }
                }
            });
        }
    });
    let sum = sum.into_inner().expect("no thread panics while it has it");
    let (done, took) = (done.into_inner(), began.elapsed().as_secs_f64());
    if arguments.coverage {
        print_line!("{}", sum.coverage);
    }
    print_line!(
        "{done} seeds, {} client requests, {:.0} a second; {} seeds ended early, no copy of a group left; {}",
        sum.operations,
        sum.operations as f64 / took,
        sum.lost,
        match sum.violated.len() {
            0 => "nothing was violated".to_owned(),
            count => format!("{count} violated something: {:?}", sum.violated),
        }
    );
    if sum.violated.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
