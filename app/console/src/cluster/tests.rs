use loadline_san_node::node::manage::VolumeView;
use serde_json::json;

use super::*;
use crate::figures::tests::sample;

const WALL: u64 = 1_700_000_000_000;

/// A cluster that a test drives: a second after the other.
struct Trial {
    cluster: Cluster,
    begun: Instant,
    second: u64,
}

impl Trial {
    fn new(nodes: &[&str]) -> Trial {
        let mut trial = Trial { cluster: Cluster::default(), begun: Instant::now(), second: 0 };
        trial.status(nodes);
        for node in nodes {
            let hello = json!({ "hello": { "node": node, "cluster": "c", "incarnation": 7, "version": "0",
                "bounds_ns": [10_000, 20_000, 40_000] } });
            trial.learn(node, News::Followed(serde_json::from_value(hello).unwrap()));
        }
        // What comes is shown at once.
        trial.cluster.nodes.values_mut().for_each(|node| node.has_spare = true);
        trial
    }

    fn now(&self) -> Instant {
        self.begun + Duration::from_secs(self.second)
    }

    fn wall(&self) -> u64 {
        WALL + self.second * 1000
    }

    fn status(&mut self, nodes: &[&str]) {
        let nodes: Vec<_> = nodes
            .iter()
            .map(|name| {
                json!({ "name": name, "alive": true, "api": "127.0.0.1:7400", "endpoints": {}, "draining": false, "maintenance": false,
                "stopping": false, "incarnation": 7, "devices": 1, "replicas": 1, "fault": null })
            })
            .collect();
        let volume = |name: &str| {
            json!({ "name": name, "bytes": 1 << 20, "copies": 2, "least": 1, "stripes": 1, "lease_ms": 600,
            "requires_tls": false, "cache_bytes": 0, "limit": null, "health": "healthy", "in_sync": 2, "attached": "a",
            "owner": "a", "epoch": 1, "replicas": [], "note": null })
        };
        let status = json!({ "cluster": "c", "asked": "a", "store_fault": null, "reserve": {}, "store": [], "nodes": nodes,
            "devices": [], "volumes": [volume("v-a"), volume("v-b")] });
        let status = serde_json::from_value(status).expect("it is a status");
        let now = self.now();
        self.cluster.learn_status(Ok(status), now);
    }

    fn learn(&mut self, node: &str, news: News) {
        let (now, wall) = (self.now(), self.wall());
        self.cluster.learn(node, news, now, wall);
    }

    fn sends(&mut self, node: &str, reads: u64, class: u8) {
        let mut of = sample(self.second + 1, &format!("v-{node}"), reads, class);
        of.at_ms = self.wall();
        self.learn(node, News::Followed(Followed::Sample(Box::new(of))));
    }

    fn tick(&mut self) -> Now {
        let view = self.cluster.tick(self.now(), self.wall());
        self.second += 1;
        view
    }

    fn change(&mut self, change: impl FnOnce(&mut StatusView)) {
        let mut status = self.cluster.status().unwrap().clone();
        change(&mut status);
        let now = self.now();
        self.cluster.learn_status(Ok(status), now);
    }
}

#[test]
fn all_nodes_add_up_and_percentiles_are_of_all_requests_together() {
    let mut trial = Trial::new(&["a", "b"]);
    trial.sends("a", 990, 0);
    trial.sends("b", 10, 2);
    let view = trial.tick();
    assert_eq!((view.overall, view.why, view.missing), (Overall::Healthy, vec![], vec![]));
    assert_eq!((view.total.unwrap().reads, view.cpu), (1000.0, Some(0.5)));
    let latency = view.total.unwrap().read_latency.unwrap();
    assert!(latency.p99 <= 20.0 && latency.p999 > 20.0, "one node's p99 is not that of both: {latency:?}");
    assert_eq!(
        view.volumes.iter().map(|of| of.name.as_str()).collect::<Vec<_>>(),
        ["v-b", "v-a"],
        "the worst first"
    );
    assert_eq!(view.nodes[0].log_fill, Some(0.25));
}

#[test]
fn a_node_that_does_not_report_is_unknown_and_never_0_and_never_green() {
    let mut trial = Trial::new(&["a", "b"]);
    trial.sends("a", 5, 0);
    trial.sends("b", 5, 0);
    trial.tick();
    let mut seen = Vec::new();
    for _ in 0..5 {
        trial.sends("a", 5, 0);
        let view = trial.tick();
        assert_eq!((view.missing.as_slice(), &view.nodes[1].rates), (["b".to_owned()].as_slice(), &None));
        seen.push((view.overall, view.nodes[1].reports.clone(), view.events.len()));
    }
    assert_eq!(seen.iter().map(|of| of.2).sum::<usize>(), 1, "one event: {seen:?}");
    let Reports::UnknownSince { at_ms, .. } = &seen[4].1 else { panic!("{seen:?}") };
    assert!(seen[4].0 == Overall::Degraded && *at_ms == WALL, "the time of its last sample: {seen:?}");
    // It comes back: its first sample waits for the second one.
    trial.sends("b", 5, 0);
    trial.sends("a", 5, 0);
    assert_eq!(trial.tick().nodes[1].reports, Reports::Late);
    trial.sends("a", 5, 0);
    trial.sends("b", 5, 0);
    let view = trial.tick();
    assert_eq!((view.overall, view.total.unwrap().reads), (Overall::Healthy, 10.0));
}

#[test]
fn a_node_that_is_a_moment_late_is_shown_in_the_next_second_and_nothing_is_counted_twice_or_lost() {
    let mut trial = Trial::new(&["a"]);
    trial.sends("a", 1, 0);
    trial.sends("a", 2, 0);
    let reads: Vec<f64> = (0..2).map(|_| trial.tick().total.unwrap().reads).collect();
    assert_eq!(reads, [1.0, 2.0]);
    for reads in 1..=5 {
        trial.sends("a", reads, 0);
    }
    let view = trial.tick();
    assert_eq!(
        (view.total.unwrap().reads, view.volumes[0].rates.map(|of| of.reads)),
        (2.5, Some(2.5)),
        "10 reads in 4 s that came at once"
    );
    assert_eq!(trial.tick().total.unwrap().reads, 5.0);
    let view = trial.tick();
    assert_eq!((&view.nodes[0].rates, &view.nodes[0].reports), (&None, &Reports::Late));
    assert_eq!(view.overall, Overall::Healthy, "a moment is no fault");
}

#[test]
fn the_first_sample_waits_for_the_second_one_so_that_none_is_late_later() {
    let mut trial = Trial::new(&["a"]);
    trial.cluster.nodes.values_mut().for_each(|node| node.has_spare = false);
    trial.sends("a", 1, 0);
    assert_eq!(trial.tick().nodes[0].reports, Reports::Late);
    trial.sends("a", 2, 0);
    assert_eq!(trial.tick().total.unwrap().reads, 1.0);
    // This one comes after its second.
    assert_eq!(trial.tick().total.unwrap().reads, 2.0);
}

#[test]
fn what_a_node_sends_that_was_removed_is_not_taken() {
    let mut trial = Trial::new(&["a", "b"]);
    trial.status(&["a"]);
    trial.sends("b", 5, 0);
    assert_eq!(trial.tick().nodes.len(), 1);
}

#[test]
fn an_old_status_and_one_that_never_came_are_unknown() {
    let mut trial = Trial::new(&["a"]);
    trial.second = 20;
    trial.sends("a", 1, 0);
    trial.cluster.learn_status(Err("no node answers".into()), trial.now());
    let view = trial.tick();
    assert_eq!(view.overall, Overall::Unknown);
    assert!(view.why[0].contains("20 s old") && view.why[0].contains("no node answers"), "{view:?}");
    let view = Cluster::default().tick(Instant::now(), WALL);
    assert_eq!(view.overall, Overall::Unknown);
}

#[test]
fn the_worst_volume_decides_and_a_resync_has_a_rate_a_kind_and_a_progress_that_does_not_go_back() {
    let mut trial = Trial::new(&["a"]);
    let resync = |left: u64, copied: u64| {
        move |status: &mut StatusView| {
            let volume = &mut status.volumes[0];
            volume.health = Some(loadline_san_node::node::manage::Health::Resyncing);
            let replica = json!({ "id": 1, "group": 0, "node": "b", "device": 1, "log_device": 1, "state": "returning",
                "epoch": 1, "left_bytes": left, "copied_bytes": copied, "full_resync": true, "leaving": false, "note": null });
            volume.replicas = vec![serde_json::from_value(replica).unwrap()];
        }
    };
    trial.change(resync(500, 500));
    trial.sends("a", 1, 0);
    let view = trial.tick();
    assert_eq!(
        (view.overall, view.resyncs[0].done, view.resyncs[0].full),
        (Overall::Resyncing, 0.5, Some(true))
    );
    assert_eq!((view.resync_left, view.resync_seconds), (500, None), "nothing was copied yet");
    let mut of = sample(9, "v-a", 0, 0);
    of.volumes[0].resynced = 100;
    trial.learn("a", News::Followed(Followed::Sample(Box::new(of))));
    trial.change(resync(900, 600));
    let view = trial.tick();
    assert_eq!((view.resyncs[0].done, view.resync_seconds), (0.5, Some(18.0)), "100 bytes in 2 s");
    // It has ended: the next one begins anew.
    trial.change(|status| status.volumes[0].replicas.clear());
    trial.tick();
    trial.change(resync(990, 10));
    assert_eq!(trial.tick().resyncs[0].done, 0.01);
}

#[test]
fn a_clock_that_differs_is_named_and_events_are_shown_by_the_consoles() {
    let mut trial = Trial::new(&["a"]);
    let mut of = sample(1, "v-a", 1, 0);
    of.at_ms = WALL - 60_000;
    trial.learn("a", News::Followed(Followed::Sample(Box::new(of))));
    let line = LogLine { at_ms: WALL - 60_000, message: "it is served".into(), ..LogLine::default() };
    trial.learn("a", News::Followed(Followed::Log(line)));
    let view = trial.tick();
    assert_eq!((view.nodes[0].clock_off, view.events[0].at), (Some(-60.0), WALL / 1000));
    assert!(trial.tick().events.is_empty(), "an event is shown once");
}

/// A status has device 2, of which so many bytes are taken, with the data of replica 3; and device 9, of which half as many are.
fn with_device(taken: Option<u64>) -> impl FnOnce(&mut StatusView) {
    move |status| {
        let device = |id: u32, taken: Option<u64>| {
            let device = json!({ "id": id, "node": "a", "path": "/dev/sdb", "bytes": 1000 << 20, "role": "both", "promised": 2000 << 20,
            "taken": taken, "room": 1, "replicas": 1, "draining": false, "replaced_by": null, "advice": null, "model": null,
            "keeps_up": null, "fault": null });
            serde_json::from_value(device).unwrap()
        };
        let replica = json!({ "id": 3, "group": 0, "node": "a", "device": 2, "log_device": 2, "state": "in sync", "epoch": 1,
            "left_bytes": null, "copied_bytes": null, "full_resync": null, "leaving": false, "note": null });
        status.devices = vec![device(9, taken.map(|of| of / 2)), device(2, taken)];
        status.volumes[0].replicas = vec![serde_json::from_value(replica).unwrap()];
    }
}

#[test]
fn what_goes_wrong_on_a_device_is_counted_and_stays_to_be_seen() {
    let mut trial = Trial::new(&["a"]);
    trial.change(with_device(Some(1)));
    for _ in 0..2 {
        let mut of = sample(1, "v-a", 1, 0);
        of.devices[0].syncs.errors = 2;
        of.replicas[0].corrupt = 1;
        trial.learn("a", News::Followed(Followed::Sample(Box::new(of))));
    }
    let device = trial.tick().devices.remove(0);
    assert_eq!((device.errors, device.errors_so_far, device.corrupt_so_far), (Some(2), 2, 1));
    trial.tick();
    let device = trial.tick().devices.remove(0);
    assert_eq!((device.errors, device.errors_so_far, device.corrupt_so_far), (None, 4, 2));
    // One that was removed and added again begins anew.
    trial.change(|status| status.devices.clear());
    trial.change(with_device(Some(1)));
    assert_eq!(trial.tick().devices[0].errors_so_far, 0);
}

#[test]
fn a_device_that_does_nothing_is_known_to_do_nothing_while_its_node_reports() {
    let mut trial = Trial::new(&["a"]);
    trial.change(with_device(Some(1)));
    trial.learn("a", News::Followed(Followed::Sample(Box::new(sample(1, "v-a", 1, 0)))));
    let of = |view: &Now, id: u32| view.devices.iter().find(|of| of.id == id).unwrap().reads;
    let view = trial.tick();
    assert!(of(&view, 2).is_some() && of(&view, 9).is_some_and(|flow| flow.ios == 0), "{:?}", view.devices);
    // When it reports no more, nothing is known.
    trial.tick();
    let view = trial.tick();
    assert_eq!((of(&view, 2), of(&view, 9)), (None, None));
}

#[test]
fn the_device_that_is_full_first_is_named_and_what_is_not_reported_is_not_known() {
    let mut trial = Trial::new(&["a"]);
    for minute in 0..=10 {
        trial.second = 60 * minute;
        trial.change(with_device(Some((100 + 60 * minute) << 20)));
        let view = trial.tick();
        let full = view.devices[0].full;
        if minute < 10 {
            assert_eq!((full, view.next_full), (Some(crate::full::Full::TooEarly), None));
            continue;
        }
        let next = view.next_full.expect("it grows");
        assert_eq!((next.device, next.node.as_str(), next.seconds.round()), (2, "a", 300.0), "{full:?}");
    }
    trial.change(with_device(None));
    let view = trial.tick();
    assert_eq!((view.devices[0].full, view.devices[0].taken, view.next_full), (None, None, None));
}

#[test]
fn a_member_of_the_configuration_store_that_is_missing_is_not_green() {
    let mut trial = Trial::new(&["a"]);
    trial.sends("a", 1, 0);
    let member = |fault: Option<&str>, alarms: &[&str]| -> loadline_san_node::config::health::StoreMember {
        serde_json::from_value(
            json!({ "address": "10.0.0.9:2379", "fault": fault, "leads": false, "version": "3",
            "database_bytes": null, "quota_bytes": null, "alarms": alarms, "fsync_p99_ms": null }),
        )
        .unwrap()
    };
    trial.change(|status| status.store = vec![member(None, &[])]);
    assert_eq!(trial.tick().overall, Overall::Healthy);
    for (fault, alarms) in [(Some("it does not answer"), &[][..]), (None, &["NOSPACE"])] {
        trial.sends("a", 1, 0);
        trial.change(|status| status.store = vec![member(fault, alarms)]);
        let view = trial.tick();
        assert_eq!(view.overall, Overall::Degraded);
        assert!(view.why[0].contains("member 10.0.0.9:2379"), "{:?}", view.why);
    }
}

#[test]
fn space_that_is_not_reported_is_not_0_and_an_old_status_is_not_how_things_are() {
    let mut trial = Trial::new(&["a", "b"]);
    let device = |id: u32, node: &str, taken: Option<u64>| -> loadline_san_node::node::manage::DeviceView {
        serde_json::from_value(json!({ "id": id, "node": node, "path": "/dev/x", "bytes": 100, "role": "both", "promised": 60,
            "taken": taken, "room": 1, "replicas": 1, "draining": false, "replaced_by": null, "advice": null, "model": null,
            "keeps_up": null, "fault": null }))
        .unwrap()
    };
    trial.change(|status| status.devices = vec![device(1, "a", Some(50)), device(2, "b", None)]);
    let view = trial.tick();
    assert_eq!(
        (view.space, view.space_unknown),
        ([100, 60, 50], 1),
        "half of what is known is taken, and not a quarter"
    );
    assert!(trial.cluster.status_of(trial.now()).is_ok());
    assert!(trial.cluster.status_of(trial.now() + STATUS * 2).is_err());
}

/// A note of a volume whose copies are at nodes that do not report.
fn lost(status: &mut StatusView, of: usize, at: &str) {
    let volume = &mut status.volumes[of];
    volume.health = Some(loadline_san_node::node::manage::Health::Waiting);
    volume.note = Some(format!("every write of the volume is stored only at {at}: start it again, or more"));
}

#[test]
fn nodes_are_named_before_what_they_cause_and_what_is_the_same_is_said_once() {
    let mut trial = Trial::new(&["a", "b", "c"]);
    ["a", "b", "c"].iter().for_each(|node| trial.sends(node, 1, 0));
    trial.tick();
    trial.change(|status| {
        let one = status.volumes[0].clone();
        status.volumes = (0..12).map(|n| VolumeView { name: format!("v-{n:02}"), ..one.clone() }).collect();
        (0..6).for_each(|of| lost(status, of, "b"));
        (6..12).for_each(|of| lost(status, of, &format!("{of}")));
    });
    for _ in 0..4 {
        trial.sends("a", 1, 0);
        trial.tick();
    }
    trial.sends("a", 1, 0);
    let view = trial.tick();
    assert_eq!(view.overall, Overall::Waiting);
    assert_eq!(view.why[0], "2 nodes (b, c) do not report: it sends nothing");
    assert_eq!(
        view.why[1],
        "6 volumes (v-00, v-01, v-02 and 3 more): every write of the volume is stored only at b"
    );
    assert_eq!((view.why.len(), view.why_total), (8, 8), "{:?}", view.why);
    trial.change(|status| {
        status.volumes[0].note = Some("it is another".into());
    });
    trial.sends("a", 1, 0);
    let view = trial.tick();
    assert_eq!((view.why.len(), view.why_total), (8, 9), "{:?}", view.why);
}

#[test]
fn without_a_node_that_answers_the_state_is_unknown_and_the_age_of_the_last_status_comes_first() {
    let mut trial = Trial::new(&["a"]);
    trial.sends("a", 1, 0);
    trial.tick();
    trial.change(|status| lost(status, 0, "a"));
    assert_eq!(trial.tick().overall, Overall::Waiting);
    trial.second += 4;
    trial.cluster.learn_status(Err("a does not answer: refused".into()), trial.now());
    let view = trial.tick();
    assert_eq!(view.overall, Overall::Unknown);
    assert_eq!(view.why[0], "the last status is 5 s old: a does not answer: refused");
    assert_eq!(view.why[1..], ["node a does not report: it sends nothing"]);
}

#[test]
fn a_second_of_which_nothing_is_known_has_no_figures() {
    let view = serde_json::to_value(Cluster::default().tick(Instant::now(), WALL)).unwrap();
    assert!(view["total"].is_null() && view["cpu"].is_null(), "{view}");
}

#[test]
fn of_a_node_that_was_never_reached_it_is_not_known_since_when_it_does_not_report() {
    let mut trial = Trial::new(&["a", "b"]);
    trial.learn("b", News::Silent("connection refused".into()));
    trial.sends("a", 1, 0);
    let view = trial.tick();
    let never = Reports::NeverReached { since_ms: WALL, why: "connection refused".into() };
    assert_eq!((view.overall, &view.nodes[1].reports), (Overall::Degraded, &never));
}
