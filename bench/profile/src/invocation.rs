//! What a DISKSPD line or a fio job says beyond the profile: on what, for how long.

use std::fmt;

use loadline_base::units::{ByteSize, TimeSpan};

use crate::Profile;

/// A profile, and everything else that another tool's notation says with it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Invocation {
    /// The load on each target.
    pub profile: Profile,
    /// What the job is called, if its notation has names.
    pub name: Option<String>,
    /// Files or devices, as written. May be empty where the load alone was given.
    pub targets: Vec<String>,
    /// How long the load runs before it is measured. `None`: not said.
    pub warm_up: Option<TimeSpan>,
    /// How long it is measured. `None`: not said, or until a stated amount is done.
    pub measure: Option<TimeSpan>,
    /// How long it goes on after it was measured. `None`: not said.
    pub cool_down: Option<TimeSpan>,
    /// Size in bytes with which each target is created, if it is a file that may have to be.
    pub create_size: Option<ByteSize>,
    /// Seed of the random numbers. `None`: not said.
    pub seed: Option<u64>,
    /// One sentence on each thing that was read and means something else, or nothing, to Loadline.
    pub notes: Vec<String>,
}

impl Invocation {
    /// An invocation that says nothing but the load.
    pub fn of(profile: Profile) -> Invocation {
        Invocation { profile, ..Invocation::default() }
    }

    /// Threads on all targets together; one target is assumed where none is named.
    pub(crate) fn total_threads(&self) -> f64 {
        f64::from(self.profile.threads) * self.targets.len().max(1) as f64
    }
}

/// A profile in another tool's notation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Printed {
    /// What the other tool reads.
    pub text: String,
    /// One sentence on each thing that the text cannot say, or that the other tool understands differently.
    pub notes: Vec<String>,
}

impl fmt::Display for Printed {
    /// The text, and below it the notes as comments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.trim_end())?;
        self.notes.iter().try_for_each(|note| write!(f, "\n# {note}"))
    }
}
