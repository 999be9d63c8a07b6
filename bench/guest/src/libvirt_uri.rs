//! Which libvirt starts the machines: as its own programs name it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::GuestError;

/// The URI of a libvirt: `qemu:///system`, `qemu:///session`, or of another host `qemu+ssh://USER@HOST/system`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct LibvirtUri {
    /// The host, as `ssh` takes it; `None`: this one.
    ssh: Option<String>,
    /// What follows the host, with a leading slash.
    rest: String,
}

impl LibvirtUri {
    /// The libvirt of this host that root's daemon is.
    pub fn system() -> LibvirtUri {
        LibvirtUri { ssh: None, rest: "/system".into() }
    }

    /// Reads a URI. The error is of kind `Usage`, and says which are possible.
    pub fn parse(text: &str) -> Result<LibvirtUri, GuestError> {
        let wrong = |why: &str| {
            GuestError::usage(format!(
                "libvirt = {text:?}: {why}; write qemu:///system, qemu:///session or qemu+ssh://USER@HOST/system"
            ))
        };
        if text.chars().any(|c| c.is_whitespace() || c.is_control() || matches!(c, '\'' | '"' | ';' | '\\')) {
            return Err(wrong("it has characters that no URI has"));
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("it is no URI"))?;
        let (host, rest) =
            rest.find('/').map(|at| rest.split_at(at)).ok_or_else(|| wrong("it has no path"))?;
        let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
        if !matches!(path, "/system" | "/session") {
            return Err(wrong("its path is neither /system nor /session"));
        }
        if query.is_some_and(|query| !query.starts_with("socket=/") || query.contains('&')) {
            return Err(wrong("of its parameters only socket=/PATH is known here"));
        }
        let ssh = match scheme {
            "qemu" if host.is_empty() => None,
            "qemu" => return Err(wrong("a host is reached by qemu+ssh")),
            "qemu+ssh" if host.is_empty() || host.starts_with('-') => return Err(wrong("it names no host")),
            // A port has a meaning in an address only.
            "qemu+ssh" if host.contains(':') => Some(format!("ssh://{host}")),
            "qemu+ssh" => Some(host.to_string()),
            _ => {
                return Err(wrong(
                    "machines are started on the host of their libvirt, which only qemu and qemu+ssh reach",
                ));
            }
        };
        Ok(LibvirtUri { ssh, rest: rest.into() })
    }

    /// The host that it is on, as `ssh` takes it, and its URI there; `None`: it is of this host.
    pub fn elsewhere(&self) -> Option<(String, LibvirtUri)> {
        Some((self.ssh.clone()?, LibvirtUri { ssh: None, rest: self.rest.clone() }))
    }
}

impl std::fmt::Display for LibvirtUri {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.ssh {
            None => write!(f, "qemu://{}", self.rest),
            Some(ssh) => write!(f, "qemu+ssh://{}{}", ssh.trim_start_matches("ssh://"), self.rest),
        }
    }
}

impl TryFrom<String> for LibvirtUri {
    type Error = GuestError;

    fn try_from(text: String) -> Result<LibvirtUri, GuestError> {
        LibvirtUri::parse(&text)
    }
}

impl From<LibvirtUri> for String {
    fn from(uri: LibvirtUri) -> String {
        uri.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_of_this_host_and_of_others_are_told_apart_and_written_as_they_were_read() {
        for text in ["qemu:///system", "qemu:///session", "qemu:///system?socket=/run/x"] {
            let uri = LibvirtUri::parse(text).unwrap();
            assert_eq!((uri.to_string().as_str(), uri.elsewhere()), (text, None));
        }
        let text = "qemu+ssh://root@a/system";
        let uri = LibvirtUri::parse(text).unwrap();
        assert_eq!(uri.to_string(), text);
        assert_eq!(uri.elsewhere(), Some(("root@a".into(), LibvirtUri::system())));
        let uri = LibvirtUri::parse("qemu+ssh://root@a:2222/session").unwrap();
        assert_eq!(uri.elsewhere().unwrap().0, "ssh://root@a:2222");
        assert_eq!(uri.to_string(), "qemu+ssh://root@a:2222/session");
    }

    #[test]
    fn what_is_no_uri_of_a_libvirt_is_refused_with_those_that_are() {
        for (text, word) in [
            ("", "no URI"),
            ("qemu://", "no path"),
            ("qemu:///embed", "neither /system"),
            ("qemu://host/system", "qemu+ssh"),
            ("qemu+tcp://host/system", "only qemu and qemu+ssh"),
            ("xen:///system", "only qemu"),
            ("qemu+ssh:///system", "no host"),
            ("qemu+ssh://-oProxyCommand=x/system", "no host"),
            ("qemu:///system?no_verify=1", "only socket"),
            ("qemu:///system;rm", "characters"),
        ] {
            let error = LibvirtUri::parse(text).unwrap_err().message;
            assert!(error.contains(word) && error.contains("qemu:///session"), "{text}: {error}");
        }
    }
}
