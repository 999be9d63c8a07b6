//! What a study's loads say together, in sentences: how they grow with workers, on which policy the most is carried, what the
//! storage's own counters say of reads and writes, and what else changes with a condition.

use std::collections::BTreeMap;

use loadline_base::figures::{latency, thousands};
use loadline_base::units::ByteSize;
use loadline_measure::analysis::Group;
use loadline_measure::saturation::{Saturation, Trend};
use loadline_measure::stats::median;
use loadline_measure::summary::PERCENTILES;
use loadline_study::Study;
use loadline_study::conditions::gone_in;
use loadline_study::file::{NodeSection, WhenNodeIsGone};
use loadline_study::planned_step::Purpose;
use loadline_target::FaultKind;

use crate::rows::StepRow;

/// The most loads in the answers; the tables have all.
const MOST_TOLD: usize = 12;
/// Peaks that are closer to each other than this, or than their series' noise, are no different.
const SAME: f64 = 0.05;

/// One load's growth on one policy.
struct Grown<'a> {
    policy: Option<&'a str>,
    condition: Option<&'a str>,
    saturation: &'a Saturation,
    steps: Vec<&'a StepRow>,
}

/// How each load grows with the number of workers: its peak, where it comes, and what comes after. Policies stand side by side.
pub(crate) fn growth(steps: &[StepRow], sweeps: &[Group]) -> Vec<String> {
    let mut loads: Vec<(String, Vec<Grown<'_>>)> = Vec::new();
    for group in sweeps {
        let Some(saturation) = &group.saturation else { continue };
        let is_its = |step: &&StepRow| {
            let family = if step.family.is_empty() { &step.label } else { &step.family };
            // A family may have a sweep for each depth or rate.
            let same_depth = group.at.is_none() || group.at == depth(step);
            *family == group.profile && same_depth && step.purpose == Purpose::Load
        };
        let steps: Vec<&StepRow> = steps.iter().filter(is_its).collect();
        let Some(first) = steps.first() else { continue };
        let policy = first.policy.as_ref().map(|policy| policy.as_str());
        let condition = first.condition.as_ref().map(|condition| condition.as_str());
        let mut load = group.profile.clone();
        for end in [condition, policy].into_iter().flatten() {
            load = load.strip_suffix(&format!("-{end}")).unwrap_or(&load).to_string();
        }
        if let Some(at) = &group.at {
            load = format!("{load}, {at}");
        }
        let grown = Grown { policy, condition, saturation, steps };
        match loads.iter_mut().find(|(known, _)| *known == load) {
            Some((_, all)) => all.push(grown),
            None => loads.push((load, vec![grown])),
        }
    }
    loads.iter().take(MOST_TOLD).map(|(load, all)| format!("{load}: {}", side_by_side(all))).collect()
}

/// What each worker has outstanding or offers, in the words of a sweep.
fn depth(step: &StepRow) -> Option<String> {
    let each = |all: f64| thousands(all / step.workers.max(1) as f64);
    match (step.rate_iops, step.outstanding) {
        (Some(rate), _) => Some(format!("{} IOPS each", each(rate))),
        (None, Some(outstanding)) => Some(format!("{} outstanding each", each(outstanding))),
        (None, None) => None,
    }
}

fn side_by_side(all: &[Grown<'_>]) -> String {
    let each: Vec<String> = all.iter().map(Grown::sentence).collect();
    let each = each.join("; ");
    let is_of_policies =
        all.len() > 1 && all.iter().all(|one| one.policy.is_some() && one.condition.is_none());
    let most = all.iter().max_by(|a, b| a.saturation.peak.total_cmp(&b.saturation.peak));
    let (true, Some(most)) = (is_of_policies, most) else { return each };
    let noise = all.iter().filter_map(|one| one.saturation.noise).fold(SAME, f64::max);
    let close = |one: &&Grown<'_>| one.saturation.peak >= (1.0 - noise) * most.saturation.peak;
    let best: Vec<&str> = all.iter().filter(close).filter_map(|one| one.policy).collect();
    match best.as_slice() {
        [one] => format!("{each}. The highest peak is that of {one}"),
        many => {
            format!("{each}. The highest peaks, of {}, are within the noise of each other", many.join(", "))
        }
    }
}

impl Grown<'_> {
    fn sentence(&self) -> String {
        let name = [self.policy, self.condition].into_iter().flatten().collect::<Vec<_>>().join(", ");
        let name = if name.is_empty() { String::new() } else { format!("{name} ") };
        let found = self.saturation;
        let workers = if found.peak_at == 1.0 { "worker" } else { "workers" };
        let after = match (found.after, found.bend) {
            (None, _) => "too few points to say how it goes on".to_string(),
            (Some(Trend::Rising), None) => "still rising at the end".into(),
            (Some(Trend::Flat), None) => "flat throughout".into(),
            (Some(Trend::Falling), None) => "falling throughout".into(),
            (Some(Trend::Rising), Some(bend)) => format!("still rising after a bend at {bend:.0}"),
            (Some(Trend::Flat), Some(bend)) => format!("flat from {bend:.0} on"),
            (Some(Trend::Falling), Some(bend)) => format!("falling from {bend:.0} on"),
        };
        let there = self.at_peak();
        format!(
            "{name}{} IOPS at the most, with {:.0} {workers}{}, {after}",
            thousands(found.peak),
            found.peak_at,
            there.unwrap_or_default()
        )
    }

    /// What the repeats at the peak had: their medians, of the deepest percentile that all of them have.
    fn at_peak(&self) -> Option<String> {
        let steps: Vec<&StepRow> = self
            .steps
            .iter()
            .filter(|step| step.workers as f64 == self.saturation.peak_at)
            .copied()
            .collect();
        let all = |of: &dyn Fn(&StepRow) -> Option<f64>| {
            steps
                .iter()
                .map(|step| of(step))
                .collect::<Option<Vec<f64>>>()
                .and_then(|figures| median(&figures))
        };
        let mean = all(&|step| step.latency_us.mean).map(|mean| format!("mean {}", latency(mean)));
        let deepest = PERCENTILES.iter().rev().find_map(|(name, _)| {
            all(&|step| step.latency_us.percentile(name)).map(|us| format!("{name} {}", latency(us)))
        });
        let cpu = all(&|step| step.host_busy).map(|busy| format!("host {:.0} % busy", 100.0 * busy));
        let parts: Vec<String> = [mean, deepest, cpu].into_iter().flatten().collect();
        (!parts.is_empty()).then(|| format!(" ({})", parts.join(", ")))
    }
}

/// What the storage counted of reads and writes: whether reads stayed on their node, and what a written byte costs below. Only of
/// loads in which nothing was done to it and every copy is there.
pub(crate) fn counted(steps: &[StepRow]) -> Vec<String> {
    let of = |policy: &Option<String>| {
        let mut said = Vec::new();
        let steps: Vec<&StepRow> = (steps.iter())
            .filter(|step| {
                step.purpose == Purpose::Load && step.policy.as_ref().map(|p| p.to_string()) == *policy
            })
            .collect();
        let counts = || steps.iter().filter_map(|step| Some((*step, step.storage.as_ref()?)));
        let on = policy.as_ref().map(|policy| format!("On {policy}: ")).unwrap_or_default();
        let mut reads: Vec<(String, Vec<f64>)> = Vec::new();
        for (step, share) in counts().filter_map(|(step, storage)| Some((step, storage.read_at_owner?))) {
            let apart = (step.unaligned_percent > 0).then(|| format!("{} % apart", step.unaligned_percent));
            let place = [step.condition.as_ref().map(ToString::to_string), apart];
            let place = place.into_iter().flatten().collect::<Vec<_>>().join(", ");
            match reads.iter_mut().find(|(known, _)| *known == place) {
                Some((_, shares)) => shares.push(share),
                None => reads.push((place, vec![share])),
            }
        }
        let each = reads.iter().filter_map(|(place, shares)| {
            let place = if place.is_empty() { String::new() } else { format!("{place}, ") };
            Some(format!("{:.0} % ({place}{})", 100.0 * median(shares)?, windows(shares.len())))
        });
        let each: Vec<String> = each.collect();
        if !each.is_empty() {
            said.push(format!(
                "{on}Of the bytes that were read so many came from the copy on the node that owns the volume, and not over the \
                 network: {}",
                each.join("; ")
            ));
        }
        // A header is as long, whatever the block.
        let mut written: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for (step, storage) in counts().filter(|(_, storage)| storage.expected_log_bytes_per_s.is_some()) {
            if storage.front_write_bytes_per_s > 0.0 {
                let times = storage.log_bytes_per_s / storage.front_write_bytes_per_s;
                written.entry(step.profile.block_size.0).or_default().push(times);
            }
        }
        let each = written.iter().filter_map(|(block, times)| {
            Some(format!(
                "{:.2} in blocks of {} ({})",
                median(times)?,
                ByteSize(*block),
                windows(times.len())
            ))
        });
        let each: Vec<String> = each.collect();
        if !each.is_empty() {
            said.push(format!(
                "{on}For each byte that was written so many were logged, by all copies: {}",
                each.join("; ")
            ));
        }
        said
    };
    let mut policies: Vec<Option<String>> =
        steps.iter().map(|step| step.policy.as_ref().map(ToString::to_string)).collect();
    policies.sort();
    policies.dedup();
    policies.iter().flat_map(of).collect()
}

fn windows(count: usize) -> String {
    if count == 1 { "one window".into() } else { format!("median of {count} windows") }
}

/// That with a node the load of the others changes too, where it does: two things change at once, and a figure cannot say which
/// of them did it.
pub(crate) fn two_variables(study: &Study) -> Option<String> {
    let is_gone = |name| !gone_in(study, name).is_empty();
    let gone: Vec<&str> =
        study.condition.iter().filter(|one| is_gone(&one.name)).map(|one| one.name.as_str()).collect();
    let moves = study.fleet.when_node_is_gone == WhenNodeIsGone::Move && study.fewest_copies().is_some();
    match (gone.is_empty(), moves) {
        (true, _) => None,
        (false, true) => Some(format!(
            "In {} two things change at once: there are fewer nodes, and each carries more workers, those of the nodes that \
             are gone ([fleet] when_node_is_gone = \"rest\" holds the workers of each node)",
            gone.join(", ")
        )),
        (false, false) if study.fewest_copies().is_some() => Some(format!(
            "In {} each node that is left carries as many workers as before: there are fewer nodes and fewer workers, and the \
             load of a node is the same",
            gone.join(", ")
        )),
        (false, false) => None,
    }
}

/// That the nodes of a cluster that the run has started share a machine, where one of them is gone for a while.
pub(crate) fn one_machine(study: &Study) -> Option<String> {
    let in_conditions =
        study.condition.iter().flat_map(|condition| &condition.actions).map(|fault| &fault.what);
    let mut all = in_conditions.chain(study.faults.iter().map(|fault| &fault.what));
    let is_gone = all.any(|what| matches!(what, FaultKind::Kill | FaultKind::Freeze));
    let has = |what: fn(&NodeSection) -> bool| study.nodes().is_some_and(what);
    let is_one_machine = is_gone && study.fewest_copies().is_some() && study.running_cluster().is_none();
    // What each node has of its own, what that is called of all nodes, and what nodes that have it do not share.
    let parts: [(bool, &str, &str, Option<&str>); 3] = [
        (has(|node| node.model.is_some()), "a modelled device", "the devices", Some("disks")),
        (has(|node| node.cpu_limit.is_some()), "cores", "the cores", Some("processors")),
        (has(|node| node.network.is_some()), "a network", "the networks", None),
    ];
    let own: Vec<&str> = parts.iter().filter(|part| part.0).map(|part| part.1).collect();
    let all: Vec<&str> = parts.iter().filter(|part| part.0).map(|part| part.2).collect();
    let shared: Vec<&str> = parts.iter().rev().filter(|part| !part.0).filter_map(|part| part.3).collect();
    is_one_machine.then(|| {
        if own.is_empty() {
            return "All nodes share this machine's processors and disks: while one is gone the others have more of them, so that a load \
                    may become faster. With a machine for each node it would not; how long a fault stalls clients is the same"
                .into();
        }
        let go = if own == ["a modelled device"] || own == ["a network"] { "goes" } else { "go" };
        let own = format!("Each node has {} of its own, which {go} with the node", listed(&own));
        match shared.is_empty() {
            true => format!("{own}, and cannot have more than these"),
            false => format!(
                "{own}. All nodes share this machine's {}: where these limit a load, and not {}, the others have more of them while a node \
                 is gone",
                listed(&shared),
                listed(&all)
            ),
        }
    })
}

/// *a, b and c*.
fn listed(words: &[&str]) -> String {
    match words {
        [most @ .., last] if !most.is_empty() => format!("{} and {last}", most.join(", ")),
        _ => words.join(""),
    }
}

#[cfg(test)]
mod tests {
    use loadline_measure::analysis::{Options, analyse};
    use loadline_measure::point::{Point, Stated};
    use loadline_study::storage_counts::StorageCounts;

    use super::*;

    /// Steps of one load that grows by a worker at a time, on a policy.
    fn grown(policy: &str, iops: &[f64]) -> (Vec<StepRow>, Vec<Point>) {
        let step = |(at, iops): (usize, &f64)| StepRow {
            label: format!("4k-{policy}-w{}", at + 1),
            family: format!("4k-{policy}"),
            policy: Some(policy.parse().unwrap()),
            workers: at + 1,
            iops: *iops,
            ..StepRow::none()
        };
        let point = |(at, iops): (usize, &f64)| Point {
            profile: format!("4k-{policy}-w{}", at + 1),
            family: Some(format!("4k-{policy}")),
            workers: Some(at as u32 + 1),
            iops: Some(Stated::exact(*iops)),
            ..Point::default()
        };
        (iops.iter().enumerate().map(step).collect(), iops.iter().enumerate().map(point).collect())
    }

    fn answers(series: &[(&str, &[f64])]) -> Vec<String> {
        let (steps, points): (Vec<_>, Vec<_>) = series.iter().map(|(name, iops)| grown(name, iops)).unzip();
        let options = Options { audited: true, ..Options::default() };
        growth(&steps.concat(), &analyse(points.concat(), &options).groups)
    }

    #[test]
    fn growth_says_the_peak_where_it_comes_and_what_comes_after_for_each_policy() {
        let rises = [1e4, 2e4, 3e4, 4e4, 5e4, 6e4, 7e4, 8e4];
        let falls = [3e4, 6e4, 9e4, 8e4, 7e4, 6e4, 5e4, 4e4];
        let answers = answers(&[("one", &rises), ("eight", &falls)]);
        assert_eq!(answers.len(), 1, "{answers:?}");
        assert!(answers[0].starts_with("4k: one 80,000 IOPS at the most, with 8 workers"), "{answers:?}");
        assert!(answers[0].contains("still rising at the end"), "{answers:?}");
        assert!(answers[0].contains("eight 90,000 IOPS at the most, with 3 workers"), "{answers:?}");
        assert!(answers[0].contains("falling from 3 on. The highest peak is that of eight"), "{answers:?}");
    }

    #[test]
    fn peaks_that_are_about_the_same_are_not_told_apart() {
        let one = [1e4, 2e4, 3e4, 3e4, 3e4, 3e4, 3e4];
        let other = [1e4, 2e4, 3.1e4, 3e4, 3e4, 3e4, 3e4];
        let answers = answers(&[("one", &one), ("two", &other)]);
        assert!(answers[0].ends_with("of one, two, are within the noise of each other"), "{answers:?}");
    }

    #[test]
    fn each_depth_of_a_load_has_growth_and_latencies_of_its_own() {
        let of = |depth: u32, iops: f64| {
            let (mut steps, mut points) = grown("x", &[1.0, 2.0, 3.0].map(|n| n * iops));
            for (at, (step, point)) in (1u32..).zip(steps.iter_mut().zip(&mut points)) {
                (step.policy, step.family) = (None, "4k".into());
                (step.outstanding, step.latency_us.mean) =
                    (Some(f64::from(depth * at)), Some(f64::from(depth)));
                (point.family, point.outstanding) = (Some("4k".into()), step.outstanding);
            }
            (steps, points)
        };
        let (shallow, deep) = (of(2, 1e3), of(8, 5e3));
        let options = Options { audited: true, ..Options::default() };
        let groups = analyse([shallow.1, deep.1].concat(), &options).groups;
        let answers = growth(&[shallow.0, deep.0].concat(), &groups);
        let of_depth = |depth: &str| {
            answers.iter().find(|answers| answers.starts_with(&format!("4k, {depth} outst"))).unwrap()
        };
        assert!(of_depth("2").contains("3,000 IOPS") && of_depth("2").contains("mean 2.0 us"), "{answers:?}");
        assert!(
            of_depth("8").contains("15,000 IOPS") && of_depth("8").contains("mean 8.0 us"),
            "{answers:?}"
        );
    }

    #[test]
    fn nodes_of_one_machine_are_told_of_where_one_is_gone() {
        let with = |more: &str| {
            let study = format!(
                "name = \"s\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n{more}\n[fleet]\nnodes = 3\ndisk_size = \"4MiB\"\n"
            );
            one_machine(&loadline_study::read::parse("s.toml", &study).unwrap())
        };
        let kill = "faults = [{ at = \"1s\", do = \"kill\", node = \"node-3\" }]";
        assert_eq!(with(""), None);
        let own = with(&format!("{kill}\n[target]\nsan = {{ copies = 2 }}"));
        assert!(own.is_some_and(|says| says.contains("share this machine's processors and disks")));
        let modelled =
            with(&format!("{kill}\n[target]\nsan = {{ copies = 2, node = {{ model = \"intel-s4500\" }} }}"));
        assert!(
            modelled.is_some_and(|says| says.contains("goes with the node") && !says.contains("and disks"))
        );
        let cores = with(&format!("{kill}\n[target]\nsan = {{ copies = 2, node = {{ cpu_limit = 0.5 }} }}"));
        assert!(
            cores.is_some_and(
                |says| says.contains("cores of its own") && says.contains("this machine's disks")
            )
        );
        let both = with(&format!(
            "{kill}\n[target]\nsan = {{ copies = 2, node = {{ model = \"intel-s4500\", cpu_limit = 0.5 }} }}"
        ));
        assert!(
            both.is_some_and(|says| says.contains("modelled device and cores of its own, which go")
                && !says.contains("share"))
        );
        let node = "model = \"intel-s4500\", cpu_limit = 0.5, network = { per_second = \"20MiB\" }";
        let all = with(&format!("{kill}\n[target]\nsan = {{ copies = 2, node = {{ {node} }} }}"));
        assert!(all.is_some_and(|says| says.contains("a modelled device, cores and a network of its own")));
        let network = "network = { per_second = \"20MiB\" }";
        let network = with(&format!("{kill}\n[target]\nsan = {{ copies = 2, node = {{ {network} }} }}"));
        assert_eq!(
            network.as_deref(),
            Some(
                "Each node has a network of its own, which goes with the node. All nodes share this machine's processors and disks: \
                 where these limit a load, and not the networks, the others have more of them while a node is gone"
            )
        );
    }

    #[test]
    fn what_a_written_byte_costs_is_told_where_every_copy_is_there() {
        let counts = |front: f64, log: f64, expected: Option<f64>| StorageCounts {
            seconds: 10.0,
            front_iops: 1.0,
            front_bytes_per_s: front,
            front_write_bytes_per_s: front,
            read_at_owner: None,
            log_bytes_per_s: log,
            expected_log_bytes_per_s: expected,
            destaged_bytes_per_s: front,
            cpu_cores: 1.0,
        };
        let step = |storage| StepRow { storage: Some(storage), ..StepRow::none() };
        let steps = [step(counts(100.0, 225.0, Some(225.0))), step(counts(100.0, 112.0, None))];
        let answers = counted(&steps);
        assert_eq!(answers.len(), 1);
        assert!(answers[0].ends_with("2.25 in blocks of 4KiB (one window)"), "{answers:?}");
        let read = |share| step(StorageCounts { read_at_owner: Some(share), ..counts(0.0, 0.0, Some(0.0)) });
        let apart = StepRow { unaligned_percent: 50, ..read(0.5) };
        let answers = counted(&[read(1.0), read(1.0), apart]);
        assert!(
            answers[0].ends_with("network: 100 % (median of 2 windows); 50 % (50 % apart, one window)"),
            "{answers:?}"
        );
    }
}
