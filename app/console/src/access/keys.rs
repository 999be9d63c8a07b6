//! The file of sign-in keys: a line for each, `ROLE HASH NAME`. The file has no key, only the SHA-256 of each.
//!
//! The file is read again when it has changed, so that a key whose line is removed is refused at once. A file that cannot be read, or that
//! other users may read, has no keys.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::role::Role;
use super::secret::{Digest, Secret};

/// Bytes of the file at most.
const LONGEST: u64 = 1 << 20;
/// Characters of a name at most.
const LONGEST_NAME: usize = 64;

/// A key, as the file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// What its owner may do.
    pub role: Role,
    /// The hash of it.
    pub digest: Digest,
    /// The name of its owner.
    pub name: String,
}

/// The keys of a file.
#[derive(Debug)]
pub struct Keys {
    path: PathBuf,
    read: Mutex<Reading>,
}

/// What a file had when it was read.
#[derive(Debug)]
struct Reading {
    stamp: Option<Stamp>,
    keys: Vec<Key>,
}

/// What differs when a file was written: its device, inode, size, times and mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp([i64; 8]);

impl Stamp {
    fn of(file: &Metadata) -> Stamp {
        Stamp([
            file.dev() as i64,
            file.ino() as i64,
            file.size() as i64,
            file.mtime(),
            file.mtime_nsec(),
            file.ctime(),
            file.ctime_nsec(),
            i64::from(file.mode()),
        ])
    }
}

impl Keys {
    /// The keys of this file.
    ///
    /// # Errors
    /// The file cannot be read, other users may read or write it, or a line is none of a key. The message is for people.
    pub fn open(path: &Path) -> Result<Keys, String> {
        let (stamp, keys) = read(path)?;
        if keys.is_empty() {
            let path = path.display();
            return Err(format!(
                "{path} has no keys: 'loadline console key add {path} --role admin NAME' adds one"
            ));
        }
        Ok(Keys { path: path.into(), read: Mutex::new(Reading { stamp: Some(stamp), keys }) })
    }

    /// The key with this hash, if the file has it now.
    pub fn find(&self, digest: &Digest) -> Option<Key> {
        let mut reading = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = std::fs::metadata(&self.path).ok().map(|of| Stamp::of(&of));
        if stamp.is_none() || stamp != reading.stamp {
            (reading.stamp, reading.keys) = match read(&self.path) {
                Ok((stamp, keys)) => (Some(stamp), keys),
                Err(_) => (None, Vec::new()),
            };
        }
        // All are compared, wherever the key is.
        let found = reading
            .keys
            .iter()
            .fold(None, |found, key| if key.digest == *digest { Some(key) } else { found });
        found.cloned()
    }
}

/// Adds a key to a file, which is made if there is none, and returns the key. It is in no other place.
///
/// # Errors
/// The file has a key of this name, or is not one of keys, or cannot be written. The message is for people.
pub fn add(path: &Path, role: Role, name: &str) -> Result<Secret, String> {
    check_name(name)?;
    let there = match path.try_exists() {
        Ok(true) => read(path)?.1,
        _ => Vec::new(),
    };
    if there.iter().any(|key| key.name == name) {
        return Err(format!(
            "{} has a key of {name}: remove its line first, or choose another name",
            path.display()
        ));
    }
    let secret = Secret::new();
    let failed = |why: std::io::Error| format!("{}: {why}", path.display());
    let mut file =
        OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path).map_err(failed)?;
    let mut text = String::new();
    (&file).take(LONGEST).read_to_string(&mut text).map_err(failed)?;
    let before = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let line = format!("{before}{role} {} {name}\n", secret.digest());
    file.write_all(line.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    Ok(secret)
}

/// Whether a text is the name of a key's owner. The error is for people.
fn check_name(name: &str) -> Result<(), String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    match (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(fine) {
        true => Ok(()),
        false => Err(format!(
            "'{}' cannot be the name of a key: a name has 1 to {LONGEST_NAME} letters, digits, '-', '_', '.' and '@'",
            name.escape_debug()
        )),
    }
}

fn read(path: &Path) -> Result<(Stamp, Vec<Key>), String> {
    let shown = path.display();
    let failed = |why: std::io::Error| format!("{shown}: {why}");
    let mut file = File::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err(format!("{shown} is not a file"));
    }
    if about.mode() & 0o077 != 0 {
        return Err(format!("other users may read or change {shown}: run 'chmod 600 {shown}'"));
    }
    if ![0, nix::unistd::geteuid().as_raw()].contains(&about.uid()) {
        return Err(format!(
            "{shown} belongs to another user, who may change it: copy it to a file of your own"
        ));
    }
    if about.len() > LONGEST {
        return Err(format!("{shown} is too large for a file of keys: at most 1 MiB is possible"));
    }
    let mut text = String::new();
    (&mut file).take(LONGEST).read_to_string(&mut text).map_err(failed)?;
    let keys = parse(&text).map_err(|(line, why)| format!("{shown}, line {line}: {why}"))?;
    Ok((Stamp::of(&about), keys))
}

/// The keys that a text has; or the first line that is wrong, and why. What is wrong is not repeated: it may be a key.
fn parse(text: &str) -> Result<Vec<Key>, (usize, String)> {
    let mut keys: Vec<Key> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |why: &str| Err((number, why.to_owned()));
        let words: Vec<&str> = line.split_whitespace().collect();
        let [role, digest, name] = words[..] else {
            return wrong(
                "a line has a role, the hash of a key and a name: 'loadline console key add' writes it",
            );
        };
        let Ok(role) = role.parse() else {
            return wrong("the first word is no role: viewer, operator or admin");
        };
        let Some(digest) = Digest::read(digest) else {
            return wrong("the second word is no hash of a key, which has 64 hexadecimal digits");
        };
        if check_name(name).is_err() {
            return wrong("the third word is no name of a key");
        }
        if keys.iter().any(|key| key.name == name || key.digest == digest) {
            return wrong("the name or the key is in a line above, too");
        }
        keys.push(Key { role, digest, name: name.into() });
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("keys");
        (folder, path)
    }

    #[test]
    fn a_key_is_added_is_found_and_is_not_in_the_file() {
        let (_folder, path) = folder();
        let secret = add(&path, Role::Operator, "anna").expect("it can be written");
        let other = add(&path, Role::Viewer, "screen@hall").expect("it can be written");
        assert_eq!(path.metadata().expect("it is there").mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).expect("it is there");
        assert!(!text.contains(secret.text()) && text.starts_with("operator "), "{text}");
        let keys = Keys::open(&path).expect("it has keys");
        let found = |secret: &Secret| keys.find(&secret.digest()).map(|key| (key.role, key.name));
        assert_eq!(found(&secret), Some((Role::Operator, "anna".into())));
        assert_eq!(found(&other), Some((Role::Viewer, "screen@hall".into())));
        assert_eq!(found(&Secret::new()), None);
        assert!(add(&path, Role::Admin, "anna").expect_err("it is there").contains("another name"));
        for name in ["", "a b", "a\n", "ä", &"x".repeat(65)] {
            assert!(add(&path, Role::Admin, name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_key_whose_line_is_removed_is_found_no_more_and_a_file_that_became_readable_has_no_keys() {
        let (_folder, path) = folder();
        let [anna, bob] =
            ["anna", "bob"].map(|name| add(&path, Role::Admin, name).expect("it can be written"));
        let keys = Keys::open(&path).expect("it has keys");
        let text = std::fs::read_to_string(&path).expect("it is there");
        let rest = text.lines().filter(|line| !line.ends_with(" anna")).collect::<Vec<_>>().join("\n");
        std::fs::write(&path, rest).expect("there is room");
        assert!(keys.find(&anna.digest()).is_none() && keys.find(&bob.digest()).is_some());
        // The last line has no end.
        let carl = add(&path, Role::Viewer, "carl").expect("it can be written");
        assert!(keys.find(&carl.digest()).is_some() && keys.find(&bob.digest()).is_some());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
        assert!(keys.find(&bob.digest()).is_none());
        assert!(Keys::open(&path).expect_err("others may read it").contains("chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
        assert!(keys.find(&bob.digest()).is_some());
        std::fs::remove_file(&path).expect("it is ours");
        assert!(keys.find(&bob.digest()).is_none());
    }

    #[test]
    fn a_line_that_is_none_of_a_key_is_named_and_not_repeated() {
        let hash = Digest::of("key").to_string();
        assert_eq!(parse("# keys\n\n").map(|keys| keys.len()), Ok(0));
        assert_eq!(parse(&format!("admin {hash} a")).map(|keys| keys.len()), Ok(1));
        for wrong in [
            "secret-that-was-put-here".to_owned(),
            format!("root {hash} a"),
            format!("admin {} a", &hash[1..]),
            format!("admin {hash} a b"),
            format!("admin {hash} <b>"),
            format!("admin {hash} b"),
        ] {
            let other = Digest::of("other");
            let (line, why) = parse(&format!("admin {hash} a\nadmin {other} b\n{wrong}")).expect_err(&wrong);
            assert!(line == 3 && !why.contains("secret-that"), "{wrong}: {line}: {why}");
        }
        let (_folder, path) = folder();
        assert!(Keys::open(&path).is_err());
        std::fs::write(&path, "# none\n").expect("there is room");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
        assert!(Keys::open(&path).expect_err("it has none").contains("key add"));
    }
}
