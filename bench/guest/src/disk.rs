//! A disk of a machine, and how QEMU opens it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

/// A file or a device that was opened and checked. A QEMU that we start gets the open file itself, so that it uses what was checked, whatever
/// has its name by then. Libvirt opens it by its name.
#[derive(Debug, Clone)]
pub struct OpenFile(Arc<OwnedFd>);

impl OpenFile {
    /// Another handle of this file. The two share what is locked.
    pub fn of(file: &File) -> io::Result<OpenFile> {
        Ok(OpenFile(Arc::new(file.try_clone()?.into())))
    }
}

impl From<Arc<OwnedFd>> for OpenFile {
    fn from(file: Arc<OwnedFd>) -> OpenFile {
        OpenFile(file)
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The same handle.
impl PartialEq for OpenFile {
    fn eq(&self, other: &OpenFile) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for OpenFile {}

/// A disk for a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineDisk {
    /// A file of the host.
    File {
        /// Where.
        path: PathBuf,
        /// The file that was opened there.
        open: OpenFile,
        /// Whether I/O bypasses the host's page cache.
        direct: bool,
    },
    /// A block device of the host.
    Block {
        /// Where.
        path: PathBuf,
        /// The device that was opened there.
        open: OpenFile,
        /// Whether I/O bypasses the host's page cache.
        direct: bool,
    },
    /// A disk of an NBD server.
    Nbd {
        /// Where the server listens.
        server: NbdServer,
        /// Which of its disks.
        export: String,
    },
    /// A disk of a vhost-user-blk server, by its socket.
    VhostUser(PathBuf),
    /// An image of a Ceph cluster.
    Rbd {
        /// The image's pool.
        pool: String,
        /// Its namespace in the pool; empty: none.
        namespace: String,
        /// Its name.
        image: String,
        /// The user of the cluster; empty: the default one.
        user: String,
        /// The cluster's configuration.
        conf: Option<PathBuf>,
    },
    /// A logical unit of an iSCSI target. QEMU is the initiator.
    Iscsi {
        /// The portal, `HOST:PORT`.
        portal: String,
        /// The target's name.
        target: String,
        /// The number of the unit.
        lun: u16,
    },
}

/// Where an NBD server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NbdServer {
    /// A host and a port.
    Tcp(String, u16),
    /// A socket in the file system.
    Unix(PathBuf),
    /// A socket of this host that is in no folder, by its name: a relay of this process, which connects to a cluster's nodes in turn.
    Relay(String),
}

/// Whether a name of a host is of whichever host asks.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    address.map_or(host == "localhost", |address| address.is_loopback())
}

impl MachineDisk {
    /// In words.
    pub(crate) fn name(&self) -> String {
        match self {
            MachineDisk::File { path, .. } | MachineDisk::Block { path, .. } => path.display().to_string(),
            MachineDisk::Nbd { server: NbdServer::Tcp(host, port), export } => {
                format!("nbd://{host}:{port}/{export}")
            }
            MachineDisk::Nbd { server: NbdServer::Unix(path), export } => {
                format!("the export \"{export}\" of {}", path.display())
            }
            MachineDisk::Nbd { server: NbdServer::Relay(_), export } => format!("volume {export}"),
            MachineDisk::VhostUser(path) => format!("vhost-user:{}", path.display()),
            MachineDisk::Rbd { pool, image, .. } => format!("rbd:{pool}/{image}"),
            MachineDisk::Iscsi { portal, target, lun } => format!("iscsi://{portal}/{target}/{lun}"),
        }
    }

    /// Whether only processes of one host reach it.
    pub(crate) fn is_of_one_host(&self) -> bool {
        match self {
            MachineDisk::File { .. } | MachineDisk::Block { .. } | MachineDisk::VhostUser(_) => true,
            MachineDisk::Nbd { server: NbdServer::Tcp(host, _), .. } => is_loopback(host),
            MachineDisk::Nbd { server: NbdServer::Unix(_) | NbdServer::Relay(_), .. } => true,
            MachineDisk::Iscsi { portal, .. } => {
                is_loopback(portal.rsplit_once(':').map_or(portal.as_str(), |(host, _)| host))
            }
            MachineDisk::Rbd { .. } => false,
        }
    }

    /// What was opened of this host.
    pub(crate) fn opened(&self) -> Option<&OpenFile> {
        match self {
            MachineDisk::File { open, .. } | MachineDisk::Block { open, .. } => Some(open),
            _ => None,
        }
    }

    /// As QEMU opens it; a file or a device under the name `handed`.
    pub(crate) fn block(&self, handed: &Path) -> Value {
        let local = |driver: &str, path: &Path, direct: bool| {
            json!({ "driver": "raw", "file": { "driver": driver, "filename": path, "locking": "off", "aio": "threads",
                "cache": { "direct": direct } } })
        };
        match self {
            MachineDisk::File { direct, .. } => local("file", handed, *direct),
            MachineDisk::Block { direct, .. } => local("host_device", handed, *direct),
            MachineDisk::Nbd { server, export } => {
                // A server that comes again within this time, seconds, is no error for the machine. A cluster takes longer: another node
                // takes the volume over, and the relay waits before it connects to that node.
                let (server, delay) = match server {
                    NbdServer::Tcp(host, port) => {
                        (json!({ "type": "inet", "host": host, "port": port.to_string() }), 30)
                    }
                    NbdServer::Unix(path) => (json!({ "type": "unix", "path": path }), 30),
                    NbdServer::Relay(name) => {
                        (json!({ "type": "unix", "path": name, "abstract": true }), 120)
                    }
                };
                json!({ "driver": "nbd", "server": server, "export": export, "reconnect-delay": delay })
            }
            MachineDisk::Rbd { pool, namespace, image, user, conf } => {
                let mut block = json!({ "driver": "rbd", "pool": pool, "image": image });
                let given = [
                    ("namespace", Some(namespace.clone())),
                    ("user", Some(user.clone())),
                    ("conf", conf.as_ref().map(|path| path.display().to_string())),
                ];
                for (key, value) in given {
                    if let Some(value) = value.filter(|value| !value.is_empty()) {
                        block[key] = value.into();
                    }
                }
                block
            }
            MachineDisk::Iscsi { portal, target, lun } => {
                json!({ "driver": "iscsi", "transport": "tcp", "portal": portal, "target": target, "lun": lun })
            }
            MachineDisk::VhostUser(_) => Value::Null,
        }
    }
}
