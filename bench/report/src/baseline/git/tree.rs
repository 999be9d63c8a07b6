//! A tree of git: the names of one folder, each with its object.

use super::command::{Fault, git, git_line};

/// The mode of a folder.
const FOLDER: &str = "040000";

/// One name of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    name: String,
    mode: &'static str,
    kind: &'static str,
    /// The object's name.
    pub(super) hash: String,
}

impl Entry {
    /// A file of this content, whose object is written.
    pub(super) fn file(name: &str, content: &[u8]) -> Result<Entry, Fault> {
        let hash = git_line(&["hash-object", "-w", "--stdin"], content)?;
        Ok(Entry { name: name.into(), mode: "100644", kind: "blob", hash })
    }

    /// A folder, whose tree is written.
    pub(super) fn folder(name: &str, tree: &Tree) -> Result<Entry, Fault> {
        Ok(Entry { name: name.into(), mode: FOLDER, kind: "tree", hash: tree.write()? })
    }

    /// Whether it is a folder.
    pub(super) fn is_folder(&self) -> bool {
        self.mode == FOLDER
    }
}

/// The entries of one folder. What else it holds, such as a README, stays as it is.
#[derive(Debug, Default)]
pub(super) struct Tree {
    entries: Vec<Entry>,
    /// Entries as git printed them, whose names or modes are not ours.
    others: Vec<Vec<u8>>,
}

impl Tree {
    /// The tree of this name.
    pub(super) fn read(object: &str) -> Result<Tree, Fault> {
        let mut tree = Tree::default();
        for line in git(&["ls-tree", "-z", object], b"")?.split(|byte| *byte == 0) {
            match std::str::from_utf8(line).ok().and_then(parsed) {
                Some(entry) => tree.entries.push(entry),
                None if line.is_empty() => {}
                None => tree.others.push(line.to_vec()),
            }
        }
        Ok(tree)
    }

    /// The entry of this name.
    pub(super) fn find(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Whether something else than a file or a folder has this name, such as a link.
    pub(super) fn has_other(&self, name: &str) -> bool {
        self.others.iter().any(|line| has_name(line, name))
    }

    /// The names.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// Adds an entry, in the place of whatever has its name.
    pub(super) fn put(&mut self, entry: Entry) {
        self.entries.retain(|other| other.name != entry.name);
        self.others.retain(|line| !has_name(line, &entry.name));
        self.entries.push(entry);
    }

    /// Writes the tree's object, and returns its name.
    pub(super) fn write(&self) -> Result<String, Fault> {
        let line = |entry: &Entry| {
            format!("{} {} {}\t{}", entry.mode, entry.kind, entry.hash, entry.name).into_bytes()
        };
        let mut input = Vec::new();
        for line in self.entries.iter().map(line).chain(self.others.iter().cloned()) {
            input.extend(line);
            input.push(0);
        }
        git_line(&["mktree", "-z"], &input)
    }
}

/// Whether a line as git printed it is about this name.
fn has_name(line: &[u8], name: &str) -> bool {
    line.iter().position(|byte| *byte == b'\t').is_some_and(|tab| &line[tab + 1..] == name.as_bytes())
}

/// `MODE TYPE HASH<tab>NAME`, of a file or a folder.
fn parsed(line: &str) -> Option<Entry> {
    let (head, name) = line.split_once('\t')?;
    let mut head = head.split(' ');
    let (mode, kind) = match (head.next()?, head.next()?) {
        ("100644", "blob") => ("100644", "blob"),
        ("100755", "blob") => ("100755", "blob"),
        (FOLDER, "tree") => (FOLDER, "tree"),
        _ => return None,
    };
    Some(Entry { name: name.into(), mode, kind, hash: head.next()?.into() })
}
