//! The text of `--target` as answers.

use crate::answers::Answers;
use crate::field::Field;

/// Sets what a target says: `cluster`, the API of a cluster (`https://HOST:7400`, `IP:PORT`, a path that ends with `.sock`), a folder, or
/// existing disks. `is_folder` decides whether a path is a folder.
pub fn set(answers: &mut Answers, text: &str, is_folder: impl Fn(&str) -> bool) {
    let text = text.trim();
    let is_api = text.starts_with("https://")
        || text.starts_with("http://")
        || text.parse::<std::net::SocketAddr>().is_ok()
        || (text.ends_with(".sock") && !text.contains(':'));
    let (storage, field) = match text {
        "cluster" => ("cluster", None),
        _ if is_api => ("running", Some(Field::Api)),
        _ if is_folder(text) => ("folder", Some(Field::Folder)),
        _ => ("devices", Some(Field::Devices)),
    };
    answers.set(Field::Storage, Some(storage.into()));
    if let Some(field) = field {
        answers.set(field, Some(text.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_recognized_by_how_it_is_written() {
        for (text, storage) in [
            ("cluster", "cluster"),
            ("https://node-1:7400", "running"),
            ("127.0.0.1:7400", "running"),
            ("/run/node-1/api.sock", "running"),
            ("/mnt/x", "folder"),
            ("/dev/sdb,/dev/sdc", "devices"),
            ("nbd://h/x", "devices"),
            ("nbd+unix:///x?socket=/run/s.sock", "devices"),
            ("vhost-user:/run/s.sock", "devices"),
        ] {
            let mut answers = Answers::default();
            set(&mut answers, text, |text| text == "/mnt/x");
            assert_eq!(answers.storage.as_deref(), Some(storage), "{text}");
        }
    }
}
