//! `loadline volume scrub`: every block of every copy is looked at.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use loadline_base::units::ByteSize;
use loadline_san_node::node::manage::{ScrubView, StatusView};
use loadline_study::check::human;

use crate::client::{Api, Failed, escaped, print_json, table};
use crate::exit::Exit;
use crate::out::{complain, say, tell, write};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Without a terminal, a line so often.
const EVERY: Duration = Duration::from_secs(10);

/// Looks through all copies of a volume, at all nodes that answer, and waits until that is done.
pub(crate) fn run(name: &str, api: &Api) -> Result<Exit, Failed> {
    let status: StatusView = api.get("/v1/status")?;
    let Some(volume) = status.volumes.iter().find(|volume| volume.name == name) else {
        // The node says it as it says it everywhere.
        return api.get(&format!("/v1/volumes/{}", escaped(name))).map(|(): ()| Exit::Failed);
    };
    let (mut nodes, mut missing) = (Vec::new(), Vec::new());
    for node in status.nodes.iter().filter(|node| volume.replicas.iter().any(|r| r.node == node.name)) {
        match node.api.parse() {
            Ok(address) if node.alive => nodes.push(Api { api: address, json: false }),
            _ => missing.push(node.name.clone()),
        }
    }
    let path = format!("/v1/volumes/{}/scrub", escaped(name));
    for node in &nodes {
        let (): () = node.post(&path, ())?;
    }
    let style =
        ProgressStyle::with_template("{bar:16} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")
            .expect("a valid template");
    let bar = ProgressBar::new(1).with_style(style.progress_chars("=> "));
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let mut told = Instant::now();
    let seen = loop {
        let mut seen: Vec<ScrubView> = Vec::new();
        for node in &nodes {
            seen.extend(node.get::<Vec<ScrubView>>(&path)?);
        }
        let (all, done) = (seen.iter().map(|s| s.bytes).sum(), seen.iter().map(|s| s.done).sum());
        bar.set_length(all);
        bar.set_position(done);
        if seen.iter().all(|scrub| scrub.ended) {
            break seen;
        }
        if bar.is_hidden() && told.elapsed() > EVERY {
            tell!("{} of {} were looked at", human(ByteSize(done)), human(ByteSize(all)));
            told = Instant::now();
        }
        std::thread::sleep(LOOK);
    };
    bar.finish_and_clear();
    match api.json {
        true => _ = print_json(&seen),
        false => {
            let row = |s: &ScrubView| {
                vec![s.replica.to_string(), s.node.clone(), human(ByteSize(s.bytes)), s.rotten.to_string()]
            };
            let rows: Vec<Vec<String>> = seen.iter().map(row).collect();
            write(table(&["replica", "node", "looked at", "rotten blocks"], &rows).as_bytes());
        }
    }
    let rotten: u64 = seen.iter().map(|scrub| scrub.rotten).sum();
    if rotten > 0 {
        let attached = volume.attached.is_some();
        let then = match attached {
            true => {
                "the node that owns the volume writes them anew from other copies; look once more whether all are whole"
            }
            false => "attach the volume, and look once more: blocks are written anew where it is attached",
        };
        return Ok(complain(
            Exit::Findings,
            &format!("{rotten} blocks did not match their checksums: {then}"),
        ));
    }
    if !missing.is_empty() {
        let missing = missing.join(", ");
        return Ok(complain(
            Exit::Findings,
            &format!("what {missing} has was not looked at: it does not answer"),
        ));
    }
    if !api.json {
        say!("all blocks match their checksums");
    }
    Ok(Exit::Done)
}
