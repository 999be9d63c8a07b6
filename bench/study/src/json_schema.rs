//! A type's JSON Schema, and the published one of a study file, which the program carries.

use loadline_packed::unpack;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, generate::SchemaGenerator};
use serde_json::Value;

/// A schema as it is printed and published.
pub fn text(schema: &Value) -> String {
    format!("{schema:#}\n")
}

/// The schema of a type of this project.
pub fn of<T: JsonSchema>() -> Value {
    SchemaGenerator::new(SchemaSettings::draft07()).into_root_schema_for::<T>().to_value()
}

/// The published schema of a study file, as text.
pub fn published_study() -> String {
    unpack(include_bytes!(concat!(env!("OUT_DIR"), "/study.schema.json")))
}
