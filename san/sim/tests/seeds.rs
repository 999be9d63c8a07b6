//! Clusters from seeds, with every fault: nothing that must never happen does, and all of the protocol is seen.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use loadline_san_sim::coverage::Coverage;
use loadline_san_sim::run::run;
use loadline_san_sim::settings::Settings;

/// Seeds of an ordinary test run.
const SEEDS: u64 = 300;

#[test]
fn nothing_is_violated_and_all_of_the_protocol_is_seen() {
    let next = AtomicU64::new(1);
    let seen = Mutex::new(Coverage::default());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > SEEDS {
                        return;
                    }
                    let verdict = run(&Settings::of_seed(seed), seed, None, false);
                    let violation = verdict.violation.map(|violation| violation.to_string());
                    assert_eq!(violation, None, "./dev sim --seed {seed} --trace");
                    seen.lock().unwrap().add(&verdict.coverage);
                }
            });
        }
    });
    let seen = seen.into_inner().unwrap();
    let wanted = [
        ("message", "hello seal entry out_of_band heartbeat read fetch return changed joined release probe"),
        ("answer", "welcome sealed durable data listed changed refused stranger failed probed"),
        ("process", "starts kill pause"),
        ("disk", "fails log-fails capacity-fails log-slow capacity-slow corrupts hangs"),
        ("client", "read write trim flush acknowledged refused detached"),
        ("command", "add forget remove grow"),
    ];
    for (kind, names) in wanted {
        for name in names.split(' ') {
            assert!(seen.of(kind, name) > 0, "{kind} {name} was never seen in {SEEDS} seeds");
        }
    }
    let transitions = [
        "watching → claiming",
        "claiming → sealing",
        "claiming → watching",
        "sealing → equalizing",
        "sealing → activating",
        "sealing → watching",
        "equalizing → activating",
        "equalizing → sealing",
        "activating → active",
        "activating → watching",
        "active → changing",
        "active → watching",
        "changing → active",
        "changing → watching",
    ];
    for transition in transitions {
        assert!(seen.of("volume", transition) > 0, "{transition} was never seen in {SEEDS} seeds");
    }
    let others = [
        ("situation", "takeover within takeover"),
        ("situation", "owner is alone"),
        ("situation", "answer of the configuration store lost"),
        ("situation", "group opened by growth"),
        ("answer", "changed, and more"),
        ("client", "beyond the end"),
        ("disk", "log corrupts"),
        ("forwarder", "a request arrives"),
        ("forwarder", "an answer is lost"),
        ("forwarder", "a queue is dropped"),
        ("forwarder", "the owner gives a session up"),
        ("forwarder", "the forwarding node ends a session"),
        ("forwarder", "comes under a lower fence"),
        ("store", "goes back"),
        ("store", "goes back under nodes that run"),
        ("store", "seen to have gone back"),
        ("store", "put right"),
        ("store", "put right under nodes that run"),
        ("store", "recovered by force"),
        ("network", "taken for ended"),
        ("process", "known to have ended"),
    ];
    for (kind, what) in others {
        assert!(seen.of(kind, what) > 0, "{kind}: {what} was never seen in {SEEDS} seeds");
    }
}

#[test]
fn a_seed_is_replayed_exactly() {
    for seed in [7, 19] {
        let [one, other] = [(); 2].map(|()| run(&Settings::of_seed(seed), seed, None, false));
        assert_eq!((one.at, one.operations, one.coverage), (other.at, other.operations, other.coverage));
    }
}
