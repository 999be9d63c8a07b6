//! What a storm of handshakes costs a client: it writes, reads and verifies by NBD with TLS, with and without strangers that open
//! connections as fast as they can. `./dev bench san storm`.

mod client;
mod strangers;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::cluster::Cluster;
use super::{Setting, cpu_of};
use crate::pair::{Bound, in_turn, median, print_row};
use client::Client;
use strangers::Strangers;

/// Nodes; the volume has a copy at each, and the storm is at its owner.
const NODES: u8 = 2;
const VOLUME_MIB: u64 = 64;
/// Connections of the client, each with one request outstanding.
const CLIENTS: u32 = 2;
/// What is wanted: the client's p99 under the storm is at most so many times what it is without.
const WANTED: f64 = 2.0;

/// The figure that has a limit.
const P99: &str = "p99 us";

/// A figure, by its name.
type Column = (&'static str, fn(&Figures) -> f64);

/// What one run came to.
struct Figures {
    p50_us: f64,
    p99_us: f64,
    iops: f64,
    /// CPU time of the node that has the storm, in seconds of a core for each second.
    node_cpu: f64,
    /// Connections that strangers opened, for each second.
    connections: f64,
}

pub(super) fn measure(setting: &Setting<'_>) -> Result<(), String> {
    let (context, protected) = (setting.context, ["--transport", "encrypted"]);
    let cluster = Cluster::start_with(&context.program, setting.memory, NODES, 1024, &protected)?;
    cluster.volume("disk", VOLUME_MIB, NODES, 1)?;
    let access = cluster.access("client")?;
    let cluster = &cluster;
    let pairs = in_turn(
        context.pairs,
        || run(cluster, &access, context.seconds, true),
        || run(cluster, &access, context.seconds, false),
    )?;
    let columns: [Column; 4] = [
        ("p50 us", |figures| figures.p50_us),
        (P99, |figures| figures.p99_us),
        ("IOPS", |figures| figures.iops),
        ("CPU of the node", |figures| figures.node_cpu),
    ];
    let values = |of: fn(&Figures) -> f64| -> Vec<(f64, f64)> {
        pairs.iter().map(|(storm, calm)| (of(storm), of(calm))).collect()
    };
    let opened = median(pairs.iter().map(|(storm, _)| storm.connections));
    let ratio = median(values(columns[1].1).iter().map(|(storm, calm)| storm / calm));
    if setting.json {
        let rows = pairs.iter().map(|(storm, calm)| {
            let of = |figures: &Figures| {
                columns
                    .iter()
                    .map(|(name, of)| ((*name).to_owned(), json!(of(figures))))
                    .collect::<serde_json::Map<_, _>>()
            };
            json!({ "storm": of(storm), "calm": of(calm), "connections_per_s": storm.connections })
        });
        let report = json!({
            "pairs": rows.collect::<Vec<_>>(),
            "median_connections_per_s": opened,
            "median_p99_ratio": ratio,
            "wanted_p99_ratio": WANTED,
        });
        println!("{report:#}");
        return Ok(());
    }
    println!(
        "{} with TLS on a volume of {NODES} copies in memory, beside strangers that open {} connections a second\n\
         (each second {} of them, as fast as they can be opened, {} at a time); medians with the storm, without, and ratios\n",
        if CLIENTS == 1 { "a client".into() } else { format!("{CLIENTS} clients") },
        opened.round(),
        strangers::BURST,
        strangers::AT_A_TIME
    );
    for (name, of) in columns {
        let values = values(of);
        if name == P99 {
            print_row("storm / calm", name, &values, Bound::AtMost(WANTED));
            continue;
        }
        let storm = median(values.iter().map(|(storm, _)| *storm));
        let calm = median(values.iter().map(|(_, calm)| *calm));
        let ratio = median(values.iter().map(|(storm, calm)| storm / calm));
        println!("{:<44} {storm:>12.2} {calm:>12.2}  {ratio:.2}", format!("storm / calm: {name}"));
    }
    println!();
    Ok(())
}

/// One run, with the storm or without.
fn run(cluster: &Cluster, access: &Path, seconds: u32, with_storm: bool) -> Result<Figures, String> {
    let address = cluster.address(1);
    let ended = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let client = Client::connect(address, "disk", access)?;
        let blocks = VOLUME_MIB * 256 / u64::from(CLIENTS);
        let ended = ended.clone();
        clients.push(std::thread::spawn(move || client.work(u64::from(number) * blocks, blocks, &ended)));
    }
    let storm = with_storm.then(|| Strangers::start(address));
    let node = &cluster.processes()[..1];
    let (begun, cpu) = (Instant::now(), cpu_of(node));
    std::thread::sleep(Duration::from_secs(u64::from(seconds)));
    let took = begun.elapsed().as_secs_f64();
    let node_cpu = (cpu_of(node) - cpu) / took;
    ended.store(true, Ordering::Relaxed);
    let connections = storm.map_or(0, Strangers::end) as f64 / took;
    let mut latencies = Vec::new();
    for client in clients {
        latencies.extend(client.join().map_err(|_| "a client has panicked".to_owned())??);
    }
    if latencies.is_empty() {
        return Err("no request was answered".into());
    }
    latencies.sort_unstable();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    Ok(Figures {
        p50_us: at(0.5),
        p99_us: at(0.99),
        iops: latencies.len() as f64 / took,
        node_cpu,
        connections,
    })
}
