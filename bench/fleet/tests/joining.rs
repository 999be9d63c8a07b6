//! Which connections are accepted, which are refused, and that none disturbs the run.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use common::{Events, Fake, Fault, IOS, greet, greet_with, hello, job, joined, run};
use loadline_base::units::TimeSpan;
use loadline_fleet::wire::{Hello, PROTOCOL, ToController, ToWorker};
use loadline_fleet::{ErrorKind, Fleet, WorkerId};

const WAIT: TimeSpan = TimeSpan::seconds(10);

#[test]
fn garbage_on_the_port_is_reported_once_each_and_disturbs_no_worker() {
    let events = Events::default();
    let outcome = run(async {
        let here = events.clone();
        let garbage = thread::spawn(move || {
            let address = here.address();
            let mut half_open = TcpStream::connect(address).unwrap();
            half_open.write_all(&[0, 0]).unwrap();
            for bytes in [
                &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
                &[0xff; 5000],
                &[0, 0, 0, 9, b'[', b'[', b'[', b'[', b'[', b'[', b'[', b'[', b'['],
                &[0, 0, 0, 4, 0xde, 0xad, 0xbe, 0xef],
            ] {
                let mut stream = TcpStream::connect(address).unwrap();
                // The controller may have closed before all is written.
                let _ = stream.write_all(bytes);
                stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
                let _ = stream.read_to_end(&mut Vec::new());
            }
            let fake = Fake::join(address, "a", Fault::None);
            fake.work();
            drop(half_open);
        });
        let mut fleet = Fleet::start(joined(1, WAIT), events.sink()).await.unwrap();
        let outcome = fleet.measure(&[(WorkerId("a".into()), job(6))].into()).await.unwrap();
        fleet.stop().await;
        garbage.join().unwrap();
        outcome
    });
    assert_eq!(outcome.lost().count(), 0);
    assert_eq!(outcome.workers[&WorkerId("a".into())].window.completed(), 6 * IOS);
    let rejected = events.rejected();
    assert_eq!(rejected.len(), 5, "{rejected:?}");
    assert!(rejected[0].contains("HTTP"), "{rejected:?}");
    assert!(rejected.iter().any(|why| why.contains("did not prove within 5s")), "{rejected:?}");
}

fn refusal(answer: &ToWorker) -> (&str, bool) {
    match answer {
        ToWorker::Refused { why, retry, protocol } => {
            assert_eq!(*protocol, PROTOCOL);
            (why, *retry)
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_worker_that_may_not_join_gets_the_reason() {
    let events = Events::default();
    run(async {
        let here = events.clone();
        let others = thread::spawn(move || {
            let address = here.address();
            let (_, answer) = greet_with(address, hello("a"), "the-wrong-token-of-a-fleet");
            assert!(refusal(&answer).0.contains("token"));
            let (_, answer) = greet(address, Hello { protocol: 77, ..hello("a") });
            let why = refusal(&answer).0;
            assert!(why.contains("version 77") && why.contains(&format!("version {PROTOCOL}")), "{why}");
            let (_, answer) = greet(address, Hello { version: "0.0.9".into(), ..hello("a") });
            let (why, retry) = refusal(&answer);
            assert!(why.contains("0.0.9") && why.contains(env!("CARGO_PKG_VERSION")) && !retry, "{why}");
            let (_, answer) = greet(address, hello("../../etc"));
            assert!(refusal(&answer).0.contains("name"));
            let mut wire = common::Wire::connect(address);
            wire.send(&ToController::Heartbeat).unwrap();
            let answer: Option<ToWorker> = wire.receive(Duration::from_secs(3)).unwrap();
            assert!(refusal(&answer.unwrap()).0.contains("hello"));
            let a = Fake::start(address, "a", Fault::None);
            here.wait(|e| matches!(e, loadline_fleet::FleetEvent::Joined { .. }).then_some(()));
            let (_, answer) = greet(address, hello("a"));
            assert!(refusal(&answer).1, "a worker whose old connection is about to end may try again");
            let b = Fake::start(address, "b", Fault::None);
            here.wait(|e| match e {
                loadline_fleet::FleetEvent::Joined { worker } => (worker.id.0 == "b").then_some(()),
                _ => None,
            });
            let (_, answer) = greet(address, hello("c"));
            assert!(refusal(&answer).0.contains("all 2 workers"));
            (a, b)
        });
        let fleet = Fleet::start(joined(2, WAIT), events.sink()).await.unwrap();
        let names: Vec<String> = fleet.workers().into_iter().map(|w| w.id.0).collect();
        assert_eq!(names, ["a", "b"]);
        let (a, b) = tokio::task::spawn_blocking(|| others.join().unwrap()).await.unwrap();
        fleet.stop().await;
        a.join().unwrap();
        b.join().unwrap();
    });
    let reported = format!("{:?}", events.all());
    assert!(
        !reported.contains(common::TOKEN) && !reported.contains("the-wrong-token-of-a-fleet"),
        "no token is ever told"
    );
}

#[test]
fn a_fleet_whose_workers_do_not_come_ends_in_time_and_says_how_to_start_them() {
    let events = Events::default();
    let begun = Instant::now();
    let error = run(Fleet::start(joined(3, TimeSpan::seconds(1)), events.sink())).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(3));
    assert_eq!(error.kind, ErrorKind::Failed);
    assert!(
        error.message.contains("0 of 3 workers") && error.message.contains("worker --join 127.0.0.1:"),
        "{error}"
    );
}

#[test]
fn an_address_in_use_is_a_usage_error_that_names_it() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut spec = joined(1, WAIT);
    spec.listen = taken.local_addr().unwrap();
    let error = run(Fleet::start(spec, Events::default().sink())).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Usage);
    assert!(error.message.contains(&taken.local_addr().unwrap().to_string()), "{error}");
}

#[test]
fn waiting_for_workers_can_be_given_up() {
    let events = Events::default();
    run(async {
        let start = Fleet::start(joined(1, TimeSpan::seconds(600)), events.sink());
        assert!(tokio::time::timeout(Duration::from_millis(200), start).await.is_err());
    });
    let gone = TcpStream::connect(events.address());
    assert!(gone.is_err(), "the controller has ended when the future is dropped");
}

#[test]
fn a_fleet_of_its_own_processes_is_not_to_be_reached_from_elsewhere() {
    let events = Events::default();
    let nodes = vec![loadline_fleet::NodeSpec::named("a")];
    let mut spec = joined(1, WAIT);
    spec.placement =
        loadline_fleet::Placement::Processes(loadline_fleet::LocalProcesses { nodes, workers_per_node: 1 });
    spec.listen = "0.0.0.0:0".parse().unwrap();
    spec.program = "/no/such/loadline".into();
    run(Fleet::start(spec, events.sink())).unwrap_err();
    assert!(events.address().ip().is_loopback());
}
