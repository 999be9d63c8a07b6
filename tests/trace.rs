//! Where the time of single requests goes, as their owner saw it.

mod nodes;

use std::sync::atomic::{AtomicBool, Ordering};

use nodes::Cluster;
use nodes::client::{Nbd, meanwhile};
use serde_json::Value;

/// A write of 4 KiB by a client takes this long at least at the slow node.
const SLOW_NS: u64 = 30_000_000;

fn ns(span: &Value, which: &str) -> u64 {
    span[which].as_u64().unwrap_or_else(|| panic!("{which} of {span}"))
}

/// Checks what must be so of every request, and returns its spans of this kind.
fn spans<'a>(request: &'a Value, what: &str) -> Vec<&'a Value> {
    let all = request["spans"].as_array().expect("there are some");
    let total = ns(request, "total_ns");
    for span in all {
        assert!(ns(span, "begin_ns") <= ns(span, "end_ns"), "{request}");
        assert!(ns(span, "end_ns") <= total, "{request}");
    }
    let of = |what: &str| all.iter().filter(|span| span["what"] == what).collect::<Vec<_>>();
    let [queue, answer] = ["queue", "answer"].map(|what| match of(what)[..] {
        [one] => one,
        _ => panic!("one {what}: {request}"),
    });
    assert_eq!(ns(queue, "begin_ns"), 0);
    assert_eq!(ns(answer, "end_ns"), total);
    for span in all.iter().filter(|span| !span["node"].is_null()) {
        assert!(ns(queue, "end_ns") <= ns(span, "begin_ns"), "nothing is done before it begins: {request}");
        assert!(ns(span, "end_ns") <= ns(answer, "begin_ns"), "the answer waits for all of it: {request}");
    }
    of(what)
}

#[test]
fn requests_are_followed_from_their_arrival_to_their_answer() {
    let cluster = Cluster::start_with(2, &[], "test_faults = true");
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB"]);
    let (code, said) = cluster.try_loadline(&["san", "trace", "disk"]);
    assert!(code == 2 && said.contains("attach the volume first"), "{said}");
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let status: Value = serde_json::from_str(&cluster.http(2, "/v1/status")).expect("it is JSON");
    let devices = status["devices"].as_array().expect("there are some");
    let device = devices.iter().find(|device| device["node"] == "node-2").expect("it has one")["id"].clone();
    let slow =
        format!(r#"{{"fault": "slow_device", "device": {device}, "milliseconds": {}}}"#, SLOW_NS / 1_000_000);
    assert_eq!(cluster.request(2, "POST", "/v1/test-faults", &slow).0, 200);

    let (stop, address) = (AtomicBool::new(false), cluster.addresses()[0]);
    let text = std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut client = Nbd::connect(address, "disk").expect("it is let in");
            let mut block = 0;
            while !stop.load(Ordering::Relaxed) {
                client.write(block % 64, 7).expect("it is written");
                assert_eq!(client.read(block % 64).expect("it is read"), 7);
                block += 1;
            }
        });
        let ask = |more: &[&str]| {
            // Not the owner is asked.
            cluster.loadline_at(
                2,
                &[&["san", "trace", "disk", "--requests", "60", "--for", "3s"][..], more].concat(),
            )
        };
        meanwhile(&stop, || (ask(&["--json"]), ask(&[])))
    });

    let trace: Value = serde_json::from_str(&text.0).expect("it is JSON");
    assert_eq!((&trace["volume"], &trace["owner"]), (&"disk".into(), &"node-1".into()));
    let requests = trace["requests"].as_array().expect("there are some");
    assert!((1..=60).contains(&requests.len()), "{trace}");
    let (writes, reads): (Vec<_>, Vec<_>) = requests.iter().partition(|request| request["kind"] == "write");
    assert!(!writes.is_empty() && reads.iter().all(|request| request["kind"] == "read"), "{trace}");
    for request in requests {
        assert!(
            request["bytes"] == 4096 && request["offset"].as_u64().is_some_and(|at| at < 64 * 4096),
            "{request}"
        );
        assert!(request["client"].as_str().is_some_and(|from| from.starts_with("127.")), "{request}");
        assert_eq!(request["succeeded"], true, "{request}");
    }
    for write in writes {
        let ([log], [peer]) = (&spans(write, "log")[..], &spans(write, "peer")[..]) else {
            panic!("one copy here, and one there: {write}")
        };
        assert_eq!((&log["node"], &peer["node"]), (&"node-1".into(), &"node-2".into()));
        let took = |span: &Value| ns(span, "end_ns") - ns(span, "begin_ns");
        assert!(took(peer) >= SLOW_NS && took(log) < took(peer), "the slow one is seen: {write}");
    }
    for read in reads {
        assert_eq!(spans(read, "read").len(), 1, "it is read here: {read}");
        assert!(spans(read, "peer_read").is_empty() && spans(read, "log").is_empty(), "{read}");
    }
    assert!(
        text.1.contains("peer, node-2") && text.1.contains("volume disk, owned by node node-1"),
        "{}",
        text.1
    );

    let (code, idle) = cluster.try_loadline(&["san", "trace", "disk", "--for", "200ms"]);
    assert!(code == 3 && idle.contains("no client sent a request within 200ms"), "{code}: {idle}");
    let (code, idle) = cluster.try_loadline(&["san", "trace", "disk", "--for", "200ms", "--json"]);
    assert!(code == 3 && idle.contains("\"requests\": []"), "{code}: {idle}");
    for (wrong, why) in
        [(["--requests", "0"], "1 to 1000"), (["--for", "2m"], "1ms to 1m"), (["--for", "90d"], "1ms to 1m")]
    {
        let (code, said) = cluster.try_loadline(&[&["san", "trace", "disk"][..], &wrong].concat());
        assert!(code == 2 && said.contains(why), "{wrong:?}: {said}");
    }
}
