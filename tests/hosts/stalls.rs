//! How long each kind of fault stops clients: each fault several times on a quiet cluster, and a table.

use super::clients::Micros;
use super::netns;
use super::play::{Played, play};
use super::script::{Act, Fault, HostRole, QUIET_MS, Script, Step, Volume};
use super::service::acknowledged;

/// How long a store is away, milliseconds.
const STORE_MS: u64 = 3_000;
/// The one row whose cluster has no etcd.
const LOCKED: &str = "configuration store, a SQLite file, locked";

/// Every row of the table: what happens, and the faults that begin one after the other.
fn rows() -> Vec<(&'static str, Vec<Fault>)> {
    use HostRole::{Member, Other, Owner};
    vec![
        ("node of a replica, SIGKILL", vec![Fault::Kill(Member)]),
        ("node of a replica, SIGTERM", vec![Fault::Term(Member)]),
        ("node of a replica, SIGSTOP", vec![Fault::Freeze(Member)]),
        ("node of a replica, its host unreachable", vec![Fault::Isolate(Member)]),
        ("owner, SIGKILL", vec![Fault::Kill(Owner)]),
        ("owner, SIGTERM", vec![Fault::Term(Owner)]),
        ("owner, SIGSTOP", vec![Fault::Freeze(Owner)]),
        ("owner, its host unreachable", vec![Fault::Isolate(Owner)]),
        ("node of a replica, its host gone whole", vec![Fault::Gone(Member)]),
        ("owner, its host gone whole", vec![Fault::Gone(Owner)]),
        ("owner cut off from the configuration store alone", vec![Fault::OffStore(Owner)]),
        ("leader of the configuration store cut off", vec![Fault::StoreLeader]),
        ("leader of the configuration store, SIGKILL", vec![Fault::StoreMember]),
        ("link of owner and the node of a replica, silent", vec![Fault::Cut(Owner, Member)]),
        ("link of owner and the node of a replica, refused", vec![Fault::Refuse(Owner, Member)]),
        ("link of owner and the node of a replica, interface down", vec![Fault::Down(Owner, Member)]),
        ("link of owner and another node, silent", vec![Fault::Cut(Owner, Other)]),
        ("configuration store away", vec![Fault::Store]),
        (LOCKED, vec![Fault::Store]),
        (
            "configuration store away, then node of a replica, SIGKILL",
            vec![Fault::Store, Fault::Kill(Member)],
        ),
        ("configuration store away, then owner, SIGKILL", vec![Fault::Store, Fault::Kill(Owner)]),
    ]
}

fn script(etcd: bool, copies: usize, faults: &[Fault], rounds: u64) -> Script {
    let volumes = vec![Volume { name: "disk-1".into(), copies, stripes: 1, mib: 64 }];
    let none = (Vec::new(), Vec::new());
    let mut script = Script { seed: 1, etcd, steady: true, nodes: 4, volumes, faults: none.0, steps: none.1 };
    for _ in 0..rounds {
        let first = script.faults.len();
        script.faults.extend(faults.iter().cloned());
        for index in 0..faults.len() {
            let then_ms = match (index + 1 == faults.len(), faults[0] == Fault::Store) {
                (false, _) => 300,
                (true, true) => STORE_MS,
                (true, false) => QUIET_MS,
            };
            script.steps.push(Step { act: Act::Begin(first + index), then_ms });
        }
        for index in 0..faults.len() {
            script.steps.push(Step { act: Act::End(first + index), then_ms: QUIET_MS });
        }
    }
    script
}

/// The longest time without an acknowledged write on each host whose node runs, from the fault on: of the host where it is shortest,
/// and of the one where it is longest.
fn stalls(played: &Played, faults: usize, rounds: usize) -> Vec<(Micros, Micros)> {
    let steps = 2 * faults;
    let of = |round: usize| {
        // The first moment is the start.
        let moments = &played.moments[1 + round * steps..1 + (round + 1) * steps];
        // Until the fault ends; where the store is away too, until some time after it is back.
        let (from, end) = (moments[0].begun, moments[faults].begun);
        let until = if faults == 1 { end } else { end + 5_000_000 };
        let runs = |host: &usize| moments[..faults].iter().all(|moment| moment.world.runs[*host]);
        let gaps = (0..played.script.nodes).filter(runs).map(|host| {
            let ends = acknowledged(&played.ops, 0, |of| of == host, from, until);
            let edges = [&[from][..], &ends, &[until]].concat();
            edges.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
        });
        let gaps: Vec<Micros> = gaps.collect();
        (gaps.iter().min().copied().unwrap_or(0), gaps.iter().max().copied().unwrap_or(0))
    };
    (0..rounds).map(of).collect()
}

/// Measures, and prints the table: of the rows whose name contains this text.
pub(crate) fn measure(rounds: u64, only: &str) {
    netns::remove_leftovers();
    println!(
        "The longest time without an acknowledged write, seconds: median (longest) of {rounds} rounds. 4 nodes, two clients on each\n\
         host, each at its own node; a client that was cut off connects again at once, then every 0.1 s. A fault lasts {} s, the store is\n\
         away for {} s, and is an etcd of three members where no other is named. First: the host whose clients\n\
         continue first. Last: the host, of those whose node runs, whose clients continue last.\n",
        QUIET_MS as f64 / 1e3,
        STORE_MS as f64 / 1e3,
    );
    println!("| fault | 2 copies, first | last | 3 copies, first | last |\n| --- | --- | --- | --- | --- |");
    for (what, faults) in rows().into_iter().filter(|(what, _)| what.contains(only)) {
        let mut cells = Vec::new();
        for copies in [2, 3] {
            let played = play(script(what != LOCKED, copies, &faults, rounds), 0);
            let stalls = stalls(&played, faults.len(), rounds as usize);
            cells.push(cell(stalls.iter().map(|(first, _)| *first).collect()));
            cells.push(cell(stalls.iter().map(|(_, last)| *last).collect()));
            for finding in &played.wrong {
                eprintln!("{what}, {copies} copies: {}: {}", finding.kind, finding.text);
            }
        }
        println!("| {what} | {} |", cells.join(" | "));
    }
}

fn cell(mut stalls: Vec<Micros>) -> String {
    stalls.sort_unstable();
    let seconds = |at: usize| stalls.get(at).map_or(0.0, |stall| *stall as f64 / 1e6);
    format!("{:.2} ({:.2})", seconds(stalls.len() / 2), seconds(stalls.len().saturating_sub(1)))
}
