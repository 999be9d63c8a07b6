//! Where an API is.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ureq::config::ConfigBuilder;
use ureq::typestate::AgentScope;
use ureq::unversioned::resolver::DefaultResolver;

use crate::access::{own_file, tls};
use crate::unix::UnixConnector;

/// The API of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiAddress {
    /// By HTTP: on this machine.
    Http(SocketAddr),
    /// By HTTPS: a host with its port.
    Https(String),
    /// By a unix socket.
    Unix(PathBuf),
}

impl FromStr for ApiAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ApiAddress, String> {
        let wrong = || {
            "give IP:PORT for a node of this machine, https://HOST:PORT for another one, or the path of a node's api.sock".to_owned()
        };
        if let Some(host) = text.strip_prefix("https://") {
            let host = host.strip_suffix('/').unwrap_or(host);
            let is_host = host
                .rsplit_once(':')
                .is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok());
            return if is_host && !host.contains('/') {
                Ok(ApiAddress::Https(host.into()))
            } else {
                Err(wrong())
            };
        }
        if let Some(path) = text.strip_prefix("unix:").or_else(|| text.contains('/').then_some(text))
            && !text.contains("://")
        {
            return Ok(ApiAddress::Unix(path.into()));
        }
        let address = text.strip_prefix("http://").unwrap_or(text);
        address.parse().map(ApiAddress::Http).map_err(|_| wrong())
    }
}

impl fmt::Display for ApiAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApiAddress::Http(address) => address.fmt(f),
            ApiAddress::Https(host) => write!(f, "https://{host}"),
            ApiAddress::Unix(path) => path.display().fmt(f),
        }
    }
}

impl ApiAddress {
    /// The API of another node of the same cluster, at this address: called in the same way.
    pub fn of_other(&self, address: SocketAddr) -> ApiAddress {
        match self {
            ApiAddress::Https(_) => ApiAddress::Https(address.to_string()),
            ApiAddress::Http(_) => ApiAddress::Http(address),
            ApiAddress::Unix(_) if address.ip().is_loopback() => ApiAddress::Http(address),
            ApiAddress::Unix(_) => ApiAddress::Https(address.to_string()),
        }
    }

    /// The file that proves access to other nodes, if no other is named: on the host of a node, in whose folder the socket is, the
    /// node's own.
    pub fn own_access(&self) -> Option<PathBuf> {
        let ApiAddress::Unix(path) = self else { return None };
        Some(own_file(path.parent()?)).filter(|file| file.exists())
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        match self {
            ApiAddress::Http(address) => format!("http://{address}{path}"),
            ApiAddress::Https(host) => format!("https://{host}{path}"),
            // The socket says where it is.
            ApiAddress::Unix(_) => format!("http://localhost{path}"),
        }
    }

    /// What calls it, within this time. The error is for people.
    pub fn agent(&self, access: Option<&Path>, limit: Duration) -> Result<ureq::Agent, String> {
        self.agent_of(access, ureq::Agent::config_builder().timeout_global(Some(limit)))
    }

    /// What calls it for an answer that goes on: within this time something more of it comes. The error is for people.
    pub fn stream_agent(&self, access: Option<&Path>, idle: Duration) -> Result<ureq::Agent, String> {
        let limits = ureq::Agent::config_builder()
            .timeout_connect(Some(idle))
            .timeout_recv_response(Some(idle))
            .timeout_per_read(Some(idle))
            .timeout_per_write(Some(idle));
        self.agent_of(access, limits)
    }

    fn agent_of(
        &self,
        access: Option<&Path>,
        limits: ConfigBuilder<AgentScope>,
    ) -> Result<ureq::Agent, String> {
        let config = limits.http_status_as_error(false).proxy(None);
        Ok(match self {
            ApiAddress::Http(_) => config.build().into(),
            ApiAddress::Https(_) => config.tls_config(tls(access)?).build().into(),
            ApiAddress::Unix(path) => {
                let connector = UnixConnector::new(path.clone());
                ureq::Agent::with_parts(config.build(), connector, DefaultResolver::default())
            }
        })
    }
}

/// What a name is in a path of HTTP. Names that can be need nothing; others are to be refused by the node.
pub fn escaped(name: &str) -> String {
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    name.bytes().map(|c| if plain(c) { (c as char).to_string() } else { format!("%{c:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_in_each_of_its_forms() {
        let read = |text: &str| text.parse::<ApiAddress>();
        assert_eq!(read("127.0.0.1:7400"), Ok(ApiAddress::Http("127.0.0.1:7400".parse().unwrap())));
        assert_eq!(read("http://127.0.0.1:7400"), read("127.0.0.1:7400"));
        assert_eq!(read("https://node-1.example:7400/"), Ok(ApiAddress::Https("node-1.example:7400".into())));
        assert_eq!(read("https://[fd00::1]:7400"), Ok(ApiAddress::Https("[fd00::1]:7400".into())));
        assert_eq!(read("/srv/a/api.sock"), Ok(ApiAddress::Unix("/srv/a/api.sock".into())));
        assert_eq!(read("unix:api.sock"), Ok(ApiAddress::Unix("api.sock".into())));
        for wrong in
            ["", "127.0.0.1", "https://", "https://host", "https://host:1/path", "ftp://host:1", "host:7400"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_name_stays_one_part_of_a_path() {
        assert_eq!(escaped("vm-7_a.b"), "vm-7_a.b");
        assert_eq!(escaped("a/../b?c#d%e ä"), "a%2F..%2Fb%3Fc%23d%25e%20%C3%A4");
    }

    #[test]
    fn the_identity_of_a_node_beside_its_socket_is_an_access_to_others() {
        let folder = tempfile::tempdir().expect("there is room");
        let address = ApiAddress::Unix(folder.path().join("api.sock"));
        assert_eq!(address.own_access(), None, "a node of an open cluster has none");
        let identity = folder.path().join("identity").join("node.pem");
        std::fs::create_dir(identity.parent().expect("it has one")).expect("there is room");
        std::fs::write(&identity, "").expect("there is room");
        assert_eq!(address.own_access(), Some(identity));
    }
}
