//! What is wrong with an answer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::field::Field;

/// An answer that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AnswerFault")]
pub struct Fault {
    /// The answer to change.
    pub field: Field,
    /// Whether there is no answer, and no default.
    pub missing: bool,
    /// What is wrong and what can be answered instead, without the name of the field.
    pub message: String,
}

impl Fault {
    pub(crate) fn wrong(field: Field, message: impl Into<String>) -> Fault {
        Fault { field, missing: false, message: message.into() }
    }

    pub(crate) fn missing(field: Field, message: impl Into<String>) -> Fault {
        Fault { field, missing: true, message: message.into() }
    }
}
