//! Who may use the console, and what it does to a real cluster: by its API, and in a real browser.

#[path = "support/console.rs"]
mod driver;
mod nodes;
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use driver::{Console, LIMIT, browse};
use nodes::Cluster;
use nodes::client::Nbd;
use serde_json::{Value, json};
use support::eventually;

/// The lines of a page's request that changes something.
fn page(console: &Console) -> String {
    format!("Origin: http://127.0.0.1:{}\r\nContent-Type: application/json\r\n", console.port)
}

/// Signs in as a browser does. Returns the lines that its page sends then.
fn sign_in(console: &Console) -> String {
    let page = page(console);
    let (status, head, body) =
        console.ask("POST /api/session", &page, &json!({ "key": console.key() }).to_string());
    assert_eq!(status, 200, "{body}");
    let line = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("it gives one");
    let cookie = line.split(';').next().expect("it has one");
    let csrf = serde_json::from_str::<Value>(&body).expect("it is JSON")["csrf"].clone();
    let csrf = csrf.as_str().expect("it is text");
    format!("{page}Cookie: {cookie}\r\nX-Loadline-CSRF: {csrf}\r\n")
}

/// One who has signed in, and acts on a cluster.
struct Acting<'a> {
    console: &'a Console,
    lines: String,
}

impl Acting<'_> {
    fn post(&self, path: &str, action: &Value) -> (u16, Value) {
        let (status, _, body) = self.console.ask(&format!("POST {path}"), &self.lines, &action.to_string());
        (status, serde_json::from_str(&body).unwrap_or_else(|why| panic!("{why}: {body}")))
    }

    /// What an action will do.
    fn preview(&self, action: &Value) -> Value {
        let (status, preview) = self.post("/api/clusters/lab/actions/preview", action);
        assert_eq!(status, 200, "{preview}");
        preview
    }

    /// Does something, which must succeed; what it says.
    fn act(&self, action: Value) -> String {
        let (status, done) = self.post("/api/clusters/lab/actions", &action);
        assert_eq!(status, 200, "{action}: {done}");
        done["message"].as_str().expect("it is text").into()
    }

    /// Wants something that is refused; why.
    fn refused(&self, action: Value) -> String {
        let (status, fault) = self.post("/api/clusters/lab/actions", &action);
        assert_eq!(status, 409, "{action}: {fault}");
        fault["message"].as_str().expect("it is text").into()
    }

    /// Waits until an event says this.
    fn until_event(&self, says: &str) {
        eventually(says, LIMIT, || {
            let mut stream = TcpStream::connect(("127.0.0.1", self.console.port)).expect("it listens");
            stream.set_read_timeout(Some(LIMIT)).expect("it may be so long");
            let head = "GET /api/clusters/lab/stream?past=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
            stream.write_all(head.as_bytes()).expect("it listens");
            // The events of before come second.
            let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
            let all = lines.by_ref().skip_while(|line| line != "event: events").nth(1);
            all.is_some_and(|all| all.contains(says))
        });
    }
}

/// The nodes that have copies of a volume in sync.
fn copies(cluster: &Cluster, volume: &str) -> Vec<String> {
    let shown: Value =
        serde_json::from_str(&cluster.loadline(&["volume", "show", volume, "--json"])).expect("JSON");
    let all = shown["replicas"].as_array().expect("it has some").iter();
    let mut nodes: Vec<String> = all
        .filter(|of| of["state"] == "in sync")
        .filter_map(|of| of["node"].as_str().map(Into::into))
        .collect();
    nodes.sort();
    nodes
}

fn has(cluster: &Cluster, volume: &str) -> bool {
    cluster.loadline(&["volume", "list"]).lines().any(|line| line.starts_with(volume))
}

/// What is done to volumes and nodes is done, says so, and is an event; what is refused changes nothing.
fn act_by_the_api(cluster: &Cluster, console: &Console) {
    let acting = Acting { console, lines: sign_in(console) };
    // Nothing is known before a node has answered.
    eventually("the status is there", LIMIT, || {
        acting.post("/api/clusters/lab/actions/preview", &json!({ "scrub_volume": { "volume": "x" } })).0
            == 200
    });
    let create = |name: &str| json!({ "create_volume": { "name": name, "bytes": 32 << 20, "copies": 2, "at": "node-1" } });
    let preview = acting.preview(&create("vm-1"));
    assert!(
        preview["refused"].is_null()
            && preview["effects"][0].as_str().is_some_and(|of| of.contains("2 copies")),
        "{preview:#}"
    );
    assert!(!has(cluster, "vm-1"), "a preview changes nothing");
    assert_eq!(acting.act(create("vm-1")), "volume vm-1 of 32MiB is made; it is not attached");
    assert!(has(cluster, "vm-1"));
    assert!(acting.refused(create("vm-1")).contains("choose another name"));
    for hostile in
        ["<img src=x onerror=alert(1)>", "../nodes/node-1", "a?b#c", "", "-x", "a\u{1b}[2J", &"x".repeat(65)]
    {
        assert!(acting.refused(create(hostile)).contains("cannot be a name"), "{hostile}");
        let gone = json!({ "delete_volume": { "volume": hostile, "confirm": hostile } });
        assert!(acting.refused(gone).contains("there is no volume"), "{hostile}");
    }
    let resize = |mib: u64| json!({ "resize_volume": { "volume": "vm-1", "bytes": mib << 20 } });
    assert!(acting.refused(resize(64)).contains("attach the volume first"));
    let attach = |node: &str| json!({ "attach_volume": { "volume": "vm-1", "node": node } });
    assert_eq!(acting.act(attach("node-1")), "volume vm-1 is attached at node node-1");
    assert!(acting.act(resize(64)).starts_with("volume vm-1 has 64MiB"));
    assert!(acting.refused(resize(64)).contains("only grows"));
    let limit = |iops: Value| json!({ "limit_volume": { "volume": "vm-1", "limit": { "iops": iops } } });
    assert_eq!(acting.act(limit(json!(500))), "volume vm-1 has a limit of 500 requests a second");
    assert!(cluster.loadline(&["volume", "show", "vm-1"]).contains("500 requests a second"));
    assert!(acting.refused(limit(json!(0))).contains("at least 1"));
    assert_eq!(acting.act(limit(Value::Null)), "volume vm-1 has no limit");
    // A copy moves to the node that has none.
    let have = copies(cluster, "vm-1");
    let from = have.iter().find(|node| *node != "node-1").expect("it has two").clone();
    let to = if from == "node-2" { "node-3" } else { "node-2" };
    let moves = json!({ "move_volume": { "volume": "vm-1", "from": from, "to": to } });
    let preview = acting.preview(&moves);
    assert!(
        preview["effects"][1].as_str().is_some_and(|of| of.contains("At most 64MiB are copied")),
        "{preview:#}"
    );
    assert!(acting.act(moves).contains("moves from"));
    eventually("the copy has moved", LIMIT, || {
        copies(cluster, "vm-1") == ["node-1".to_owned(), to.to_owned()]
    });
    assert!(acting.act(json!({ "scrub_volume": { "volume": "vm-1" } })).contains("has begun"));
    acting.until_event("the scrub of volume vm-1 has ended: no block differs from its checksum");
    // A client keeps the volume, in the node's own words.
    let client = Nbd::connect(cluster.address(1), "vm-1").expect("it is served");
    let detach = |force: bool| json!({ "detach_volume": { "volume": "vm-1", "force": force } });
    let why = acting.refused(detach(false));
    assert!(
        why.contains("client") && cluster.loadline(&["volume", "show", "vm-1"]).contains("node-1"),
        "{why}"
    );
    assert_eq!(acting.act(detach(true)), "volume vm-1 is detached");
    drop(client);
    let delete = |confirm: &str| json!({ "delete_volume": { "volume": "vm-1", "confirm": confirm } });
    for wrong in ["", "vm-2", "VM-1"] {
        assert!(acting.refused(delete(wrong)).contains("nothing is deleted") && has(cluster, "vm-1"));
    }
    assert_eq!(acting.act(delete("vm-1")), "volume vm-1 is deleted");
    // A preview is of one volume: not of another one that has its name by then.
    acting.act(create("vm-1"));
    let seen = acting.preview(&delete(""))["shown"].as_str().expect("it is a text").to_owned();
    acting.act(delete("vm-1"));
    acting.act(create("vm-1"));
    let as_shown = |seen: &str| {
        let path = format!("/api/clusters/lab/actions?shown={seen}");
        acting.post(&path, &delete("vm-1"))
    };
    let (status, why) = as_shown(&seen);
    assert!(
        status == 409 && why["message"].as_str().is_some_and(|why| why.contains("look at it again")),
        "{why}"
    );
    assert!(has(cluster, "vm-1"));
    let seen = acting.preview(&delete(""))["shown"].as_str().expect("it is a text").to_owned();
    assert_eq!(as_shown(&seen).0, 200);
    assert!(!has(cluster, "vm-1"));
    eventually("it is gone", LIMIT, || !has(cluster, "vm-1"));
    let drain = |stop: bool| json!({ "drain_node": { "node": "node-3", "stop": stop } });
    assert!(acting.refused(drain(true)).contains("is not being drained"));
    assert_eq!(acting.act(drain(false)), "the drain of node node-3 has begun");
    assert!(acting.refused(drain(false)).contains("already"));
    assert!(acting.act(drain(true)).contains("is used again"));
    let maintain = |stop: bool| json!({ "maintain_node": { "node": "node-3", "stop": stop } });
    assert!(acting.refused(maintain(true)).contains("is not in maintenance"));
    assert!(acting.act(maintain(false)).contains("is in maintenance"));
    let is_maintained = || cluster.loadline(&["node", "list"]).contains("maintenance");
    assert!(is_maintained());
    assert!(acting.refused(maintain(false)).contains("already"));
    acting.act(maintain(true));
    assert!(!is_maintained());
    let user =
        String::from_utf8(Command::new("id").arg("-un").output().expect("coreutils").stdout).expect("text");
    acting.until_event(&format!("volume vm-1 is deleted, by {} (admin)", user.trim()));
    let (status, fault) = acting.post("/api/clusters/none/actions", &drain(true));
    assert!(
        status == 404 && fault["message"].as_str().is_some_and(|of| of.contains("there are: lab")),
        "{fault}"
    );
}

/// One flow in a browser: by the link, through the dialog, to what is done.
fn act_in_a_browser(console: &Console) {
    browse("console_actions.mjs", console.link.as_ref(), LIMIT);
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn volumes_are_made_changed_moved_and_deleted_by_the_api_and_in_a_browser_also_when_a_node_is_lost() {
    let mut cluster = Cluster::start(3);
    let place = format!("lab={}:7400", cluster.address(1));
    let console = Console::start(["--port", "0", &place]);
    act_by_the_api(&cluster, &console);
    act_in_a_browser(&console);
    // The node that the console was started with is lost: another one does it.
    let acting = Acting { console: &console, lines: sign_in(&console) };
    acting.act(json!({ "create_volume": { "name": "left", "bytes": 32 << 20, "copies": 2 } }));
    cluster.kill(1);
    let limit = json!({ "limit_volume": { "volume": "left", "limit": { "iops": 9 } } });
    assert_eq!(acting.act(limit), "volume left has a limit of 9 requests a second");
    // Without any node nothing is done.
    cluster.kill(2);
    cluster.kill(3);
    let (status, fault) = acting
        .post("/api/clusters/lab/actions", &json!({ "drain_node": { "node": "node-2", "stop": true } }));
    assert_eq!(status, 503, "{fault}");
}

/// Makes a key; what is printed is the key alone.
fn add_key(file: &Path, role: &str, name: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_loadline"))
        .args(["console", "key", "add"])
        .arg(file)
        .args(["--role", role, name])
        .output()
        .expect("it is built");
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).expect("it is text").trim().to_owned()
}

#[test]
fn who_is_not_signed_in_sees_at_most_and_a_page_of_another_site_does_nothing() {
    let console = Console::start(["--port", "0", "lab=127.0.0.1:9"]);
    assert_eq!(console.ask("GET /api/clusters", "", "").0, 200, "on this machine everyone sees");
    let action = json!({ "drain_node": { "node": "node-1" } }).to_string();
    let act = |lines: &str| console.ask("POST /api/clusters/lab/actions", lines, &action);
    let (status, _, body) = act(&page(&console));
    assert!(status == 401 && body.contains("Open the link"), "{body}");
    let lines = sign_in(&console);
    assert_eq!(act(&lines).0, 503, "no node answers");
    let with = |from: &str, to: &str| {
        let changed = lines.lines().map(|line| if line.starts_with(from) { to } else { line });
        act(&changed.map(|line| format!("{line}\r\n")).collect::<String>()).0
    };
    assert_eq!(with("X-Loadline-CSRF", "X-Loadline-CSRF: wrong"), 403);
    assert_eq!(with("Origin", "Origin: http://evil.example"), 403);
    assert_eq!(with("Content-Type", "Content-Type: text/plain"), 415);
    assert_eq!(with("Cookie", "X-None: 1"), 401);
    let wrong = json!({ "key": "wrong" }).to_string();
    let tried: Vec<_> = (0..12).map(|_| console.ask("POST /api/session", &page(&console), &wrong)).collect();
    assert!(
        tried[0].0 == 401 && tried[11].0 == 429 && tried[11].1.contains("retry-after: "),
        "{}",
        tried[11].1
    );
    assert_eq!(act(&lines).0, 503, "the session goes on");
    // A head that does not come to its end, and one that is too long, keep no other out.
    let mut slow = TcpStream::connect(("127.0.0.1", console.port)).expect("it listens");
    slow.write_all(b"GET / HTTP/1.1\r\n").expect("it listens");
    let long = format!("X-Long: {}\r\n", "x".repeat(100_000));
    assert_eq!(console.ask("GET /api/clusters", &long, "").0, 431);
    assert_eq!(console.ask("GET /api/clusters", "", "").0, 200);
}

#[test]
fn beyond_this_machine_it_starts_only_with_tls_and_keys_and_then_lets_in_who_has_one() {
    let folder = tempfile::tempdir().expect("there is room");
    let [cert, key, keys, bad, client] =
        ["cert.pem", "key.pem", "keys", "bad.pem", "client.pem"].map(|name| folder.path().join(name));
    let write = |path: &Path, text: &str, mode: u32| {
        std::fs::write(path, text).expect("there is room");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned(), "console.example".to_owned()]);
    let made = made.expect("it can be made");
    write(&cert, &made.cert.pem(), 0o644);
    write(&key, &made.signing_key.serialize_pem(), 0o600);
    write(&bad, "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", 0o600);
    let [viewer, operator] =
        [("viewer", "eve"), ("operator", "anna")].map(|(role, name)| add_key(&keys, role, name));
    let path = |of: &Path| of.to_str().expect("it is text").to_owned();
    let listen = ["--listen", "0.0.0.0:0", "lab=127.0.0.1:9"].map(str::to_owned);
    let tls = ["--cert".to_owned(), path(&cert), "--key".to_owned(), path(&key)];
    let by_key = ["--keys".to_owned(), path(&keys)];
    let run = |arguments: &[&[String]]| {
        let output = Command::new("timeout")
            .args(["20", env!("CARGO_BIN_EXE_loadline"), "console"])
            .args(arguments.concat())
            .output()
            .expect("it is built");
        (output.status.code(), said(&output))
    };
    for (arguments, says) in [
        (&[&listen[..]][..], "--cert FILE and --key FILE, and --keys FILE or --client-ca FILE"),
        (&[&listen, &by_key], "--cert FILE and --key FILE, so that"),
        (&[&listen, &tls], "--keys FILE or --client-ca FILE"),
        (&[&listen, &["--cert".into(), path(&bad), "--key".into(), path(&key)], &by_key], "is no PEM file"),
        (
            &[&listen, &["--cert".into(), path(&cert), "--key".into(), path(&bad)], &by_key],
            "is no PEM file of a key",
        ),
        (&[&listen, &["--cert".into(), path(&cert), "--key".into(), path(&keys)], &by_key], "has no key"),
        (&[&listen, &tls, &["--keys".into(), path(&folder.path().join("none"))]], "No such file"),
    ] {
        let (code, said) = run(arguments);
        assert!(code == Some(2) && said.contains(says), "{arguments:?}: {said}");
    }
    write(&keys, &std::fs::read_to_string(&keys).expect("it is there"), 0o644);
    let (code, text) = run(&[&listen, &tls, &by_key]);
    assert!(code == Some(2) && text.contains("chmod 600"), "{text}");
    write(&keys, &std::fs::read_to_string(&keys).expect("it is there"), 0o600);

    let all = [&listen[..], &tls, &by_key].concat();
    let console = Console::start(all);
    assert!(console.link.is_none(), "nobody but who has a key is let in");
    let port = console.port;
    let curl = |path: &str, more: &[&str]| {
        let output = Command::new("curl")
            .args(["--silent", "--max-time", "20", "--write-out", " %{http_code}", "--cacert"])
            .arg(&cert)
            .arg(format!("https://127.0.0.1:{port}{path}"))
            .args(more)
            .output()
            .expect("curl is installed");
        said(&output)
    };
    assert!(curl("/", &[]).ends_with("200"), "the page on which one signs in");
    assert!(curl("/api/clusters", &[]).ends_with("401"));
    let header = |key: &str| format!("Authorization: Bearer {key}");
    assert!(curl("/api/clusters", &["--header", &header(&viewer)]).ends_with("200"));
    assert!(curl("/api/clusters", &["--header", &header("wrong")]).ends_with("401"));
    let act = |key: &str| {
        let action = r#"{"drain_node":{"node":"node-1"}}"#;
        let json = "Content-Type: application/json";
        curl("/api/clusters/lab/actions", &["--header", &header(key), "--header", json, "--data", action])
    };
    let answer = act(&viewer);
    assert!(answer.ends_with("403") && answer.contains("a viewer may not do this"), "{answer}");
    assert!(act(&operator).ends_with("503"), "no node answers");
    // The names of the certificate, and no others.
    let by_name = |host: &str| curl("/", &["--header", &format!("Host: {host}")]);
    assert!(by_name("console.example").ends_with("200") && by_name("evil.example").ends_with("403"));
    // A browser gets a cookie for TLS alone, and the key is in no answer.
    let sign_in = ["--include", "--header", "Content-Type: application/json", "--data"];
    let answer = curl("/api/session", &[&sign_in[..], &[&format!("{{\"key\":\"{viewer}\"}}")]].concat());
    assert!(answer.contains("set-cookie: __Host-loadline-") && answer.contains("; Secure"), "{answer}");
    assert!(!answer.contains(&viewer), "{answer}");
    // A key whose line is removed is refused at once.
    let rest = std::fs::read_to_string(&keys).expect("it is there");
    write(&keys, &rest.lines().filter(|line| !line.ends_with(" eve")).collect::<Vec<_>>().join("\n"), 0o600);
    assert!(curl("/api/clusters", &["--header", &header(&viewer)]).ends_with("401"));
    // What is no TLS is not answered, and one that begins a handshake and stops keeps no other out.
    let mut plain = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it listens");
    plain.set_read_timeout(Some(LIMIT)).expect("it may be so long");
    plain.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").expect("it listens");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1"));
    let _silent = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it listens");
    assert!(curl("/", &[]).ends_with("200"));
    drop(console);

    // Certificates of clients in place of keys.
    let by_certificate = ["--client-ca", &path(&client), "--client-role", "operator"].map(str::to_owned);
    let mut of_authority = rcgen::CertificateParams::new(Vec::new()).expect("it needs no names");
    of_authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_key = rcgen::KeyPair::generate().expect("it can be made");
    let authority = of_authority.self_signed(&authority_key).expect("it can be made");
    write(&client, &authority.pem(), 0o644);
    let issuer = rcgen::Issuer::from_params(&of_authority, &authority_key);
    let own_key = rcgen::KeyPair::generate().expect("it can be made");
    let own = rcgen::CertificateParams::new(Vec::new()).expect("it needs no names");
    let own = own.signed_by(&own_key, &issuer).expect("it can be made");
    let [own_cert, own_file] = ["own.pem", "own.key"].map(|name| folder.path().join(name));
    write(&own_cert, &own.pem(), 0o644);
    write(&own_file, &own_key.serialize_pem(), 0o600);
    let all = [&listen[..], &tls, &by_certificate].concat();
    let console = Console::start(all);
    let curl = |path: &str, more: &[&str]| {
        let output = Command::new("curl")
            .args(["--silent", "--max-time", "20", "--write-out", " %{http_code}", "--cacert"])
            .arg(&cert)
            .arg(format!("https://127.0.0.1:{}{path}", console.port))
            .args(more)
            .output()
            .expect("curl is installed");
        said(&output)
    };
    assert!(curl("/", &[]).ends_with("000"), "no connection without a certificate");
    let with = ["--cert", &path(&own_cert), "--key", &path(&own_file)].map(str::to_owned);
    let with: Vec<&str> = with.iter().map(String::as_str).collect();
    assert!(curl("/api/clusters", &with).ends_with("200"));
    // It acts by a session, and not by the certificate alone, which a browser sends by itself.
    let json = ["--header", "Content-Type: application/json", "--data", "{}"];
    assert!(curl("/api/clusters/lab/actions", &[&with[..], &json].concat()).ends_with("401"));
    let answer = curl("/api/session", &[&with[..], &json].concat());
    assert!(answer.ends_with("200") && answer.contains("\"role\":\"operator\""), "{answer}");
}
