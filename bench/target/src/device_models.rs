//! Models of devices by name: data sheets of drives, which the program carries, and files of one's own.

use std::fs;
use std::path::Path;

use loadline_base::device_model::DeviceModel;
use loadline_base::nearest::nearest;

use crate::error::TargetError;

/// The published ones, by their names.
const PUBLISHED: [(&str, &str); 5] = [
    ("intel-p3700", include_str!("../../../studies/models/intel-p3700.toml")),
    ("intel-p4800x", include_str!("../../../studies/models/intel-p4800x.toml")),
    ("intel-s3500", include_str!("../../../studies/models/intel-s3500.toml")),
    ("intel-s4500", include_str!("../../../studies/models/intel-s4500.toml")),
    ("micron-5100-max", include_str!("../../../studies/models/micron-5100-max.toml")),
];

/// The names of the models that the program carries.
pub fn names() -> impl Iterator<Item = &'static str> {
    PUBLISHED.iter().map(|(name, _)| *name)
}

/// The published model of this name.
pub fn published(name: &str) -> Result<DeviceModel, TargetError> {
    match PUBLISHED.iter().find(|(known, _)| *known == name) {
        Some((_, text)) => read(name, text),
        None => {
            let meant = nearest(name, names()).map_or(String::new(), |near| format!(" Did you mean {near}?"));
            let known: Vec<&str> = names().collect();
            Err(TargetError::usage(format!(
                "there is no published device model {name}; there are {}.{meant}",
                known.join(", ")
            )))
        }
    }
}

/// The published model of this name, or the one in this file if it is a path: a name with a slash or a dot. The error says what is wrong,
/// and with which file.
pub fn find(name: &str) -> Result<DeviceModel, TargetError> {
    if !name.contains(['/', '.']) {
        let add =
            |why: TargetError| format!("{why} The path of a file has a slash or a dot, as ./{name}.toml");
        return published(name).map_err(|why| TargetError::usage(add(why)));
    }
    let path = Path::new(name);
    let text = fs::read_to_string(path).map_err(|e| TargetError::io("read", path, &e))?;
    read(name, &text)
}

fn read(from: &str, text: &str) -> Result<DeviceModel, TargetError> {
    let model: DeviceModel =
        toml::from_str(text).map_err(|e| TargetError::usage(format!("the device model {from}: {e}")))?;
    model.check().map_err(|e| TargetError::usage(format!("the device model {from}: {e}")))?;
    Ok(model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_models_are_models_with_a_source_each() {
        for name in names() {
            let model = find(name).unwrap();
            assert!(model.source.contains("https://"), "{name}");
            assert_eq!(model.check(), Ok(()));
        }
    }

    #[test]
    fn what_is_no_model_is_said_with_its_place() {
        let why = |name: &str| find(name).unwrap_err().to_string();
        assert!(why("intel-p3600").contains("Did you mean intel-p3700?"), "{}", why("intel-p3600"));
        assert!(why("./none.toml").contains("none.toml"));
        let folder = tempfile::tempdir().unwrap();
        let file = |text: &str| {
            let path = folder.path().join("my.toml");
            fs::write(&path, text).unwrap();
            why(path.to_str().unwrap())
        };
        assert!(file("name = 3").contains("my.toml"));
        let slow = "name = \"a\"\nread = { iops = 1, per_second = \"1GB\" }\nwrite = { iops = 10, per_second = \"1GB\" }";
        assert!(file(slow).contains("read.iops: 1 is too few"), "{}", file(slow));
    }
}
