//! The studies that are shipped can be run as they are written, and those for small machines fit small machines.

use std::path::{Path, PathBuf};
use std::time::Duration;

use loadline_study::read::read;
use loadline_study::{Plan, Study};

/// The most disk space that a study for a small machine may take, bytes.
const SMALL_DISK: u64 = 20_000_000_000;
/// The longest time that such a study may take, with everything beside the steps.
const SMALL_TIME: Duration = Duration::from_secs(15 * 60);
/// What a step takes beside its phases, at the most: workers are prepared, and wait for each other.
const BESIDE: Duration = Duration::from_millis(1_500);

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies")
}

/// Every study in `studies` and in a folder below it, by the file's name; `models` has models of devices.
fn studies() -> Vec<(PathBuf, Study)> {
    let of = |folder: PathBuf| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let folders = of(folder()).filter(|path| path.is_dir() && !path.ends_with("models"));
    let files = folders.flat_map(of).chain(of(folder()).filter(|path| path.is_file()));
    let mut found: Vec<_> = files.map(|path| (path.clone(), read(&path).unwrap().0)).collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

#[test]
fn every_study_that_is_shipped_can_be_planned() {
    let studies = studies();
    assert!(studies.len() >= 17, "{}", studies.len());
    for (path, study) in &studies {
        let plan = Plan::of(study).unwrap_or_else(|error| panic!("{}: {}", path.display(), error.message));
        assert!(plan.most_steps() > 0, "{}", path.display());
    }
}

#[test]
fn each_of_the_five_says_what_it_asks_as_published_and_for_a_small_machine() {
    for source in ["degraded", "maximum", "scaling", "stripes", "acceptance"] {
        for file in ["published.toml", "small.toml"] {
            let (study, text) = read(&folder().join(source).join(file)).unwrap();
            assert!(study.asks.is_some_and(|asks| asks.ends_with('?')), "{source}/{file}");
            assert!(text.contains("#:schema ../../docs/reference/study.schema.json"), "{source}/{file}");
        }
    }
}

#[test]
fn studies_for_a_small_machine_take_no_longer_and_no_more_than_they_say() {
    for (path, study) in studies() {
        // Beside the published ones, and the small ones that are not of the five.
        let is_small = path.parent() != Some(&folder())
            && study.fewest_copies().is_some()
            && study.running_cluster().is_none();
        if !is_small {
            continue;
        }
        let plan = Plan::of(&study).unwrap();
        let steps = u32::try_from(plan.fixed).unwrap();
        // Searches end long before the most that they may take.
        let searched = plan.length().saturating_sub(plan.step_length * steps) / 2;
        let steady = study.phases.steady.map_or(Duration::ZERO, |steady| steady.limit.0);
        let sweeps =
            if steady.is_zero() { 0 } else { steps / study.run.repeats.max(1) * study.run.repeats / 3 };
        let all = (plan.step_length + BESIDE) * steps + searched + steady / 2 * sweeps;
        assert!(all <= SMALL_TIME, "{}: {all:?}", path.display());
        let ceilings: u64 = study.ceilings.node.iter().filter_map(|node| node.size).map(|size| size.0).sum();
        let space = plan.cluster_space().0 + plan.folder_space().0 + ceilings;
        assert!(space <= SMALL_DISK, "{}: {space} bytes", path.display());
    }
}
