//! `loadline volume create`: one volume, or many that differ in their names only.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use indicatif::ProgressBar;
use loadline_base::figures;
use loadline_base::units::ByteSize;
use loadline_san_node::node::manage::{CreateVolume, CreateVolumes, MadeVolume};

use super::names;
use crate::cluster::client::{Api, Failed, print_json};
use crate::output::print_error;
use crate::output::text::{are, counted};
use crate::process::exit::Exit;

/// The most volumes of one request: a node makes all of them or none.
const AT_ONCE: usize = 50;
/// Names that a message lists.
const MOST_NAMED: usize = 3;

/// Make a volume, or several volumes of the same kind. A volume takes space from the devices only when it is written.
///
/// A name with a range, such as 'db-{001..100}', stands for a volume for each number of the range. The command makes
/// the volumes in groups of 50: all volumes of a group, or none of them. If a group cannot be made, the message names
/// the volumes that were made before it.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline volume create vm-7 --size 40GiB\n  \
    loadline volume create db --size 1TiB --copies 3 --stripes 4 --at node-2\n  \
    loadline volume create 'db-{001..100}' --size 100GiB --attach\n  \
    loadline volume create secret --size 40GiB --tls")]
pub(super) struct Create {
    /// The names of the volumes. A name may have a range of numbers: 'db-{001..100}'.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// The size of each volume.
    #[arg(long)]
    size: ByteSize,
    /// The number of copies, each on another node: 1 to 3.
    #[arg(long, default_value_t = 2)]
    copies: u32,
    /// The number of copies that must be in sync before a write begins: 1 to --copies. With fewer copies in sync,
    /// writes wait and reads continue. [default: 2 with three copies, 1 with one or two]
    #[arg(long, value_name = "COPIES")]
    least: Option<u32>,
    /// The number of groups over which the blocks are striped: 1 to 12.
    #[arg(long, default_value_t = 1)]
    stripes: u32,
    /// The node where clients will use the volume. The first copy is placed on this node, so that reads are local.
    #[arg(long, value_name = "NODE")]
    at: Option<String>,
    /// The size of the log of each copy, at least 32MiB. At most a seventh of the log may be in flight at once.
    /// [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    log: Option<ByteSize>,
    /// Clients over the network must connect by TLS, with a certificate, as after 'loadline volume tls NAME required'.
    /// Clients at a unix socket of the node's host need no certificate. Initiators of iSCSI do not reach the volume.
    #[arg(long)]
    tls: bool,
    /// Attach each volume to the node with its first copy, and wait until that node serves the volume. Without --at the
    /// volumes are spread over the nodes.
    #[arg(long)]
    attach: bool,
    #[command(flatten)]
    api: Api,
}

pub(super) fn run(args: Create) -> Result<Exit, Failed> {
    let all = match names::expand(&args.names) {
        Ok(all) => all,
        Err(why) => return Ok(print_error(Exit::Usage, &why)),
    };
    if let Err(why) = super::check_size(args.size) {
        return Ok(print_error(Exit::Usage, &why));
    }
    // Sizes are rounded up to whole blocks.
    let size = ByteSize(args.size.bytes().next_multiple_of(4096));
    match all.as_slice() {
        [name] if !args.attach => one(name, size, args),
        _ => many(&all, size, &args),
    }
}

fn one(name: &str, size: ByteSize, args: Create) -> Result<Exit, Failed> {
    let Create { size: wanted, copies, least, stripes, at, log, tls: requires_tls, api, .. } = args;
    let (bytes, log_bytes) = (wanted.bytes(), log.map(ByteSize::bytes));
    let there = at.as_ref().map(|node| format!(" --node {node}")).unwrap_or_default();
    let name = name.to_owned();
    let wanted =
        CreateVolume { name: name.clone(), bytes, copies, least, stripes, at, log_bytes, requires_tls };
    let (): () = api.post("/v1/volumes", wanted)?;
    Ok(api.done(&format!("volume {name} of {size} is made; next: loadline volume attach {name}{there}")))
}

fn many(all: &[String], size: ByteSize, args: &Create) -> Result<Exit, Failed> {
    let mut made: Vec<MadeVolume> = Vec::new();
    let bar = std::io::stderr().is_terminal().then(|| ProgressBar::new(all.len() as u64));
    let mut failed = None;
    for names in all.chunks(AT_ONCE) {
        let wanted = CreateVolumes {
            names: names.to_vec(),
            bytes: args.size.bytes(),
            copies: args.copies,
            least: args.least,
            stripes: args.stripes,
            at: args.at.clone(),
            log_bytes: args.log.map(ByteSize::bytes),
            requires_tls: args.tls,
            attach: args.attach,
        };
        match args.api.post::<_, Vec<MadeVolume>>("/v1/volume-batch", wanted) {
            Ok(some) => made.extend(some),
            Err(why) => {
                failed = Some(why);
                break;
            }
        }
        if let Some(bar) = &bar {
            bar.set_position(made.len() as u64);
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    if let Some(why) = failed {
        return Err(match made.len() {
            0 => why,
            count => why.after(&format!(
                "{count} of {} {} made: {}",
                counted(all.len() as u64, "volume"),
                are(count as u64),
                named(&made)
            )),
        });
    }
    let late: Vec<MadeVolume> = made.iter().filter(|volume| args.attach && !volume.served).cloned().collect();
    if !late.is_empty() {
        let why = format!(
            "{} {} made and attached, but {} {} not served yet: {}. 'loadline volume show NAME' shows the cause; the node \
             serves the volume as soon as the cause is gone",
            counted(made.len() as u64, "volume"),
            are(made.len() as u64),
            late.len(),
            are(late.len() as u64),
            named(&late),
        );
        return Ok(print_error(Exit::Failed, &why));
    }
    Ok(match args.api.json {
        true => print_json(&made),
        false => print_made(&made, size, args),
    })
}

/// Prints what was made, and where it is attached.
fn print_made(made: &[MadeVolume], size: ByteSize, args: &Create) -> Exit {
    let volumes = match made {
        [one] => format!("volume {} of {size} is", one.volume),
        _ => format!("{} volumes of {size} are", made.len()),
    };
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for node in made.iter().filter_map(|volume| volume.node.as_deref()) {
        *counts.entry(node).or_default() += 1;
    }
    let nodes: Vec<String> = match made.len() {
        1 => counts.keys().map(|node| format!("to node {node}")).collect(),
        _ => counts.iter().map(|(node, count)| format!("{count} to node {node}")).collect(),
    };
    let done = match args.attach {
        true => format!("{volumes} made and attached: {}", nodes.join(", ")),
        false => format!("{volumes} made ({}); next: loadline volume attach NAME", named(made)),
    };
    args.api.done(&done)
}

/// The first names.
fn named(volumes: &[MadeVolume]) -> String {
    let names: Vec<&String> = volumes.iter().map(|volume| &volume.volume).collect();
    figures::listed(&names, MOST_NAMED)
}
