//! Seeded fault scripts on real nodes, each on a host of its own (a network namespace), under clients whose reads a model judges. It
//! needs root and `ip`.

#[path = "hosts/mod.rs"]
mod hosts;
mod nodes;

use std::process::Command;

/// How often a script is played again, at most.
const AGAIN: usize = 2;

/// Every kind of fault once: sixteen seeds in a row have them all. Two at a time can be too much for a busy machine: a script in which
/// something only took too long is played again, alone.
#[test]
fn a_fault_script_of_each_kind_breaks_no_promise() {
    if !hosts::possible() {
        return;
    }
    let all = hosts::run(0, 16, 2);
    assert!(all.keeps_promises(), "what is wrong is printed above");
    for seed in all.slow() {
        let in_time = (0..AGAIN).any(|_| {
            let again = hosts::run(seed, 1, 1);
            assert!(again.keeps_promises(), "what is wrong is printed above");
            again.is_good()
        });
        assert!(in_time, "seed {seed}: what took too long each time is printed above");
    }
}

/// No holder of one half reaches the other half: a node without any of it takes the volume over.
#[test]
fn a_volume_whose_halves_are_apart_is_served_by_a_node_that_reaches_both() {
    if !hosts::possible() {
        return;
    }
    let script = [hosts::script::Script::halves_apart()];
    // As above: on a busy machine something may only take too long.
    let in_time = (0..=AGAIN).any(|_| {
        let all = hosts::run_all(&script, 1);
        assert!(all.keeps_promises(), "what is wrong is printed above");
        all.is_good()
    });
    assert!(in_time, "it was not served in time");
}

/// Namespaces and folders of a run that was killed are removed by the next one.
#[test]
fn what_a_killed_run_left_is_removed() {
    if !hosts::possible() {
        return;
    }
    // A process that has ended: its number is not used again so soon.
    let mut child = Command::new("true").spawn().expect("it is part of coreutils");
    let name = format!("loadline-hosts-{}-0-0", child.id());
    child.wait().expect("it is ours");
    let made = Command::new("ip").args(["netns", "add", &name]).status().expect("ip is there");
    assert!(made.success());
    hosts::netns::remove_leftovers();
    assert!(!std::path::Path::new("/run/netns").join(name).exists());
}

fn number(name: &str, without: u64) -> u64 {
    std::env::var(name).map_or(without, |text| text.parse().expect("./dev soak gives a number"))
}

/// What `./dev soak --hosts` runs.
#[test]
#[ignore = "./dev soak --hosts"]
fn soak() {
    assert!(hosts::possible(), "it needs root");
    let (seed, scripts) = (number("LOADLINE_HOSTS_SEED", 0), number("LOADLINE_HOSTS_SCRIPTS", 16));
    assert!(
        hosts::run(seed, scripts, number("LOADLINE_HOSTS_AT_A_TIME", 1)).is_good(),
        "what is wrong is printed above"
    );
}

/// What `./dev soak --hosts --stalls` runs.
#[test]
#[ignore = "./dev soak --hosts --stalls"]
fn stalls() {
    assert!(hosts::possible(), "it needs root");
    let only = std::env::var("LOADLINE_HOSTS_ONLY").unwrap_or_default();
    hosts::stalls::measure(number("LOADLINE_HOSTS_ROUNDS", 5), &only);
}
