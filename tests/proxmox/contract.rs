//! The recorded contract: which calls there are, what they take, and what an answer looks like.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// One recorded call.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    pub(crate) name: String,
    method: String,
    path: Vec<String>,
    parameters: Vec<String>,
    required: Vec<String>,
    /// What the token needs on the machine.
    pub(crate) privilege: Option<String>,
    pub(crate) answer: Value,
}

/// All recorded calls.
pub(crate) struct Contract(Vec<Recorded>);

impl Contract {
    pub(crate) fn read() -> Contract {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/proxmox/contract");
        let files = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
        let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        Contract(files.map(|path| Recorded::read(&path)).collect())
    }

    /// The call with this method and path, and what stands in the path for its names.
    pub(crate) fn find(&self, method: &str, path: &str) -> Option<(&Recorded, BTreeMap<String, String>)> {
        self.0
            .iter()
            .filter(|recorded| recorded.method == method)
            .find_map(|recorded| Some((recorded, recorded.matches(path)?)))
    }

    /// The answer of the call of this name.
    pub(crate) fn answer(&self, name: &str) -> Value {
        self.0.iter().find(|recorded| recorded.name == name).unwrap().answer.clone()
    }
}

impl Recorded {
    fn read(path: &Path) -> Recorded {
        let document: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let text = |key: &str| document[key].as_str().unwrap().to_string();
        let list = |key: &str| {
            document[key].as_array().unwrap().iter().map(|one| one.as_str().unwrap().into()).collect()
        };
        Recorded {
            name: path.file_stem().unwrap().to_str().unwrap().into(),
            method: text("method"),
            path: text("path").split('/').map(String::from).collect(),
            parameters: list("parameters"),
            required: list("required"),
            privilege: document["privilege"].as_str().map(String::from),
            answer: document["answer"].clone(),
        }
    }

    fn matches(&self, path: &str) -> Option<BTreeMap<String, String>> {
        let parts: Vec<&str> = path.split('/').collect();
        let mut names = BTreeMap::new();
        for (pattern, part) in self.path.iter().zip(&parts) {
            match pattern.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
                Some(name) => drop(names.insert(name.to_string(), (*part).to_string())),
                None if pattern == part => {}
                None => return None,
            }
        }
        (parts.len() == self.path.len()).then_some(names)
    }

    /// Why these parameters are refused, as Proxmox VE says it.
    pub(crate) fn wrong(&self, parameters: &BTreeMap<String, String>) -> Option<Value> {
        let mut wrong = serde_json::Map::new();
        for name in parameters.keys().filter(|name| !self.parameters.contains(name)) {
            let why = "property is not defined in schema and the schema does not allow additional properties";
            wrong.insert(name.clone(), why.into());
        }
        for name in self.required.iter().filter(|name| !parameters.contains_key(*name)) {
            wrong.insert(name.clone(), "property is missing and it is not optional".into());
        }
        (!wrong.is_empty()).then_some(Value::Object(wrong))
    }
}
