//! The plan of a study: every step in its order, its length, and the space it needs. Pure: nothing is read.

use std::time::Duration;

use loadline_base::units::ByteSize;

use crate::disks::verified_unit;
use crate::error::StudyError;
use crate::file::Study;
use crate::fleet::ResolvedFleet;
use crate::name::Name;
use crate::own_cluster::ClusterPlan;
use crate::planned_step::{Purpose, Step};
use crate::point::Point;
use crate::resolve::ResolvedStudy;
use crate::searches::SearchPlan;

/// More steps than this are a slip: at the shortest step they last longer than a day.
pub const MOST_STEPS: u32 = 100_000;
/// What one second of one disk takes in a run's folder, at the most seen with a rate, and rounded up.
const SERIES_BYTES: u64 = 8 << 10;

/// What a journal takes for one unit of a disk.
const JOURNAL_ENTRY: u64 = 8;
/// What it takes beside that.
const JOURNAL_HEADER: u64 = 4096;

/// The plan of a study.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The steps, in the order in which they are measured: the ceilings; every load once, then every load again,
    /// backwards, and so on; and the steps that searches have requested so far.
    pub steps: Vec<Step>,
    /// How many of them are known from the study alone.
    pub fixed: usize,
    /// The searches, which follow the fixed steps one after another.
    pub searches: Vec<SearchPlan>,
    /// The fleet.
    pub fleet: ResolvedFleet,
    /// How many policies there are: each has as many disks of its own.
    pub policies: u64,
    /// The size of each file or volume that is created; `None` if existing devices are measured.
    pub disk_size: Option<ByteSize>,
    /// The cluster in which the run makes volumes, if it does.
    pub cluster: Option<ClusterPlan>,
    /// Whether all that the profiles use is written once before the first step.
    pub fill: bool,
    /// How long one step lasts, from the beginning of warm-up to the end of cool-down.
    pub step_length: Duration,
}

impl Plan {
    /// The plan of a study, or why it cannot be carried out as it is written.
    pub fn of(study: &Study) -> Result<Plan, StudyError> {
        Plan::new(ResolvedStudy::of(study)?)
    }

    /// The plan of a resolved study. The error is of kind `Usage`: there are too many steps.
    pub fn new(study: ResolvedStudy<'_>) -> Result<Plan, StudyError> {
        let steps = interleave(&study)?;
        let phases = &study.file.phases;
        let plan = Plan {
            fixed: steps.len(),
            steps,
            policies: study.file.policy.len().max(1) as u64,
            disk_size: study.disk_size,
            cluster: study.cluster,
            fill: study.fill,
            step_length: phases.warm_up.0 + phases.measure.0 + phases.cool_down.0,
            searches: study.searches,
            fleet: study.fleet,
        };
        if plan.most_steps() > MOST_STEPS as usize {
            return Err(StudyError::usage(format!(
                "{} steps and what {} searches may take are up to {} steps, more than the {MOST_STEPS} of one study: vary \
                 less beside a search",
                plan.fixed,
                plan.searches.len(),
                plan.most_steps()
            )));
        }
        Ok(plan)
    }

    /// How long all steps together last, those that searches may still ask for included. Filling comes on top, at the
    /// speed of the storage, and warm-ups until the load is steady.
    pub fn length(&self) -> Duration {
        self.step_length.saturating_mul(u32::try_from(self.most_steps()).unwrap_or(u32::MAX))
    }

    /// The most steps that there can be: searches seldom need all of theirs.
    pub fn most_steps(&self) -> usize {
        self.steps.len().max(self.fixed + self.searches.iter().map(SearchPlan::most_steps).sum::<usize>())
    }

    /// How many disks there are in all.
    pub fn disks(&self) -> u64 {
        u64::from(self.fleet.workers) * u64::from(self.fleet.disks_per_worker)
    }

    /// The space that the files need once they are filled; nothing if existing devices are measured.
    pub fn file_space(&self) -> ByteSize {
        ByteSize(
            self.disk_size
                .map_or(0, |size| size.0.saturating_mul(self.disks()))
                .saturating_mul(self.policies),
        )
    }

    /// The space that a cluster's devices take in the run's folder; nothing without one.
    pub fn cluster_space(&self) -> ByteSize {
        let device = |cluster: ClusterPlan| {
            Some((cluster.device?, cluster.nodes.saturating_mul(1 + u32::from(cluster.has_log_devices))))
        };
        self.cluster
            .and_then(device)
            .map_or(ByteSize(0), |(device, nodes)| ByteSize(device.0.saturating_mul(u64::from(nodes))))
    }

    /// Whether the run starts a cluster for itself.
    pub fn starts_cluster(&self) -> bool {
        self.cluster.is_some_and(|cluster| cluster.device.is_some())
    }

    /// The space that the run's folder needs at the most, without files that are created in it.
    pub fn folder_space(&self) -> ByteSize {
        let seconds = self.length().as_secs().saturating_add(self.most_steps() as u64);
        ByteSize(seconds.saturating_mul(self.disks()).saturating_mul(SERIES_BYTES).saturating_add(1 << 20))
    }

    /// The space that the journals need if the run verifies disks of so much in all: an entry for each unit.
    pub fn journal_space(&self, disks: ByteSize) -> ByteSize {
        let unit = self.loads().map(|step| verified_unit(&step.profile)).min().unwrap_or(512).max(1);
        let entries = (disks.0 / unit).saturating_mul(JOURNAL_ENTRY);
        ByteSize(entries.saturating_add(self.disks().saturating_mul(JOURNAL_HEADER)))
    }

    /// Whether any step writes.
    pub fn writes(&self) -> bool {
        self.fill || self.steps.iter().any(|step| step.profile.write_percent > 0)
    }

    /// The steps of the first repeat, without ceilings and searches: every load once.
    pub fn loads(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.repeat == 1 && step.purpose == Purpose::Load)
    }

    /// The loads of the ceilings.
    pub fn ceilings(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.purpose == Purpose::Ceiling)
    }
}

/// The ceilings; then, level of filling by level, every point once, then every point again: a drift of the storage
/// reaches all of them alike. Every other round goes backwards, so that no load always comes right after the same
/// other one and what that leaves behind.
fn interleave(study: &ResolvedStudy<'_>) -> Result<Vec<Step>, StudyError> {
    let ResolvedStudy { points, ceilings, .. } = study;
    let repeats = study.file.run.repeats;
    let count = points.len() as u64 * u64::from(repeats) + ceilings.len() as u64;
    if count > u64::from(MOST_STEPS) {
        return Err(StudyError::usage(format!(
            "{} loads × {repeats} repeats are {count} steps, more than the {MOST_STEPS} of one study",
            points.len()
        )));
    }
    let mut levels: Vec<Option<f64>> = points.iter().map(|point| point.fill_level).collect();
    levels.sort_by(|a, b| a.unwrap_or(0.0).total_cmp(&b.unwrap_or(0.0)));
    levels.dedup();
    // Conditions come in their order, in every round: one leads to the next.
    let in_turn: Vec<Option<&Name>> = match study.file.condition.as_slice() {
        [] => vec![None],
        conditions => conditions.iter().map(|condition| Some(&condition.name)).collect(),
    };
    let round = |level: Option<f64>, repeat: u32| {
        let mut all: Vec<&Point> = Vec::new();
        for condition in &in_turn {
            let here = |point: &&Point| point.fill_level == level && point.condition.as_ref() == *condition;
            let mut round: Vec<&Point> = points.iter().filter(here).collect();
            if repeat.is_multiple_of(2) {
                round.reverse();
            }
            all.extend(round);
        }
        all.into_iter().map(move |point| (repeat, point, Purpose::Load))
    };
    let loads =
        levels.into_iter().flat_map(|level| (1..=repeats).flat_map(move |repeat| round(level, repeat)));
    Ok(ceilings
        .iter()
        .map(|point| (1, point, Purpose::Ceiling))
        .chain(loads)
        .zip(1..)
        .map(|((repeat, point, purpose), number)| Step::of(point, number, repeat, purpose))
        .collect())
}

/// The seed of one worker in one step: the same study measures the same I/Os again, and no two workers or steps
/// draw the same ones.
pub fn seed_of(study_seed: u64, step: u32, worker: u32) -> u64 {
    // SplitMix64's finaliser, twice: neighbours become unrelated.
    let mix = |z: u64| {
        let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    mix(mix(study_seed) ^ (u64::from(step) << 32 | u64::from(worker)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::parse;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn plan(text: &str) -> Result<Plan, StudyError> {
        Plan::of(&parse("study.toml", &format!("name = \"s\"\n{text}")).unwrap())
    }

    #[test]
    fn the_studies_that_come_with_loadline_can_be_planned_and_the_first_takes_less_than_a_minute() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../studies");
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        for path in entries.filter(|path| path.is_file()) {
            let (study, text) = crate::read::read(&path).unwrap();
            assert!(text.starts_with("#:schema ../docs/reference/study.schema.json\n"), "{}", path.display());
            let plan = Plan::of(&study).unwrap();
            if study.name.as_str() == "files" {
                assert!(
                    plan.length() <= Duration::from_secs(40),
                    "each step takes a second more, and it fills first"
                );
            }
        }
    }

    const TWO: &str = "profiles = [\"B4-T1-O8-W0-PR\", \"B64-T1-O4-W100-PS\"]\n";

    #[test]
    fn repeats_are_interleaved_and_every_other_round_goes_backwards() {
        let plan = plan(&format!("{TWO}[run]\nrepeats = 2")).unwrap();
        let order: Vec<(&str, u32)> = plan.steps.iter().map(|s| (s.label.as_str(), s.repeat)).collect();
        assert_eq!(
            order,
            [
                ("B4-T1-O8-W0-PR", 1),
                ("B64-T1-O4-W100-PS", 1),
                ("B64-T1-O4-W100-PS", 2),
                ("B4-T1-O8-W0-PR", 2)
            ]
        );
        assert_eq!(plan.steps[2].folder, "003-B64-T1-O4-W100-PS-r2");
    }

    #[test]
    fn length_and_space_are_known_before_anything_is_done() {
        let text = format!(
            "{TWO}[fleet]\nnodes = 2\nworkers_per_node = 3\ndisks_per_worker = 2\ndisk_size = \"64MiB\"\n\
             [phases]\nwarm_up = \"2s\"\nmeasure = \"10s\"\ncool_down = \"1s\"\n[run]\nrepeats = 3"
        );
        let plan = plan(&text).unwrap();
        assert_eq!(plan.length(), Duration::from_secs(6 * 13));
        assert_eq!(plan.file_space(), ByteSize(12 * (64 << 20)));
        assert!(plan.fill && plan.writes());
    }

    #[test]
    fn devices_are_not_filled_unless_it_is_asked_for() {
        let text = "[target]\ndevices = [\"/dev/sdx\"]";
        let plain = plan(&format!("profiles = [\"B4-T1-O8-W0-PR\"]\n{text}")).unwrap();
        assert!(!plain.fill && !plain.writes() && plain.file_space() == ByteSize(0));
        let filled =
            plan(&format!("profiles = [\"B4-T1-O8-W0-PR\"]\n{text}\n[phases]\nfill = true")).unwrap();
        assert!(filled.fill && filled.writes());
    }

    #[test]
    fn what_does_not_fit_the_disk_is_refused() {
        let small = "[fleet]\ndisk_size = \"1MiB\"";
        for (profile, part) in [
            ("block_size = \"2MiB\"", "block_size of 2MiB does not fit"),
            ("working_set = \"2MiB\"", "working set of 2MiB is larger"),
            ("working_set = \"10%\"\nblock_size = \"256K\"", "does not fit into"),
            ("base_offset = \"1MiB\"", "beyond the end"),
            ("base_offset = \"512K\"\nworking_set = \"600K\"", "is larger"),
        ] {
            let message = plan(&format!("{small}\n[[profile]]\n{profile}")).unwrap_err().message;
            assert!(message.contains(part) && message.contains("disk_size"), "{message}");
        }
    }

    #[test]
    fn contradictions_and_slips_are_refused() {
        for (text, part) in [
            ("[fleet]\nnodes = 2\njoin = 2", "both nodes and join"),
            ("[fleet]\nwait = \"5m\"", "without join"),
            ("[fleet]\nnodes = 0", "[fleet] nodes = 0: give at least 1"),
            ("[fleet]\nnodes = 1000\nworkers_per_node = 1000", "makes 1000000 workers: at most 1024"),
            ("[target]\nfolder = \"/x\"\ndevices = [\"/dev/x\"]", "not both"),
            ("[target]\ndevices = [\"/dev/x\", \"/dev/y\"]", "names 2 devices"),
            ("[target]\ndevices = [\"/dev/x\"]\n[fleet]\ndisk_size = \"1GiB\"", "remove it"),
            ("[phases]\nmeasure = \"500ms\"", "whole seconds"),
            ("[phases]\nmeasure = \"0s\"", "at least 1"),
            ("[run]\nrepeats = 0", "[run] repeats = 0"),
            ("[[fleet.node]]\nname = \"a\"\n[[fleet.node]]\nname = \"a\"", "two nodes named a"),
        ] {
            let message = plan(&format!("{TWO}{text}")).unwrap_err().message;
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn devices_of_workers_that_join_are_only_read() {
        let read = "profiles = [\"B4-T1-O8-W0-PR\"]\n";
        let joined = |target: &str| format!("[fleet]\njoin = 2\n[target]\n{target}\n");
        let devices = joined("devices = [\"/dev/sdx\", \"/dev/sdy\"]");
        assert!(plan(&format!("{read}{devices}")).is_ok());
        for (text, part) in [
            (format!("{TWO}{devices}"), "profile B64-T1-O4-W100-PS writes"),
            (format!("{read}{devices}[phases]\nfill = true"), "fill writes"),
        ] {
            let message = plan(&text).unwrap_err().message;
            assert!(message.contains(part) && message.contains("Use folder instead of devices"), "{message}");
        }
        assert!(plan(&format!("{TWO}{}", joined("folder = \"/x\""))).is_ok());
        assert!(plan(&format!("{TWO}{}", joined("devices = [\"null:1GiB\", \"null:1GiB\"]"))).is_ok());
    }

    proptest! {
        #[test]
        fn a_plan_has_every_load_in_every_round_once(
            blocks in prop::collection::btree_set(1u32..64, 1..6),
            depths in prop::collection::btree_set(1u32..64, 1..6),
            repeats in 1u32..5,
        ) {
            let sizes: Vec<String> = blocks.iter().map(|kib| format!("\"{kib}K\"")).collect();
            let depths: Vec<u32> = depths.into_iter().collect();
            let text = format!(
                "[matrix]\nblock_size = [{}]\noutstanding = {depths:?}\n[run]\nrepeats = {repeats}",
                sizes.join(", ")
            );
            let plan = plan(&text).unwrap();
            let loads = blocks.len() * depths.len();
            prop_assert_eq!(plan.steps.len(), loads * repeats as usize);
            let folders: BTreeSet<&str> = plan.steps.iter().map(|s| s.folder.as_str()).collect();
            prop_assert_eq!(folders.len(), plan.steps.len());
            for round in plan.steps.chunks(loads) {
                let labels: BTreeSet<&str> = round.iter().map(|s| s.label.as_str()).collect();
                prop_assert_eq!(labels.len(), loads);
                prop_assert!(round.iter().all(|s| s.repeat == round[0].repeat));
            }
        }

        #[test]
        fn no_two_workers_or_steps_share_a_seed(seed: u64, step in 1u32..100_000, worker in 0u32..1024) {
            prop_assert_ne!(seed_of(seed, step, worker), seed_of(seed, step, worker + 1));
            prop_assert_ne!(seed_of(seed, step, worker), seed_of(seed, step + 1, worker));
        }
    }
}
