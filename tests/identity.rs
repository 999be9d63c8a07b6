//! Clusters whose nodes authenticate each other: which connections are let in, which are refused, and that the cluster serves meanwhile.

mod nodes;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loadline_san_node::config::catalog::Catalog;
use loadline_san_node::identity::files::{Identity, read_bundle};
use loadline_san_node::identity::trust::{self, provider};
use loadline_san_transport::handshake::{self, ENCRYPTED};
use nodes::client::Nbd;
use nodes::{Cluster, hosts, run, tls};
use rustls::pki_types::ServerName;

const PROTECTED: &[&str] = &["--transport", "encrypted"];

/// A path as text.
fn text(path: &Path) -> &str {
    path.to_str().expect("it is text")
}

/// The settings of a node, by which commands on its host find the cluster.
fn settings(cluster: &Cluster, node: u8) -> String {
    text(&cluster.node_folder(node).join("node.toml")).into()
}

/// Gives an access; where its proof is.
fn access(cluster: &Cluster, name: &str, role: &str, more: &[&str]) -> PathBuf {
    let (out, config) = (cluster.folder().join(name), settings(cluster, 1));
    let add = ["san", "access", "add", name, "--role", role, "--out", text(&out), "--config", &config];
    cluster.loadline(&[&add, more].concat());
    out
}

/// Runs a command; whether it succeeded, and what it said.
fn try_run(command: &mut Command) -> (bool, String) {
    let output = command.output().expect("it is installed");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn nbdinfo(uri: &str) -> (bool, String) {
    try_run(Command::new("timeout").args(["20", "nbdinfo", "--size", uri]))
}

/// The configuration.
fn catalog(cluster: &Cluster) -> Catalog {
    loadline_san_node::cluster::read(&Path::new(&cluster.file()).into()).expect("it is there")
}

/// What a node counts of this metric.
fn counted(cluster: &Cluster, node: u8, metric: &str) -> f64 {
    let page = cluster.http(node, "/metrics");
    let line = page.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' ').map(str::to_owned));
    line.expect("it is counted").parse().expect("a number")
}

#[test]
fn a_wrong_address_is_refused_and_the_token_stays_valid() {
    let cluster = Cluster::start_with(1, PROTECTED, "");
    let (token, store) = (cluster.invite(1), cluster.file());
    let join = |address: &str| {
        let folder = cluster.folder().join("other");
        let node = ["--name", "other", "--folder", text(&folder), "--address", address];
        cluster.try_loadline(&[&["san", "join", &store], &node[..], &["--token", &token]].concat())
    };
    let (code, said) = join("192.0.2.1");
    assert!(
        code == 2 && said.contains("the address 192.0.2.1 on this host: this host does not have it"),
        "{said}"
    );
    assert_eq!(catalog(&cluster).nodes.len(), 1);
    let [a, b, c, _] = cluster.address(1).octets();
    let (code, said) = join(&format!("{a}.{b}.{c}.2"));
    assert!(code == 0 && said.contains("node other is in the cluster"), "{said}");
}

#[test]
fn a_volume_that_requires_tls_is_served_by_tls_alone_from_any_node() {
    let cluster = Cluster::start_with(3, PROTECTED, "");
    cluster.loadline(&["volume", "create", "d", "--size", "16MiB", "--at", "node-1"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    let client = access(&cluster, "vm", "client", &[]);
    let uri = |node: usize, folder: &Path| {
        format!("nbds://{}:10809/d?tls-certificates={}", cluster.addresses()[node - 1], folder.display())
    };
    let plain = format!("nbd://{}:10809/d", cluster.addresses()[0]);
    assert!(nbdinfo(&plain).0 && nbdinfo(&uri(1, &client)).0, "both, while it may");
    cluster.loadline(&["volume", "tls", "d", "required"]);
    assert!(cluster.loadline(&["volume", "show", "d"]).contains("tls       required"));
    let (taken, said) = nbdinfo(&plain);
    assert!(!taken && said.to_lowercase().contains("tls"), "{said}");
    // At the owner, and through a node that forwards: what is written by one is read by another.
    let (written, read) = (cluster.folder().join("written"), cluster.folder().join("read"));
    let data: Vec<u8> = (0..16 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(&written, &data).expect("there is room");
    run(Command::new("nbdcopy").args([text(&written), &uri(2, &client)]));
    for node in 1..=3 {
        run(Command::new("nbdcopy").args([&uri(node, &client), text(&read)]));
        assert!(std::fs::read(&read).expect("it was written") == data, "by node {node}");
    }
    // A client on the node's own machine needs no certificate: the mode of the socket decides which users may connect.
    let local = format!("nbd+unix:///d?socket={}", cluster.node_folder(1).join("nbd.sock").display());
    assert!(nbdinfo(&local).0);
    // From the beginning.
    cluster.loadline(&["volume", "create", "e", "--size", "16MiB", "--tls", "--attach"]);
    assert!(cluster.loadline(&["volume", "show", "e"]).contains("tls       required"));
    let (taken, said) = nbdinfo(&format!("nbd://{}:10809/e", cluster.addresses()[0]));
    assert!(!taken && said.to_lowercase().contains("tls"), "{said}");
    assert!(nbdinfo(&uri(1, &client).replace("10809/d", "10809/e")).0);
    // Others are not let in.
    let other = Cluster::start_with(1, PROTECTED, "");
    let foreign = access(&other, "stranger", "client", &[]);
    // It trusts this cluster, and this cluster does not trust it.
    std::fs::copy(client.join("ca-cert.pem"), foreign.join("ca-cert.pem")).expect("it is there");
    assert!(!nbdinfo(&uri(1, &foreign)).0, "of another cluster");
    assert!(!nbdinfo(&uri(1, &cluster.folder().join("nothing"))).0, "without a certificate");
    let before = counted(&cluster, 1, "loadline_refused_connections_total");
    assert!(before >= 1.0, "the stranger was counted");
    cluster.loadline(&["san", "access", "remove", "vm", "--config", &settings(&cluster, 1)]);
    let begun = Instant::now();
    while nbdinfo(&uri(1, &client)).0 {
        assert!(begun.elapsed() < Duration::from_secs(10), "what was revoked is refused");
    }
    let log = cluster.log(1);
    assert!(log.contains("was revoked"), "{log}");
    // Each refusal is one line.
    let reasons = log.lines().filter_map(|line| line.split_once("the port for clients is refused: "));
    for (_, reason) in reasons {
        assert!(!log.contains(&format!("is disconnected: {reason}")), "{log}");
    }
    cluster.loadline(&["volume", "tls", "d", "optional"]);
    assert!(nbdinfo(&plain).0);
}

/// An access is let in as soon as it is made, also by a node that has not noticed it yet. Connections that were made with it end when it is
/// revoked, and not only those that are made later: at the owner of a volume, at a node that forwards, and at the API, by a certificate
/// and by a token.
#[test]
fn an_access_is_let_in_once_it_is_made_and_what_it_has_let_in_ends_when_it_is_revoked() {
    if !hosts::possible() {
        return;
    }
    let cluster = Cluster::start_on_hosts(2, &[], "");
    cluster.loadline(&["volume", "create", "d", "--size", "16MiB", "--at", "node-1"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    let unnoticed = cluster.stop_thread(1, "config-watch");
    let (vm, other) = (access(&cluster, "vm", "client", &[]), access(&cluster, "other", "client", &[]));
    let (bob, graph) =
        (access(&cluster, "bob", "operator", &[]), access(&cluster, "graph", "viewer", &["--token"]));
    let token = std::fs::read_to_string(graph).expect("it was written");
    let addresses = cluster.addresses();
    let authority = cluster.node_folder(1).join("identity/cluster-ca.pem");
    let by_certificate = "GET /v1/local HTTP/1.1\r\n".to_owned();
    let by_token = format!("{by_certificate}Authorization: Bearer {}\r\n", token.trim());
    let mut calls = [
        (tls::api(addresses[0], &authority, Some(&bob)), by_certificate),
        (tls::api(addresses[0], &authority, None), by_token),
    ];
    for (stream, head) in &mut calls {
        assert_eq!(tls::status(stream, head).expect("it is answered"), 200);
    }
    let connect =
        |node: usize, folder: &Path| tls::nbd(addresses[node - 1], "d", folder).expect("it is let in");
    let (mut owned, mut forwarded) = (connect(1, &vm), connect(2, &vm));
    let mut others = [connect(1, &other), connect(2, &other)];
    owned.write(1, 1).expect("it is written");
    forwarded.write(2, 2).expect("it is written");
    drop(unnoticed);
    for name in ["vm", "bob", "graph"] {
        cluster.loadline(&["san", "access", "remove", name, "--config", &settings(&cluster, 1)]);
    }
    assert!(tls::ends(&mut owned.0) && tls::ends(&mut forwarded.0), "both, though they send nothing");
    for (stream, head) in &mut calls {
        assert!(tls::ends(stream), "{head}");
    }
    for (number, client) in (3..).zip(&mut others) {
        client.write(number, 7).expect("others are not cut off");
    }
    assert_eq!(others[0].read(2).expect("it is served"), 2, "what was acknowledged is there");
    // The owner and the node that forwards the client both end it: the one that does so later finds that the other has.
    for (node, words) in [
        (1, &["its access was revoked"][..]),
        (2, &["its access was revoked", "which owns the volume, has ended the connection"]),
    ] {
        let begun = Instant::now();
        while !words.iter().any(|words| cluster.log(node).contains(words)) {
            assert!(begun.elapsed() < Duration::from_secs(10), "{words:?} in {}", cluster.log(node));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn certificates_are_renewed_while_clients_read_and_write() {
    let cluster = Cluster::start_with(3, &["--transport", "encrypted", "--certificates", "60s"], "");
    cluster.loadline(&["volume", "create", "d", "--size", "32MiB", "--log", "32MiB", "--copies", "3"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    let certificate =
        |node: u8| std::fs::read(cluster.node_folder(node).join("identity/node.pem")).expect("it is there");
    let before: Vec<_> = (1..=3).map(certificate).collect();
    // Through a node that forwards: all kinds of connections between nodes are used.
    let uri = format!("nbd://{}:10809/d", cluster.addresses()[1]);
    let load = cluster
        .command(&[
            "bench",
            &uri,
            "-p",
            "B4-T1-O4-W50-PR",
            "--for",
            "12s",
            "--destroy-data",
            "--fill",
            "--verify",
            "--json",
            "-",
        ])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the program is there");
    for node in [1, 2, 3, 1, 2] {
        cluster.loadline(&["node", "renew", &format!("node-{node}")]);
    }
    let output = load.wait_with_output().expect("it ends");
    // 3: the machine of the test was busy, and the level changed.
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}: {said}", output.status);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    for what in ["lost", "corrupt", "foreign", "unreadable"] {
        assert_eq!(json["verify"][what].as_f64().unwrap_or(0.0), 0.0, "{what}");
    }
    assert!(json["verify"]["checked"].as_f64().expect("it is counted") > 100.0);
    for node in 1..=3 {
        assert_ne!(certificate(node), before[node as usize - 1], "node {node} has another one");
    }
    // Each ends with one certificate, and all copies are in sync.
    let begun = Instant::now();
    while catalog(&cluster).nodes.values().any(|(node, _)| node.certificates.len() > 1) {
        assert!(begun.elapsed() < Duration::from_secs(30), "an old certificate is still named");
        std::thread::sleep(Duration::from_millis(100));
    }
    cluster.wait_until("d", "healthy", Duration::from_secs(20));
}

/// What comes of a handshake as a node, with this identity, at the port for nodes, and of a claim to be another node.
fn knock(address: Ipv4Addr, cluster: &str, called: u32, identity: &Identity) -> Result<(), String> {
    let mut preamble = b"LLpeer\0\x01".to_vec();
    preamble.extend(u128::from_str_radix(cluster, 16).expect("it is a number").to_le_bytes());
    for number in [9u32, called, 0, 0] {
        preamble.extend(number.to_le_bytes());
    }
    say(address, cluster, called, identity, &preamble).map(drop)
}

/// What is answered after a handshake as a node, with this identity, and this opening message.
fn say(
    address: Ipv4Addr,
    cluster: &str,
    called: u32,
    identity: &Identity,
    preamble: &[u8],
) -> Result<u8, String> {
    let own = Some(identity.own.clone());
    let mut config = trust::client(identity.authority.certificate(), own, provider()).expect("it is one");
    config.alpn_protocols = vec![ENCRYPTED.to_vec()];
    let name = ServerName::try_from(format!("node-{called}.{cluster}.loadline")).expect("it is a name");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it can be");
    runtime.block_on(async {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let stream =
            tokio::net::TcpStream::connect((address, 7401)).await.map_err(|error| error.to_string())?;
        let (mut stream, _) =
            handshake::connect(stream, Arc::new(config), name).await.map_err(|error| error.to_string())?;
        let answer = stream.read_u8().await.map_err(|error| error.to_string())?;
        if answer != 1 {
            return Err("it is not known".into());
        }
        stream.write_all(preamble).await.map_err(|error| error.to_string())?;
        stream.flush().await.map_err(|error| error.to_string())?;
        match stream.read_u8().await {
            Err(_) => Err("it is disconnected".into()),
            Ok(answer) => Ok(answer),
        }
    })
}

/// A sender with the key of a node, or a former process of that node, cannot open a session for a process that does not run, and cannot shut out
/// the process that runs.
#[test]
fn a_session_is_of_the_process_that_runs_as_its_node() {
    let cluster = Cluster::start_with(2, PROTECTED, "");
    cluster.loadline(&["volume", "create", "d", "--size", "16MiB", "--at", "node-1"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    let status: serde_json::Value =
        serde_json::from_str(&cluster.loadline(&["san", "status", "--json"])).expect("it is JSON");
    let id = status["cluster"].as_str().expect("it has an id");
    let known = catalog(&cluster);
    let (owner, _) = known.node("node-1").expect("it is there");
    let (number, node) = known.node("node-2").expect("it is there");
    let identity = Identity::read(&cluster.node_folder(2), id).expect("the node has one");
    let open = |incarnation: u64| {
        let mut session = b"LLsess\0\x01".to_vec();
        session.extend(u128::from_str_radix(id, 16).expect("it is a number").to_le_bytes());
        session.extend(incarnation.to_le_bytes());
        session.extend(number.to_le_bytes());
        session.extend(u32::MAX.to_le_bytes());
        say(cluster.addresses()[0], id, owner, &identity, &session).expect("it is answered")
    };
    // The third byte of the answer tells them apart, the first says that it is one.
    assert_eq!(open(u64::MAX), b'L');
    assert_eq!(open(node.incarnation - 1), b'L');
    for words in ["knows no process of node", "a newer process runs as node"] {
        assert!(cluster.log(1).contains(words), "{words}: {}", cluster.log(1));
    }
    let mut forwarded = Nbd::connect(cluster.addresses()[1], "d").expect("its own process is not shut out");
    forwarded.write(1, 1).expect("it is written");
}

#[test]
fn strangers_do_not_get_in_as_nodes() {
    let cluster = Cluster::start_with(2, PROTECTED, "");
    let other = Cluster::start_with(1, PROTECTED, "");
    cluster.loadline(&["volume", "create", "d", "--size", "16MiB"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    let mut client = Nbd::connect(cluster.addresses()[0], "d").expect("it is served");
    client.write(1, 7).expect("it is written");
    let address = cluster.addresses()[0];
    let id = |cluster: &Cluster| {
        let status: serde_json::Value =
            serde_json::from_str(&cluster.loadline(&["san", "status", "--json"])).expect("it is JSON");
        status["cluster"].as_str().expect("it has an id").to_owned()
    };
    let (ours, theirs) = (id(&cluster), id(&other));
    let (number, _) =
        catalog(&cluster).node("node-1").map(|(id, node)| (id, node.clone())).expect("it is there");
    let identity = |cluster: &Cluster, id: &str, node: u8| {
        Identity::read(&cluster.node_folder(node), id).expect("the node has one")
    };
    let refused = |address, identity: &Identity, words: &str| {
        let said = knock(address, &ours, number, identity).expect_err("a stranger");
        assert!(said.contains(words), "{said}");
    };
    // A node of another cluster: neither trusts the other. If it trusts this one, this one still does not trust it.
    refused(address, &identity(&other, &theirs, 1), "was not issued by this cluster");
    let mut mixed = identity(&cluster, &ours, 2);
    mixed.own = identity(&other, &theirs, 1).own;
    refused(address, &mixed, "certificate");
    // A certificate of this cluster's authority that is not in the configuration, as one made with a stolen key of the authority.
    let mut forged = identity(&cluster, &ours, 2);
    let subject =
        loadline_san_node::identity::authority::Subject::Node { id: 2, addresses: vec![], names: vec![] };
    forged.own = forged.authority.issue(&subject, Duration::from_secs(600)).expect("it is issued");
    refused(address, &forged, "it is not known");
    // One that has expired, or is an access to the API.
    forged.own = forged.authority.issue(&subject, Duration::ZERO).expect("it is issued");
    while std::time::UNIX_EPOCH.elapsed().expect("it is later").as_secs() <= forged.own.expires {
        std::thread::sleep(Duration::from_millis(20));
    }
    refused(address, &forged, "check the clocks");
    let bundle = access(&cluster, "alice", "operator", &[]);
    forged.own = read_bundle(&bundle).expect("it was written");
    refused(address, &forged, "it is not known");
    // A node of this cluster that claims to be another one.
    refused(address, &identity(&cluster, &ours, 2), "it is disconnected");
    // What is no TLS at all, and a side that stops in the middle.
    let mut open = TcpStream::connect((address, 7401)).expect("it listens");
    open.write_all(&[b"LLpeer\0\x01".as_slice(), &[0; 32]].concat()).expect("it is taken");
    open.set_read_timeout(Some(Duration::from_secs(10))).expect("it may be so long");
    let mut rest = Vec::new();
    let _ = open.read_to_end(&mut rest);
    // The node waits a moment until a side that is refused has read why. It would have to go before that for the next ones.
    drop(open);
    let begun = Instant::now();
    while !cluster.log(1).contains("does not speak TLS") {
        assert!(begun.elapsed() < Duration::from_secs(10), "{}", cluster.log(1));
        std::thread::sleep(Duration::from_millis(20));
    }
    let silent: Vec<TcpStream> = (0..50)
        .map(|_| {
            let mut stream = TcpStream::connect((address, 7401)).expect("it listens");
            stream.write_all(&[22, 3, 1, 2, 0]).expect("it is taken");
            stream
        })
        .collect();
    assert_eq!(client.read(1).expect("it is served all the time"), 7);
    client.write(2, 8).expect("it is written all the time");
    drop(silent);
    assert!(counted(&cluster, 1, "loadline_refused_connections_total") >= 6.0);
    let begun = Instant::now();
    for words in [
        "was not issued by this cluster",
        "names no node with it",
        "its certificate was valid until",
        "claims to be node 9",
    ] {
        while !cluster.log(1).contains(words) {
            assert!(begun.elapsed() < Duration::from_secs(10), "{words}: {}", cluster.log(1));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    cluster.wait_until("d", "healthy", Duration::from_secs(20));
}

#[test]
fn the_api_beyond_one_machine_wants_an_access() {
    if !hosts::possible() {
        return;
    }
    let cluster = Cluster::start_on_hosts(2, &[], "");
    let (viewer, operator) =
        (access(&cluster, "eve", "viewer", &[]), access(&cluster, "bob", "operator", &[]));
    let api = format!("https://{}:7400", cluster.addresses()[0]);
    let ask = |access: Option<&Path>, words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loadline"));
        command.args(words).args(["--api", &api]).env_remove("LOADLINE_ACCESS").env_remove("LOADLINE_API");
        if let Some(path) = access {
            command.args(["--access", text(path)]);
        }
        try_run(&mut command)
    };
    let create = ["volume", "create", "d", "--size", "16MiB"];
    let (done, said) = ask(None, &["san", "status"]);
    assert!(!done && said.contains("--access"), "{said}");
    let (done, said) = ask(Some(&viewer), &["san", "status"]);
    assert!(done && said.contains("node-2  reports"), "nodes ask each other as nodes: {said}");
    let watched = ask(Some(&viewer), &["watch", "--json", "--for", "6s"]).1;
    let last: serde_json::Value =
        serde_json::from_str(watched.lines().last().expect("a line a second")).expect("it is JSON");
    let all_report = |nodes: &Vec<serde_json::Value>| nodes.iter().all(|node| node["reports"] == "now");
    assert!(last["nodes"].as_array().is_some_and(|nodes| nodes.len() == 2 && all_report(nodes)), "{last:#}");
    let (done, said) = ask(Some(&viewer), &create);
    assert!(!done && said.contains("needs the role operator"), "{said}");
    let (done, said) = ask(Some(&operator), &create);
    assert!(done, "{said}");
    // A node's own identity is an access too.
    let (done, said) =
        ask(Some(&cluster.node_folder(2).join("identity/node.pem")), &["volume", "attach", "d"]);
    assert!(done, "{said}");
    // By HTTP without TLS nothing is answered, and a token is one of the cluster or none.
    let mut open = TcpStream::connect((cluster.addresses()[0], 7400)).expect("it listens");
    open.write_all(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is taken");
    let mut answer = Vec::new();
    let _ = open.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP"), "{answer:?}");
    let token = access(&cluster, "graph", "viewer", &["--token"]);
    let token = std::fs::read_to_string(token).expect("it was written");
    let address = SocketAddr::from((cluster.addresses()[0], 7400));
    let authority = cluster.node_folder(1).join("identity/cluster-ca.pem");
    assert_eq!(by_token(address, &authority, &token, "GET"), 200);
    assert_eq!(by_token(address, &authority, &token, "POST"), 403);
    assert_eq!(by_token(address, &authority, "loadline-api-AAAA", "GET"), 401);
    // An access that is revoked is refused.
    cluster.loadline(&["san", "access", "remove", "eve", "--config", &settings(&cluster, 1)]);
    let begun = Instant::now();
    loop {
        let (done, said) = ask(Some(&viewer), &["san", "status"]);
        if !done {
            assert!(said.contains("was revoked"), "{said}");
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "what was revoked is refused");
    }
    let listed = cluster.loadline(&["san", "access", "list", "--config", &settings(&cluster, 1)]);
    assert!(listed.contains("bob") && !listed.contains("eve"), "{listed}");
    // A caller that goes on trying gets 429. A caller at the same address that has an access is let in.
    let tried: Vec<u16> =
        (0..40).map(|_| by_token(address, &authority, "loadline-api-AAAA", "GET")).collect();
    assert!(tried.contains(&429), "{tried:?}");
    assert_eq!(by_token(address, &authority, &token, "GET"), 200);
}

/// The status of what the API answers to a request with this token.
fn by_token(address: SocketAddr, authority: &Path, token: &str, method: &str) -> u16 {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    let authority = CertificateDer::from_pem_file(authority).expect("it is there");
    let config = trust::client(&authority, None, provider()).expect("it is one");
    let connection =
        rustls::ClientConnection::new(Arc::new(config), ServerName::from(address.ip())).expect("it is one");
    let stream = TcpStream::connect(address).expect("it listens");
    let mut stream = rustls::StreamOwned::new(connection, stream);
    let path = if method == "GET" { "/v1/status" } else { "/v1/volumes" };
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n");
    stream
        .write_all(format!("{head}Content-Length: 0\r\nConnection: close\r\n\r\n").as_bytes())
        .expect("it is taken");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("it has a status")
}

#[test]
fn a_node_that_is_removed_is_cut_off_while_it_cannot_learn_it() {
    let mut cluster = Cluster::start_with(3, PROTECTED, "");
    cluster.loadline(&["volume", "create", "d", "--size", "16MiB", "--copies", "2", "--at", "node-1"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    cluster.loadline(&["node", "drain", "node-3"]);
    let mut forwarded = Nbd::connect(cluster.addresses()[2], "d").expect("node 3 forwards");
    forwarded.write(1, 1).expect("it is written");
    // It does not learn it: it is stopped.
    cluster.signal(3, "STOP");
    cluster.loadline(&["node", "remove", "node-3"]);
    cluster.signal(3, "CONT");
    let begun = Instant::now();
    while forwarded.write(1, 2).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(10), "clients behind it are cut off");
    }
    cluster.wait_until_gone(3);
    assert!(cluster.log(3).contains("was removed from the cluster"), "{}", cluster.log(3));
    let mut child = cluster.spawn_node(3);
    let ended = child.wait().expect("it ends by itself");
    assert_eq!(ended.code(), Some(2));
    let mut client = Nbd::connect(cluster.addresses()[1], "d").expect("others serve");
    client.write(1, 3).expect("it is written");
}

#[test]
fn a_copy_of_a_nodes_folder_is_no_second_node() {
    if !hosts::possible() {
        return;
    }
    let mut cluster = Cluster::start_on_hosts(2, &[], "");
    cluster.loadline(&["volume", "create", "d", "--size", "16MiB", "--copies", "2"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    let mut client = Nbd::connect(cluster.addresses()[0], "d").expect("it is served");
    let copy = cluster.folder().join("copy");
    run(Command::new("cp").args(["-r", text(&cluster.node_folder(1)), text(&copy)]));
    let toml = std::fs::read_to_string(copy.join("node.toml")).expect("it was copied");
    let toml = toml.replace(text(&cluster.node_folder(1)), text(&copy));
    std::fs::write(copy.join("node.toml"), toml).expect("it can be");
    let second = |cluster: &Cluster, host: u8| {
        let mut command = cluster.hosts().command(host, env!("CARGO_BIN_EXE_loadline"));
        command.args(["san", "serve", "--config", text(&copy.join("node.toml"))]);
        command
    };
    // On the same host, and on another one: it does not have the address, and node-1 goes on.
    for host in [1, 2] {
        let (served, said) = try_run(&mut second(&cluster, host));
        assert!(!served && said.contains("cannot listen"), "{said}");
    }
    client.write(1, 1).expect("node-1 goes on");
    // A host that takes the address over: then one of the two ends, and says why.
    let add = ["addr", "add", &format!("{}/32", cluster.addresses()[0]), "dev", "lo"];
    run(cluster.hosts().command(2, "ip").args(add));
    let mut child =
        second(&cluster, 2).stderr(std::process::Stdio::null()).spawn().expect("the program is there");
    cluster.wait_until_gone(1);
    assert!(cluster.log(1).contains("another process has started as node node-1"), "{}", cluster.log(1));
    let _ = child.kill();
    let _ = child.wait();
}

#[test]
fn a_restored_configuration_that_names_older_certificates_is_used() {
    let mut cluster = Cluster::start_with(2, PROTECTED, "");
    cluster.loadline(&["volume", "create", "d", "--size", "16MiB", "--copies", "2"]);
    cluster.loadline(&["volume", "attach", "d", "--node", "node-1"]);
    let mut client = Nbd::connect(cluster.addresses()[0], "d").expect("it is served");
    client.write(1, 1).expect("it is written");
    let backup = cluster.folder().join("backup.db");
    rusqlite::Connection::open(cluster.file())
        .and_then(|store| store.execute("VACUUM INTO ?1", [text(&backup)]))
        .expect("it can be copied");
    for node in ["node-1", "node-2"] {
        cluster.loadline(&["node", "renew", node]);
    }
    let one =
        |cluster: &Cluster| catalog(cluster).nodes.values().all(|(node, _)| node.certificates.len() == 1);
    let begun = Instant::now();
    while !one(&cluster) {
        assert!(begun.elapsed() < Duration::from_secs(30), "an old certificate is still named");
        std::thread::sleep(Duration::from_millis(50));
    }
    (1..=2).for_each(|node| cluster.kill(node));
    for ending in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{ending}", cluster.file()));
    }
    std::fs::copy(&backup, cluster.file()).expect("it is there");
    (1..=2).for_each(|node| cluster.start_node(node));
    assert!(cluster.log(1).contains("names an older certificate of this node"), "{}", cluster.log(1));
    cluster.wait_until("d", "healthy", Duration::from_secs(30));
}
