//! `loadline device`: what nodes give to the cluster.

use std::path::{Path, PathBuf};

use loadline_base::units::ByteSize;
use loadline_san_node::config::catalog::Role;
use loadline_san_node::node::manage::{AddDevice, DeviceView, ModelView, StatusView};
use loadline_target::device_models;

use crate::cluster::client::{Api, Failed, print_json, table};
use crate::cluster::moves::{self, Wait};
use crate::output::{print_line, write};
use crate::process::exit::Exit;

/// Devices of a cluster.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Add a device to the cluster. The device belongs to the node that --api names. All data on the device is lost.
    #[command(after_help = "Examples:\n  \
        loadline device add /dev/nvme1n1 --api 127.0.0.2:7400\n  \
        loadline device add /srv/loadline/device --create 100GiB\n  \
        loadline device add /dev/nvme0n1 --role log\n  \
        loadline device add /dev/sda --role capacity\n  \
        loadline device add /srv/loadline/device --create 10GiB --model intel-s4500")]
    Add {
        /// The device: a block device or a file.
        path: PathBuf,
        #[command(flatten)]
        new: NewDevice,
        /// What the device stores. A copy has its data and its log on one device with both, or its log on a log device and its data on a capacity
        /// device of the same node. Use a fast device for logs: every write waits for it, and data is moved to the capacity device later.
        #[arg(long, value_enum, default_value = "both")]
        role: RoleArg,
        #[command(flatten)]
        api: Api,
    },
    /// Replace a device: move its copies to a new device of the same node, or rebuild them there if the old device is
    /// dead. The new device has the role of the old one. When the old device has no copy left, it is removed from the cluster.
    #[command(after_help = "Examples:\n  \
        loadline device replace 3 --with /dev/nvme2n1\n  \
        loadline device replace 3 --with /srv/loadline/new-device --create 100GiB")]
    Replace {
        /// The id of the old device, as 'loadline device list' shows it.
        id: u32,
        /// The new device: a block device or a file.
        #[arg(long, value_name = "PATH")]
        with: PathBuf,
        #[command(flatten)]
        new: NewDevice,
        #[command(flatten)]
        wait: Wait,
    },
    /// List devices.
    List {
        #[command(flatten)]
        api: Api,
    },
}

/// The role of a device.
#[derive(Clone, Copy, clap::ValueEnum)]
enum RoleArg {
    /// Data and logs
    Both,
    /// Logs, for the capacity devices of the node
    Log,
    /// Data, whose logs are on log devices of the node
    Capacity,
}

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Role {
        match role {
            RoleArg::Both => Role::Both,
            RoleArg::Log => Role::Log,
            RoleArg::Capacity => Role::Capacity,
        }
    }
}

/// How a device is added.
#[derive(clap::Args)]
struct NewDevice {
    /// Make a new file of this size.
    #[arg(long, value_name = "SIZE")]
    create: Option<ByteSize>,
    /// Use the device even if it is not blank. All data on it is lost.
    #[arg(long)]
    overwrite: bool,
    /// Make the device as slow as a drive's data sheet says, whatever is behind it. Status and results say so. MODEL is the
    /// path of a TOML file, or intel-p3700, intel-p4800x, intel-s3500, intel-s4500 or micron-5100-max.
    #[arg(long)]
    model: Option<String>,
}

impl NewDevice {
    /// The request that adds the device at this path. The error names a model that cannot be used.
    fn at(self, path: &Path) -> Result<AddDevice, Failed> {
        let model = self.model.as_deref().map(device_models::find).transpose();
        let model = model.map_err(|why| Failed::new(Exit::Usage, why.to_string(), true))?;
        let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let create = self.create.map(ByteSize::bytes);
        Ok(AddDevice { path, create, overwrite: self.overwrite, model, role: None })
    }
}

pub(crate) fn run(args: Args) -> Exit {
    let done = match args.command {
        Command::Add { path, new, role, api } => new.at(&path).and_then(|add| {
            let path = add.path.clone();
            let id: u32 = api.post("/v1/devices", AddDevice { role: Some(role.into()), ..add })?;
            let now = format!("{} is device {id} of the cluster", path.display());
            let done = api.done_with(&now, &[("device", id.into())]);
            // The device is added, whatever can be said about it.
            let status = if api.json { None } else { api.get::<StatusView>("/v1/status").ok() };
            let all = status.map(|status| status.devices).unwrap_or_default();
            let node = all.iter().find(|device| device.id == id).map(|device| device.node.clone());
            for device in all.iter().filter(|device| Some(&device.node) == node.as_ref()) {
                if let Some(advice) = &device.advice {
                    print_line!("note: device {}: {advice}", device.id);
                }
            }
            Ok(done)
        }),
        Command::Replace { id, with, new, wait } => new.at(&with).and_then(|add| {
            let new: u32 = wait.api.post(&format!("/v1/devices/{id}/replace"), add)?;
            print_line!("device {new} takes the place of device {id}");
            moves::wait(&wait, &format!("replacement of device {id}"), |_, replica| {
                replica.device == id || replica.log_device == id
            })
        }),
        Command::List { api } => api.get("/v1/status").map(|status: StatusView| match api.json {
            true => print_json(&status.devices),
            false => list(&status),
        }),
    };
    done.unwrap_or_else(|why| why.print_error())
}

fn list(status: &StatusView) -> Exit {
    let rows: Vec<Vec<String>> = status
        .devices
        .iter()
        .map(|device| {
            vec![
                device.id.to_string(),
                device.node.clone(),
                device.role.name().into(),
                ByteSize(device.bytes).rounded(),
                ByteSize(device.promised).rounded(),
                device.replicas.to_string(),
                device.path.clone(),
                note(device),
            ]
        })
        .collect();
    write(table(&["device", "node", "role", "size", "promised", "copies", "path", "note"], &rows).as_bytes());
    Exit::Done
}

fn note(device: &DeviceView) -> String {
    if let Some(fault) = &device.fault {
        return fault.clone();
    }
    let replaced = device.replaced_by.map(|by| format!("is being replaced by {by}"));
    let model = device.model.as_ref().map(|model| match device.keeps_up.as_ref().and_then(machines_part) {
        Some(part) => format!("behaves as {model}; the machine adds {part:.0} % to its times"),
        None => format!("behaves as {model}"),
    });
    let notes: Vec<String> = replaced.into_iter().chain(device.advice.clone()).chain(model).collect();
    if notes.is_empty() { "-".into() } else { notes.join("; ") }
}

/// By how much the machine prolongs what a model says, in per cent, if that is worth saying.
fn machines_part(keeps_up: &ModelView) -> Option<f64> {
    let part = 100.0 * keeps_up.late_ns as f64 / keeps_up.modelled_ns.max(1) as f64;
    (part >= 1.0).then_some(part)
}
