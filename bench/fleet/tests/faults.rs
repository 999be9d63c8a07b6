//! Workers that fail in every way are named, counted, and do not keep the others.

mod common;

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use common::{Events, Fake, Fault, IOS, job, joined, run};
use loadline_base::units::TimeSpan;
use loadline_fleet::{ErrorKind, Fleet, FleetEvent, LossReason, WorkerId};
use loadline_measure::audit::FindingKind;

const WAIT: TimeSpan = TimeSpan::seconds(10);

fn id(name: &str) -> WorkerId {
    WorkerId(name.into())
}

/// A fleet of fake workers with these faults.
async fn fleet(faults: &[(&'static str, Fault)], events: &Events) -> Fleet {
    let faults = faults.to_vec();
    let here = events.clone();
    let count = faults.len() as u32;
    thread::spawn(move || {
        let address = here.address();
        faults.iter().for_each(|(name, fault)| drop(Fake::start(address, name, *fault)));
    });
    Fleet::start(joined(count, WAIT), events.sink()).await.unwrap()
}

#[test]
fn each_way_to_fail_is_named_and_the_step_ends_for_the_others() {
    let faults = [
        ("good", Fault::None),
        ("dies", Fault::Dies),
        ("hangs", Fault::Hangs),
        ("behind", Fault::FallsBehind),
        ("garbles", Fault::Garbles),
        ("refuses", Fault::Refuses),
        ("loses", Fault::LosesRecords),
    ];
    let events = Events::default();
    let seconds = 9;
    let (outcome, took) = run(async {
        let mut fleet = fleet(&faults, &events).await;
        let jobs = fleet.workers().into_iter().map(|w| (w.id, job(seconds))).collect();
        let begun = Instant::now();
        let outcome = fleet.measure(&jobs).await.unwrap();
        let took = begun.elapsed();
        fleet.stop().await;
        (outcome, took)
    });
    assert!(took < Duration::from_secs(seconds + 6), "{took:?}");
    let lost: BTreeMap<&str, LossReason> =
        outcome.lost().map(|(id, loss)| (id.0.as_str(), loss.reason)).collect();
    let expected = [
        ("dies", LossReason::Died),
        ("hangs", LossReason::Hung),
        ("behind", LossReason::FellBehind),
        ("garbles", LossReason::Garbled),
        ("refuses", LossReason::Refused),
    ];
    assert_eq!(lost, expected.into());
    let of = |name: &str| &outcome.workers[&id(name)];
    assert_eq!(of("good").window.completed(), seconds * IOS);
    assert_eq!((of("good").findings.len(), of("good").engine.as_deref()), (0, Some("fake")));
    assert_eq!(of("loses").findings[0].kind, FindingKind::MissingIntervals);
    for name in ["dies", "hangs"] {
        assert_eq!(of(name).window.completed(), IOS, "what came before the loss counts");
        let after = of(name).lost.as_ref().unwrap().after_s.unwrap();
        assert!((0.9..8.0).contains(&after), "{name} after {after}");
    }
    let found = of("dies").verify.as_ref().map(|report| report.lost);
    assert_eq!(found, Some(2), "what it found is not lost with it");
    let is_reported = |e: &FleetEvent| matches!(e, FleetEvent::BadBlocks { report, .. } if report.bad() == 2);
    assert!(events.all().iter().any(is_reported));
    let mut named: Vec<String> = Vec::new();
    for event in events.all() {
        if let FleetEvent::Lost { worker, loss } = event {
            assert_eq!((worker.host.as_str(), worker.pid), ("test-host", 7));
            assert!(!loss.message.is_empty() && loss.unix_ms > 1_500_000_000_000);
            named.push(worker.id.0);
        }
    }
    named.sort();
    assert_eq!(named, ["behind", "dies", "garbles", "hangs", "refuses"], "each is named once");
    let seconds_shown = events.all().iter().filter(|e| matches!(e, FleetEvent::Second(_))).count() as u64;
    assert_eq!(seconds_shown, seconds);
    let records = events.all().iter().filter(|e| matches!(e, FleetEvent::Interval { .. })).count() as u64;
    assert_eq!(records, 2 * seconds + 2, "every record that counts is handed on");
}

#[test]
fn if_no_worker_can_begin_the_outcome_states_why_of_each() {
    let events = Events::default();
    let outcome = run(async {
        let mut fleet = fleet(&[("a", Fault::Refuses), ("b", Fault::Refuses)], &events).await;
        let jobs = [(id("a"), job(2)), (id("b"), job(2))].into();
        let outcome = fleet.measure(&jobs).await.unwrap();
        fleet.stop().await;
        outcome
    });
    let lost: Vec<(LossReason, &str)> =
        outcome.lost().map(|(_, loss)| (loss.reason, loss.message.as_str())).collect();
    assert_eq!(lost, [(LossReason::Refused, "it does not like the job"); 2]);
    assert!(outcome.workers.values().all(|worker| worker.clock_error.is_none()));
    assert!(!events.all().iter().any(|e| matches!(e, FleetEvent::Starting { .. })), "nothing started");
}

#[test]
fn a_stop_condition_of_one_worker_ends_the_load_of_all() {
    let events = Events::default();
    run(async {
        let here = events.clone();
        let stopped = thread::spawn(move || {
            let address = here.address();
            Fake::start(address, "exceeds", Fault::StopCondition);
            let fake = Fake::join(address, "good", Fault::None);
            let stops = fake.stops.clone();
            fake.work();
            *stops.lock().unwrap()
        });
        let mut fleet = Fleet::start(joined(2, WAIT), events.sink()).await.unwrap();
        let jobs = [(id("exceeds"), job(60)), (id("good"), job(60))].into();
        let begun = Instant::now();
        let error = fleet.measure(&jobs).await.unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert_eq!(error.kind, ErrorKind::Limit);
        assert!(error.message.contains("worker exceeds") && error.message.contains("max>1s"), "{error}");
        fleet.stop().await;
        assert_eq!(stopped.join().unwrap(), 1, "the other one was told to stop");
    });
    let named = events.all().into_iter().any(|e| match e {
        FleetEvent::Lost { worker, loss } => {
            worker.id == id("exceeds") && loss.reason == LossReason::StopCondition
        }
        _ => false,
    });
    assert!(named);
}

#[test]
fn a_measurement_without_a_caller_stops_and_the_next_one_runs() {
    let events = Events::default();
    run(async {
        let here = events.clone();
        let stopped = thread::spawn(move || {
            let fake = Fake::join(here.address(), "a", Fault::None);
            let stops = fake.stops.clone();
            fake.work();
            *stops.lock().unwrap()
        });
        let mut fleet = Fleet::start(joined(1, WAIT), events.sink()).await.unwrap();
        let jobs = |seconds| BTreeMap::from([(id("a"), job(seconds))]);
        let long = jobs(60);
        assert!(tokio::time::timeout(Duration::from_secs(2), fleet.measure(&long)).await.is_err());
        let begun = Instant::now();
        let outcome = fleet.measure(&jobs(1)).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert_eq!(outcome.workers[&id("a")].window.completed(), IOS);
        fleet.stop().await;
        assert_eq!(stopped.join().unwrap(), 1);
    });
}

#[test]
fn a_worker_that_joins_again_under_its_name_is_part_of_the_next_step() {
    let events = Events::default();
    run(async {
        let mut fleet = fleet(&[("a", Fault::Dies), ("b", Fault::None)], &events).await;
        let jobs = [(id("a"), job(2)), (id("b"), job(2))].into();
        let outcome = fleet.measure(&jobs).await.unwrap();
        assert_eq!(outcome.lost().count(), 1);
        let address = fleet.address();
        let again = thread::spawn(move || {
            thread::sleep(Duration::from_secs(1));
            Fake::join(address, "a", Fault::None).work();
        });
        let outcome = fleet.measure(&jobs).await.unwrap();
        assert_eq!(outcome.lost().count(), 0);
        assert_eq!(outcome.workers[&id("a")].window.completed(), 2 * IOS);
        fleet.stop().await;
        again.join().unwrap();
    });
    assert!(
        events.all().iter().any(|e| matches!(e, FleetEvent::Restarted { worker } if worker.id == id("a")))
    );
}

#[test]
fn jobs_for_strangers_and_jobs_of_unequal_length_are_usage_errors() {
    let events = Events::default();
    run(async {
        let mut fleet = fleet(&[("a", Fault::None), ("b", Fault::None)], &events).await;
        let unknown = BTreeMap::from([(id("unknown"), job(1))]);
        let unequal = BTreeMap::from([(id("a"), job(1)), (id("b"), job(2))]);
        for (jobs, word) in
            [(unknown, "unknown"), (unequal, "same warm-up"), (BTreeMap::new(), "nothing to measure")]
        {
            let error = fleet.measure(&jobs).await.unwrap_err();
            assert!(error.kind == ErrorKind::Usage && error.message.contains(word), "{error}");
        }
        fleet.stop().await;
    });
}
