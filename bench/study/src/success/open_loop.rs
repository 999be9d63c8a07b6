//! Criteria that are met in a closed loop only. In a closed loop a slow I/O delays the next one, so that less is offered
//! just when the storage is slow, and its latency looks better than what clients with a rate of their own would see.

use loadline_base::figures::{latency, thousands};

use super::Candidate;
use crate::criterion::Criterion;
use crate::file::Study;

/// A load that was offered more than so many times what a criterion asks for says nothing about it: more may be too much.
const AT_MOST: f64 = 1.05;

impl Criterion {
    /// Of a criterion that is met: which load with a rate misses it, in words. `None` if a load with a rate meets it, or no
    /// load with a rate shows that it is missed.
    ///
    /// A load with a rate shows it if it was offered no more than the criterion asks for ([`AT_MOST`]), and exceeds the limit of
    /// latency or does not carry what is offered. One that was only offered less shows nothing; nor does one that failed, or
    /// one whose generator was the bottleneck. As for the criterion, a load of a search counts if it was measured as often
    /// as the study repeats, and each condition of a study is judged by itself.
    pub(super) fn open_loop_missed(&self, study: &Study, loads: &[Vec<Candidate>]) -> Option<String> {
        let mut conditions: Vec<_> = study.condition.iter().map(|one| Some(&one.name)).collect();
        if conditions.is_empty() {
            conditions.push(None);
        }
        conditions.into_iter().find_map(|name| {
            let here = |load: &&Vec<Candidate>| {
                load.first().is_some_and(|one| {
                    self.is_about(&one.names, &one.profile)
                        && one.offered.is_some()
                        && name.is_none_or(|name| one.condition.as_ref() == Some(name))
                })
            };
            let open: Vec<&Vec<Candidate>> = loads.iter().filter(here).collect();
            let missed = self.missed(&open)?;
            Some(name.map_or(missed.clone(), |name| format!("{name}: {missed}")))
        })
    }

    /// The load that was offered least of those that miss the criterion, in words; `None` if one of them meets it.
    fn missed(&self, open: &[&Vec<Candidate>]) -> Option<String> {
        let is_sound = |load: &&&Vec<Candidate>| load.iter().all(|one| !one.failed && !one.generator_bound);
        let meets = |load: &&Vec<Candidate>| {
            load.iter().all(|one| !one.failed)
                && self.is_within(load)
                && self.reached(load) >= self.least_figure()
        };
        if open.iter().any(meets) {
            return None;
        }
        let offered = |load: &Vec<Candidate>| load.first().and_then(|one| one.offered).unwrap_or(0.0);
        let exceeds = |load: &&&Vec<Candidate>| {
            let too_slow = self.within.as_ref().zip(self.latency_of(load));
            too_slow.is_some_and(|((_, limit), value)| value > *limit) || !load.iter().all(|one| one.carried)
        };
        let is_asked = |load: &&&Vec<Candidate>| self.offered(load) <= AT_MOST * self.least_figure();
        let keeps = |load: &&&Vec<Candidate>| {
            load.iter().all(|one| !one.failed && one.carried) && self.is_within(load)
        };
        // Below a load that holds, a miss is an outlier.
        let held = open.iter().filter(keeps).map(|load| offered(load)).fold(0.0, f64::max);
        let least = (open.iter().filter(is_sound).filter(is_asked).filter(exceeds))
            .filter(|load| offered(load) > held)
            .min_by(|a, b| offered(a).total_cmp(&offered(b)))?;
        let at = self
            .within
            .as_ref()
            .zip(self.latency_of(least))
            .map_or(String::new(), |((name, _), value)| format!(" at {name} {}", latency(value)));
        Some(format!(
            "of {} IOPS offered ({}), {} were reached{at}",
            thousands(offered(least)),
            least[0].names[0],
            self.in_words(self.reached(least))
        ))
    }
}

#[cfg(test)]
mod tests {
    use loadline_measure::summary::LatencySummary;

    use super::*;

    const CRITERION: &str = "fleet >= 50000 IOPS of 8K 70/30 random under 3 ms at p95";

    /// A load of `iops`, of which `offered` were offered, at this p95 (microseconds).
    fn load(offered: Option<f64>, iops: f64, p95: f64) -> Vec<Candidate> {
        vec![Candidate {
            names: vec!["oltp".into()],
            condition: None,
            probe: None,
            nodes: 1,
            workers: 1,
            profile: "B8-T4-O8-W30-PR".parse().unwrap(),
            fleet: (iops, iops * 8192.0),
            least_node: (iops, iops * 8192.0),
            least_worker: (iops, iops * 8192.0),
            latency_us: LatencySummary { p95: Some(p95), ..LatencySummary::default() },
            failed: false,
            offered,
            carried: offered.is_none_or(|offered| iops > 0.99 * offered),
            generator_bound: false,
        }]
    }

    fn missed(loads: &[Vec<Candidate>]) -> Option<String> {
        let text = "name = \"s\"\nprofiles = [\"B8-T4-O8-W30-PR\"]\n[fleet]\ndisk_size = \"4MiB\"\n";
        let study = crate::read::parse("s.toml", text).unwrap();
        CRITERION.parse::<Criterion>().unwrap().open_loop_missed(&study, loads)
    }

    #[test]
    fn a_rate_that_exceeds_the_limit_says_that_a_closed_loop_alone_meets_it() {
        let closed = load(None, 80e3, 2_000.0);
        let slow = load(Some(51e3), 51e3, 7_100.0);
        assert_eq!(
            missed(&[closed.clone(), load(Some(300e3), 76e3, 2.9e6)]),
            None,
            "much more than is asked for"
        );
        let says = missed(&[closed.clone(), slow, load(Some(60e3), 60e3, 9_000.0)]).unwrap();
        assert_eq!(says, "of 51,000 IOPS offered (oltp), 51,000 IOPS were reached at p95 7.10 ms");
        let not_carried = missed(&[closed, load(Some(45e3), 40e3, 2_000.0)]).unwrap();
        assert!(not_carried.starts_with("of 45,000 IOPS offered (oltp), 40,000 IOPS were reached"));
        // One that was slow below what holds is an outlier: the least one beyond it is reported.
        let (outlier, holds) = (load(Some(7e3), 7e3, 9_000.0), load(Some(40e3), 40e3, 2_000.0));
        let says =
            missed(&[load(None, 80e3, 2_000.0), outlier, holds, load(Some(45e3), 45e3, 9_000.0)]).unwrap();
        assert!(says.starts_with("of 45,000 IOPS offered"), "{says}");
    }

    #[test]
    fn a_rate_that_meets_it_or_that_was_only_low_says_nothing() {
        let closed = load(None, 80e3, 2_000.0);
        let meets = load(Some(50e3), 50e3, 2_900.0);
        let slow = load(Some(70e3), 70e3, 9_000.0);
        assert_eq!(
            missed(&[closed.clone(), meets, slow.clone()]),
            None,
            "more than is asked for may be slow"
        );
        assert_eq!(missed(&[closed.clone(), load(Some(500.0), 500.0, 100.0)]), None);
        let mut bound = slow.clone();
        bound[0].generator_bound = true;
        assert_eq!(missed(&[closed.clone(), bound]), None, "the generator was too slow, not the storage");
        let mut failed = slow;
        failed[0].failed = true;
        assert_eq!(missed(&[closed, failed]), None);
    }
}
