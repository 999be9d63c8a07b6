//! `loadline volume`: made, attached, detached, deleted.

mod scrub;
mod ways;

use loadline_base::units::{ByteSize, TimeSpan};
use loadline_san_node::api::{Attach, Detach};
use loadline_san_node::node::manage::{CreateVolume, Move, Recover, Resize, StatusView, Use, VolumeView};

use crate::cluster::client::{Api, escaped, print_json, table};
use crate::cluster::moves::{self, Wait};
use crate::output::{say, write};
use crate::process::exit::Exit;
use crate::san::{copies_in_sync, health, print_volumes};

/// Volumes of a cluster.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Create(Create),
    /// List volumes.
    List {
        #[command(flatten)]
        api: Api,
    },
    /// Show a volume with its replicas, and why it waits, if it does.
    Show {
        /// Its name.
        name: String,
        #[command(flatten)]
        api: Api,
    },
    #[command(name = "attach")]
    AttachTo(AttachTo),
    /// Detach a volume: no node serves it any more.
    Detach {
        /// Its name.
        name: String,
        /// Cut its clients off.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        api: Api,
    },
    /// Move the copies of a volume that one node has to another node, while it is used.
    ///
    /// Where it is attached does not change: 'loadline volume attach NAME --node NODE' does that.
    #[command(name = "move", after_help = "Examples:\n  loadline volume move vm-7 --from node-1 --to node-4")]
    MoveTo {
        /// Its name.
        name: String,
        /// The node that has them.
        #[arg(long, value_name = "NODE")]
        from: String,
        /// The node that is to have them.
        #[arg(long, value_name = "NODE")]
        to: String,
        #[command(flatten)]
        wait: Wait,
    },
    /// Look at every block of every copy of a volume now, as fast as the devices let. All are looked through all the time
    /// anyway, slowly.
    ///
    /// A copy that is damaged, is being rebuilt, or is on a node that does not answer is left out, and so is one of which
    /// nothing is looked at for a minute; the answer names each, and why.
    ///
    /// Exit code 3 if blocks were found that do not match their checksums, or if a copy was left out.
    Scrub {
        /// Its name.
        name: String,
        /// It ends after this time at the latest: 90s, 10min. What was not looked at by then is left out.
        /// [default: a minute, and a second for each MiB that the copies have]
        #[arg(long, value_name = "TIME", verbatim_doc_comment)]
        limit: Option<TimeSpan>,
        #[command(flatten)]
        api: Api,
    },
    /// Make a volume larger. Clients see that when they connect again.
    Resize {
        /// Its name.
        name: String,
        /// Its new size.
        #[arg(long)]
        size: ByteSize,
        #[command(flatten)]
        api: Api,
    },
    /// Go on with the copies of one node, whatever they have missed. The other copies are overwritten.
    ///
    /// For a volume that waits since the nodes that have every write will never come back; and for one that is blocked since an
    /// older configuration was put back: 'loadline volume show NAME' tells which copy follows the highest epoch, and is the
    /// newest. Without --force nothing is done, and the command tells what would be lost.
    Recover {
        /// Its name.
        name: String,
        /// The node whose replicas are taken for all there is. Of parts of which it has none, those of the next node that is named
        /// (NODE,NODE).
        #[arg(long, value_name = "NODE")]
        from: String,
        /// What is lost by it is known.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        api: Api,
    },
    /// Delete a volume that is not attached, with all its data.
    Delete {
        /// Its name.
        name: String,
        /// Its name again, since nothing brings it back.
        #[arg(long, value_name = "NAME")]
        confirm: String,
        #[command(flatten)]
        api: Api,
    },
}

/// Make a volume. Space is taken from the devices when it is written to.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline volume create vm-7 --size 40GiB\n  \
    loadline volume create db --size 1TiB --copies 3 --stripes 4 --at node-2")]
struct Create {
    /// Its name.
    name: String,
    /// Its size.
    #[arg(long)]
    size: ByteSize,
    /// Copies, each on another node: 1 to 3.
    #[arg(long, default_value_t = 2)]
    copies: u32,
    /// Copies that must be in sync for a write to begin: 1 to --copies. With fewer, writes wait and reads go on. By default 2 of
    /// 3, 1 of 2, 1 of 1.
    #[arg(long, value_name = "COPIES")]
    least: Option<u32>,
    /// Groups that are written side by side: 1 to 12.
    #[arg(long, default_value_t = 1)]
    stripes: u32,
    /// The node where it is to be used: its first copy is there, so that reads are local.
    #[arg(long, value_name = "NODE")]
    at: Option<String>,
    /// The log of each replica: 256MiB if nothing is said, 32MiB at the least. A seventh of it may be in flight at once.
    #[arg(long, value_name = "SIZE")]
    log: Option<ByteSize>,
    #[command(flatten)]
    api: Api,
}

/// Attach a volume: a node owns it, and its clients may come to any node.
///
/// If it was attached elsewhere, it is taken over. Clients that are connected are disconnected, also where it is attached already:
/// nothing that they sent before is carried out afterwards.
#[derive(clap::Args)]
struct AttachTo {
    /// Its name.
    name: String,
    /// The node; where it was last, or has most of it, if none is named.
    #[arg(long)]
    node: Option<String>,
    #[command(flatten)]
    api: Api,
}

pub(crate) fn run(args: Args) -> Exit {
    let done = match args.command {
        Command::Create(args) => create(args),
        Command::List { api } => api.get("/v1/status").map(|status: StatusView| match api.json {
            true => print_json(&status.volumes),
            false => {
                print_volumes(&status.volumes);
                Exit::Done
            }
        }),
        Command::Show { name, api } => {
            api.get(&format!("/v1/volumes/{}", escaped(&name))).map(|volume: VolumeView| match api.json {
                true => print_json(&volume),
                false => show(&volume),
            })
        }
        Command::AttachTo(args) => attach(&args),
        Command::Detach { name, force, api } => {
            let path = format!("/v1/volumes/{}/detach", escaped(&name));
            api.post(&path, Detach { force }).map(|(): ()| api.done(&format!("volume {name} is detached")))
        }
        Command::MoveTo { name, from, to, wait } => {
            let path = format!("/v1/volumes/{}/move", escaped(&name));
            let what = format!("volume {name} moves from {from} to {to}");
            wait.api
                .post(&path, Move { from, to })
                .and_then(|(): ()| moves::wait(&wait, &what, |volume, _| volume.name == name))
        }
        Command::Scrub { name, limit, api } => scrub::run(&name, limit.map(TimeSpan::duration), &api),
        Command::Resize { name, size, api } => {
            let path = format!("/v1/volumes/{}/resize", escaped(&name));
            api.post(&path, Resize { bytes: size.bytes() }).map(|(): ()| {
                api.done(&format!("volume {name} has {size}; its clients see that when they connect again"))
            })
        }
        Command::Recover { name, from, force, api } => {
            let path = format!("/v1/volumes/{}/recover", escaped(&name));
            api.post(&path, Recover { from: from.clone(), force })
                .map(|(): ()| api.done(&format!("volume {name} is what {from} has of it")))
        }
        Command::Delete { name, confirm, .. } if name != confirm => {
            return crate::output::complain(
                Exit::Usage,
                &format!(
                    "nothing is deleted: to delete volume {name} with all its data, add --confirm {name}"
                ),
            );
        }
        Command::Delete { name, api, .. } => api
            .delete(&format!("/v1/volumes/{}", escaped(&name)))
            .map(|(): ()| api.done(&format!("volume {name} is deleted"))),
    };
    done.unwrap_or_else(|why| why.complain())
}

fn create(args: Create) -> Result<Exit, crate::cluster::client::Failed> {
    let Create { name, size, copies, least, stripes, at, log, api } = args;
    let log_bytes = log.map(ByteSize::bytes);
    let (bytes, name) = (size.bytes(), name.as_str());
    let wanted = CreateVolume { name: name.to_owned(), bytes, copies, least, stripes, at, log_bytes };
    let there = wanted.at.as_ref().map(|node| format!(" --node {node}")).unwrap_or_default();
    let (): () = api.post("/v1/volumes", wanted)?;
    // Sizes are rounded up to whole blocks.
    let size = ByteSize(bytes.next_multiple_of(4096));
    Ok(api.done(&format!("volume {name} of {size} is made; next: loadline volume attach {name}{there}")))
}

fn attach(args: &AttachTo) -> Result<Exit, crate::cluster::client::Failed> {
    let path = format!("/v1/volumes/{}/attach", escaped(&args.name));
    let how: Use = args.api.post(&path, Attach { node: args.node.clone() })?;
    if args.api.json {
        return Ok(print_json(&how));
    }
    say!("{}", args.api.naming(&format!("volume {} is attached at node {}", how.volume, how.node)));
    say!();
    ways::say_all(&how.ways);
    Ok(Exit::Done)
}

fn show(volume: &VolumeView) -> Exit {
    say!("volume    {}", volume.name);
    say!("size      {}", ByteSize(volume.bytes));
    say!("state     {}", health(volume.health));
    say!("copies    {} in sync; writes need {}", copies_in_sync(volume), volume.least);
    say!("stripes   {}", volume.stripes);
    say!("attached  {}", volume.attached.as_deref().unwrap_or("-"));
    say!("owner     {}", volume.owner.as_deref().unwrap_or("-"));
    say!("epoch     {}", volume.epoch);
    if let Some(note) = &volume.note {
        say!("note      {note}");
    }
    say!();
    let rows: Vec<Vec<String>> = volume
        .replicas
        .iter()
        .map(|replica| {
            let left = replica.left_bytes.map_or("-".into(), |bytes| ByteSize(bytes).to_string());
            let (id, group) = (replica.id.to_string(), replica.group.to_string());
            let state =
                if replica.leaving { format!("{}, leaves", replica.state) } else { replica.state.clone() };
            let epoch = replica.epoch.map_or("-".into(), |epoch| epoch.to_string());
            vec![id, group, replica.node.clone(), replica.device.to_string(), state, epoch, left]
        })
        .collect();
    write(table(&["replica", "group", "node", "device", "state", "epoch", "left to copy"], &rows).as_bytes());
    for replica in &volume.replicas {
        if let Some(note) = &replica.note {
            say!("replica {}: {note}", replica.id);
        }
    }
    Exit::Done
}
