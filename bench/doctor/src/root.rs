//! Reading `/proc` and `/sys`, or what a test put in their place.

use std::fs;
use std::path::{Path, PathBuf};

/// The folder below which `proc` and `sys` lie.
#[derive(Debug, Clone)]
pub struct Root(PathBuf);

impl Root {
    /// This host.
    pub fn host() -> Root {
        Root(PathBuf::from("/"))
    }

    /// What lies below a folder.
    pub fn below(folder: impl Into<PathBuf>) -> Root {
        Root(folder.into())
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Where a path such as `sys/block` is.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    /// A file's text; empty if it cannot be read.
    pub fn text(&self, path: impl AsRef<Path>) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default()
    }

    /// A file's only line; `None` if it cannot be read, or is empty.
    pub fn line(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = self.text(path);
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_string())
    }

    /// A file that is a number.
    pub fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.line(path)?.parse().ok()
    }

    /// The names in a folder, sorted as people count: `nvme2n1` before `nvme10n1`.
    pub fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_by_key(|name| parts(name));
        names
    }

    /// What a line of a file says that begins with a word: of `Swap: 5 kB` it is `5 kB`.
    pub fn after(&self, path: impl AsRef<Path>, word: &str) -> Option<String> {
        let text = self.text(path);
        text.lines().find_map(|line| line.strip_prefix(word)).map(|rest| rest.trim().to_string())
    }
}

/// A name as words and numbers.
fn parts(name: &str) -> Vec<(String, u64)> {
    let mut parts = vec![(String::new(), 0u64)];
    let mut in_number = false;
    for c in name.chars() {
        match c.to_digit(10) {
            Some(digit) => {
                if let Some((_, number)) = parts.last_mut() {
                    *number = number.saturating_mul(10).saturating_add(digit.into());
                }
            }
            None => {
                if in_number {
                    parts.push((String::new(), 0));
                }
                if let Some((word, _)) = parts.last_mut() {
                    word.push(c);
                }
            }
        }
        in_number = c.is_ascii_digit();
    }
    parts
}

/// Writes files below a folder, for tests.
#[cfg(test)]
pub(crate) fn fixture(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let root = Root::below(folder.path());
    (folder, root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_and_what_is_not_there_is_nothing() {
        let files =
            [("sys/a/10b", "7\n"), ("sys/a/2b", " \n"), ("sys/a/2c", "x"), ("proc/m", "A: 1\nSwap:  5 kB\n")];
        let (_folder, root) = fixture(&files);
        assert_eq!(root.number("sys/a/10b"), Some(7));
        assert_eq!((root.line("sys/a/2b"), root.line("sys/none")), (None, None));
        assert_eq!(root.names("sys/a"), ["2b", "2c", "10b"]);
        assert_eq!(root.after("proc/m", "Swap:").as_deref(), Some("5 kB"));
        assert_eq!(root.after("proc/m", "None:"), None);
    }
}
