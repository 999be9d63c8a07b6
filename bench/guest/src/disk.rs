//! A disk for a machine: what it is on the host, and how QEMU opens it.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// A disk for a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineDisk {
    /// A file of the host.
    File {
        /// Where.
        path: PathBuf,
        /// Whether I/O bypasses the host's page cache.
        direct: bool,
    },
    /// A block device of the host.
    Block {
        /// Where.
        path: PathBuf,
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
}

/// Where an NBD server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NbdServer {
    /// A host and a port.
    Tcp(String, u16),
    /// A socket in the file system.
    Unix(PathBuf),
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
            MachineDisk::VhostUser(path) => format!("vhost-user:{}", path.display()),
            MachineDisk::Rbd { pool, image, .. } => format!("rbd:{pool}/{image}"),
        }
    }

    /// As QEMU opens it.
    pub(crate) fn block(&self) -> Value {
        let local = |driver: &str, path: &Path, direct: bool| {
            json!({ "driver": "raw", "file": { "driver": driver, "filename": path, "locking": "off", "aio": "threads",
                "cache": { "direct": direct } } })
        };
        match self {
            MachineDisk::File { path, direct } => local("file", path, *direct),
            MachineDisk::Block { path, direct } => local("host_device", path, *direct),
            MachineDisk::Nbd { server, export } => {
                let server = match server {
                    NbdServer::Tcp(host, port) => {
                        json!({ "type": "inet", "host": host, "port": port.to_string() })
                    }
                    NbdServer::Unix(path) => json!({ "type": "unix", "path": path }),
                };
                // A server that comes again within this time is no error for the machine.
                json!({ "driver": "nbd", "server": server, "export": export, "reconnect-delay": 30 })
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
            MachineDisk::VhostUser(_) => Value::Null,
        }
    }
}
