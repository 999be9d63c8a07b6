//! What a node states of its process and its host for a support archive. Each value is named here: settings that are added later are
//! not in it until someone has decided that they are no secret.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::node::Node;
use crate::recent;

/// What a node states of its process and its host for a support archive. It has no key, token or password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SupportView {
    /// Its name.
    pub node: String,
    /// The version of its program.
    pub version: String,
    /// The life of its process: a larger number for each later one. Milliseconds since 1970, when the process began.
    pub incarnation: u64,
    /// Its settings.
    pub settings: SupportSettings,
    /// Its host.
    pub host: HostView,
    /// The last lines of its log since its process began, the oldest first: 2,000 lines or 256 KiB at most.
    pub log: Vec<String>,
}

/// What `node.toml` has, without what proves an identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SupportSettings {
    /// Its folder.
    pub folder: String,
    /// The configuration store: its members and the prefix of the cluster, or its file.
    pub store: String,
    /// As in `node.toml`.
    pub spin_us: Option<u64>,
    /// As in `node.toml`.
    pub client_wait_s: Option<u64>,
    /// As in `node.toml`.
    pub api_names: Vec<String>,
    /// As in `node.toml`.
    pub test_faults: bool,
    /// Threads of its data path.
    pub loops: usize,
    /// Files that it may have open (RLIMIT_NOFILE).
    pub open_files: u64,
}

/// A host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostView {
    /// Its name.
    pub name: String,
    /// The distribution, as `/etc/os-release` names it.
    pub system: String,
    /// The release and version of its kernel.
    pub kernel: String,
    /// Its architecture.
    pub machine: String,
    /// Processors that this process may use.
    pub cpus: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of memory that programs could still be given.
    pub memory_available: u64,
    /// Seconds since it was started.
    pub uptime_s: u64,
    /// Its load averages of 1, 5 and 15 minutes.
    pub load: String,
}

impl HostView {
    /// This host, as far as it can be read.
    pub fn here() -> HostView {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let memory = read("/proc/meminfo");
        let bytes = |key: &str| {
            let line = memory.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            kib.unwrap_or(0) << 10
        };
        let release = read("/etc/os-release");
        let system = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        let uname = nix::sys::utsname::uname().ok();
        let text = |of: fn(&nix::sys::utsname::UtsName) -> &std::ffi::OsStr| {
            uname.as_ref().map_or(String::new(), |uname| of(uname).to_string_lossy().into_owned())
        };
        HostView {
            name: text(|uname| uname.nodename()),
            system: system.unwrap_or_default().trim_matches('"').to_owned(),
            kernel: format!("{} {}", text(|uname| uname.release()), text(|uname| uname.version())),
            machine: text(|uname| uname.machine()),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            memory: bytes("MemTotal"),
            memory_available: bytes("MemAvailable"),
            uptime_s: read("/proc/uptime").split('.').next().and_then(|text| text.parse().ok()).unwrap_or(0),
            load: read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
        }
    }
}

impl Node {
    /// What is known of this node's process and host, for a support archive.
    pub(crate) fn support(&self) -> SupportView {
        let settings = &self.0.settings;
        SupportView {
            node: settings.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            incarnation: self.0.me.incarnation.0,
            settings: SupportSettings {
                folder: settings.folder.display().to_string(),
                store: self.store().place(),
                spin_us: settings.spin_us,
                client_wait_s: settings.client_wait_s,
                api_names: settings.api_names.clone(),
                test_faults: settings.test_faults,
                loops: self.0.loops.len(),
                open_files: loadline_base::limits::open_files(),
            },
            host: HostView::here(),
            log: recent::texts(),
        }
    }
}
