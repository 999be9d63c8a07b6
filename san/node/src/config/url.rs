//! Where a configuration store is: `etcd://HOST,HOST,HOST`, `sqlite:PATH`, or only the path of a SQLite file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::etcd::address::EtcdAddress;

/// Where a configuration store is. As text it is a URL; a path without a scheme names a SQLite file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum StoreUrl {
    /// An etcd, for clusters whose nodes are hosts of their own.
    Etcd(EtcdAddress),
    /// A SQLite file, for clusters whose nodes share a machine.
    Sqlite(PathBuf),
}

impl StoreUrl {
    /// The same store as every process of this machine names it, whatever its current folder is.
    pub fn absolute(self) -> StoreUrl {
        match self {
            StoreUrl::Etcd(address) => StoreUrl::Etcd(address.absolute()),
            StoreUrl::Sqlite(path) => StoreUrl::Sqlite(std::path::absolute(&path).unwrap_or(path)),
        }
    }
}

impl StoreUrl {
    /// Whether the store is a service that nodes reach over a network. Otherwise it is a file of this machine.
    pub fn is_remote(&self) -> bool {
        matches!(self, StoreUrl::Etcd(_))
    }

    /// The files that a node of this host reads to use the store: the file of the store itself, or certificates, keys and passwords.
    pub fn files(&self) -> Vec<&Path> {
        match self {
            StoreUrl::Etcd(address) => address.files(),
            StoreUrl::Sqlite(path) => vec![path],
        }
    }

    /// Where the store is, without what a client needs to prove its identity there.
    pub fn place(&self) -> String {
        match self {
            StoreUrl::Etcd(address) => address.place(),
            StoreUrl::Sqlite(path) => path.display().to_string(),
        }
    }

    /// A part of the store that is not known to be on this machine; `None` if all of the store is on it.
    pub(crate) fn beyond_this_machine(&self) -> Option<&str> {
        match self {
            StoreUrl::Etcd(address) => address.member_beyond_this_machine(),
            StoreUrl::Sqlite(_) => None,
        }
    }
}

impl From<&Path> for StoreUrl {
    fn from(path: &Path) -> StoreUrl {
        StoreUrl::Sqlite(path.to_owned())
    }
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<StoreUrl, String> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        if let Some(address) = text.strip_prefix("etcd://") {
            return address.parse().map(StoreUrl::Etcd);
        }
        // A path may have a colon in it, too.
        match text.split_once(':') {
            _ if matches!(text, "" | "sqlite:") => {
                Err("a configuration store has a path: sqlite:/srv/loadline/cluster.db".into())
            }
            Some(("sqlite", path)) => Ok(StoreUrl::Sqlite(path.into())),
            Some((scheme, rest)) if rest.starts_with("//") && scheme.chars().all(is_word) => Err(format!(
                "\"{scheme}\" is no kind of configuration store that this program knows: write etcd://HOST:PORT,HOST:PORT,HOST:PORT, or the path of a SQLite \
                 file"
            )),
            _ => Ok(StoreUrl::Sqlite(text.into())),
        }
    }
}

impl TryFrom<String> for StoreUrl {
    type Error = String;

    fn try_from(text: String) -> Result<StoreUrl, String> {
        text.parse()
    }
}

impl From<StoreUrl> for String {
    fn from(url: StoreUrl) -> String {
        url.to_string()
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Etcd(address) => address.fmt(f),
            StoreUrl::Sqlite(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_alone_is_a_sqlite_file() {
        for (text, path) in [
            ("/srv/cluster.db", "/srv/cluster.db"),
            ("sqlite:/srv/cluster.db", "/srv/cluster.db"),
            ("cluster.db", "cluster.db"),
            ("./a:b.db", "./a:b.db"),
            ("sqlite:a:b", "a:b"),
        ] {
            assert_eq!(text.parse(), Ok(StoreUrl::Sqlite(path.into())), "{text}");
        }
        let absolute = "cluster.db".parse::<StoreUrl>().unwrap().absolute();
        assert!(absolute.to_string().starts_with('/'), "{absolute}");
    }

    #[test]
    fn a_kind_that_is_not_known_is_named() {
        let why = "zookeeper://a,b".parse::<StoreUrl>().unwrap_err();
        assert!(why.contains("\"zookeeper\"") && why.contains("etcd://HOST"), "{why}");
        for nothing in ["", "sqlite:"] {
            assert!(nothing.parse::<StoreUrl>().is_err(), "{nothing}");
        }
    }
}
