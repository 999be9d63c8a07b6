//! How long a client waits when a node dies: of a volume with two copies on three nodes, which is written to all the time.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use loadline_base::nbd::{Request, command, get_u32};
use loadline_load::nbd::connect::connect;
use loadline_load::nbd::uri::{NbdUri, Server};

use super::Setting;
use super::cluster::Cluster;

/// How long writes are waited for.
const LIMIT: Duration = Duration::from_secs(30);

/// Writes block after block, one at a time, at the nodes in turn whenever one does not answer. Tells when each write was
/// acknowledged.
fn write(
    addresses: &[std::net::Ipv4Addr],
    stop: &AtomicBool,
    acknowledge: &std::sync::mpsc::Sender<Instant>,
) {
    let mut number = 0u64;
    let mut next = 0;
    while !stop.load(Ordering::Relaxed) {
        let server = Server::Tcp(addresses[next % addresses.len()].to_string(), 10809);
        next += 1;
        let Ok((socket, _)) = connect(&NbdUri { server, export: "disk".into() }) else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let mut stream = TcpStream::from(socket);
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
        while !stop.load(Ordering::Relaxed) {
            number += 1;
            if write_one(&mut stream, number).is_err() {
                break;
            }
            let _ = acknowledge.send(Instant::now());
        }
    }
}

fn write_one(stream: &mut TcpStream, number: u64) -> io::Result<()> {
    let offset = number % 1024 * 4096;
    let request = Request { flags: 0, command: command::WRITE, cookie: number, offset, length: 4096 };
    stream.write_all(&[&request.encode()[..], &[number as u8; 4096]].concat())?;
    let mut head = [0; 16];
    stream.read_exact(&mut head)?;
    if get_u32(&head, 4) == 0 { Ok(()) } else { Err(io::ErrorKind::Other.into()) }
}

/// The longest time without an acknowledged write around this moment, up to a while after writes go on.
fn longest(acknowledged: &Receiver<Instant>, killed: Instant) -> Result<Duration, String> {
    let mut last = killed;
    let mut longest = Duration::ZERO;
    loop {
        let at =
            acknowledged.recv_timeout(LIMIT).map_err(|_| "no write is acknowledged any more".to_owned())?;
        if at < killed {
            continue;
        }
        longest = longest.max(at - last);
        last = at;
        // Nothing of it comes later than this.
        if at > killed + Duration::from_secs(4) {
            return Ok(longest);
        }
    }
}

fn print(name: &str, waits: &mut [Duration], most: Duration) {
    waits.sort_unstable();
    let at = |share: f64| waits[((waits.len() - 1) as f64 * share).round() as usize].as_millis();
    let worst = waits[waits.len() - 1];
    println!(
        "{name:<44} {} kills: median {} ms, p95 {} ms, worst {} ms; wanted under {} ms: {}",
        waits.len(),
        at(0.5),
        at(0.95),
        worst.as_millis(),
        most.as_millis(),
        if worst < most { "met" } else { "NOT MET" }
    );
}

pub(super) fn measure(setting: &Setting<'_>) -> Result<(), String> {
    println!(
        "from kill -9 to the next acknowledged write: the longest wait of a client with one outstanding\n"
    );
    let mut cluster = Cluster::start(&setting.context.program, setting.memory, 3, 1024)?;
    cluster.volume("disk", 64, 2, 1)?;
    let addresses: Vec<_> = (1..=3).map(|node| cluster.address(node)).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let (acknowledge, acknowledged) = channel();
    let writer = {
        let (addresses, stop) = (addresses.clone(), stop.clone());
        std::thread::spawn(move || write(&addresses, &stop, &acknowledge))
    };
    let result = kill_all(setting, &mut cluster, &acknowledged);
    stop.store(true, Ordering::Relaxed);
    drop(cluster);
    let _ = writer.join();
    println!();
    result
}

fn kill_all(
    setting: &Setting<'_>,
    cluster: &mut Cluster,
    acknowledged: &Receiver<Instant>,
) -> Result<(), String> {
    for (name, of_owner, most) in
        [("the node of a replica", false, 1000), ("the node of the owner", true, 3000)]
    {
        let mut waits = Vec::new();
        for _ in 0..setting.kills {
            let shown = cluster.wait_until_healthy("disk")?;
            let number =
                |name: &serde_json::Value| name.as_str().and_then(|n| n.rsplit('-').next()?.parse().ok());
            let owner: u8 = number(&shown["owner"]).ok_or("it has no owner")?;
            let homes = shown["replicas"].as_array().ok_or("it has no replicas")?.iter();
            let replica = homes.filter_map(|r| number(&r["node"])).find(|node: &u8| *node != owner);
            let victim = if of_owner { owner } else { replica.ok_or("it has no other replica")? };
            std::thread::sleep(Duration::from_millis(500));
            let killed = cluster.kill(victim);
            waits.push(longest(acknowledged, killed)?);
            cluster.start_node(victim)?;
        }
        print(name, &mut waits, Duration::from_millis(most));
    }
    Ok(())
}
