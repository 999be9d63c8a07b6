//! The API of a node, and what it counts.

mod nodes;

use std::process::Command;

use nodes::{Cluster, run};

/// What clients asked and what devices did is counted, where it was done.
#[test]
fn what_is_done_is_counted() {
    let cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let uri = format!("nbd://{}:10809/disk", cluster.addresses()[0]);
    run(Command::new("fio")
        .args(["--name=x", "--ioengine=nbd", "--rw=write", "--bs=64k", "--size=4m"])
        .arg(format!("--uri={uri}")));
    let value = |page: &str, line: &str| {
        let found = page.lines().find_map(|of| of.strip_prefix(line)?.strip_prefix(' ')?.parse::<f64>().ok());
        found.unwrap_or_else(|| panic!("no {line} in {page}"))
    };
    let page = cluster.http(1, "/metrics");
    assert_eq!(value(&page, r#"loadline_frontend_bytes_total{volume="disk",op="write"}"#), 4_194_304.0);
    assert_eq!(value(&page, r#"loadline_frontend_seconds_count{volume="disk",op="write"}"#), 64.0);
    assert_eq!(value(&page, r#"loadline_frontend_seconds_bucket{volume="disk",op="write",le="+Inf"}"#), 64.0);
    assert!(value(&page, r#"loadline_frontend_seconds_sum{volume="disk",op="write"}"#) > 0.0);
    assert_eq!(value(&page, r#"loadline_volume_in_sync{volume="disk"}"#), 2.0);
    assert!(value(&page, r#"loadline_cpu_seconds_total{part="loop-0"}"#) > 0.0);
    // All that clients wrote is in the log of each copy.
    for node in [1, 2] {
        let page = cluster.http(node, "/metrics");
        let line = page.lines().find(|line| {
            line.starts_with("loadline_backend_bytes_total") && line.contains(r#"area="log",op="write""#)
        });
        let written: f64 =
            line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("it is counted");
        assert!((4_194_304.0..8_388_608.0).contains(&written), "{line:?}");
    }
}

/// What can be asked is described, and what cannot be is answered as everything is.
#[test]
fn the_api_is_as_it_is_described() {
    let cluster = Cluster::start(1);
    let described: serde_json::Value =
        serde_json::from_str(&cluster.http(1, "/v1/openapi.json")).expect("it is JSON");
    let mut asked = 0;
    // A stream does not end: `tests/follow.rs` follows it.
    let ends = |path: &&String| path.as_str() != "/v1/stream";
    let paths = described["paths"].as_object().expect("there are some");
    for (path, operations) in paths.iter().filter(|(path, _)| ends(path)) {
        for method in operations.as_object().expect("there are some").keys() {
            let path = path.replace("{name}", "no-such").replace("{id}", "77");
            let (status, answer) = cluster.request(1, &method.to_uppercase(), &path, "{\"no\": 1}");
            assert_ne!(status, 405, "{method} {path}");
            if status != 200 {
                let fault: serde_json::Value = serde_json::from_str(&answer).expect("it says why as JSON");
                assert!(
                    fault["message"].is_string() && fault["kind"].is_string(),
                    "{method} {path}: {answer}"
                );
                assert!(!answer.contains("openapi.json"), "{method} {path} is there: {answer}");
            }
            asked += 1;
        }
    }
    assert!(asked > 15, "{asked}");
    let (status, answer) = cluster.request(1, "POST", "/v1/volumes", "{");
    assert!(status == 400 && answer.contains("cannot be parsed"), "{answer}");
    let (status, answer) = cluster.request(1, "GET", "/v2", "");
    assert!(status == 404 && answer.contains("openapi.json"), "{answer}");
    let (status, answer) =
        cluster.request(1, "POST", "/v1/test-faults", r#"{"fault": "fail_device", "device": 2}"#);
    assert!(status == 400 && answer.contains("does not accept test faults"), "they are off: {answer}");
    // A page of another site that a browser shows cannot use it: neither by a name that resolves to the node, nor from its own origin.
    for head in ["Host: evil.example:7400", "Host: localhost\r\nOrigin: http://evil.example"] {
        let (status, answer) = cluster.request_with(1, "GET", "/v1/status", head, "");
        assert!(status == 403 && answer.contains("evil.example"), "{answer}");
        let (status, _) = cluster.request_with(1, "DELETE", "/v1/nodes/node-1", head, "");
        assert_eq!(status, 403);
    }
    // What is no request of the API is answered as JSON too.
    let long = format!("/v1/volumes/{}", "x".repeat(10_000));
    let volume = r#"{"name": "x", "bytes": -1, "copies": 2}"#;
    for (method, path, body, expected) in [
        ("PUT", "/v1/volumes", "{}", 405),
        ("POST", "/v1/status", "{}", 405),
        ("OPTIONS", "/v1/nodes/node-1", "", 405),
        ("GET", long.as_str(), "", 414),
        ("GET", "/v1/volumes/%ff", "", 400),
        ("POST", "/v1/devices/x/replace", "{}", 400),
        ("POST", "/v1/devices/99999999999/replace", "{}", 400),
        ("GET", "/", "", 404),
        ("GET", "/v1/volumes/", "", 404),
        ("GET", "/v1/volumes/%2e%2e", "", 404),
        ("POST", "/v1/volumes", "", 400),
        ("POST", "/v1/volumes", "null", 400),
        ("POST", "/v1/volumes", volume, 400),
        ("POST", "/v1/volumes", &"[".repeat(3 << 20), 400),
        ("POST", "/v1/volumes/x/initiators", "{}", 400),
        ("POST", "/v1/volumes/x/initiators", r#"{"name": "server-1"}"#, 400),
        ("POST", "/v1/volumes/x/initiators", r#"{"name": "iqn.x", "chap": "secret"}"#, 400),
        (
            "POST",
            "/v1/volumes/x/initiators",
            r#"{"name": "iqn.x", "chap": {"user": "u", "secret": "short"}}"#,
            400,
        ),
        ("POST", "/v1/volumes/x/initiators", r#"{"name": "iqn.x", "other": 1}"#, 400),
        ("POST", "/v1/volumes/x/initiators", r#"{"name": "iqn.x"}"#, 404),
        ("POST", "/v1/volumes/x/initiators/end", "{}", 400),
        ("POST", "/v1/volumes/x/initiators/end", r#"{"name": "server-1"}"#, 400),
        ("POST", "/v1/volumes/x/initiators/end", r#"{"name": "iqn.x"}"#, 404),
    ] {
        let (status, answer) = cluster.request(1, method, path, body);
        let path = &path[..path.len().min(40)];
        assert_eq!(status, expected, "{method} {path}: {answer}");
        let fault: serde_json::Value =
            serde_json::from_str(&answer).unwrap_or_else(|why| panic!("{method} {path}: {why}: {answer}"));
        assert!(fault["message"].is_string() && fault["kind"].is_string(), "{method} {path}: {answer}");
    }
}

/// An attachment for a while ends by its key, and no other does.
#[test]
fn an_attachment_with_a_key_is_of_a_volume_that_is_not_attached_and_only_its_key_ends_it() {
    let cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB", "--copies", "2"]);
    let post = |what: &str, body: &str| cluster.request(2, "POST", &format!("/v1/volumes/disk/{what}"), body);
    // Node 2 names the node that does it.
    let at_owner = |what: &str, body: &str| {
        let (status, answer) = post(what, body);
        if status != 421 {
            return (status, answer);
        }
        cluster.request(1, "POST", &format!("/v1/volumes/disk/{what}"), body)
    };
    let shown = || {
        let volume: serde_json::Value =
            serde_json::from_str(&cluster.http(2, "/v1/volumes/disk")).expect("it is JSON");
        (volume["attached"].clone(), volume["attach_key"].clone())
    };
    let (none, of_1) = (serde_json::Value::Null, serde_json::Value::from("node-1"));
    for bad in [r#"{"key":""}"#, r#"{"key":"a b"}"#, r#"{"key":"a","when_started":true}"#] {
        let (status, answer) = at_owner("attach", bad);
        assert_eq!((status, answer.contains("key")), (400, true), "{answer}");
    }
    assert_eq!(shown(), (none.clone(), none.clone()));
    let (status, answer) = at_owner("attach", r#"{"node":"node-1","key":"k-1"}"#);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(shown(), (of_1.clone(), "k-1".into()));
    // Another one does not get it, and does not end it.
    let (status, answer) = at_owner("attach", r#"{"node":"node-1","key":"k-2"}"#);
    assert_eq!((status, answer.contains("attached already")), (409, true), "{answer}");
    assert_eq!(at_owner("detach", r#"{"key":"k-2"}"#).0, 200);
    assert_eq!(shown(), (of_1.clone(), "k-1".into()));
    assert_eq!(at_owner("detach", r#"{"key":"k-1"}"#).0, 200);
    assert_eq!(shown(), (none.clone(), none.clone()));
    // After another attach it is another attachment.
    assert_eq!(at_owner("attach", r#"{"node":"node-1","key":"k-1"}"#).0, 200);
    assert_eq!(at_owner("attach", r#"{"node":"node-1"}"#).0, 200);
    assert_eq!(shown(), (of_1.clone(), none.clone()));
    assert_eq!(at_owner("detach", r#"{"key":"k-1"}"#).0, 200);
    assert_eq!(shown(), (of_1, none.clone()));
    // An order without a key ends every attachment.
    assert_eq!(at_owner("detach", "{}").0, 200);
    assert_eq!(at_owner("attach", r#"{"node":"node-1","key":"k-1"}"#).0, 200);
    assert_eq!(at_owner("detach", "{}").0, 200);
    assert_eq!(shown(), (none.clone(), none));
}
