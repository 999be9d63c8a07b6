//! What a study decides: how its criteria of success are met by what was measured.

mod open_loop;

use loadline_base::figures::{latency, thousands};
use loadline_base::units::Rate;
use loadline_measure::audit::{FindingKind, is_carried};
use loadline_measure::stats::median;
use loadline_measure::summary::LatencySummary;
use loadline_measure::window::OperationFigures;
use loadline_profile::{Arrival, Profile};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::criterion::{Criterion, Scope};
use crate::file::Study;
use crate::fleet::ResolvedFleet;
use crate::folder::result::StepResult;
use crate::limit::Verdict;
use crate::name::Name;
use crate::planned_step::Purpose;
use crate::point::without;

/// One measurement of one load, as a criterion sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// What the load is called: its label first, its family, the name of its table.
    pub names: Vec<String>,
    /// The condition of the storage in which it was measured.
    pub condition: Option<Name>,
    /// The search that requested it, and the requested load.
    pub probe: Option<(u32, u64)>,
    /// How many nodes took part.
    pub nodes: usize,
    /// How many workers took part.
    pub workers: usize,
    /// The load on each disk.
    pub profile: Profile,
    /// I/Os and bytes a second of the fleet.
    pub fleet: (f64, f64),
    /// I/Os and bytes a second of the node that did least.
    pub least_node: (f64, f64),
    /// I/Os and bytes a second of the worker that did least.
    pub least_worker: (f64, f64),
    /// The fleet's response times.
    pub latency_us: LatencySummary,
    /// Whether it lost workers or had errors: then it holds nothing.
    pub failed: bool,
    /// I/Os a second that were offered; `None` in a closed loop.
    pub offered: Option<f64>,
    /// Whether the offered rate was carried; true in a closed loop.
    pub carried: bool,
    /// Whether the load generator was the bottleneck: then a miss shows nothing about the storage.
    pub generator_bound: bool,
}

impl Candidate {
    /// The candidate that a complete step is.
    pub fn of(result: &StepResult) -> Candidate {
        let total = &result.figures.total;
        let least = |figures: &mut dyn Iterator<Item = (f64, f64)>| {
            figures.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1))).unwrap_or((0.0, 0.0))
        };
        let of_worker = |figures: &OperationFigures| (figures.iops, figures.bytes_per_s);
        let profile = &result.step.profile;
        let rate = profile.rate.map(|offered| offered.rate.iops(profile.block_size));
        let offered = rate.map(|rate| rate * result.workers.len() as f64);
        let is_poisson = profile.rate.is_some_and(|offered| offered.arrival == Arrival::Poisson);
        let window_s = result.figures.window_s;
        Candidate {
            names: [Some(result.step.label.clone()), Some(result.step.family.clone())]
                .into_iter()
                .chain([result.step.table.as_ref().map(ToString::to_string)])
                .chain([result
                    .step
                    .condition
                    .as_ref()
                    .map(|condition| without(&result.step.label, condition))])
                .flatten()
                .collect(),
            condition: result.step.condition.clone(),
            probe: match result.step.purpose {
                Purpose::Search { search, load } => Some((search, load.to_bits())),
                _ => None,
            },
            nodes: result.nodes.len(),
            workers: result.workers.len(),
            profile: result.step.profile.clone(),
            fleet: of_worker(total),
            least_node: least(&mut result.nodes.values().map(|node| (node.iops, node.bytes_per_s))),
            least_worker: least(&mut result.workers.iter().map(|worker| of_worker(&worker.figures.total))),
            latency_us: total.latency_us.clone(),
            failed: result.lost() > 0 || result.figures.errors > 0,
            offered,
            carried: offered
                .is_none_or(|offered| is_carried(total.iops * window_s, offered * window_s, is_poisson)),
            generator_bound: result.findings.iter().any(|f| f.kind == FindingKind::GeneratorBound),
        }
    }
}

/// How a criterion of success is met.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// The criterion, as written in the study.
    pub criterion: String,
    /// Whether it is met; `null` while steps are missing.
    pub held: Option<bool>,
    /// What was found, in words.
    pub found: String,
    /// If it is met, but only in a closed loop: which load with a rate misses it, in words. Else `null`.
    pub open_loop_missed: Option<String>,
}

/// Complete steps by load, in the order in which they were first measured; ceilings are none of the study's loads.
#[derive(Debug, Clone, Default)]
pub struct Candidates(Vec<Vec<Candidate>>);

impl Candidates {
    /// Adds a complete step.
    pub fn add(&mut self, result: &StepResult) {
        if result.step.purpose == Purpose::Ceiling {
            return;
        }
        let one = Candidate::of(result);
        // Labels of a search's loads are rounded; the requested loads are not.
        let same = |first: &Candidate| match (first.probe, one.probe) {
            (Some(a), Some(b)) => a == b,
            (None, None) => first.names.first() == one.names.first(),
            _ => false,
        };
        match self.0.iter_mut().find(|load| load.first().is_some_and(same)) {
            Some(load) => load.push(one),
            None => self.0.push(vec![one]),
        }
    }

    /// How a study's criteria are met. A load of a search counts if it was measured as often as the study repeats: one
    /// lucky probe decides nothing. While steps or searches are missing nothing is decided.
    pub fn judge(mut self, study: &Study, fleet: &ResolvedFleet, complete: bool) -> Vec<Decision> {
        let repeats = study.run.repeats as usize;
        self.0
            .retain(|load| load.first().is_some_and(|first| first.probe.is_none()) || load.len() >= repeats);
        // A node whose workers took no part did nothing.
        let nodes = self.0.iter().flatten().map(|one| one.nodes).max().unwrap_or(0);
        let nodes = nodes.max(fleet.nodes.len());
        for one in self.0.iter_mut().flatten().filter(|one| one.nodes < nodes) {
            one.least_node = (0.0, 0.0);
        }
        let decide = |criterion: &Criterion| {
            let Verdict { limit, held, found } = criterion.in_each(study, &self.0);
            let held = complete.then_some(held);
            let found = if complete { found } else { format!("{found}, so far: the run is not complete") };
            let open_loop_missed = match held {
                Some(true) => criterion.open_loop_missed(study, &self.0),
                _ => None,
            };
            Decision { criterion: limit, held, found, open_loop_missed }
        };
        study.success.iter().map(decide).collect()
    }
}

impl Criterion {
    /// Judges the loads of each condition by themselves: it holds if it holds in every one in which a load that it is about
    /// was measured. Of a study without conditions, all loads together.
    fn in_each(&self, study: &Study, loads: &[Vec<Candidate>]) -> Verdict {
        let about = |load: &&Vec<Candidate>| {
            load.first().is_some_and(|first| self.is_about(&first.names, &first.profile))
        };
        let of = |name: &Name| {
            let here =
                |load: &&Vec<Candidate>| load.first().is_some_and(|one| one.condition.as_ref() == Some(name));
            loads.iter().filter(about).filter(here).cloned().collect::<Vec<_>>()
        };
        let conditions = study.condition.iter().map(|condition| (&condition.name, of(&condition.name)));
        let judged: Vec<(&Name, Verdict)> = conditions
            .filter(|(_, loads)| !loads.is_empty())
            .map(|(name, loads)| (name, self.judge(&loads)))
            .collect();
        if judged.is_empty() {
            return self.judge(loads);
        }
        let found: Vec<String> =
            judged.iter().map(|(name, verdict)| format!("{name}: {}", verdict.found)).collect();
        Verdict {
            limit: self.text.clone(),
            held: judged.iter().all(|(_, verdict)| verdict.held),
            found: found.join("; "),
        }
    }

    /// Judges the loads of a study, each over its repeats: it holds if one of them that it is about reaches the figure
    /// within the latency, both by the median of its repeats. A load of which a repeat lost workers or had errors
    /// holds nothing.
    pub fn judge(&self, loads: &[Vec<Candidate>]) -> Verdict {
        let about = |one: &Candidate| self.is_about(&one.names, &one.profile);
        let mine: Vec<&Vec<Candidate>> =
            loads.iter().filter(|load| load.first().is_some_and(about)).collect();
        let sound = |load: &&Vec<Candidate>| load.iter().all(|one| !one.failed);
        let best = mine
            .iter()
            .copied()
            .filter(sound)
            .filter(|load| self.is_within(load))
            .map(|load| (self.reached(load), load[0].names[0].as_str()))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let (held, found) = match best {
            None if mine.is_empty() => (false, "no such load was measured".to_string()),
            None => (false, self.nothing_within(&mine)),
            Some((most, label)) => {
                (most >= self.least_figure(), format!("{} ({label})", self.in_words(most)))
            }
        };
        Verdict { limit: self.text.clone(), held, found }
    }

    /// The latency that is judged of a load: the median of its repeats, microseconds; `None` if a repeat has too few I/Os
    /// for it, or the criterion has no limit.
    fn latency_of(&self, load: &[Candidate]) -> Option<f64> {
        let (name, _) = self.within.as_ref()?;
        let of = |one: &Candidate| match name.as_str() {
            "mean" => one.latency_us.mean,
            _ => one.latency_us.percentile(name),
        };
        median(&load.iter().map(of).collect::<Option<Vec<f64>>>()?)
    }

    /// Whether a load keeps the limit of latency; true if there is none.
    fn is_within(&self, load: &[Candidate]) -> bool {
        let Some((_, limit)) = &self.within else { return true };
        self.latency_of(load).is_some_and(|value| value <= *limit)
    }

    /// What a load was offered of what is judged, I/Os or bytes a second; as if each node and worker were offered as much as
    /// any other. Without a rate, 0.
    fn offered(&self, load: &[Candidate]) -> f64 {
        let Some(one) = load.first() else { return 0.0 };
        let iops = one.offered.unwrap_or(0.0);
        let share = match self.scope {
            Scope::Fleet => 1.0,
            Scope::EachNode => one.nodes.max(1) as f64,
            Scope::EachWorker => one.workers.max(1) as f64,
        };
        let of = match self.least {
            Rate::Iops(_) => iops,
            Rate::BytesPerSecond(_) => iops * one.profile.block_size.0 as f64,
        };
        of / share
    }

    /// What a load reached of what is judged, I/Os or bytes a second: the median of its repeats.
    fn reached(&self, load: &[Candidate]) -> f64 {
        let each = |one: &Candidate| {
            let (iops, bytes) = match self.scope {
                Scope::Fleet => one.fleet,
                Scope::EachNode => one.least_node,
                Scope::EachWorker => one.least_worker,
            };
            match self.least {
                Rate::Iops(_) => iops,
                Rate::BytesPerSecond(_) => bytes,
            }
        };
        median(&load.iter().map(each).collect::<Vec<_>>()).unwrap_or(0.0)
    }

    /// The figure that must be reached, I/Os or bytes a second.
    fn least_figure(&self) -> f64 {
        match self.least {
            Rate::Iops(least) | Rate::BytesPerSecond(least) => least,
        }
    }

    /// A figure that was reached, with its unit and its scope.
    fn in_words(&self, reached: f64) -> String {
        let text = match self.least {
            Rate::Iops(_) => format!("{} IOPS", thousands(reached)),
            Rate::BytesPerSecond(_) => format!("{:.1} MB/s", reached / 1e6),
        };
        let of = match self.scope {
            Scope::Fleet => "",
            Scope::EachNode => " on the node that did least",
            Scope::EachWorker => " by the worker that did least",
        };
        format!("{text}{of}")
    }

    fn nothing_within(&self, mine: &[&Vec<Candidate>]) -> String {
        match &self.within {
            Some((name, limit)) if mine.iter().any(|load| load.iter().all(|one| !one.failed)) => {
                format!("no such load kept {name} under {}, with I/Os enough to tell", latency(*limit))
            }
            _ => "every such load lost workers or had errors".to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn criterion(text: &str) -> Criterion {
        text.parse().unwrap()
    }

    fn load(name: &'static str, profile: &'static str) -> (&'static str, Profile) {
        (name, profile.parse().unwrap())
    }

    fn judged(text: &str, loads: &[((&str, Profile), f64, f64)]) -> Verdict {
        let candidates: Vec<Vec<Candidate>> = loads
            .iter()
            .map(|((name, profile), node, p95)| {
                vec![Candidate {
                    names: vec![name.to_string()],
                    condition: None,
                    probe: None,
                    nodes: 2,
                    workers: 8,
                    profile: profile.clone(),
                    fleet: (node * 2.0, node * 2.0 * 8192.0),
                    least_node: (*node, node * 8192.0),
                    least_worker: (node / 4.0, node / 4.0 * 8192.0),
                    latency_us: LatencySummary { p95: Some(*p95), ..LatencySummary::default() },
                    failed: *node == 1.0,
                    offered: None,
                    carried: true,
                    generator_bound: false,
                }]
            })
            .collect();
        criterion(text).judge(&candidates)
    }

    const TEXT: &str = "each node >= 50000 IOPS of 8K 70/30 random under 3 ms at p95";

    #[test]
    fn it_holds_if_one_load_reaches_the_figure_within_the_latency() {
        let oltp = || load("oltp", "B8-T4-O8-W30-PR");
        assert!(judged(TEXT, &[(oltp(), 51_000.0, 2_900.0)]).held);
        assert!(judged(TEXT, &[(oltp(), 20_000.0, 1_000.0), (oltp(), 50_000.0, 3_000.0)]).held);
        let slow = judged(TEXT, &[(oltp(), 90_000.0, 3_100.0)]);
        assert!(!slow.held && slow.found.contains("no such load kept p95 under 3.00 ms"), "{slow:?}");
        let few = judged(TEXT, &[(oltp(), 49_000.0, 1_000.0)]);
        assert!(!few.held && few.found.starts_with("49,000 IOPS on the node that did least"), "{few:?}");
        let failed = judged(TEXT, &[(oltp(), 1.0, 1_000.0)]);
        assert!(failed.found.contains("lost workers"), "{failed:?}");
        let other = judged(TEXT, &[(load("x", "B4-T4-O8-W30-PR"), 90_000.0, 1.0)]);
        assert!(!other.held && other.found == "no such load was measured");
    }

    #[test]
    fn loads_are_named_or_described_and_figures_are_of_fleet_node_or_worker() {
        let read = || load("B512-T1-O8-W0-PS", "B512-T1-O8-W0-PS");
        for (text, held) in [
            ("fleet >= 100 IOPS of B512-T1-O8-W0-PS", true),
            ("fleet >= 100 IOPS of b512-t1-o8-w0-ps", true),
            ("fleet >= 100 IOPS of B512-T1", false),
            ("cluster >= 200IOPS of 512K sequential read", true),
            ("each worker >= 25 IOPS of read", true),
            ("each worker >= 26 IOPS of 512KiB seq", false),
            ("fleet >= 1.6MB/s of read", true),
            ("fleet >= 1.7MB/s of read", false),
            ("fleet >= 1 IOPS of random", false),
        ] {
            assert_eq!(judged(text, &[(read(), 100.0, 1.0)]).held, held, "{text}");
        }
    }
}
