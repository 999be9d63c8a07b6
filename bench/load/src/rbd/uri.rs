//! How an image of a Ceph cluster is named: `rbd:POOL/IMAGE`, with what else opening it takes behind a `?`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::error::LoadError;

/// What may stand in a name as it is; in a path the slash too.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const PATH: &AsciiSet = &NAME.remove(b'/');
/// The Ceph user, if none is named.
const USER: &str = "admin";

/// An image of a Ceph cluster: `rbd:POOL/IMAGE?user=NAME&conf=PATH&keyring=PATH&namespace=NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RbdUri {
    /// The pool that has it.
    pub pool: String,
    /// The namespace in this pool; empty is the pool's own.
    pub namespace: String,
    /// The name of the image.
    pub image: String,
    /// The Ceph user, as in `client.admin`, without `client.`.
    pub user: String,
    /// The cluster's configuration; if none is named, the one that Ceph finds by itself.
    pub conf: Option<PathBuf>,
    /// The file with the user's key; if none is named, the one of the configuration.
    pub keyring: Option<PathBuf>,
}

impl RbdUri {
    /// An image, opened as the default user.
    pub fn new(pool: &str, image: &str) -> RbdUri {
        RbdUri {
            pool: pool.into(),
            namespace: String::new(),
            image: image.into(),
            user: USER.into(),
            conf: None,
            keyring: None,
        }
    }
}

impl FromStr for RbdUri {
    type Err = LoadError;

    fn from_str(text: &str) -> Result<RbdUri, LoadError> {
        let wrong = |why: &str| {
            LoadError::usage(format!(
                "target \"{text}\": {why}; write rbd:POOL/IMAGE, followed by the options that you need: \
                 ?user=NAME&conf=PATH&keyring=PATH&namespace=NAME"
            ))
        };
        let decoded = |part: &str, what: &str| {
            let decoded = percent_decode_str(part).decode_utf8().map_err(|_| wrong("it is not UTF-8"))?;
            match &*decoded {
                "" => Err(wrong(&format!("it has no {what}"))),
                name if name.contains('\0') => Err(wrong(&format!("its {what} has a byte of zero"))),
                name => Ok(name.to_string()),
            }
        };
        let rest = text.strip_prefix("rbd:").ok_or_else(|| wrong("it is no image of a Ceph cluster"))?;
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (place, query) = rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
        let (pool, image) = place.split_once('/').ok_or_else(|| wrong("it does not say which image"))?;
        if image.contains('/') {
            return Err(wrong("it has two slashes, and a namespace is said by ?namespace=NAME"));
        }
        if image.contains('@') {
            return Err(wrong("a snapshot is not measured: name the image, or a clone of the snapshot"));
        }
        let mut uri = RbdUri::new(&decoded(pool, "pool")?, &decoded(image, "image")?);
        let mut known = [("user", None), ("conf", None), ("keyring", None), ("namespace", None)];
        for part in query.iter().flat_map(|query| query.split('&')) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let Some((_, place)) = known.iter_mut().find(|(name, _)| *name == key) else {
                return Err(wrong(&format!("\"{key}\" behind the ? is not known")));
            };
            if place.replace(decoded(value, key)?).is_some() {
                return Err(wrong(&format!("\"{key}\" is said twice")));
            }
        }
        let [user, conf, keyring, namespace] = known.map(|(_, value)| value);
        if let Some(user) = user {
            // Said in full it is understood as well.
            uri.user = user.strip_prefix("client.").map_or(user.clone(), String::from);
        }
        uri.namespace = namespace.unwrap_or_default();
        (uri.conf, uri.keyring) = (conf.map(PathBuf::from), keyring.map(PathBuf::from));
        Ok(uri)
    }
}

impl fmt::Display for RbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |name| utf8_percent_encode(name, NAME);
        write!(f, "rbd:{}/{}", name(&self.pool), name(&self.image))?;
        let mut sign = '?';
        let mut say = |f: &mut fmt::Formatter<'_>, key: &str, value: &dyn fmt::Display| {
            write!(f, "{}{key}={value}", std::mem::replace(&mut sign, '&'))
        };
        if self.user != USER {
            say(f, "user", &name(&self.user))?;
        }
        for (key, path) in [("conf", &self.conf), ("keyring", &self.keyring)] {
            if let Some(path) = path.as_deref().map(Path::to_string_lossy) {
                say(f, key, &utf8_percent_encode(&path, PATH))?;
            }
        }
        if !self.namespace.is_empty() {
            say(f, "namespace", &name(&self.namespace))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn images_of_people_are_understood() {
        let plain = RbdUri::new("vms", "disk-1");
        for (text, uri) in [
            ("rbd:vms/disk-1", plain.clone()),
            ("rbd://vms/disk-1", plain.clone()),
            ("rbd:vms/a%20b", RbdUri::new("vms", "a b")),
            ("rbd:vms/a%40b%2Fc", RbdUri::new("vms", "a@b/c")),
            ("rbd:vms/disk-1?user=client.bench", RbdUri { user: "bench".into(), ..plain.clone() }),
            ("rbd:vms/disk-1?user=bench", RbdUri { user: "bench".into(), ..plain.clone() }),
            (
                "rbd:vms/disk-1?namespace=n&conf=/etc/ceph/b.conf&keyring=key%26ring",
                RbdUri {
                    namespace: "n".into(),
                    conf: Some("/etc/ceph/b.conf".into()),
                    keyring: Some("key&ring".into()),
                    ..plain
                },
            ),
        ] {
            assert_eq!(text.parse::<RbdUri>().unwrap(), uri, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_an_image_is_said() {
        for (text, why) in [
            ("rbd:", "which image"),
            ("rbd:vms", "which image"),
            ("rbd:/disk", "no pool"),
            ("rbd:vms/", "no image"),
            ("rbd:vms/ns/disk", "?namespace="),
            ("rbd:vms/disk@monday", "snapshot"),
            ("rbd:vms/disk?", "not known"),
            ("rbd:vms/disk?id=admin", "\"id\""),
            ("rbd:vms/disk?user=", "no user"),
            ("rbd:vms/disk?user=a&user=b", "twice"),
            ("rbd:vms/%ff", "UTF-8"),
            ("rbd:vms/a%00b", "zero"),
        ] {
            let error = text.parse::<RbdUri>().unwrap_err();
            assert!(error.message.contains(why), "{text}: {error}");
            assert!(error.message.contains("rbd:POOL/IMAGE"), "{error}");
        }
    }

    fn path() -> impl Strategy<Value = Option<PathBuf>> {
        proptest::option::of("[^\0]{1,20}".prop_map(PathBuf::from))
    }

    proptest! {
        #[test]
        fn an_image_is_read_as_it_is_printed(
            names in ("[^\0]{1,20}", "[^\0]{1,20}", "[^\0]{1,20}", "[^\0]{0,20}"),
            conf in path(),
            keyring in path(),
        ) {
            let (pool, image, user, namespace) = names;
            let uri = RbdUri { pool, namespace, image, user, conf, keyring };
            prop_assert_eq!(uri.to_string().parse::<RbdUri>().unwrap(), uri);
        }
    }
}
