//! How a logical unit of an iSCSI target is named: `iscsi://USER@HOST:PORT/TARGET/LUN`, as libiscsi and QEMU write it, with what else a
//! login takes behind a `?`.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use loadline_base::iscsi::{LONGEST_NAME, PORT};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::error::LoadError;

/// The largest number of a logical unit that is written as one number.
const LAST_LUN: u16 = 16_383;
/// What may stand in the path of a file as it is.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');
/// The variable with the secret, if the URI names no file.
pub const SECRET_VARIABLE: &str = "LOADLINE_ISCSI_SECRET";
/// Bytes of a secret at most.
const LONGEST_SECRET: usize = 4096;

/// A logical unit of a target.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IscsiUri {
    /// The host of the portal, by its name or address; an address of IPv6 in brackets.
    pub host: String,
    /// The port of the portal.
    pub port: u16,
    /// The name of the target, such as `iqn.2003-01.org.example:disk`.
    pub target: String,
    /// The number of the logical unit.
    pub lun: u16,
    /// The user by whose name and secret the initiator logs in (CHAP); without one it logs in without authentication.
    pub user: Option<String>,
    /// The file with the secret of the user, and nothing else.
    pub secret: Option<PathBuf>,
    /// Headers and data have a digest each (CRC32C).
    pub digest: bool,
    /// The name of the initiator; if there is none, [`initiator_name`](Self::initiator_name) makes one of the host's name.
    pub initiator: Option<String>,
}

impl IscsiUri {
    /// A unit that is reached without authentication, digests and a special name.
    pub fn new(host: &str, port: u16, target: &str, lun: u16) -> IscsiUri {
        IscsiUri {
            host: host.into(),
            port,
            target: target.into(),
            lun,
            user: None,
            secret: None,
            digest: false,
            initiator: None,
        }
    }

    /// The name by which the target knows this initiator.
    pub fn initiator_name(&self) -> String {
        let host = || {
            let name = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
            name.replace(|c: char| !is_of_name(c), "-")
        };
        self.initiator.clone().unwrap_or_else(|| format!("iqn.2026-01.org.loadline:load:{}", host()))
    }

    /// The secret of the user: of the file that the URI names, or else of the environment. `None` if it has no user.
    pub(crate) fn read_secret(&self) -> Result<Option<String>, LoadError> {
        let Some(user) = &self.user else { return Ok(None) };
        let failed = |why: String| LoadError::usage(format!("{self}: {why}"));
        let secret = match (&self.secret, std::env::var(SECRET_VARIABLE)) {
            (Some(path), _) => read(path)
                .map_err(|why| failed(format!("the secret of {user} in {} {why}", path.display())))?,
            (None, Ok(secret)) => secret,
            (None, Err(_)) => {
                return Err(failed(format!(
                    "the secret of {user} is in no file that the target names, and not in {SECRET_VARIABLE}: add \
                     ?secret=PATH, or set the variable"
                )));
            }
        };
        if secret.is_empty() {
            return Err(failed(format!("the secret of {user} is empty")));
        }
        Ok(Some(secret))
    }
}

/// The secret in a file, or why there is none. The end of its last line is no part of it.
fn read(path: &Path) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let mut text = Vec::new();
    let read = file.take(LONGEST_SECRET as u64 + 1).read_to_end(&mut text);
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if text.len() > LONGEST_SECRET {
        return Err(format!("has more than {LONGEST_SECRET} bytes: name a file that has the secret alone"));
    }
    let text = String::from_utf8(text).map_err(|_| "is not text".to_string())?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(text.strip_suffix('\r').unwrap_or(text).into())
}

/// Whether it may stand in the name of an initiator or a target.
fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-.:".contains(c)
}

/// Why this is no name of an initiator or a target, as words behind what it is the name of; `None` if it is one.
fn why_no_name(text: &str) -> Option<String> {
    if !["iqn.", "eui.", "naa."].iter().any(|kind| text.starts_with(kind)) {
        return Some("has no name of iSCSI (iqn. …, eui. … or naa. …)".into());
    }
    if text.len() > LONGEST_NAME {
        return Some(format!("has a name of {} bytes, and {LONGEST_NAME} are the most", text.len()));
    }
    let other = text.chars().find(|c| !is_of_name(*c))?;
    Some(format!("has {other:?} in its name: a name of iSCSI has letters, digits, '-', '.' and ':' only"))
}

/// Host and port of a portal, as it is written: the port may be missing, an address of IPv6 stands in brackets. An error says what is
/// wrong.
pub(crate) fn portal(text: &str) -> Result<(String, u16), &'static str> {
    let (host, port) = match text.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
        Some((host, port)) => (host, port.parse().map_err(|_| "its port is no number")?),
        None => (text, PORT),
    };
    let is_host = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    if host.is_empty() || !host.chars().all(is_host) {
        return Err("it names no host");
    }
    Ok((host.into(), port))
}

impl FromStr for IscsiUri {
    type Err = LoadError;

    fn from_str(text: &str) -> Result<IscsiUri, LoadError> {
        let wrong = |why: &str| {
            LoadError::usage(format!(
                "target \"{text}\": {why}; write iscsi://HOST:PORT/TARGET/LUN, such as iscsi://10.0.0.5/iqn.2003-01.org.example:disk/0, with \
                 USER@ before the host if the target requires CHAP, and behind it the options that you need: \
                 ?secret=PATH&digest=crc32c&initiator=IQN"
            ))
        };
        let rest = text.strip_prefix("iscsi://").ok_or_else(|| wrong("it is no logical unit of iSCSI"))?;
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
        let is_of_user = |c: char| c.is_ascii_graphic() && !"/@%#?".contains(c);
        match user {
            // libiscsi's notation of a password.
            Some(user) if user.contains('%') => {
                return Err(LoadError::usage(format!(
                    "a target of iSCSI with a password: a command line is no place for one. Put it into a file, and name that by \
                     ?secret=PATH; or set {SECRET_VARIABLE}"
                )));
            }
            Some(user) if user.is_empty() || !user.chars().all(is_of_user) => {
                return Err(wrong("its user is no name"));
            }
            _ => {}
        }
        let mut parts = rest.split('/');
        let (Some(place), Some(target), Some(lun), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong("it has not the three parts of such a name"));
        };
        let (host, port) = portal(place).map_err(wrong)?;
        if let Some(why) = why_no_name(target) {
            return Err(wrong(&format!(
                "its target {why} ('loadline volume show NAME' prints the name of a volume's target)"
            )));
        }
        let lun = lun.parse().ok().filter(|lun| *lun <= LAST_LUN);
        let lun = lun.ok_or_else(|| wrong("its LUN is no number up to 16383"))?;
        let mut uri = IscsiUri { user: user.map(String::from), ..IscsiUri::new(&host, port, target, lun) };
        for part in query.iter().flat_map(|query| query.split('&')) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let is_first = match (key, value) {
                ("secret", path) => {
                    let path =
                        percent_decode_str(path).decode_utf8().map_err(|_| wrong("it is not UTF-8"))?;
                    if path.is_empty() || path.contains('\0') {
                        return Err(wrong("it does not say which file has the secret"));
                    }
                    uri.secret.replace(PathBuf::from(&*path)).is_none()
                }
                ("digest", "crc32c") => !std::mem::replace(&mut uri.digest, true),
                ("digest", "none") => true,
                ("digest", _) => return Err(wrong("its digest is neither crc32c nor none")),
                ("initiator", name) => {
                    if let Some(why) = why_no_name(name) {
                        return Err(wrong(&format!("its initiator {why}")));
                    }
                    uri.initiator.replace(name.into()).is_none()
                }
                _ => return Err(wrong(&format!("\"{key}\" behind the ? is not known"))),
            };
            if !is_first {
                return Err(wrong(&format!("\"{key}\" is said twice")));
            }
        }
        if uri.secret.is_some() && uri.user.is_none() {
            return Err(wrong("it has a secret and no user"));
        }
        Ok(uri)
    }
}

impl fmt::Display for IscsiUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IscsiUri { host, port, target, lun, user, secret, digest, initiator } = self;
        write!(f, "iscsi://")?;
        if let Some(user) = user {
            write!(f, "{user}@")?;
        }
        write!(f, "{host}")?;
        if *port != PORT {
            write!(f, ":{port}")?;
        }
        write!(f, "/{target}/{lun}")?;
        let secret = secret.as_ref().map(|path| {
            let path = path.to_string_lossy();
            format!("secret={}", utf8_percent_encode(&path, PATH))
        });
        let digest = digest.then(|| "digest=crc32c".to_string());
        let initiator = initiator.as_ref().map(|name| format!("initiator={name}"));
        for (number, option) in [secret, digest, initiator].into_iter().flatten().enumerate() {
            write!(f, "{}{option}", if number == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_logical_unit_is_read_as_qemu_writes_it() {
        let uri: IscsiUri = "iscsi://10.0.0.5:3261/iqn.2003-01.org.example:disk/7".parse().unwrap();
        assert_eq!((uri.host.as_str(), uri.port, uri.lun), ("10.0.0.5", 3261, 7));
        let uri: IscsiUri =
            "iscsi://a:b.c@h/iqn.a/0?secret=/etc/a%20b&digest=crc32c&initiator=iqn.2026-01.x:y"
                .parse()
                .unwrap();
        assert_eq!((uri.user.as_deref(), uri.secret), (Some("a:b.c"), Some("/etc/a b".into())));
        assert_eq!((uri.digest, uri.initiator.as_deref()), (true, Some("iqn.2026-01.x:y")));
        for text in [
            "iscsi://[::1]/iqn.2003-01.a:b/0",
            "iscsi://h:1/eui.02004567A425678D/0",
            "iscsi://u@h/iqn.a/0?secret=/etc/s&initiator=iqn.b",
        ] {
            assert_eq!(text.parse::<IscsiUri>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_wrong_with_a_unit_is_said() {
        for (text, word) in [
            ("iscsi://h/iqn.a", "three parts"),
            ("iscsi://h/iqn.a/0/1", "three parts"),
            ("iscsi://h:x/iqn.a/0", "port"),
            ("iscsi:///iqn.a/0", "no host"),
            ("iscsi://h/disk/0", "no name of iSCSI"),
            ("iscsi://h/iqn.a b/0", "its target has ' ' in its name"),
            ("iscsi://h/iqn.2026-01.org.loadline:Vm_1/0", "its target has '_' in its name"),
            ("iscsi://h/iqn.2026-01.org.loadline:Vm_1/0", "'loadline volume show NAME' prints"),
            (&format!("iscsi://h/iqn.{}/0", "x".repeat(220)), "224 bytes, and 223 are the most"),
            ("iscsi://h/iqn.a/x", "LUN"),
            ("iscsi://h/iqn.a/16384", "LUN"),
            ("iscsi://@h/iqn.a/0", "user"),
            ("iscsi://h/iqn.a/0?secret=/s", "no user"),
            ("iscsi://u@h/iqn.a/0?secret=", "which file"),
            ("iscsi://h/iqn.a/0?digest=md5", "neither"),
            ("iscsi://h/iqn.a/0?digest=crc32c&digest=crc32c", "twice"),
            ("iscsi://h/iqn.a/0?initiator=me", "its initiator has no name of iSCSI"),
            ("iscsi://h/iqn.a/0?initiator=iqn.my_pc", "its initiator has '_' in its name"),
            ("iscsi://h/iqn.a/0?x=y", "not known"),
        ] {
            let error = text.parse::<IscsiUri>().unwrap_err().message;
            assert!(error.contains(word), "{text}: {error}");
        }
        let error = "iscsi://u%sesame@h/iqn.a/0".parse::<IscsiUri>().unwrap_err().message;
        assert!(error.contains("password") && !error.contains("sesame"), "it is not printed: {error}");
    }

    #[test]
    fn the_secret_of_a_user_is_the_only_line_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let uri = IscsiUri {
            user: Some("u".into()),
            secret: Some(path.clone()),
            ..IscsiUri::new("h", PORT, "iqn.a", 0)
        };
        assert!(uri.read_secret().unwrap_err().message.contains("cannot be read"));
        for (text, secret) in [("a b", "a b"), ("abc\n", "abc"), ("abc\r\n", "abc")] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(uri.read_secret().unwrap().as_deref(), Some(secret));
        }
        std::fs::write(&path, "\n").unwrap();
        assert!(uri.read_secret().unwrap_err().message.contains("empty"));
        std::fs::write(&path, vec![b'x'; LONGEST_SECRET + 2]).unwrap();
        assert!(uri.read_secret().unwrap_err().message.contains("alone"));
        assert_eq!(IscsiUri { user: None, secret: None, ..uri }.read_secret().unwrap(), None);
    }

    #[test]
    fn an_initiator_has_a_name_that_targets_take() {
        let uri = IscsiUri::new("h", PORT, "iqn.a", 0);
        assert_eq!(why_no_name(&uri.initiator_name()), None, "{}", uri.initiator_name());
        assert_eq!(IscsiUri { initiator: Some("iqn.b".into()), ..uri }.initiator_name(), "iqn.b");
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_read_is_printed_so_that_it_is_read_again(
            text in "iscsi://[a-z:0-9/.\\[\\]@%-]{0,40}(\\?(secret|digest|initiator)=[a-z0-9./%]{0,10})?"
        ) {
            if let Ok(uri) = text.parse::<IscsiUri>() {
                prop_assert_eq!(uri.to_string().parse::<IscsiUri>().unwrap(), uri);
            }
        }
    }
}
