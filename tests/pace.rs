//! The pace of a cluster: devices that behave as a drive's data sheet says, and limits of volumes.

mod nodes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nodes::Cluster;
use nodes::client::{Nbd, Writers};

/// A drive that takes 20 ms for a write, and 5 ms for a read.
const SLOW: &str = "name = \"a slow drive\"\n\
    read = { iops = 1000, per_second = \"100MB\", latency = \"5ms\" }\n\
    write = { iops = 1000, per_second = \"100MB\", latency = \"20ms\" }\n";
const WRITE: Duration = Duration::from_millis(20);

fn devices(cluster: &Cluster) -> serde_json::Value {
    serde_json::from_str(&cluster.loadline(&["device", "list", "--json"])).expect("it is JSON")
}

#[test]
fn a_device_with_a_model_is_as_slow_as_the_model_says_and_says_so() {
    let cluster = Cluster::start(1);
    let file = cluster.folder().join("slow.toml");
    std::fs::write(&file, SLOW).unwrap();
    let model = file.to_str().unwrap();
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB", "--copies", "1"]);
    cluster.loadline(&["volume", "attach", "disk"]);
    let before = devices(&cluster)[0].clone();
    assert!(before["model"].is_null());
    let path = cluster.folder().join("modelled");
    let path = path.to_str().unwrap();
    let id = before["id"].to_string();
    let replace = ["device", "replace", &id, "--with", path, "--create", "1GiB", "--model"];
    let with = |model| [replace.as_slice(), &[model]].concat();
    let (code, said) = cluster.try_loadline(&with("intel-s4501"));
    assert!(code == 2 && said.contains("Did you mean intel-s4500?"), "{code}: {said}");
    cluster.loadline(&with(model));
    let mut client = Nbd::connect(cluster.address(1), "disk").unwrap();
    for byte in 1..=5 {
        let begun = Instant::now();
        client.write(3, byte).unwrap();
        assert!(begun.elapsed() >= WRITE, "write {byte} took {:?}", begun.elapsed());
        assert_eq!(client.read(3).unwrap(), byte);
    }
    let after = devices(&cluster).as_array().unwrap().last().unwrap().clone();
    assert_eq!(after["model"], "a slow drive", "{after}");
    let keeps_up = &after["keeps_up"];
    assert!(
        keeps_up["ios"].as_u64() >= Some(5) && keeps_up["modelled_ns"].as_u64() >= Some(100_000_000),
        "{after}"
    );
    let list = cluster.loadline(&["device", "list"]);
    assert!(list.contains("behaves as a slow drive"), "{list}");
    let metrics = cluster.http(1, "/metrics");
    let labels = format!("{{device=\"{}\",model=\"a slow drive\"}}", after["id"]);
    for name in ["loadline_model_ios_total", "loadline_model_late_seconds_total"] {
        assert!(metrics.contains(&format!("{name}{labels}")), "{metrics}");
    }
    // It does when its node has started again, too.
    let mut cluster = cluster;
    cluster.kill(1);
    cluster.start_node(1);
    let mut client = Nbd::connect(cluster.address(1), "disk").unwrap();
    let begun = Instant::now();
    client.write(4, 9).unwrap();
    assert!(begun.elapsed() >= WRITE);
    assert_eq!((client.read(3).unwrap(), client.read(4).unwrap()), (5, 9));
}

/// Requests a second, the burst of 100 ms that is allowed beside, and those of eight threads that were under way.
const LIMIT: u64 = 200;
const MORE: u64 = LIMIT / 10 + 8;

/// Within the limit: what was acknowledged in the two seconds that come.
fn is_kept(done: &AtomicU64) {
    let (from, begun) = (done.load(Ordering::Relaxed), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let acknowledged = done.load(Ordering::Relaxed) - from;
    let most = (begun.elapsed().as_secs_f64() * LIMIT as f64) as u64 + MORE;
    assert!(acknowledged <= most, "{acknowledged} writes, and {most} are allowed");
}

#[test]
fn a_limit_is_changed_while_a_volume_is_used_and_holds_at_each_of_its_owners() {
    let mut cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "disk", "--size", "32MiB", "--copies", "2", "--at", "node-1"]);
    cluster.loadline(&["volume", "attach", "disk"]);
    for (words, says) in [
        (&["--iops", "0"][..], "a limit of 0"),
        (&["--iops", "5", "--burst", "2m"], "at most 1 minute"),
        (&["--burst", "1s"], "--iops"),
        (&["--iops", "5", "--none"], "cannot be used with"),
    ] {
        let (code, said) = cluster.try_loadline(&[&["volume", "limit", "disk"], words].concat());
        assert!(code == 2 && said.contains(says), "{words:?}: {code}: {said}");
    }
    for (words, says) in [
        (&["--resync", "91%"][..], "at most 90%"),
        (&["--resync", "a third"], "as 30%"),
        (&["--scrub", "0"], "at least 1MiB a second"),
        (&["--none", "--scrub", "5MiB"], "cannot be used with"),
        (&[], "required"),
    ] {
        let (code, said) = cluster.try_loadline(&[&["san", "reserve"], words].concat());
        assert!(code == 2 && said.contains(says), "{words:?}: {code}: {said}");
    }
    let said = cluster.loadline(&["san", "reserve", "--resync", "30%", "--scrub", "20MiB"]);
    assert!(said.contains("30 % of what is in flight for resyncs, 20MiB a second"), "{said}");
    assert!(cluster.loadline(&["san", "status"]).contains("reserved: 30 %"));
    // Its copies have their logs beside their data.
    let (code, said) = cluster.try_loadline(&["volume", "cache", "disk", "--size", "16MiB"]);
    assert!(code == 2 && said.contains("a read cache is of no use"), "{code}: {said}");
    let stop = Arc::new(AtomicBool::new(false));
    let writers = Writers::start(&cluster.addresses(), "disk", 8, stop.clone());
    writers.wait_for(1000);
    let iops = LIMIT.to_string();
    let said = cluster.loadline(&["volume", "limit", "disk", "--iops", &iops]);
    assert!(said.contains("a limit of 200 requests a second"), "{said}");
    assert!(cluster.loadline(&["volume", "show", "disk"]).contains("limit     200 requests a second"));
    // Nodes apply a change of the configuration within a second.
    std::thread::sleep(Duration::from_secs(1));
    let done = writers.done();
    is_kept(&done);
    cluster.kill(1);
    writers.wait_for(50);
    is_kept(&done);
    cluster.loadline(&["volume", "limit", "disk", "--none"]);
    writers.wait_for(2000);
    stop.store(true, Ordering::Relaxed);
    let journal = writers.join();
    journal.check(&cluster.addresses(), "disk");
}
