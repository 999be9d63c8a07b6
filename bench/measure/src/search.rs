//! The search for the most load that keeps a limit: which load to measure next, given what was measured. Pure, so that
//! a study which is resumed goes on where it was, and a simulation can try the search a thousand times.

use std::collections::BTreeMap;

/// A search that needs more measurements than this, beside the repeats of its two ends, does not converge.
const MOST_PROBES: usize = 40;
/// Loads beyond so many times the expected most are not offered: whatever holds them is no storage.
const FARTHEST: f64 = 16.0;
/// Loads under this share of the expected most are not tried either: then nothing holds.
const LOWEST: f64 = 1.0 / 4096.0;
/// Until a load was missed, it is expected to be by this much more than the expected most.
const EXPECTED_MISS: f64 = 1.1;

/// What is searched through.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// Any load above zero, such as a rate.
    Real {
        /// About the most that can be carried, such as what a closed loop reached.
        most: f64,
        /// The bracket's upper end is at most this share above its lower one, such as 0.05.
        width: f64,
        /// Loads below this are not tried: they say too little.
        least: f64,
    },
    /// Whole numbers from 1 on, such as workers: the bracket is two neighbours.
    Whole {
        /// The most that there can be.
        most: u32,
    },
}

/// One measurement: a load, and whether the limit was held.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probe {
    /// The load.
    pub load: f64,
    /// Whether the limit was held.
    pub held: bool,
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Next {
    /// Measure this load.
    Measure(f64),
    /// The search is over.
    Done(SearchOutcome),
}

/// The outcome of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SearchOutcome {
    /// `held` holds the limit in most of its measurements, and `missed` misses it in most of its own.
    Bracket {
        /// The most load that holds.
        held: f64,
        /// The least load above it that misses.
        missed: f64,
    },
    /// Even this load, the lowest that was tried, misses.
    Nothing {
        /// That load.
        missed: f64,
    },
    /// Even the largest load that there can be holds.
    Everything {
        /// That load.
        held: f64,
    },
    /// The measurements contradict each other: so many did not come to a bracket.
    Undecided,
}

/// A search over one scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Search {
    /// What is searched through.
    pub scale: Scale,
    /// How often each end of the bracket is measured; most of them decide.
    pub repeats: u32,
}

/// How often a load was measured, and how often it held.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    held: u32,
    missed: u32,
}

impl Tally {
    fn count(self) -> u32 {
        self.held + self.missed
    }

    /// Whether it holds: what most measurements say; `None` if they are divided.
    fn verdict(self) -> Option<bool> {
        (self.held != self.missed).then_some(self.held > self.missed)
    }
}

/// A load as a key of a map in its order: loads are positive and finite, so their bits order as they do.
fn key(load: f64) -> u64 {
    load.to_bits()
}

/// What was measured, by load.
struct Tallies(BTreeMap<u64, Tally>);

impl Tallies {
    fn of(probes: &[Probe]) -> Tallies {
        let mut tallies: BTreeMap<u64, Tally> = BTreeMap::new();
        for probe in probes {
            assert!(probe.load > 0.0 && probe.load.is_finite(), "a load is above zero");
            let tally = tallies.entry(key(probe.load)).or_default();
            if probe.held { tally.held += 1 } else { tally.missed += 1 }
        }
        Tallies(tallies)
    }

    fn at(&self, load: f64) -> Tally {
        self.0.get(&key(load)).copied().unwrap_or_default()
    }

    fn with(&self, verdict: bool) -> impl DoubleEndedIterator<Item = f64> + '_ {
        self.0
            .iter()
            .filter(move |(_, t)| t.verdict() == Some(verdict))
            .map(|(load, _)| f64::from_bits(*load))
    }

    /// The least load that misses, and the most below it that holds.
    fn ends(&self) -> (Option<f64>, Option<f64>) {
        let missed = self.with(false).next();
        let held = self.with(true).rfind(|load| missed.is_none_or(|missed| *load < missed));
        (held, missed)
    }

    /// A load that misses, although a higher one holds, or about which its measurements are divided: it is measured
    /// again before anything is built on it.
    fn doubtful(&self, limit: u32) -> Option<f64> {
        let highest = self.with(true).next_back();
        let (_, missed) = self.ends();
        let contradicted = missed.filter(|missed| highest.is_some_and(|highest| highest > *missed));
        contradicted.filter(|load| self.at(*load).count() < limit)
    }
}

impl Search {
    /// What to do after these measurements, which this search requested.
    pub fn next(&self, probes: &[Probe]) -> Next {
        let tallies = Tallies::of(probes);
        let repeats = self.repeats.max(1);
        if probes.len() >= MOST_PROBES + 2 * repeats as usize {
            return Next::Done(SearchOutcome::Undecided);
        }
        if let Some(load) = tallies.doubtful(repeats.max(3)) {
            return Next::Measure(load);
        }
        let step = match self.scale {
            Scale::Real { most, width, least } => real(most, width, least, &tallies),
            Scale::Whole { most } => whole(f64::from(most.max(1)), &tallies),
        };
        let (step, found) = match step {
            Step::Measure(load) => return Next::Measure(load),
            Step::Confirm(found) => (found.loads(), found),
        };
        // The ends are measured in turn, each as often as is asked for, and once more while its measurements are
        // divided. One that most of them do not bear out changes what was known, and the search goes on.
        let lacking = |load: &f64| {
            let tally = tallies.at(*load);
            tally.count() < repeats || tally.verdict().is_none()
        };
        let next = step.into_iter().filter(lacking).min_by_key(|load| tallies.at(*load).count());
        match next {
            Some(load) => Next::Measure(load),
            None if found.is_borne_out(&tallies) => Next::Done(found),
            None => Next::Done(SearchOutcome::Undecided),
        }
    }
}

impl SearchOutcome {
    /// Whether most measurements of its ends say what it says.
    fn is_borne_out(self, tallies: &Tallies) -> bool {
        let (held, missed) = match self {
            SearchOutcome::Bracket { held, missed } => (Some(held), Some(missed)),
            SearchOutcome::Nothing { missed } => (None, Some(missed)),
            SearchOutcome::Everything { held } => (Some(held), None),
            SearchOutcome::Undecided => (None, None),
        };
        held.is_none_or(|load| tallies.at(load).verdict() == Some(true))
            && missed.is_none_or(|load| tallies.at(load).verdict() == Some(false))
    }

    /// The loads on whose measurements it rests.
    fn loads(self) -> Vec<f64> {
        match self {
            SearchOutcome::Bracket { held, missed } => vec![held, missed],
            SearchOutcome::Nothing { missed } => vec![missed],
            SearchOutcome::Everything { held } => vec![held],
            SearchOutcome::Undecided => Vec::new(),
        }
    }
}

enum Step {
    Measure(f64),
    /// The search comes to this, if the ends bear it out.
    Confirm(SearchOutcome),
}

/// Bisects, by ratio, to half the width; then the ends lie a quarter of the width outside of that, so that neither is
/// so near to the border that chance decides about it.
fn real(most: f64, width: f64, least: f64, tallies: &Tallies) -> Step {
    let (held, missed) = tallies.ends();
    let (lowest, farthest) = ((most * LOWEST).max(least), most * FARTHEST);
    let (held, missed) = match (held, missed) {
        (None, None) => return Step::Measure((most / 2.0).max(lowest)),
        (None, Some(missed)) if missed <= lowest => return Step::Confirm(SearchOutcome::Nothing { missed }),
        (None, Some(missed)) => return Step::Measure((missed / 4.0).max(lowest)),
        (Some(held), None) if held >= farthest => return Step::Confirm(SearchOutcome::Everything { held }),
        (Some(held), None) => {
            let expected = most * EXPECTED_MISS;
            // What should have been too much was not: from here on by a quarter at a time.
            if held * (1.0 + width) > expected {
                return Step::Measure(held * 1.25);
            }
            (held, expected)
        }
        (Some(held), Some(missed)) => (held, missed),
    };
    let middle = (held * missed).sqrt();
    if missed / held > 1.0 + width / 2.0 {
        return Step::Measure(middle);
    }
    let half = (1.0 + width).sqrt();
    // Where a load further out holds, and a lower one misses however often it is measured, the lower one is the end:
    // what is stated is what was seen.
    let upper = match tallies.at(middle * half).verdict() {
        Some(true) => missed,
        _ => middle * half,
    };
    Step::Confirm(SearchOutcome::Bracket { held: middle / half, missed: upper })
}

/// Bisects whole numbers; the ends are neighbours.
fn whole(most: f64, tallies: &Tallies) -> Step {
    let (held, missed) = match tallies.ends() {
        (None, None) => return Step::Measure((most / 2.0).ceil()),
        (None, Some(missed)) if missed <= 1.0 => return Step::Confirm(SearchOutcome::Nothing { missed }),
        (held, missed) => (held.unwrap_or(0.0), missed),
    };
    let missed = match missed {
        None if held >= most => return Step::Confirm(SearchOutcome::Everything { held }),
        None => most + 1.0,
        Some(missed) => missed,
    };
    if missed - held > 1.0 {
        return Step::Measure(((held + missed) / 2.0).floor().clamp(1.0, most));
    }
    Step::Confirm(SearchOutcome::Bracket { held, missed })
}
