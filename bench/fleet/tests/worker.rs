//! The worker itself: it carries out its orders, and does not outlive its controller.

mod common;

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use common::{Events, TOKEN, Wire, challenge, job, joined, options, run, work};
use loadline_base::clock::Nanos;
use loadline_base::units::{ByteSize, TimeSpan};
use loadline_fleet::wire::{FileToMake, Reply, Side, ToController, ToWorker, WorkerOrder};
use loadline_fleet::{ErrorKind, Fleet, NetworkPath, WorkerId, run_worker};

#[test]
fn a_fleet_of_real_workers_makes_files_fills_measures_and_cleans_up() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let events = Events::default();
    run(async {
        let here = events.clone();
        let workers = thread::spawn(move || {
            let address = here.address().to_string();
            ["a", "b"].map(|name| work(address.clone(), name))
        });
        let mut fleet = Fleet::start(joined(2, TimeSpan::seconds(10)), events.sink()).await.unwrap();
        let ids: Vec<WorkerId> = fleet.workers().into_iter().map(|w| w.id).collect();

        let file = |id: &WorkerId| folder.path().join(&id.0);
        let wanted = ids.iter().map(|id| (id.clone(), vec![(file(id), ByteSize(1 << 20))])).collect();
        let made = fleet.make_files(&wanted).await.unwrap();
        let again = fleet.make_files(&wanted).await.unwrap_err();
        assert!(again.message.contains(file(&ids[0]).to_str().unwrap()), "{again}");

        let jobs = ids.iter().map(|id| {
            let mut job = job(2);
            job.disks[0].target = loadline_load::Target::Path(file(id));
            job.disks[0].writes = loadline_load::WritePermission::Made(made[id][0]);
            job.profile.write_percent = 50;
            job.profile.outstanding = 4;
            (id.clone(), job)
        });
        let jobs = jobs.collect();
        let filled = fleet.fill(&jobs).await.unwrap();
        assert!(filled.values().all(Result::is_ok), "{filled:?}");
        let link = |ip: &str| NetworkPath {
            from: ids[0].clone(),
            to: ids[1].clone(),
            ip: Some(ip.parse().unwrap()),
        };
        let speed = fleet.measure_path(&link("127.0.0.1")).await.unwrap().unwrap();
        assert!(speed.round_trip_us > 1.0 && speed.bytes_per_s > 1e6, "{speed:?}");
        let nowhere = fleet.measure_path(&link("192.0.2.1")).await.unwrap().unwrap_err();
        assert!(nowhere.contains("cannot listen on 192.0.2.1"), "{nowhere}");
        // That is no loss, and the load that follows is measured by both.
        let outcome = fleet.measure(&jobs).await.unwrap();
        assert_eq!(outcome.lost().count(), 0);
        // Both are on one host, and one of them watches it, the other's disk included.
        let hosts: Vec<_> = outcome.hosts.values().collect();
        assert!(hosts.len() == 1 && hosts[0].cpus > 0 && hosts[0].disks.len() == 2, "{hosts:?}");
        assert_eq!(events.host_seconds(), [0, 1]);
        for worker in outcome.workers.values() {
            // What was intended in the window, however busy this machine is.
            let intended = worker.window.read.response.count() + worker.window.write.response.count();
            assert!((1990..=2010).contains(&intended), "1000 a second for 2 s came to {intended}");
            assert!(worker.cpu.is_some() && worker.host_cpu.is_some() && worker.clock_error.is_some());
        }

        let remove = ids.iter().map(|id| (id.clone(), vec![(file(id), made[id][0])])).collect();
        let removed = fleet.remove_files(&remove).await.unwrap();
        assert!(removed.values().all(Result::is_ok) && !file(&ids[0]).exists());
        fleet.stop().await;
        for worker in workers.join().unwrap() {
            assert_eq!(worker.join().unwrap(), Ok(()), "after a goodbye a worker ends well");
        }
    });
}

/// A controller that lets one worker in, hands it a job, and then does what the test says.
fn controller(listener: TcpListener, order: Option<WorkerOrder>) -> Wire {
    let mut wire = Wire::accept(&listener);
    let proven = challenge(&mut wire, TOKEN);
    match wire.receive(Duration::from_secs(5)).unwrap() {
        Some(ToController::Proof { proof }) => assert!(proven.is_proof(TOKEN, Side::Worker, &proof)),
        other => panic!("{other:?}"),
    }
    wire.send(&ToWorker::Welcome { worker: WorkerId("a".into()) }).unwrap();
    if let Some(order) = order {
        wire.send(&ToWorker::Do { task: 1, order }).unwrap();
    }
    wire
}

/// A controller that has let one worker prepare a job.
fn prepared(listener: TcpListener) -> Wire {
    let mut wire = controller(listener, Some(WorkerOrder::Prepare { job: Box::new(job(60)), watch: None }));
    // It asks for the time until it knows it, and then it is ready.
    loop {
        match wire.receive(Duration::from_secs(5)).unwrap() {
            Some(ToController::Ping { sent }) => {
                wire.send(&ToWorker::Pong { sent, at: Nanos::now() }).unwrap()
            }
            Some(ToController::Reply { reply: Reply::Prepared { .. }, .. }) => return wire,
            Some(ToController::Heartbeat) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_worker_whose_controller_closes_the_connection_ends_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let worker = work(listener.local_addr().unwrap().to_string(), "a");
    drop(controller(listener, None));
    let begun = Instant::now();
    let error = worker.join().unwrap().unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert_eq!(error.kind, ErrorKind::Failed);
    assert!(error.message.contains("is gone (it closed the connection)"), "{error}");
}

#[test]
fn a_worker_whose_controller_is_silent_stops_its_load_within_seconds() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let worker = work(listener.local_addr().unwrap().to_string(), "a");
    let mut wire = prepared(listener);
    let start = Nanos(Nanos::now().0 + 500_000_000);
    let order = WorkerOrder::Run { start, hold_back: Nanos(0), late: false, clock: None };
    wire.send(&ToWorker::Do { task: 2, order }).unwrap();
    let begun = Instant::now();
    let error = worker.join().unwrap().unwrap_err();
    let took = begun.elapsed();
    assert!((Duration::from_secs(4)..Duration::from_secs(10)).contains(&took), "{took:?}");
    assert!(error.message.contains("no message arrived"), "{error}");
}

#[test]
fn a_word_to_start_that_comes_too_late_is_a_failure_and_not_a_late_start() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let worker = work(listener.local_addr().unwrap().to_string(), "a");
    let mut wire = prepared(listener);
    let start = Nanos(Nanos::now().0 - 20_000_000);
    wire.send(&ToWorker::Do {
        task: 2,
        order: WorkerOrder::Run { start, hold_back: Nanos(0), late: false, clock: None },
    })
    .unwrap();
    loop {
        match wire.receive(Duration::from_secs(5)).unwrap() {
            Some(ToController::Reply { task: 2, reply: Reply::Failed { message, .. } }) => {
                assert!(message.contains("after the start time"), "{message}");
                break;
            }
            Some(ToController::Heartbeat) => {}
            other => panic!("{other:?}"),
        }
    }
    wire.send(&ToWorker::Bye).unwrap();
    assert_eq!(worker.join().unwrap(), Ok(()));
}

#[test]
fn an_address_that_is_none_is_refused_at_once() {
    for address in ["", "host", "host:", ":80", "host:port", "host:99999"] {
        let error = run_worker(options(address.into(), "a"), &mut |_| {}).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Usage, "{address}");
    }
}

#[test]
fn a_listener_that_is_no_controller_is_given_up_with_its_name() {
    use std::io::Write;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let worker = work(address.clone(), "a");
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(&[&6u32.to_be_bytes()[..], b"\"what\""].concat()).unwrap();
    let error = worker.join().unwrap().unwrap_err();
    assert!(
        error.message.contains(&address) && error.message.contains("not a Loadline controller"),
        "{error}"
    );
}

#[test]
fn a_listener_without_the_token_learns_nothing_and_orders_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ordered");
    let made = vec![FileToMake { path: file.clone(), size: ByteSize(4096) }];
    // Without a proof, and with proofs of wrong tokens.
    for act in 0..3 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let worker = work(address.clone(), "a");
        let mut wire = Wire::accept(&listener);
        match act {
            0 => {
                let hello: Option<serde_json::Value> = wire.receive(Duration::from_secs(5)).unwrap();
                assert!(!hello.unwrap().to_string().contains(TOKEN), "the token does not travel");
            }
            _ => drop(challenge(&mut wire, if act == 1 { "a-guessed-token" } else { "" })),
        }
        // The worker may have closed the connection already.
        let _ = wire.send(&ToWorker::Welcome { worker: WorkerId("a".into()) });
        let _ = wire.send(&ToWorker::Do { task: 1, order: WorkerOrder::MakeFiles(made.clone()) });
        let error = worker.join().unwrap().unwrap_err();
        assert_eq!(error.kind, ErrorKind::Usage);
        assert!(error.message.contains(&address), "{error}");
        assert!(act == 0 || error.message.contains("token"), "{error}");
        let answer: std::io::Result<Option<ToController>> = wire.receive(Duration::from_secs(1));
        assert!(answer.is_err(), "it sends nothing more and disconnects: {answer:?}");
        assert!(!file.exists());
    }
}
