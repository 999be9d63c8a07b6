//! JSON Schemas of what is written and read: an editor completes a study with them, a program reads a run.

use serde_json::Value;

use crate::file::Study;
use crate::folder::manifest::Manifest;
use crate::folder::result::StepResult;
use crate::folder::series::SecondLine;
use crate::json_schema::{of, of_sealed};

/// The schema of a study file.
pub fn study() -> Value {
    of::<Study>()
}

/// The schema of a run folder's `run.json`.
pub fn run() -> Value {
    of_sealed::<Manifest>()
}

/// The schema of a step's `result.json`.
pub fn step() -> Value {
    of_sealed::<StepResult>()
}

/// The schema of a line of a step's `seconds.jsonl`.
pub fn second() -> Value {
    of::<SecondLine>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json_schema::text;

    #[test]
    fn the_published_schema_of_a_study_is_current() {
        let file = "../../docs/reference/study.schema.json";
        assert_eq!(loadline_packed::is_current(env!("CARGO_MANIFEST_DIR"), file, &text(&study())), Ok(()));
    }

    #[test]
    fn what_is_sealed_has_no_key_that_its_schema_refuses() {
        let study = "name = \"x\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n";
        let parsed = crate::read::parse("x.toml", study).unwrap();
        let manifest = Manifest::new(parsed, study.into(), "/x".into()).unwrap();
        let result = StepResult::empty("x", &manifest.steps[0], crate::when::When::now());
        let sealed = [
            (run(), crate::folder::sealed::text(&manifest).unwrap()),
            (step(), crate::folder::sealed::text(&result).unwrap()),
        ];
        for (schema, text) in sealed {
            let file: Value = serde_json::from_str(&text).unwrap();
            for key in file.as_object().unwrap().keys() {
                assert!(schema["properties"][key].is_object(), "{key} is refused");
            }
            assert!(schema["required"].as_array().unwrap().contains(&"crc32c".into()));
        }
    }

    #[test]
    fn every_key_of_a_study_has_a_description_for_the_editor() {
        let schema = study();
        let objects = schema["definitions"].as_object().unwrap().values().chain([&schema]);
        for object in objects {
            for (key, value) in object["properties"].as_object().into_iter().flatten() {
                assert!(value["description"].is_string(), "{key} has none");
            }
        }
    }
}
