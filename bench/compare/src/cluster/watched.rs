//! What watching costs: clients of a cluster in memory while a console follows all nodes and sends each second to a page, beside the same
//! cluster without a console.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use loadline_measure::difference::ratio;

use super::Setting;
use super::streaming::single;
use crate::pair::{Bound::AtLeast, in_turn, print_row};
use crate::san::cluster::Cluster;

const NODES: u8 = 3;
const MIB: u64 = 256;

pub(super) fn measure(setting: &Setting<'_>) -> Result<(), String> {
    println!(
        "clients of a cluster of {NODES} nodes in memory, while a console with one page follows it and without; ratios are with / without; {} \
         pairs of {} s\n",
        setting.context.pairs, setting.context.seconds
    );
    println!("{:<44} {:>12} {:>12}  {:<20} wanted", "", "with", "without", "ratio");
    let cluster = Cluster::start(&setting.context.program, setting.memory, NODES, MIB * 5 / 4 + 768)?;
    cluster.volume("disk", MIB, 2, 1)?;
    let volume = cluster.vhost("disk", 1);
    for (outstanding, write) in [(8, false), (8, true)] {
        let profile = format!("B4-T1-O{outstanding}-W{}-PR", if write { 100 } else { 0 });
        let without = || single(setting, &volume, &profile);
        let with = || {
            let console = Console::start(setting, &cluster)?;
            let measured = single(setting, &volume, &profile);
            console.end()?;
            measured
        };
        let pairs = in_turn(setting.context.pairs, with, without)?;
        let what = format!("{}, {outstanding} outstanding, 2 copies", if write { "write" } else { "read" });
        print_row(&what, "IOPS", &pairs, AtLeast(0.99));
        let (with, without): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        match ratio(&without, &with).and_then(|ratio| ratio.low.zip(ratio.high)) {
            Some((low, high)) => println!("    95 % interval of the ratio {low:.3}..{high:.3}"),
            None => println!("    too few pairs for a 95 % interval of the ratio (four at least)"),
        }
    }
    println!();
    Ok(())
}

/// A console that follows the cluster, and one page that reads what it sends.
struct Console {
    child: Running,
    page: std::thread::JoinHandle<usize>,
}

/// A process that ends when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Console {
    fn start(setting: &Setting<'_>, cluster: &Cluster) -> Result<Console, String> {
        let failed = |e: std::io::Error| format!("loadline console: {e}");
        let child = Command::new(&setting.context.program)
            .args(["console", "--port", "0"])
            .arg(format!("bench={}:7400", cluster.address(1)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = Running(child.map_err(failed)?);
        let mut line = String::new();
        let out = child.0.stdout.take().ok_or("loadline console: no output")?;
        BufReader::new(out).read_line(&mut line).map_err(failed)?;
        let port =
            line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(';').next()?.trim().parse().ok());
        let port: u16 = port.ok_or_else(|| format!("loadline console says {line:?}"))?;
        let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(failed)?;
        let request = format!("GET /api/clusters/bench/stream HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(failed)?;
        // It ends with the console.
        let page = std::thread::spawn(move || {
            let (mut buffer, mut seconds) = (vec![0; 1 << 16], 0);
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                seconds += buffer[..length].windows(10).filter(|part| part == b"event: now").count();
            }
            seconds
        });
        Ok(Console { child, page })
    }

    /// Ends it. An error says that the page got nothing: then nothing was watched.
    fn end(self) -> Result<(), String> {
        drop(self.child);
        match self.page.join() {
            Ok(seconds) if seconds > 0 => Ok(()),
            _ => Err("the console sent no second".into()),
        }
    }
}
