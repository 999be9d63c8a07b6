//! Paths of answers: a person means the current folder, and a study its own.

use std::path::Path;

use loadline_question::{Answers, Field};

/// Makes relative paths of answers absolute; they begin at this folder.
pub(super) fn begin_at(answers: &mut Answers, folder: &Path) {
    for field in [Field::Folder, Field::AccessFile] {
        let path = answers.given(field).map(|text| absolute(text, folder));
        if path.is_some() {
            answers.set(field, path);
        }
    }
    if let Some(text) = answers.given(Field::Devices) {
        let each = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|part| !part.is_empty());
        // nbd://…, rbd:…, vhost-user:… and null:… are no paths.
        let all = each.map(|part| if part.contains(':') { part.to_string() } else { absolute(part, folder) });
        let all = all.collect::<Vec<_>>().join(",");
        answers.set(Field::Devices, Some(all));
    }
}

fn absolute(text: &str, folder: &Path) -> String {
    folder.join(text).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_at_the_current_folder_and_addresses_stay() {
        let mut answers = Answers {
            folder: Some("data".into()),
            access_file: Some("/etc/a.pem".into()),
            devices: Some("disk.img nbd://h/x, /dev/sdb".into()),
            ..Answers::default()
        };
        begin_at(&mut answers, Path::new("/here"));
        assert_eq!(answers.folder.as_deref(), Some("/here/data"));
        assert_eq!(answers.access_file.as_deref(), Some("/etc/a.pem"));
        assert_eq!(answers.devices.as_deref(), Some("/here/disk.img,nbd://h/x,/dev/sdb"));
        assert_eq!(answers.question, None);
    }
}
