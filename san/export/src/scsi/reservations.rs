//! Persistent reservations: the state that the configuration keeps.

use serde::{Deserialize, Serialize};

/// All registrations of a volume, and its reservation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reservations {
    /// PRGENERATION: how many changes there were.
    #[serde(default)]
    pub generation: u32,
}
