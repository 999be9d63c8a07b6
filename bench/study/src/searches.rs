//! Searches: which step comes next, given what was measured, and what a search found. Pure, so that a run that is
//! resumed goes on where it was.

use loadline_base::figures::counted;
use loadline_base::units::Rate;
use loadline_measure::audit::is_carried;
use loadline_measure::search::{Next, Probe, Scale, Search, SearchOutcome};
use loadline_measure::stats::median;
use loadline_measure::window::Figures;
use loadline_profile::{Arrival, OfferedRate};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::StudyError;
use crate::file::Study;
use crate::fleet::ResolvedFleet;
use crate::folder::result::StepResult;
use crate::goals::{LoadLineBy, Percentile};
use crate::planned_step::{Purpose, Step};
use crate::point::Point;
use crate::points::searched;

/// A search needs no more measurements than this beside the repeats of its two ends.
const MOST_PROBES: usize = 40;

/// What a search varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SearchOver {
    /// I/Os a second that the fleet offers.
    Rate,
    /// I/Os outstanding of each thread.
    Outstanding,
    /// Workers on each node.
    WorkersPerNode,
}

/// A search that a study asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchPlan {
    /// Its number among the study's searches, from 1.
    pub number: u32,
    /// The load that is varied, as it is written.
    pub point: Point,
    /// What is varied.
    pub over: SearchOver,
    /// The percentile that is judged.
    pub percentile: Percentile,
    /// What it must not exceed, microseconds.
    pub limit_us: f64,
    /// The bracket's width, of a search over rates.
    pub width: f64,
    /// How often each end of the bracket is measured.
    pub repeats: u32,
    /// Workers of the fleet, and nodes.
    fleet: (u32, u32),
    /// Length of the window, seconds.
    window_s: f64,
}

/// What a search needs to know of a complete step.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredStep {
    step: Step,
    figures: Figures,
    lost: bool,
    offered: Option<f64>,
    poisson: bool,
}

impl MeasuredStep {
    /// What is needed of a result.
    pub fn of(result: &StepResult) -> MeasuredStep {
        let profile = &result.step.profile;
        let workers = result.workers.len() as f64;
        MeasuredStep {
            step: result.step.clone(),
            figures: result.figures.clone(),
            lost: result.lost() > 0,
            offered: profile.rate.map(|offered| offered.rate.iops(profile.block_size) * workers),
            poisson: profile.rate.is_some_and(|offered| offered.arrival == Arrival::Poisson),
        }
    }

    /// Whether there are too few I/Os for the percentile.
    fn is_shallow(&self, percentile: Percentile) -> bool {
        self.figures.total.latency_us.percentile(&percentile.name()).is_none()
    }

    /// Whether the limit was held: the percentile is within it, nothing failed, and what was offered was carried. With
    /// too few I/Os for the percentile, all of them must have been within it.
    fn held(&self, percentile: Percentile, limit_us: f64) -> bool {
        let latency = &self.figures.total.latency_us;
        let value = latency.percentile(&percentile.name()).or(latency.max);
        let window_s = self.figures.window_s;
        let completed = self.figures.total.iops * window_s;
        let carried =
            self.offered.is_none_or(|offered| is_carried(completed, offered * window_s, self.poisson));
        !self.lost && self.figures.errors == 0 && carried && value.is_some_and(|value| value <= limit_us)
    }
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchResult {
    /// The load that was varied.
    pub label: String,
    /// What was varied.
    pub over: SearchOver,
    /// The percentile that was judged, by name.
    pub percentile: String,
    /// Its limit, microseconds.
    pub limit_us: f64,
    /// Whether the search has ended.
    pub done: bool,
    /// The most load that holds, in what was varied; `null` if nothing holds, or the search has not ended.
    pub held: Option<f64>,
    /// The least load above it that misses; `null` if everything holds, or the search has not ended.
    pub missed: Option<f64>,
    /// The load line: I/Os a second that the fleet carried at `held`, the median of its measurements.
    pub iops: Option<f64>,
    /// The percentile at `held`, the median of its measurements, microseconds.
    pub latency_us: Option<f64>,
    /// How many steps it took.
    pub steps: usize,
    /// The result, in words.
    pub found: String,
}

impl SearchResult {
    /// Whether the search is decided: "nothing holds" and "everything holds" are decisions too.
    pub fn is_decided(&self) -> bool {
        self.held.is_some() || self.missed.is_some()
    }
}

/// The searches of a study, in their order.
pub(crate) fn plan(study: &Study, resolved: &ResolvedFleet) -> Result<Vec<SearchPlan>, StudyError> {
    let fleet = (resolved.workers, resolved.node_count().max(1));
    let window_s = study.phases.measure.0.as_secs_f64();
    let mut searches = Vec::new();
    let mut add = |point: Point, over, percentile, limit: loadline_base::units::TimeSpan, width| {
        let number = searches.len() as u32 + 1;
        let (limit_us, repeats) = (limit.0.as_nanos() as f64 / 1e3, study.run.repeats);
        searches.push(SearchPlan {
            number,
            point,
            over,
            percentile,
            limit_us,
            width,
            repeats,
            fleet,
            window_s,
        });
    };
    let usage = |message: String| Err(StudyError::usage(message));
    let limits = [study.load_line.map(|goal| goal.limit), study.capacity.map(|goal| goal.limit)];
    if limits.into_iter().flatten().any(|limit| limit.0.is_zero()) {
        return usage("load_line, capacity: nothing completes within a limit of 0: give a longer one".into());
    }
    if let Some(goal) = &study.load_line {
        for point in searched(study, resolved)? {
            let over = match goal.by {
                LoadLineBy::Rate => SearchOver::Rate,
                LoadLineBy::Outstanding => SearchOver::Outstanding,
            };
            if point.profile.rate.is_some() {
                return usage(format!(
                    "load_line: profile {} has a rate, and the search varies it: leave the rate out",
                    point.label
                ));
            }
            if !(0.01..=0.5).contains(&goal.width()) {
                return usage("load_line: a width below 1 % is noise, and one above 50 % no answer".into());
            }
            add(point, over, goal.percentile, goal.limit, goal.width());
        }
    }
    if let Some(goal) = &study.capacity {
        if resolved.nodes.is_empty() {
            return usage(
                "capacity counts workers on each node, and workers that join are on nodes of their own: name nodes and \
                 workers_per_node"
                    .into(),
            );
        }
        for point in searched(study, resolved)? {
            if point.workers.is_some() {
                return usage(format!(
                    "capacity varies the workers, and so does {}: leave one out",
                    point.label
                ));
            }
            add(point, SearchOver::WorkersPerNode, goal.percentile, goal.limit, 0.0);
        }
    }
    Ok(searches)
}

impl SearchPlan {
    /// The most steps that it can need.
    pub fn most_steps(&self) -> usize {
        MOST_PROBES + 2 * self.repeats as usize
    }

    /// What is searched, in words.
    pub fn words(&self) -> String {
        let over = match self.over {
            SearchOver::Rate => "the most IOPS (a rate)",
            SearchOver::Outstanding => "the most I/Os outstanding of each thread",
            SearchOver::WorkersPerNode => "the most workers on each node",
        };
        let limit = loadline_base::figures::latency(self.limit_us);
        format!("{over} of {} with {} <= {limit}", self.point.label, self.percentile.name())
    }

    /// The rate at which a window has I/Os enough for the percentile, and a tenth more, since they come at random.
    fn least_rate(&self) -> f64 {
        1.1 * self.percentile.samples() / self.window_s
    }

    fn search(&self, measured: &[MeasuredStep]) -> Option<Search> {
        let scale = match self.over {
            SearchOver::Rate => {
                let closed: Vec<f64> = measured
                    .iter()
                    .filter(|m| m.step.purpose == Purpose::Load && m.step.label == self.point.label)
                    .map(|m| m.figures.total.iops)
                    .collect();
                let most = median(&closed).filter(|most| *most > 0.0)?;
                Scale::Real { most, width: self.width, least: self.least_rate() }
            }
            SearchOver::Outstanding => Scale::Whole { most: self.point.profile.outstanding },
            SearchOver::WorkersPerNode => Scale::Whole { most: self.fleet.0 / self.fleet.1 },
        };
        Some(Search { scale, repeats: self.repeats })
    }

    fn mine<'a>(&self, measured: &'a [MeasuredStep]) -> impl Iterator<Item = (f64, &'a MeasuredStep)> {
        let number = self.number;
        measured.iter().filter_map(move |m| match m.step.purpose {
            Purpose::Search { search, load } if search == number => Some((load, m)),
            _ => None,
        })
    }

    fn state(&self, measured: &[MeasuredStep]) -> Option<Next> {
        let held = |m: &MeasuredStep| m.held(self.percentile, self.limit_us);
        let probes: Vec<Probe> = self.mine(measured).map(|(load, m)| Probe { load, held: held(m) }).collect();
        Some(self.search(measured)?.next(&probes))
    }

    /// The step that it needs next, `number` being the run's next; `None` if it has ended, or cannot begin.
    pub(crate) fn next(&self, measured: &[MeasuredStep], number: u32) -> Option<Step> {
        let Some(Next::Measure(load)) = self.state(measured) else { return None };
        let repeat = self.mine(measured).filter(|(known, _)| *known == load).count() as u32 + 1;
        let mut point = self.point.clone();
        let workers = point.workers.unwrap_or(self.fleet.0);
        match self.over {
            SearchOver::Rate => {
                point.profile.rate = Some(OfferedRate {
                    rate: Rate::Iops(load / f64::from(workers.max(1))),
                    arrival: Arrival::Poisson,
                });
                point.label = format!("{}-at-{load:.0}iops", point.label);
            }
            SearchOver::Outstanding => {
                point.profile.outstanding = load as u32;
                point.label = format!("{}-at-O{load:.0}", point.label);
            }
            SearchOver::WorkersPerNode => {
                point.workers = Some((load as u32).saturating_mul(self.fleet.1));
                point.label = format!("{}-at-{load:.0}pernode", point.label);
            }
        }
        Some(Step::of(&point, number, repeat, Purpose::Search { search: self.number, load }))
    }

    /// The result, given all steps that were measured.
    pub fn result(&self, measured: &[MeasuredStep]) -> SearchResult {
        let state = self.state(measured);
        let found = match state {
            Some(Next::Done(found)) => Some(found),
            _ => None,
        };
        let (held, missed) = match found {
            Some(SearchOutcome::Bracket { held, missed }) => (Some(held), Some(missed)),
            Some(SearchOutcome::Nothing { missed }) => (None, Some(missed)),
            Some(SearchOutcome::Everything { held }) => (Some(held), None),
            Some(SearchOutcome::Undecided) | None => (None, None),
        };
        let at_held = |value: &dyn Fn(&MeasuredStep) -> Option<f64>| {
            let values: Option<Vec<f64>> =
                self.mine(measured).filter(|(load, _)| Some(*load) == held).map(|(_, m)| value(m)).collect();
            values.and_then(|values| median(&values))
        };
        let name = self.percentile.name();
        let mut result = SearchResult {
            label: self.point.label.clone(),
            over: self.over,
            percentile: name.clone(),
            limit_us: self.limit_us,
            done: found.is_some(),
            held,
            missed,
            iops: at_held(&|m| Some(m.figures.total.iops)),
            latency_us: at_held(&|m| m.figures.total.latency_us.percentile(&name)),
            steps: self.mine(measured).count(),
            found: String::new(),
        };
        result.found = self.sentence(&result, state, found);
        let shallow = self.mine(measured).filter(|(_, m)| m.is_shallow(self.percentile)).count();
        if shallow > 0 && self.over != SearchOver::Rate {
            result.found.push_str(&format!(
                "; {} had fewer than the {} I/Os that a {name} needs; such a measurement counts as within \
                 the limit only if all its I/Os were: measure longer",
                counted(shallow as u64, "measurement"),
                loadline_base::figures::thousands(self.percentile.samples())
            ));
        }
        result
    }

    fn sentence(&self, result: &SearchResult, state: Option<Next>, found: Option<SearchOutcome>) -> String {
        use loadline_base::figures::{latency, thousands};
        let unit = match self.over {
            SearchOver::Rate => "IOPS offered",
            SearchOver::Outstanding => "outstanding of each thread",
            SearchOver::WorkersPerNode => "workers on each node",
        };
        let limit = format!("{} <= {}", result.percentile, latency(self.limit_us));
        let carried = result.iops.map_or(String::new(), |iops| format!(": {} IOPS", thousands(iops)));
        let at = match result.latency_us {
            Some(value) => format!(", {} {}", result.percentile, latency(value)),
            None => format!(
                ", in one repeat or more too few I/Os for a {} (it needs {})",
                result.percentile,
                thousands(self.percentile.samples())
            ),
        };
        match (state, found) {
            (None, _) => {
                "it has not begun: the load as it is written was not measured, or carried nothing".into()
            }
            (Some(_), None) => format!("it has not ended: {} so far", counted(result.steps as u64, "step")),
            (_, Some(SearchOutcome::Bracket { held, missed })) => format!(
                "{limit} holds up to {} {unit}{carried}{at}; missed at {}",
                thousands(held),
                thousands(missed)
            ),
            (_, Some(SearchOutcome::Nothing { missed })) => {
                let why = match self.over {
                    SearchOver::Rate => format!(
                        ", the least that was tried: at lower rates a window of {} s has too few I/Os for a {}",
                        self.window_s, result.percentile
                    ),
                    _ => String::new(),
                };
                format!("{limit} is missed even at {} {unit}{why}", thousands(missed))
            }
            (_, Some(SearchOutcome::Everything { held })) => {
                let most = match self.over {
                    SearchOver::Rate => "the most that was tried, far beyond what a closed loop carried",
                    SearchOver::Outstanding => "the most, as the profile has it",
                    SearchOver::WorkersPerNode => "the most that there is",
                };
                format!("{limit} holds at {} {unit}, {most}{carried}{at}", thousands(held))
            }
            (_, Some(SearchOutcome::Undecided)) => {
                format!(
                    "{limit}: the measurements contradict each other, and {} did not decide",
                    result.steps
                )
            }
        }
    }
}
