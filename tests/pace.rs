//! Devices that behave as a drive's data sheet says.

mod nodes;

use std::time::{Duration, Instant};

use nodes::Cluster;
use nodes::client::Nbd;

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
