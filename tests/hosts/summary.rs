//! What people read of scripts: a line for each, everything about one that went wrong, and a summary.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};

use super::clients::{Micros, Op};
use super::judge::seconds;
use super::play::{Finding, Played};
use super::service::{self, shown};

/// Operations of a block that are shown around a violation, on either side.
const AROUND: usize = 20;
/// Lines of a node's log that are shown.
const LOG_LINES: usize = 15;

/// What all scripts came to.
#[derive(Default)]
pub(crate) struct Tally {
    scripts: u64,
    operations: u64,
    /// Seeds, and what is wrong with them.
    wrong: BTreeMap<u64, Vec<String>>,
    /// By kind of fault: how often, and the longest stall.
    faults: BTreeMap<&'static str, (u64, Option<Micros>)>,
}

/// What depends on how much of the processors a machine has to give.
const TIMED: &[&str] = &["hang", "not served", "attach"];

impl Tally {
    /// Whether nothing is wrong but, perhaps, that something took too long.
    pub(crate) fn keeps_promises(&self) -> bool {
        self.wrong.values().flatten().all(|kind| TIMED.contains(&kind.as_str())) && self.scripts > 0
    }

    /// Seeds of scripts in which something took too long.
    pub(crate) fn slow(&self) -> Vec<u64> {
        self.wrong.keys().copied().collect()
    }

    /// Whether nothing is wrong.
    pub(crate) fn is_good(&self) -> bool {
        self.wrong.is_empty() && self.scripts > 0
    }

    /// A script that could not be played to its end.
    pub(crate) fn broken(&mut self, seed: u64) {
        println!("seed {seed:<6} could not be played: the reason is above");
        self.wrong.entry(seed).or_default().push("not played".into());
    }

    /// Takes down and prints what a script came to.
    pub(crate) fn add(&mut self, played: &Played) {
        self.scripts += 1;
        self.operations += played.ops.len() as u64;
        let mut longest: Option<(Micros, &str)> = None;
        for (index, moment) in played.moments.iter().enumerate().skip(1) {
            let stalls = played.script.volumes.iter().enumerate().filter_map(|(number, volume)| {
                service::stall(&played.moments, index, number, volume, &played.ops, played.end)
            });
            let stall = stalls.max();
            let (count, most) = self.faults.entry(moment.kind).or_default();
            *count += 1;
            *most = (*most).max(stall);
            longest = longest.max(stall.map(|stall| (stall, moment.kind)));
        }
        let kinds: Vec<&str> = played.script.faults.iter().map(|fault| fault.kind()).collect();
        let copies: Vec<String> =
            played.script.volumes.iter().map(|volume| volume.copies.to_string()).collect();
        let stall = longest.map_or(String::new(), |(stall, kind)| {
            format!("longest stall {:.1} s ({kind})", stall as f64 / 1e6)
        });
        println!(
            "seed {:<6} {:<34} {} nodes, {} copies  {:>6} operations  {:>4.1} s  {stall:<32} {}",
            played.script.seed,
            kinds.join(", "),
            played.script.nodes,
            copies.join("+"),
            played.ops.len(),
            played.took.as_secs_f64(),
            if played.wrong.is_empty() {
                "good".into()
            } else {
                format!("WRONG: {}", kinds_of(&played.wrong))
            },
        );
        if !played.wrong.is_empty() {
            let kinds = played.wrong.iter().map(|finding| finding.kind.clone()).collect();
            self.wrong.insert(played.script.seed, kinds);
            print!("{}", summary(played));
            let folder = keep(played);
            println!("everything of it is in {}\n", folder.display());
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} scripts, {} operations", self.scripts, self.operations)?;
        writeln!(
            f,
            "{:<12} {:>6}   longest stall of writes, of the clients that go on first",
            "change", "times"
        )?;
        for (kind, (count, longest)) in &self.faults {
            let longest = longest.map_or("-".into(), |longest| format!("{:.2} s", longest as f64 / 1e6));
            writeln!(f, "{kind:<12} {count:>6}   {longest}")?;
        }
        if self.wrong.is_empty() {
            return writeln!(f, "nothing is wrong");
        }
        let mut kinds: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for (seed, wrong) in &self.wrong {
            for kind in wrong {
                kinds.entry(kind).or_default().push(*seed);
            }
        }
        for (kind, mut seeds) in kinds {
            let count = seeds.len();
            seeds.dedup();
            writeln!(f, "WRONG: {kind}, {count} times, with seeds {seeds:?}")?;
        }
        Ok(())
    }
}

fn kinds_of(wrong: &[Finding]) -> String {
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    for finding in wrong {
        *kinds.entry(&finding.kind).or_default() += 1;
    }
    let kinds: Vec<String> = kinds.into_iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    kinds.join(", ")
}

/// The script with its times, what is wrong, the history of the first block that it is about, and the ends of the nodes' logs.
fn summary(played: &Played) -> String {
    let mut text = format!("{}", played.script);
    for moment in &played.moments {
        let _ = writeln!(text, "    {} .. {}  {}", seconds(moment.begun), seconds(moment.done), moment.what);
    }
    for finding in played.wrong.iter().take(12) {
        let _ = writeln!(text, "  {} {}: {}", seconds(finding.at), finding.kind, finding.text);
    }
    if played.wrong.len() > 12 {
        let _ = writeln!(text, "  and {} more", played.wrong.len() - 12);
    }
    if let Some((finding, (volume, block))) =
        played.wrong.iter().find_map(|finding| finding.about.map(|about| (finding, about)))
    {
        let _ = writeln!(text, "  block {block} of volume {} around {}:", volume + 1, seconds(finding.at));
        let history = history(&played.ops, volume, block);
        let at = history.partition_point(|op| op.invoked < finding.at);
        for op in &history[at.saturating_sub(AROUND)..(at + AROUND).min(history.len())] {
            let _ = writeln!(text, "    {}{}", if op.invoked == finding.at { "> " } else { "  " }, shown(op));
        }
    }
    for (host, printed) in played.printed.iter().enumerate() {
        let lines: Vec<&str> = printed.lines().collect();
        let _ = writeln!(text, "  node {host} printed {} lines; the last:", lines.len());
        for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

fn history(ops: &[Op], volume: usize, block: u64) -> Vec<Op> {
    let mut of: Vec<Op> = ops.iter().filter(|op| op.volume == volume && op.block == block).copied().collect();
    of.sort_by_key(|op| op.invoked);
    of
}

/// Writes everything of a script into a folder.
fn keep(played: &Played) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "hosts-seed-{}-{}",
        played.script.seed,
        std::process::id()
    ));
    let write = |name: String, text: String| {
        // A full disk must not hide what was found, which is printed too.
        let _ = fs::create_dir_all(&folder).and_then(|()| fs::write(folder.join(name), text));
    };
    let mut script = played.script.to_string();
    for moment in &played.moments {
        let _ = writeln!(script, "{moment:?}");
    }
    write("script.txt".into(), script);
    let findings: Vec<String> = played
        .wrong
        .iter()
        .map(|finding| format!("{} {}: {}\n", seconds(finding.at), finding.kind, finding.text))
        .collect();
    write("wrong.txt".into(), findings.concat());
    let mut ops = played.ops.clone();
    ops.sort_by_key(|op| op.invoked);
    write("operations.txt".into(), ops.iter().map(|op| shown(op) + "\n").collect());
    for (host, printed) in played.printed.iter().enumerate() {
        write(format!("{}.log", super::cluster::name(host)), printed.clone());
    }
    folder
}
