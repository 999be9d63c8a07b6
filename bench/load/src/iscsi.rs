//! A logical unit of an iSCSI target, which virtual machines use: `iscsi://HOST:PORT/TARGET/LUN`, as libiscsi and QEMU write it. This
//! program is no initiator itself: a process reaches such a disk through a session of the kernel, as a block device.

use std::fmt;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use loadline_base::units::ByteSize;

use crate::error::LoadError;

/// How long a target may take to say how large its unit is.
const LIMIT: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The port of iSCSI (RFC 7143, section 14).
const PORT: u16 = 3260;
/// The longest name of a target, bytes (RFC 7143, section 4.2.7.1).
const LONGEST: usize = 223;
/// The largest number of a logical unit that is written as one number.
const LAST_LUN: u16 = 16_383;

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
}

impl IscsiUri {
    /// The size of the unit, by `qemu-img`: its initiator is the one that the machine will use.
    pub fn size(&self) -> Result<ByteSize, LoadError> {
        let usage = |why: String| LoadError::usage(format!("{self} cannot be looked at: {why}"));
        let mut command = Command::new("qemu-img");
        command.args(["info", "--output=json", "-U", &self.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| {
            usage(format!(
                "qemu-img cannot be started ({e}); it comes with: apt install qemu-utils qemu-block-extra"
            ))
        })?;
        let limit = Instant::now() + LIMIT;
        while child.try_wait().is_ok_and(|ended| ended.is_none()) {
            if Instant::now() > limit {
                let _ = child.kill();
                let _ = child.wait();
                return Err(usage(format!("its target did not answer within {} s", LIMIT.as_secs())));
            }
            thread::sleep(LOOK_EVERY);
        }
        let output = child.wait_with_output().map_err(|e| usage(e.to_string()))?;
        let said: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
        match said.and_then(|said| said["virtual-size"].as_u64()).filter(|_| output.status.success()) {
            Some(bytes) => Ok(ByteSize(bytes)),
            None => {
                let words = String::from_utf8_lossy(&output.stderr);
                let advice = match words.contains("nknown") {
                    true => "; QEMU's driver for iSCSI comes with: apt install qemu-block-extra",
                    false => "",
                };
                Err(usage(format!("{}{advice}", words.trim().trim_start_matches("qemu-img: "))))
            }
        }
    }
}

impl FromStr for IscsiUri {
    type Err = LoadError;

    fn from_str(text: &str) -> Result<IscsiUri, LoadError> {
        let wrong = |why: &str| {
            LoadError::usage(format!(
                "target \"{text}\": {why}; write iscsi://HOST:PORT/TARGET/LUN, such as iscsi://10.0.0.5/iqn.2003-01.org.example:disk/0"
            ))
        };
        let rest = text.strip_prefix("iscsi://").ok_or_else(|| wrong("it is no logical unit of iSCSI"))?;
        if rest.contains(['@', '?', '%']) {
            return Err(wrong("a user, a password or options in it are not known"));
        }
        let mut parts = rest.split('/');
        let (Some(portal), Some(target), Some(lun), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong("it has not the three parts of such a name"));
        };
        let (host, port) = match portal.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((host, port)) => (host, port.parse().map_err(|_| wrong("its port is no number"))?),
            None => (portal, PORT),
        };
        let is_host = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        if host.is_empty() || !host.chars().all(is_host) {
            return Err(wrong("it names no host"));
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-.:".contains(c);
        let begins = ["iqn.", "eui.", "naa."].iter().any(|kind| target.starts_with(kind));
        if !begins || target.len() > LONGEST || !target.chars().all(is_name) {
            return Err(wrong("its target has no name of iSCSI (iqn. …, eui. … or naa. …)"));
        }
        let lun = lun
            .parse()
            .ok()
            .filter(|lun| *lun <= LAST_LUN)
            .ok_or_else(|| wrong("its LUN is no number up to 16383"))?;
        Ok(IscsiUri { host: host.into(), port, target: target.into(), lun })
    }
}

impl fmt::Display for IscsiUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IscsiUri { host, port, target, lun } = self;
        match *port {
            PORT => write!(f, "iscsi://{host}/{target}/{lun}"),
            port => write!(f, "iscsi://{host}:{port}/{target}/{lun}"),
        }
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
        for text in ["iscsi://[::1]/iqn.2003-01.a:b/0", "iscsi://h:1/eui.02004567A425678D/0"] {
            assert_eq!(text.parse::<IscsiUri>().unwrap().to_string(), text);
        }
        for (text, word) in [
            ("iscsi://h/iqn.a", "three parts"),
            ("iscsi://h/iqn.a/0/1", "three parts"),
            ("iscsi://h:x/iqn.a/0", "port"),
            ("iscsi:///iqn.a/0", "no host"),
            ("iscsi://h/disk/0", "no name of iSCSI"),
            ("iscsi://h/iqn.a b/0", "no name of iSCSI"),
            ("iscsi://h/iqn.a/x", "LUN"),
            ("iscsi://h/iqn.a/16384", "LUN"),
            ("iscsi://u%p@h/iqn.a/0", "password"),
        ] {
            let error = text.parse::<IscsiUri>().unwrap_err().message;
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_read_is_printed_so_that_it_is_read_again(text in "iscsi://[a-z:0-9/.\\[\\]@-]{0,40}") {
            if let Ok(uri) = text.parse::<IscsiUri>() {
                prop_assert_eq!(uri.to_string().parse::<IscsiUri>().unwrap(), uri);
            }
        }
    }
}
