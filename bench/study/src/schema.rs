//! JSON Schemas of what is written and read: an editor completes a study with them, a program reads a run.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, generate::SchemaGenerator};
use serde_json::Value;

use crate::file::Study;
use crate::folder::manifest::Manifest;
use crate::folder::result::StepResult;

/// The schema of a study file.
pub fn study() -> Value {
    of::<Study>()
}

/// The schema of a run folder's `run.json`.
pub fn run() -> Value {
    of::<Manifest>()
}

/// The schema of a step's `result.json`.
pub fn step() -> Value {
    of::<StepResult>()
}

/// The schema of a type of this project.
pub fn of<T: JsonSchema>() -> Value {
    SchemaGenerator::new(SchemaSettings::draft07()).into_root_schema_for::<T>().to_value()
}
