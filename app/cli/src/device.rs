//! `loadline device`: what nodes give to the cluster.

use std::path::PathBuf;

use loadline_base::units::ByteSize;
use loadline_san_node::node::manage::{AddDevice, StatusView};

use crate::client::{Api, print_json, table};
use crate::exit::Exit;
use crate::out::{say, write};

/// Devices of a cluster.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Give a device of the node that --api names to the cluster. What is on it is lost.
    #[command(after_help = "Examples:\n  \
        loadline device add /dev/nvme1n1 --api 127.0.0.2:7400\n  \
        loadline device add /srv/loadline/device --create 100GiB")]
    Add {
        /// A block device, or a file.
        path: PathBuf,
        /// Make a new file of this size.
        #[arg(long, value_name = "SIZE")]
        create: Option<ByteSize>,
        /// Nothing that is on it is needed.
        #[arg(long)]
        overwrite: bool,
        #[command(flatten)]
        api: Api,
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
                match api.json {
                    true => _ = print_json(&id),
                    false => say!("{} is device {id} of the cluster", path.display()),
                }
                Exit::Done
            })
        }
        Command::List { api } => api.get("/v1/status").map(|status: StatusView| match api.json {
            true => print_json(&status.devices),
            false => list(&status),
        }),
    };
    done.unwrap_or_else(|why| why.complain())
}

fn list(status: &StatusView) -> Exit {
    let rows: Vec<Vec<String>> = status
        .devices
        .iter()
        .map(|device| {
            vec![
                device.id.to_string(),
                device.node.clone(),
                ByteSize(device.bytes).to_string(),
                ByteSize(device.promised).to_string(),
                device.replicas.to_string(),
                device.path.clone(),
                device.fault.clone().unwrap_or("-".into()),
            ]
        })
        .collect();
    write(table(&["device", "node", "size", "promised", "replicas", "path", "fault"], &rows).as_bytes());
    Exit::Done
}
