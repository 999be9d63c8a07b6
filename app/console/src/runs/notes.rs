//! `notes.json` in a run's folder: the tags and the note that people add. The console writes this file alone, and no file that a run
//! wrote.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;

use loadline_study::folder::sealed::write_durably;
use serde::{Deserialize, Serialize};

use crate::runs::row::Notes;

/// Its name in the run's folder.
pub const FILE: &str = "notes.json";
const FORMAT: &str = "loadline-notes";
const VERSION: u64 = 1;
/// Tags of a run at most.
const MOST_TAGS: usize = 20;
/// Characters of a tag at most.
const LONGEST_TAG: usize = 40;
/// Characters of a note at most.
const LONGEST_NOTE: usize = 4000;
/// A file that is longer was not written by the console: bytes.
const LONGEST_FILE: u64 = 64 << 10;

/// The file. It has no checksum, so that people may edit it.
#[derive(Serialize, Deserialize)]
struct Kept {
    format: String,
    version: u64,
    tags: Vec<String>,
    note: String,
}

/// Reads the notes of the run in this folder; none if there is no such file. The error says what is wrong with the file, and what to do.
pub fn read(folder: &Path) -> Result<Notes, String> {
    let path = folder.join(FILE);
    let fault = |what: String| format!("{} {what}. Mend it, or move it away", path.display());
    let unreadable = |e: std::io::Error| fault(format!("cannot be read: {e}"));
    match fs::metadata(&path) {
        // To open a pipe would wait for its other end.
        Ok(of) if !of.is_file() => return Err(fault("is no regular file".into())),
        Ok(of) if of.len() > LONGEST_FILE => return Err(fault("is too long".into())),
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Notes::default()),
        Err(e) => return Err(unreadable(e)),
    }
    let mut text = String::new();
    File::open(&path)
        .and_then(|file| file.take(LONGEST_FILE).read_to_string(&mut text))
        .map_err(unreadable)?;
    let kept: Kept = serde_json::from_str(&text).map_err(|e| fault(format!("is damaged: {e}")))?;
    if kept.format != FORMAT || kept.version != VERSION {
        return Err(fault(format!("is no file of the format {FORMAT}, version {VERSION}")));
    }
    checked(Notes { tags: kept.tags, note: kept.note }).map_err(fault)
}

/// Writes the notes into the run's folder, which must be there, in place of those that are there. After a crash the file has the notes of
/// before or these. A file that cannot be read is not written over: the error says what is wrong with it.
pub fn write(folder: &Path, notes: &Notes) -> Result<(), String> {
    read(folder)?;
    let kept =
        Kept { format: FORMAT.into(), version: VERSION, tags: notes.tags.clone(), note: notes.note.clone() };
    let text = serde_json::to_string_pretty(&kept).expect("it is texts and a number");
    write_durably(&folder.join(FILE), format!("{text}\n").as_bytes()).map_err(|e| e.message)
}

/// The notes with each tag once, in alphabetical order, and without spaces around texts. The error says which limit they exceed.
pub fn checked(notes: Notes) -> Result<Notes, String> {
    let note = notes.note.trim().to_owned();
    if note.chars().count() > LONGEST_NOTE {
        return Err(format!("has a note of more than {LONGEST_NOTE} characters"));
    }
    if note.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t')) {
        return Err("has a note with control characters".into());
    }
    let mut tags: Vec<String> = notes.tags.iter().map(|tag| tag.trim().to_owned()).collect();
    if let Some(wrong) = tags.iter().find(|tag| !(1..=LONGEST_TAG).contains(&tag.chars().count())) {
        return Err(format!("has a tag that is empty or longer than {LONGEST_TAG} characters: {wrong:?}"));
    }
    if tags.iter().any(|tag| tag.chars().any(|c| c.is_control() || c == ',')) {
        return Err("has a tag with a comma or a control character".into());
    }
    tags.sort();
    tags.dedup();
    if tags.len() > MOST_TAGS {
        return Err(format!("has more than {MOST_TAGS} tags"));
    }
    Ok(Notes { tags, note })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(tags: &[&str], note: &str) -> Notes {
        Notes { tags: tags.iter().map(|tag| tag.to_string()).collect(), note: note.into() }
    }

    #[test]
    fn what_is_written_is_read_with_each_tag_once_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap(), Notes::default());
        let given = checked(notes(&["b", " a ", "b"], " <b>new\ndisks ")).unwrap();
        assert_eq!(given, notes(&["a", "b"], "<b>new\ndisks"));
        write(folder.path(), &given).unwrap();
        assert_eq!(read(folder.path()).unwrap(), given);
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|of| of.unwrap().file_name()).collect();
        assert_eq!(names, [FILE], "nothing temporary is left");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named_and_never_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        for damaged in
            ["", "{", "[]", "{\"format\": \"other\", \"version\": 1, \"tags\": [], \"note\": \"\"}"]
        {
            fs::write(&path, damaged).unwrap();
            let why = read(folder.path()).unwrap_err();
            assert!(why.contains("notes.json") && why.contains("move it away"), "{why}");
            assert_eq!(write(folder.path(), &notes(&[], "")).unwrap_err(), why);
            assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(read(folder.path()).unwrap_err().contains("no regular file"));
    }

    #[test]
    fn limits_are_held() {
        let long = |n| "x".repeat(n);
        assert!(checked(notes(&[&long(LONGEST_TAG)], &long(LONGEST_NOTE))).is_ok());
        for wrong in [
            notes(&[&long(LONGEST_TAG + 1)], ""),
            notes(&[" "], ""),
            notes(&["a,b"], ""),
            notes(&["a\u{7}"], ""),
            notes(&[], &long(LONGEST_NOTE + 1)),
            notes(&[], "\u{1b}[2J"),
            Notes { tags: (0..=MOST_TAGS).map(|n| n.to_string()).collect(), note: String::new() },
        ] {
            assert!(checked(wrong.clone()).is_err(), "{wrong:?}");
        }
    }
}
