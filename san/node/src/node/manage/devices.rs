//! Devices: given to the cluster.

use std::path::PathBuf;
use std::time::Duration;

use loadline_base::device_model::DeviceModel;
use loadline_san_device::file::{DeviceFile, Devices};
use loadline_san_protocol::device::{DeviceId, DiskFault, Superblock};
use loadline_san_store::check::ReadOnly;
use loadline_san_store::io::Area;
use loadline_san_store::space::{Space, SpaceError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::room::{EXTENT_BLOCKS, chunk_bytes};
use super::volumes::LEAST_LOG;
use super::{ManageError, no_room, speed};
use crate::config::ConfigError;
use crate::config::catalog::{Catalog, Device, Role, change};
use crate::node::Node;

/// Bytes of the smallest device: a small copy with the least log fits.
const LEAST_DEVICE: u64 = 2 * LEAST_LOG;

/// A device that is to be given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddDevice {
    /// A block device, or a file.
    pub path: PathBuf,
    /// Make a new file of so many bytes.
    #[serde(default)]
    pub create: Option<u64>,
    /// Nothing that is on it is needed.
    #[serde(default)]
    pub overwrite: bool,
    /// It is to behave as this says, whatever is behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<DeviceModel>,
    /// What it is to have of replicas: data and logs unless another role is given; a device that replaces another has its role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
}

/// A device that was prepared.
struct Prepared {
    /// Bytes that it has for replicas.
    bytes: u64,
    /// How long it takes to make a block durable, microseconds.
    write_us: u64,
}

/// Fails if a device holds copies of volumes, of this cluster or another one. The device is only read: a node of another host may be using it.
fn check_unneeded(devices: Devices) -> Result<Devices, String> {
    let mut devices = ReadOnly(devices);
    let held = match Space::load(&mut devices, Area::Log, None) {
        Ok(space) => {
            let copies = space.residents().len();
            let superblock = space.superblock();
            let (device, cluster) = (superblock.device.0, superblock.cluster);
            (copies > 0).then(|| {
                let copies = if copies == 1 {
                    "1 copy of a volume".into()
                } else {
                    format!("{copies} copies of volumes")
                };
                format!("is device {device} of cluster {cluster}, and holds data or logs of {copies}")
            })
        }
        Err(
            SpaceError::Superblock(DiskFault::Newer { .. } | DiskFault::Older { .. })
            | SpaceError::Table { .. }
            | SpaceError::Shrunk { .. },
        ) => Some("is a device of a Loadline cluster, and may hold copies of volumes".into()),
        // Nothing of ours is there, or nothing that can be read.
        Err(_) => None,
    };
    let help = "It is not used, also not with --overwrite. If the copies are not needed any more, write zeroes over the first MiB of \
                the device, and try again";
    match held {
        Some(held) => Err(format!("{held}. {help}")),
        None => Ok(devices.0),
    }
}

impl Node {
    /// Gives a device of this node to the cluster. Its id.
    pub async fn add_device(&self, add: AddDevice) -> Result<u32, ManageError> {
        if !add.path.is_absolute() {
            return Err(ManageError::Wrong(format!(
                "{}: give the absolute path of the device",
                add.path.display()
            )));
        }
        let known = self.state().catalog.devices.iter().find_map(|(id, (device, _))| {
            (device.node == self.id() && device.path == add.path).then_some(*id)
        });
        if let Some(known) = known {
            return Err(ManageError::Wrong(format!(
                "{} is device {known} of the cluster already",
                add.path.display()
            )));
        }
        if let Some(bytes) = add.create.filter(|bytes| *bytes < LEAST_DEVICE) {
            return Err(ManageError::Wrong(format!(
                "a device of {} is too small: the log of one copy takes {} of the device. A device needs at least {}",
                no_room::size(bytes),
                no_room::size(LEAST_LOG),
                no_room::size(LEAST_DEVICE)
            )));
        }
        if let Some(Err(why)) = add.model.as_ref().map(DeviceModel::check) {
            return Err(ManageError::Wrong(format!("the device model: {why}")));
        }
        let id = self.config().call(|store| {
            for _ in 0..16 {
                let (ids, take) = Catalog::read(store)?.take_ids(1);
                if store.commit(&[take])? {
                    return Ok(ids.start as u32);
                }
            }
            Err(ConfigError::Contended)
        });
        let id = id.await?;
        let (cluster, path, model) = (self.0.cluster, add.path.clone(), add.model.clone());
        let role = add.role.unwrap_or_default();
        let formatted = tokio::task::spawn_blocking(move || -> Result<Prepared, String> {
            let shown = add.path.display();
            let file = match add.create {
                Some(bytes) => DeviceFile::create(&add.path, bytes),
                None => DeviceFile::open(&add.path, Duration::ZERO),
            };
            let file = file.map_err(|why| why.to_string())?;
            let blank = file.is_blank().map_err(|why| why.to_string())?;
            if !blank && !add.overwrite {
                return Err(format!(
                    "{shown} is not blank: 'wipefs {shown}' shows most kinds of content, and 'loadline san dump {shown}' the copies of a Loadline cluster. With --overwrite the device is used and its content is lost"
                ));
            }
            let bytes = file.bytes();
            let mut devices = Devices { log: file, capacity: None };
            if !blank {
                devices = check_unneeded(devices).map_err(|why| format!("{shown} {why}"))?;
            }
            if bytes < LEAST_DEVICE {
                return Err(format!(
                    "{shown} has {}: a device needs at least {}",
                    no_room::size(bytes),
                    no_room::size(LEAST_DEVICE)
                ));
            }
            let chunk = chunk_bytes(bytes);
            let fits = Superblock::fit(cluster, DeviceId(u64::from(id)), bytes, chunk, EXTENT_BLOCKS);
            let superblock =
                fits.map_err(|why| format!("{shown} with {bytes} bytes cannot be used: {why}"))?;
            Space::format(&mut devices, Area::Log, superblock, true).map_err(|why| why.to_string())?;
            let write_us = match add.model {
                Some(model) => speed::modelled_us(model),
                None => speed::measured_us(&mut devices, superblock.chunk_at(0)..superblock.bytes)?,
            };
            Ok(Prepared { bytes: u64::from(superblock.chunks) * chunk, write_us })
        });
        let formatted = formatted.await.unwrap_or_else(|_| Err("it could not be prepared".into()));
        let Prepared { bytes, write_us } = formatted.map_err(ManageError::Device)?;
        let device = Device {
            node: self.id(),
            path,
            bytes,
            role,
            write_us,
            draining: false,
            replaced_by: None,
            model,
        };
        let written =
            self.config().call(move |store| store.commit(&[change(format!("device/{id}"), None, &device)]));
        if !written.await? {
            return Err(ManageError::Wrong("another device has taken the id meanwhile: try again".into()));
        }
        self.reconciled().await;
        Ok(id)
    }
}
