//! A type's JSON Schema, and the published one of a study file, which the program carries.

use loadline_packed::unpack;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, generate::SchemaGenerator};
use serde_json::{Value, json};

use crate::folder::sealed::KEY as SEAL_KEY;

/// A schema as it is printed and published.
pub fn text(schema: &Value) -> String {
    format!("{schema:#}\n")
}

/// The schema of a file that [`crate::folder::sealed`] writes: that of the type, with the checksum of what is before it.
pub fn of_sealed<T: JsonSchema>() -> Value {
    let mut schema = of::<T>();
    schema["properties"][SEAL_KEY] = json!({
        "description": "The CRC-32C of the file up to the comma before this key, as eight hexadecimal digits. It is the last key.",
        "type": "string",
        "pattern": "^[0-9a-f]{8}$"
    });
    if let Some(required) = schema["required"].as_array_mut() {
        required.push(SEAL_KEY.into());
    }
    schema
}

/// The schema of a type of this project.
pub fn of<T: JsonSchema>() -> Value {
    SchemaGenerator::new(SchemaSettings::draft07()).into_root_schema_for::<T>().to_value()
}

/// The published schema of a study file, as text.
pub fn published_study() -> String {
    unpack(include_bytes!(concat!(env!("OUT_DIR"), "/study.schema.json")))
}
