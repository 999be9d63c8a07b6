//! Where an etcd is: `etcd://HOST[:PORT],HOST[:PORT],.../PREFIX?ca=FILE&cert=FILE&key=FILE&user=NAME&password-file=FILE`.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::super::ConfigError;

/// The port at which etcd serves its clients.
const PORT: u16 = 2379;
/// The prefix of the keys of a cluster whose URL has none.
const PREFIX: &str = "loadline";
/// What an option of the URL cannot have as it is.
const OPTION: &AsciiSet = &CONTROLS.add(b'%').add(b'&').add(b'?').add(b'#').add(b' ').add(b'"');
/// The form of the URL, for messages.
const FORM: &str = "write etcd://HOST:PORT,HOST:PORT,HOST:PORT/PREFIX, followed by the options that you need: \
                    ?ca=FILE&cert=FILE&key=FILE&user=NAME&password-file=FILE";

/// Where the members of an etcd serve clients, how a client proves its identity, and under which prefix a cluster's keys are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdAddress {
    /// Members, as `host:port`; at least one.
    endpoints: Vec<String>,
    /// Not empty; neither begins nor ends with a slash.
    prefix: String,
    /// The certificate of the authority that signed the members' certificates, in PEM. With it the connections use TLS.
    ca: Option<PathBuf>,
    /// This client's certificate and its key, in PEM: both or none.
    identity: Option<(PathBuf, PathBuf)>,
    /// The user of etcd, and the file whose first line is its password: both or none.
    user: Option<(String, PathBuf)>,
}

impl EtcdAddress {
    /// Whether connections to it use TLS.
    pub(super) fn uses_tls(&self) -> bool {
        self.ca.is_some()
    }

    /// Members, as `host:port`.
    pub(super) fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// The files that a client reads: certificates, its key, its password.
    pub(crate) fn files(&self) -> Vec<&Path> {
        let identity = self.identity.iter().flat_map(|(certificate, key)| [certificate, key]);
        let password = self.user.iter().map(|(_, file)| file);
        self.ca.iter().chain(identity).chain(password).map(PathBuf::as_path).collect()
    }

    /// The members and the prefix alone.
    pub(crate) fn place(&self) -> String {
        format!("etcd://{}/{}", self.endpoints.join(","), self.prefix)
    }

    /// A member that is not named by a loopback address or `localhost`. Other names are not resolved: what they mean differs between hosts.
    pub(crate) fn member_beyond_this_machine(&self) -> Option<&str> {
        let is_here = |endpoint: &&String| {
            let host = endpoint.rsplit_once(':').map_or(endpoint.as_str(), |(host, _)| host);
            let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            bare == "localhost" || bare.parse().is_ok_and(|address: IpAddr| address.is_loopback())
        };
        self.endpoints.iter().find(|endpoint| !is_here(endpoint)).map(String::as_str)
    }

    /// The key in etcd of a `key` of the configuration.
    pub(super) fn data_key(&self, key: &str) -> String {
        format!("{}/data/{key}", self.prefix)
    }

    /// The key in etcd of a client's last commit.
    pub(super) fn commit_key(&self, client: u64) -> String {
        format!("{}/commits/{client}", self.prefix)
    }

    /// The key in etcd that holds the format of the configuration.
    pub(super) fn format_key(&self) -> String {
        format!("{}/format", self.prefix)
    }

    /// The certificate of the authority; `None` if connections do not use TLS.
    pub(super) fn ca(&self) -> Option<&Path> {
        self.ca.as_deref()
    }

    /// This client's certificate and its key.
    pub(super) fn identity(&self) -> Option<(&Path, &Path)> {
        self.identity.as_ref().map(|(cert, key)| (cert.as_path(), key.as_path()))
    }

    /// The user of etcd and its password, which is read from the file now. `None` if the URL names none.
    pub(super) fn user(&self) -> Result<Option<(String, String)>, ConfigError> {
        let Some((name, file)) = &self.user else { return Ok(None) };
        let text = std::fs::read_to_string(file).map_err(|error| {
            ConfigError::Unavailable(format!("the password file {} cannot be read: {error}", file.display()))
        })?;
        Ok(Some((name.clone(), text.lines().next().unwrap_or_default().to_owned())))
    }

    /// Whether a password is sent over connections that are not encrypted.
    pub(super) fn sends_a_password_in_clear_text(&self) -> bool {
        self.user.is_some() && self.ca.is_none()
    }

    /// The same with absolute paths, as every process of this machine finds the files, whatever its current folder is.
    pub(crate) fn absolute(self) -> EtcdAddress {
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        EtcdAddress {
            ca: self.ca.map(absolute),
            identity: self.identity.map(|(cert, key)| (absolute(cert), absolute(key))),
            user: self.user.map(|(name, file)| (name, absolute(file))),
            ..self
        }
    }
}

impl FromStr for EtcdAddress {
    type Err = String;

    /// Parses all after `etcd://`.
    fn from_str(text: &str) -> Result<EtcdAddress, String> {
        let wrong = |why: String| format!("{why}; {FORM}");
        let (place, options) = text.split_once('?').unwrap_or((text, ""));
        let (hosts, prefix) = place.split_once('/').unwrap_or((place, ""));
        let prefix = match prefix.trim_matches('/') {
            "" => PREFIX.to_owned(),
            prefix if prefix.bytes().all(|byte| byte.is_ascii_graphic()) => prefix.to_owned(),
            prefix => {
                return Err(wrong(format!("the prefix \"{prefix}\" has a character that is not allowed")));
            }
        };
        if prefix.split('/').any(|part| matches!(part, "" | "data" | "format")) {
            let why = "has an empty part, or one that clusters use themselves (data, format)";
            return Err(wrong(format!("the prefix \"{prefix}\" {why}")));
        }
        let endpoints: Vec<String> =
            hosts.split(',').map(endpoint).collect::<Result<_, _>>().map_err(wrong)?;
        if let Some(twice) = endpoints.iter().enumerate().find(|(at, one)| endpoints[..*at].contains(one)) {
            return Err(wrong(format!("the member {} is named twice", twice.1)));
        }
        let mut address = EtcdAddress { endpoints, prefix, ca: None, identity: None, user: None };
        let (mut cert, mut key, mut user, mut password) = (None, None, None, None);
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = percent_decode_str(value)
                .decode_utf8()
                .map_err(|_| wrong(format!("the value of \"{name}\" is not UTF-8")))?;
            let value: &str = &value;
            if value.is_empty() {
                return Err(wrong(format!("the option \"{name}\" has no value")));
            }
            let set = match name {
                "ca" => address.ca.replace(value.into()).is_some(),
                "cert" => cert.replace(PathBuf::from(value)).is_some(),
                "key" => key.replace(PathBuf::from(value)).is_some(),
                "user" => user.replace(value.to_owned()).is_some(),
                "password-file" => password.replace(PathBuf::from(value)).is_some(),
                _ => return Err(wrong(format!("\"{name}\" is not an option"))),
            };
            if set {
                return Err(wrong(format!("the option \"{name}\" is given twice")));
            }
        }
        let both = |one: &str, other: &str| wrong(format!("{one} and {other} belong together: give both"));
        address.identity = match (cert, key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert, key)),
            _ => return Err(both("cert", "key")),
        };
        address.user = match (user, password) {
            (None, None) => None,
            (Some(user), Some(file)) => Some((user, file)),
            _ => return Err(both("user", "password-file")),
        };
        if address.identity.is_some() && address.ca.is_none() {
            return Err(wrong(
                "a client certificate needs TLS: name the authority's certificate with ca".into(),
            ));
        }
        Ok(address)
    }
}

/// One member, with its port.
fn endpoint(text: &str) -> Result<String, String> {
    let bare = text.trim();
    let (host, port) = match bare.rsplit_once(':') {
        // An IPv6 address stands in brackets: the colons in it separate no port.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (bare, None),
    };
    let is_name = |host: &str| {
        host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
    };
    let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match in_brackets {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && is_name(host),
    };
    if !is_host {
        return Err(format!("\"{text}\" does not name a member of etcd"));
    }
    let port = match port {
        None => PORT,
        Some(port) => port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| format!("\"{port}\" in \"{text}\" is not a port"))?,
    };
    Ok(format!("{host}:{port}"))
}

impl fmt::Display for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd://{}/{}", self.endpoints.join(","), self.prefix)?;
        let mut options: Vec<String> = Vec::new();
        let shown = |path: &Path| utf8_percent_encode(&path.to_string_lossy(), OPTION).to_string();
        options.extend(self.ca.iter().map(|path| format!("ca={}", shown(path))));
        if let Some((cert, key)) = &self.identity {
            options.push(format!("cert={}&key={}", shown(cert), shown(key)));
        }
        options.extend(self.user.iter().map(|(name, file)| {
            format!("user={}&password-file={}", utf8_percent_encode(name, OPTION), shown(file))
        }));
        match options.is_empty() {
            true => Ok(()),
            false => write!(f, "?{}", options.join("&")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_a_port_and_keys_a_prefix() {
        let address: EtcdAddress = "a,b.example:2479,[fd00::1],[fd00::2]:99".parse().unwrap();
        assert_eq!(address.endpoints(), ["a:2379", "b.example:2479", "[fd00::1]:2379", "[fd00::2]:99"]);
        assert_eq!(address.data_key("node/1"), "loadline/data/node/1");
        let address: EtcdAddress = "a/rack/7/".parse().unwrap();
        assert_eq!((address.format_key().as_str(), address.ca()), ("rack/7/format", None));
    }

    #[test]
    fn a_member_beyond_this_machine_is_found() {
        for (hosts, beyond) in [
            ("127.0.0.1,127.9.9.9:1,[::1],localhost", None),
            ("127.0.0.1,10.0.0.1", Some("10.0.0.1:2379")),
            ("[fd00::1]:9", Some("[fd00::1]:9")),
            ("0.0.0.0", Some("0.0.0.0:2379")),
            ("rack-7", Some("rack-7:2379")),
            ("localhost.example", Some("localhost.example:2379")),
        ] {
            let address: EtcdAddress = hosts.parse().unwrap();
            assert_eq!(address.member_beyond_this_machine(), beyond, "{hosts}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for text in [
            "etcd://a:2379/loadline",
            "etcd://a:2379,b:1/x?ca=/c.pem&cert=/d.pem&key=/e.pem&user=u&password-file=/p",
            "etcd://a:2379/x?ca=/a%26b%20c%25/d.pem",
            "etcd://[::1]:2379/x?user=u&password-file=/p",
        ] {
            let address: EtcdAddress = text["etcd://".len()..].parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(address.clone().absolute(), address);
        }
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (text, named) in [
            ("", "\"\" does not name a member"),
            ("a,,b", "\"\" does not name a member"),
            ("a b", "\"a b\""),
            ("a:99999", "not a port"),
            ("a:0", "not a port"),
            ("[fd00::g]", "does not name"),
            ("a,a:2379", "named twice"),
            ("a?tls=1", "\"tls\" is not an option"),
            ("a?ca=", "no value"),
            ("a?ca=/x&ca=/y", "given twice"),
            ("a?ca=/x&cert=/y", "cert and key belong together"),
            ("a?cert=/x&key=/y", "needs TLS"),
            ("a?user=u", "user and password-file belong together"),
            ("a/x y", "the prefix"),
            ("a/x/data/y", "the prefix"),
            ("a/x//y", "the prefix"),
        ] {
            let why = text.parse::<EtcdAddress>().unwrap_err();
            assert!(why.contains(named) && why.contains("etcd://HOST:PORT"), "{text}: {why}");
        }
    }
}
