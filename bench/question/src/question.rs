//! The four questions.

/// A question in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Described {
    /// The question, in words.
    pub(crate) words: &'static str,
    /// How the study answers it.
    pub(crate) how: &'static str,
}

/// A question about storage that one study answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// How many machines of a kind the storage carries within a latency limit.
    Capacity,
    /// What machines notice when a node of the storage dies and returns.
    NodeDown,
    /// Whether the storage became slower since an earlier run.
    Slower,
    /// Whether a cluster does what it is bought for, with all nodes and without one.
    Accept,
}

impl Question {
    /// Every question, in the order in which a person sees them.
    pub const ALL: [Question; 4] =
        [Question::Capacity, Question::NodeDown, Question::Slower, Question::Accept];

    /// The value of the answer: `capacity`, `node-down`, `slower` or `accept`.
    pub fn value(self) -> &'static str {
        match self {
            Question::Capacity => "capacity",
            Question::NodeDown => "node-down",
            Question::Slower => "slower",
            Question::Accept => "accept",
        }
    }

    /// The question of this value; `None` of an unknown one.
    pub(crate) fn of(value: &str) -> Option<Question> {
        Question::ALL.into_iter().find(|question| question.value() == value)
    }

    /// The question and how it is answered, in words.
    pub(crate) fn described(self) -> Described {
        let (words, how) = match self {
            Question::Capacity => {
                ("How many machines of this kind?", "Adds machines until the latency limit is missed.")
            }
            Question::NodeDown => {
                ("What if a node dies?", "Kills a node under load and brings it back. Checks every block.")
            }
            Question::Slower => {
                ("Did it get slower?", "Measures a fixed load and compares it with an earlier run.")
            }
            Question::Accept => (
                "Do I accept this cluster?",
                "Searches the most IOPS within the limit, measures again with a node down and after its return, and checks every block.",
            ),
        };
        Described { words, how }
    }
}
