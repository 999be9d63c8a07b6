//! How long a study measures, and how sure its answer is.

use loadline_base::units::{ByteSize, TimeSpan};

use crate::question::Question;

/// An effort: the figures that a study takes from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Effort {
    /// The value of the answer.
    pub(crate) value: &'static str,
    /// What a person sees.
    pub(crate) label: &'static str,
    /// What it means, whatever the question is.
    pub(crate) what: &'static str,
    /// What its figures are good for; empty if nothing limits them.
    pub(crate) caution: &'static str,
    /// A warm-up until the load is steady: its limit and its rounds.
    pub(crate) steady: Option<(TimeSpan, TimeSpan)>,
    /// The warm-up of each step.
    pub(crate) warm_up: TimeSpan,
    /// The window of each step.
    pub(crate) measure: TimeSpan,
    /// How long the load continues after the window.
    pub(crate) cool_down: TimeSpan,
    /// How often each load is measured.
    pub(crate) repeats: u32,
    /// How often each load is measured to be compared with an earlier run: a comparison takes four repeats.
    pub(crate) compared: u32,
    /// The window with faults: its length, when the node is killed, and when it returns.
    pub(crate) fault: [TimeSpan; 3],
    /// The disk of each machine.
    pub(crate) disk: ByteSize,
    /// The log of each copy in a cluster.
    pub(crate) log: ByteSize,
}

const fn seconds<const N: usize>(of: [u64; N]) -> [TimeSpan; N] {
    let mut spans = [TimeSpan::ZERO; N];
    let mut at = 0;
    while at < N {
        spans[at] = TimeSpan::seconds(of[at]);
        at += 1;
    }
    spans
}

impl Effort {
    /// Every effort, the shortest first.
    pub(crate) const ALL: [Effort; 3] = [
        Effort {
            value: "quick",
            label: "Quick: some minutes",
            what: "Windows of 5 s (30 s with a fault). Each load is measured once, or four times for a comparison with an earlier run: enough to see that the study works, and too short for figures to be believed.",
            caution: " That is enough to see that the study works, and too short for figures to be believed.",
            steady: None,
            warm_up: TimeSpan::seconds(1),
            measure: TimeSpan::seconds(5),
            cool_down: TimeSpan::ZERO,
            repeats: 1,
            compared: 4,
            fault: seconds([30, 8, 16]),
            disk: ByteSize(64 << 20),
            log: ByteSize(32 << 20),
        },
        Effort {
            value: "normal",
            label: "Normal: up to an hour or two",
            what: "Windows of 30 s (two minutes with a fault). Each load is measured three times, or six times for a comparison with an earlier run.",
            caution: "",
            steady: None,
            warm_up: TimeSpan::seconds(10),
            measure: TimeSpan::seconds(30),
            cool_down: TimeSpan::seconds(1),
            repeats: 3,
            compared: 6,
            fault: seconds([120, 30, 70]),
            disk: ByteSize(1 << 30),
            log: ByteSize(256 << 20),
        },
        Effort {
            value: "thorough",
            label: "Thorough: many hours",
            what: "Windows of a minute (five with a fault) on a steady load. Each load is measured six times, or ten times for a comparison with an earlier run: medians have a confidence interval.",
            caution: " Medians have a confidence interval.",
            steady: Some((TimeSpan::seconds(1800), TimeSpan::seconds(180))),
            warm_up: TimeSpan::seconds(30),
            measure: TimeSpan::seconds(60),
            cool_down: TimeSpan::seconds(1),
            repeats: 6,
            compared: 10,
            fault: seconds([300, 60, 180]),
            disk: ByteSize(10 << 30),
            log: ByteSize(256 << 20),
        },
    ];

    /// How often the study of a question measures each load.
    pub(crate) fn repeats_of(&self, question: Question) -> u32 {
        if question == Question::Slower { self.compared } else { self.repeats }
    }

    /// What it means for the study of a question, in sentences.
    pub(crate) fn described(&self, question: Question) -> String {
        let times = match self.repeats_of(question) {
            1 => "once".to_owned(),
            count => format!("{count} times"),
        };
        format!("Each load is measured {times}.{}", self.caution)
    }

    /// The effort of this value; `None` of an unknown one.
    pub(crate) fn of(value: &str) -> Option<Effort> {
        Effort::ALL.into_iter().find(|effort| effort.value == value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_effort_means_is_said_with_the_repeats_of_the_question() {
        let quick = Effort::of("quick").expect("it is one");
        assert!(quick.described(Question::Capacity).starts_with("Each load is measured once. "));
        assert!(quick.described(Question::Slower).starts_with("Each load is measured 4 times. "));
        assert!(quick.what.contains("measured once, or four times for a comparison"));
        assert_eq!(Effort::ALL.map(|effort| effort.compared), [4, 6, 10], "as the texts of all three say");
        assert_eq!(Effort::ALL.map(|effort| effort.repeats), [1, 3, 6]);
    }
}
