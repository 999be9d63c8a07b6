//! `loadline device`: what nodes give to the cluster.

use std::path::PathBuf;

use loadline_base::units::ByteSize;
use loadline_san_node::node::manage::{AddDevice, StatusView};

use crate::cluster::client::{Api, print_json, table};
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
        loadline device add /srv/loadline/device --create 100GiB")]
    Add {
        /// The device: a block device or a file.
        path: PathBuf,
        /// Make a new file of this size.
        #[arg(long, value_name = "SIZE")]
        create: Option<ByteSize>,
        /// Use the device even if it is not blank. All data on it is lost.
        #[arg(long)]
        overwrite: bool,
        #[command(flatten)]
        api: Api,
    },
    /// Replace a device: move its copies to a new device of the same node, or rebuild them there if the old device is
    /// dead. When the old device has no copy left, it is removed from the cluster.
    #[command(after_help = "Examples:\n  \
        loadline device replace 3 --with /dev/nvme2n1\n  \
        loadline device replace 3 --with /srv/loadline/new-device --create 100GiB")]
    Replace {
        /// The id of the old device, as 'loadline device list' shows it.
        id: u32,
        /// The new device: a block device or a file.
        #[arg(long, value_name = "PATH")]
        with: PathBuf,
        /// Make a new file of this size.
        #[arg(long, value_name = "SIZE")]
        create: Option<ByteSize>,
        /// Use the new device even if it is not blank. All data on it is lost.
        #[arg(long)]
        overwrite: bool,
        #[command(flatten)]
        wait: Wait,
    },
    /// List devices.
    List {
        #[command(flatten)]
        api: Api,
    },
}

pub(crate) fn run(args: Args) -> Exit {
    let done = match args.command {
        Command::Add { path, create, overwrite, api } => {
            let path = std::path::absolute(&path).unwrap_or(path);
            let add = AddDevice { path: path.clone(), create: create.map(ByteSize::bytes), overwrite };
            api.post("/v1/devices", add).map(|id: u32| {
                let now = format!("{} is device {id} of the cluster", path.display());
                api.done_with(&now, &[("device", id.into())])
            })
        }
        Command::Replace { id, with, create, overwrite, wait } => {
            let path = std::path::absolute(&with).unwrap_or(with);
            let add = AddDevice { path, create: create.map(ByteSize::bytes), overwrite };
            wait.api.post(&format!("/v1/devices/{id}/replace"), add).and_then(|new: u32| {
                print_line!("device {new} takes the place of device {id}");
                moves::wait(&wait, &format!("replacement of device {id}"), |_, replica| replica.device == id)
            })
        }
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
                ByteSize(device.bytes).rounded(),
                ByteSize(device.promised).rounded(),
                device.replicas.to_string(),
                device.path.clone(),
                match (&device.fault, device.replaced_by) {
                    (Some(fault), _) => fault.clone(),
                    (None, Some(by)) => format!("is being replaced by {by}"),
                    (None, None) => "-".into(),
                },
            ]
        })
        .collect();
    write(table(&["device", "node", "size", "promised", "copies", "path", "note"], &rows).as_bytes());
    Exit::Done
}
