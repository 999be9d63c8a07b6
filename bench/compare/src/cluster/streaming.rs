//! What measuring with a fleet costs: a worker whose figures go to a controller every second, beside a single generator, on
//! the same volume in memory.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use loadline_measure::difference::ratio;
use serde_json::Value;

use super::Setting;
use crate::limited::{self, Ending};
use crate::pair::{Bound::AtLeast, in_turn, print_row};
use crate::program::number;
use crate::san::cluster::Cluster;
use crate::stop;
use crate::study::Runner;

const MIB: u64 = 256;
/// Of both, so that neither has it easier.
const WARM_UP_S: u32 = 1;
/// A generator may take so much longer than it measures.
const BESIDE: Duration = Duration::from_secs(60);

pub(super) fn measure(setting: &Setting<'_>) -> Result<(), String> {
    println!(
        "one worker of a fleet beside a single generator, on one volume in memory; ratios are fleet / single; {} pairs of \
         {} s\n",
        setting.context.pairs, setting.context.seconds
    );
    println!("{:<44} {:>12} {:>12}  {:<20} wanted", "", "fleet", "single", "ratio");
    let cluster = Cluster::start(&setting.context.program, setting.memory, 1, MIB * 5 / 4 + 768)?;
    cluster.volume("disk", MIB, 1, 1)?;
    let volume = cluster.vhost("disk", 1);
    let mut failed = Vec::new();
    for (outstanding, write) in [(32, false), (32, true), (1, false), (1, true)] {
        let profile = format!("B4-T1-O{outstanding}-W{}-PR", if write { 100 } else { 0 });
        let measured = in_turn(
            setting.context.pairs,
            || fleet(setting, &volume, &profile),
            || single(setting, &volume, &profile),
        );
        let what = format!("{}, {outstanding} outstanding", if write { "write" } else { "read" });
        let pairs = match measured {
            Ok(pairs) => pairs,
            Err(why) if stop::asked() > 0 => return Err(why),
            Err(why) => {
                println!("{what}: NOT MEASURED: {why}");
                failed.push(what);
                continue;
            }
        };
        print_row(&what, "IOPS", &pairs, AtLeast(0.95));
        let (fleet, single): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        match ratio(&single, &fleet).and_then(|ratio| ratio.low.zip(ratio.high)) {
            Some((low, high)) => println!("    95 % interval of the ratio {low:.3}..{high:.3}"),
            None => println!("    too few pairs for a 95 % interval of the ratio (four at least)"),
        }
    }
    println!();
    if failed.is_empty() { Ok(()) } else { Err(format!("not measured: {}", failed.join("; "))) }
}

/// I/Os a second of one worker of a fleet.
fn fleet(setting: &Setting<'_>, volume: &str, profile: &str) -> Result<f64, String> {
    let seconds = setting.context.seconds;
    let text = format!(
        "name = \"streaming\"\nprofiles = [\"{profile}\"]\n\n[target]\ndevices = [{volume:?}]\n\n[phases]\nfill = \
         false\nwarm_up = \"{WARM_UP_S}s\"\nmeasure = \"{seconds}s\"\ncool_down = \"0s\"\n\n[run]\nrepeats = 1\n"
    );
    let runner = Runner {
        program: &setting.context.program,
        place: setting.disk,
        prefix: "loadline-compare-",
        arguments: &["--destroy-data"],
    };
    let run = runner.run(&text, Duration::from_secs(u64::from(seconds + WARM_UP_S)), |_| ())?;
    let why = run.why();
    let step = run.only()?;
    if step.lost_workers == 0 && step.iops > 0.0 {
        return Ok(step.iops);
    }
    let failure = why.lines().find(|line| line.contains("failed")).unwrap_or("it measured nothing");
    Err(format!("the fleet: {failure}"))
}

/// I/Os a second of a single generator.
pub(super) fn single(setting: &Setting<'_>, volume: &str, profile: &str) -> Result<f64, String> {
    let folder = tempfile::Builder::new().prefix("loadline-compare-").tempdir_in(setting.disk);
    let folder = folder.map_err(|e| format!("a folder in {}: {e}", setting.disk.display()))?;
    let (json, errors) = (folder.path().join("json"), folder.path().join("errors"));
    let make = |path: &Path| File::create(path).map_err(|e| format!("{}: {e}", path.display()));
    let seconds = setting.context.seconds;
    let mut command = Command::new(&setting.context.program);
    command.args(["bench", volume, "--destroy-data", "--json", "-", "--profile", profile]);
    command.args(["--warm-up", &format!("{WARM_UP_S}s"), "--for", &format!("{seconds}s")]);
    let limit = Duration::from_secs(u64::from(seconds + WARM_UP_S)) + BESIDE;
    let ending = limited::run(&mut command, (make(&json)?, make(&errors)?), limit, |_| ())
        .map_err(|e| format!("loadline bench: {e}"))?;
    if stop::asked() > 0 {
        return Err("stopped".into());
    }
    if !matches!(ending, Ending::Code(0 | 3)) {
        return Err(format!("loadline bench: {ending}: {}", limited::tail(&errors)));
    }
    let text = std::fs::read_to_string(&json).map_err(|e| format!("{}: {e}", json.display()))?;
    let json: Value = serde_json::from_str(&text).map_err(|e| format!("loadline bench printed: {e}"))?;
    number(&json, "total/iops")
}
