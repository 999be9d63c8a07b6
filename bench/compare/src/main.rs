//! Loadline side by side with fio, on the same file, in turn, in one run: what `./dev bench` runs.
//!
//! Machines are noisy and drift, so single figures mean little. Each pair is run back to back and gives one ratio;
//! what is printed is the median of the ratios, and their range. CPU is the whole process's as the kernel accounts
//! it, io_uring's kernel workers included (fio's own figure leaves them out).

mod analysis;
mod ceph;
mod cluster;
mod fleet;
mod limited;
mod pair;
mod program;
mod random;
mod samples;
mod san;
mod soak;
mod steal;
mod stop;
mod study;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Measure Loadline beside fio and print the ratios.
#[derive(Parser)]
#[command(max_term_width = 100)]
struct Args {
    /// Only what contains one of these words: memory, disk, latency, null, fleet, analysis. [default: all] If the first is `san`, the
    /// virtual SAN is measured instead: nbd, vhost, kill, idle, transport, volumes, storm; and iscsi (or iscsi-sessions, its idle sessions alone) and ceph, if they are named. `vhost` and `iscsi` alone are `san vhost` and `san iscsi`. If the first is `cluster`, a
    /// cluster under a fleet: faults, resync, streaming, watched; and ceph, if that is named. `soak` does random faults for some minutes and checks every block.
    names: Vec<String>,
    /// How many pairs of each; rounds of `cluster resync`.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pairs: u32,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Size of the files, MiB.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..))]
    size: u64,
    /// A folder in memory.
    #[arg(long, default_value = "/dev/shm")]
    memory: PathBuf,
    /// A folder on a disk.
    #[arg(long, default_value = "/var/tmp")]
    disk: PathBuf,
    /// How often nodes are killed.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1000))]
    kills: u32,
    /// How long `soak` takes. It makes at least one round, and begins none that could not end in time.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_080))]
    minutes: u32,
    /// Which faults `soak` does, and which nodes `cluster faults` kills. [default: a new one, which is printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Print JSON instead of a table: `san storm`, `iscsi`, `san iscsi-sessions`.
    #[arg(long)]
    json: bool,
    /// The program to measure. [default: loadline beside this one]
    #[arg(long)]
    program: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("compare: {message}");
            if stop::asked() > 0 && !message.starts_with("FAILED") {
                ExitCode::from(130)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    let wanted = |name: &str| args.names.is_empty() || args.names.iter().any(|n| name.contains(n.as_str()));
    let program = match &args.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().map_err(|e| e.to_string())?.with_file_name("loadline"),
    };
    if !program.exists() {
        return Err(format!("{} does not exist: build it first (./dev build --release)", program.display()));
    }
    let first = args.names.first().map(String::as_str);
    if first == Some("soak") {
        if let Some(more) = args.names.get(1) {
            return Err(format!("soak takes options, and not '{more}': see --help"));
        }
        stop::catch();
        let (program, place) = (program.as_path(), args.disk.as_path());
        return soak::run(&soak::Setting { program, place, minutes: args.minutes, seed: args.seed });
    }
    let context = pair::Context { program, pairs: args.pairs, seconds: args.seconds };
    if first == Some("cluster") {
        stop::catch();
        let (memory, disk) = (&args.memory, &args.disk);
        let seed = args.seed.unwrap_or_else(random::fresh_seed);
        let setting = cluster::Setting { context: &context, memory, disk, kills: args.kills, seed };
        let cpu = steal::CpuTicks::now();
        cluster::measure(&setting, &args.names[1..])?;
        print_steal(cpu);
        return Ok(());
    }
    let of_san = match args.names.split_first() {
        Some((first, names)) if first == "san" => Some(names),
        Some((first, [])) if first == "vhost" || first == "iscsi" => Some(&args.names[..]),
        _ => None,
    };
    if let Some(names) = of_san {
        let json =
            args.json && matches!(names, [name] if ["storm", "iscsi", "iscsi-sessions"].contains(&&**name));
        if !json {
            println!("{} pairs of {} s each; medians (ranges)\n", args.pairs, args.seconds);
        }
        let (memory, disk) = (&args.memory, &args.disk);
        let setting =
            san::Setting { context: &context, memory, disk, mib: args.size, kills: args.kills, json };
        let cpu = steal::CpuTicks::now();
        san::measure(&setting, names)?;
        if !json {
            print_steal(cpu);
        }
        return Ok(());
    }
    if args.names == ["analysis"] {
        return analysis::measure(&context.program, &args.disk);
    }
    println!("{} pairs of {} s each; ratios are Loadline / fio, median (range)\n", args.pairs, args.seconds);
    println!("{:<44} {:>12} {:>12}  {:<20} wanted", "", "loadline", "fio", "ratio");
    let cpu = steal::CpuTicks::now();
    for (kind, folder) in [("memory", &args.memory), ("disk", &args.disk)] {
        let scenarios: Vec<_> = pair::SCENARIOS.iter().filter(|s| s.on == kind && wanted(s.name)).collect();
        if scenarios.is_empty() {
            continue;
        }
        let file = program::random_file(folder, args.size)?;
        for scenario in scenarios {
            scenario.measure(&context, file.path())?;
        }
    }
    if wanted("null") {
        pair::null_target(&context)?;
    }
    if wanted("fleet") {
        println!();
        fleet::measure(&context.program, &args.disk)?;
    }
    if wanted("analysis") {
        println!();
        analysis::measure(&context.program, &args.disk)?;
    }
    print_steal(cpu);
    Ok(())
}

fn print_steal(cpu: Option<steal::CpuTicks>) {
    if let (Some(before), Some(after)) = (cpu, steal::CpuTicks::now()) {
        println!(
            "\nother virtual machines took {:.1} % of the CPU meanwhile (steal)",
            after.steal_since(before)
        );
    }
}
