//! Why a replica cannot be used where it is.

use serde::{Deserialize, Serialize};

/// Why a replica cannot be used on its device. The text in each variant describes what was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unusable {
    /// Its start found that it has lost something: this. It is emptied and copied in full where others have its data.
    Damaged(String),
    /// A device of it, or the metadata of the device, cannot be read or written: the device is to be replaced.
    Failed {
        /// The device.
        device: u32,
        /// What was found.
        why: String,
    },
    /// It is not opened for another reason, which a person has to remove.
    NotUsed(String),
}

impl Unusable {
    /// In a word or two.
    pub fn state(&self) -> &'static str {
        match self {
            Unusable::Damaged(_) => "damaged",
            Unusable::Failed { .. } => "failed",
            Unusable::NotUsed(_) => "not used",
        }
    }

    /// What was found.
    pub fn why(&self) -> &str {
        match self {
            Unusable::Damaged(why) | Unusable::Failed { why, .. } | Unusable::NotUsed(why) => why,
        }
    }
}
