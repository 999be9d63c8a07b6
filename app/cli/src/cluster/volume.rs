//! `loadline volume`: made, attached, detached, deleted.

mod access;
mod cache;
mod create;
mod limit;
mod many;
mod names;
mod paths;
mod scrub;
mod ways;

use loadline_base::units::{ByteSize, TimeSpan};
use loadline_san_node::api::{Attach, Detach};
use loadline_san_node::node::manage::{
    self as volumes, ClientsView, Move, Recover, RequireTls, Resize, StatusView, Use, VolumeView,
};

use crate::cluster::client::{Api, Failed, escaped, print_json, table};
use crate::cluster::moves::{self, Wait};
use crate::output::{alike, print_error, print_line, write};
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
    Create(create::Create),
    /// List volumes.
    List {
        #[command(flatten)]
        api: Api,
    },
    /// Show a volume with its copies, the paths of its iSCSI initiators, its reservations, and the reason if the volume waits.
    Show {
        /// The name of the volume.
        name: String,
        #[command(flatten)]
        api: Api,
    },
    #[command(name = "attach")]
    AttachTo(AttachTo),
    /// Detach one or several volumes. Afterwards no node serves them.
    #[command(
        after_help = "Examples:\n  loadline volume detach vm-7\n  loadline volume detach 'db-{001..100}'"
    )]
    Detach {
        /// The names of the volumes. A name may have a range of numbers: 'db-{001..100}'.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Disconnect all clients of the volume.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        api: Api,
    },
    /// Move all copies of a volume from one node to another node, while clients use the volume.
    ///
    /// The move does not change the owner of the volume. 'loadline volume attach NAME --node NODE' changes the owner.
    #[command(name = "move", after_help = "Examples:\n  loadline volume move vm-7 --from node-1 --to node-4")]
    MoveTo {
        /// The name of the volume.
        name: String,
        /// The node that has the copies now.
        #[arg(long, value_name = "NODE")]
        from: String,
        /// The node that receives the copies.
        #[arg(long, value_name = "NODE")]
        to: String,
        #[command(flatten)]
        wait: Wait,
    },
    /// Check every block of every copy of a volume now, as fast as the devices allow. Nodes also check all blocks
    /// slowly all the time, without this command.
    ///
    /// The command skips a copy that is damaged, is being rebuilt, is on a node that does not answer, or makes no
    /// progress for a minute. The answer names each skipped copy and the reason.
    ///
    /// Exit code 3 if blocks do not match their checksums, or if a copy was skipped.
    Scrub {
        /// The name of the volume.
        name: String,
        /// The longest time that the check may take: 90s, 10min. A copy that is not checked completely by then is
        /// skipped. [default: a minute, and a second for each MiB that the copies have]
        #[arg(long, value_name = "TIME", verbatim_doc_comment)]
        limit: Option<TimeSpan>,
        #[command(flatten)]
        api: Api,
    },
    /// Decide whether clients over the network must connect by TLS, with a certificate. The decision holds for clients
    /// that connect from now on. Clients at a unix socket of the node's host need no certificate. iSCSI has no TLS: a volume
    /// that requires it refuses initiators.
    #[command(after_help = "Examples:\n  \
        loadline volume tls db required\n  \
        loadline san access add vm-7 --role client --out vm-7-tls --config /srv/loadline/node-1/node.toml\n  \
        nbdinfo 'nbds://10.0.0.1/db?tls-certificates=vm-7-tls'")]
    Tls {
        /// The name of the volume.
        name: String,
        /// Whether TLS is required.
        tls: TlsPolicy,
        #[command(flatten)]
        api: Api,
    },
    Access(access::Access),
    /// Give the copies of one or several volumes a read cache on their log devices, of another size, or none. Only a copy whose data is on a
    /// capacity device has a cache: it keeps blocks there that are read again and again. What is read once, as by a backup, does not displace
    /// them. A cache is empty after its node has started.
    #[command(after_help = "Examples:\n  loadline volume cache vm-7 --size 20GiB\n  \
        loadline volume cache 'db-{001..100}' --size 2GiB\n  loadline volume cache vm-7 --none")]
    Cache {
        /// The names of the volumes. A name may have a range of numbers: 'db-{001..100}'.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// The size of the cache of each copy; of a striped volume, of each copy of each of its groups.
        #[arg(long, required_unless_present = "none")]
        size: Option<ByteSize>,
        /// Remove the cache.
        #[arg(long, conflicts_with = "size")]
        none: bool,
        #[command(flatten)]
        api: Api,
    },
    /// Limit what the clients of one or several volumes do a second. The limit holds within a second, also for clients that are connected, and
    /// is for each volume: all its clients share it. What the cluster does itself, as copying data to a node that returns, does not count.
    #[command(after_help = "Examples:\n  loadline volume limit vm-7 --iops 5000 --mbps 200\n  \
        loadline volume limit 'db-{001..100}' --iops 1000 --burst 1s\n  loadline volume limit vm-7 --none")]
    Limit {
        /// The names of the volumes. A name may have a range of numbers: 'db-{001..100}'.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        #[command(flatten)]
        limit: limit::Rates,
        #[command(flatten)]
        api: Api,
    },
    /// Make one or several volumes larger. A client sees the new size when the client connects again.
    #[command(after_help = "Examples:\n  loadline volume resize vm-7 --size 80GiB\n  \
        loadline volume resize 'db-{001..100}' --size 200GiB")]
    Resize {
        /// The names of the volumes. A name may have a range of numbers: 'db-{001..100}'.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// The new size of each volume.
        #[arg(long)]
        size: ByteSize,
        #[command(flatten)]
        api: Api,
    },
    /// Continue a volume with the copies of one node, even if those copies lack writes. The other copies are
    /// overwritten.
    ///
    /// Use this command for a volume that waits because the nodes with every write will never come back, or that is
    /// blocked because an older configuration was put back. 'loadline volume show NAME' shows the epoch that each copy
    /// follows. Without --force the command changes nothing and only reports which data would be lost.
    Recover {
        /// The name of the volume.
        name: String,
        /// The node whose copies become the volume. If this node has no copy of a part of the volume (a group), the copy
        /// of the next named node is used (NODE,NODE).
        #[arg(long, value_name = "NODE")]
        from: String,
        /// Recover the volume, and accept the loss of the reported data.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        api: Api,
    },
    /// Delete one or several volumes that are not attached, with all their data.
    #[command(after_help = "Examples:\n  loadline volume delete vm-7 --confirm vm-7\n  \
        loadline volume delete 'db-{001..100}' --confirm 'db-{001..100}'")]
    Delete {
        /// The names of the volumes. A name may have a range of numbers: 'db-{001..100}'.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// The name again, because deleted data cannot be restored. For several names the option is given once for each.
        #[arg(long, value_name = "NAME", required = true)]
        confirm: Vec<String>,
        #[command(flatten)]
        api: Api,
    },
}

/// Whether clients must connect by TLS.
#[derive(Clone, Copy, clap::ValueEnum)]
enum TlsPolicy {
    /// Clients must use TLS.
    Required,
    /// Clients may use TLS.
    Optional,
}

/// Attach one or several volumes: make a node the owner of each.
///
/// Clients by NBD can then connect to any node. Initiators of iSCSI can log in at every node, and only the path to the owner carries their
/// requests.
///
/// If another node owned a volume, the named node takes it over. All clients of the volume are disconnected, even if
/// the owner stays the same. No request that a client sent before is carried out afterwards.
///
/// With --when-started the attachment waits beside the present one: use it at the destination before a running virtual
/// machine is migrated. The machine there may connect at once. When it starts, the node becomes the owner, and the
/// clients of the present attachment are disconnected. If the machine at the destination ends before it starts, or no
/// machine connects within 10 minutes, nothing has changed.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  loadline volume attach vm-7 --node node-2\n  loadline volume attach 'db-{001..100}'\n  \
                  loadline volume attach vm-7 --node node-2 --when-started"
)]
struct AttachTo {
    /// The names of the volumes. A name may have a range of numbers: 'db-{001..100}'.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// The node that becomes the owner. [default: the owner of the attached volume; if that node does not answer or
    /// the volume is detached, the node with the most copies in sync]
    #[arg(long)]
    node: Option<String>,
    /// Wait beside the present attachment, and take over when the virtual machine that connects at the node starts.
    #[arg(long)]
    when_started: bool,
    #[command(flatten)]
    api: Api,
}

/// Whether a volume can be meant to have this size.
fn check_size(size: ByteSize) -> Result<(), String> {
    volumes::check_size(size.bytes())
        .map_err(|why| format!("--size: {why}. A number without a unit counts bytes: write 256GiB"))
}

pub(crate) fn run(args: Args) -> Exit {
    let done = match args.command {
        Command::Create(args) => create::run(args),
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
        Command::Detach { names, force, api } => detach(&names, force, &api),
        Command::MoveTo { name, from, to, wait } => {
            let path = format!("/v1/volumes/{}/move", escaped(&name));
            let what = format!("volume {name} moves from {from} to {to}");
            wait.api
                .post(&path, Move { from, to })
                .and_then(|(): ()| moves::wait(&wait, &what, |volume, _| volume.name == name))
        }
        Command::Tls { name, tls, api } => {
            let required = matches!(tls, TlsPolicy::Required);
            let what = if required { "must connect by TLS" } else { "may connect without TLS" };
            api.post(&format!("/v1/volumes/{}/tls", escaped(&name)), RequireTls { required })
                .map(|(): ()| api.done(&format!("clients of volume {name} {what}")))
        }
        Command::Access(args) => access::run(&args),
        Command::Limit { names, limit, api } => limit::run(&names, &limit, &api),
        Command::Cache { names, size, none: _, api } => cache::run(&names, size, &api),
        Command::Scrub { name, limit, api } => scrub::run(&name, limit.map(TimeSpan::duration), &api),
        Command::Resize { names, size, api } => resize(&names, size, &api),
        Command::Recover { name, from, force, api } => {
            let path = format!("/v1/volumes/{}/recover", escaped(&name));
            api.post(&path, Recover { from: from.clone(), force })
                .map(|(): ()| api.done(&format!("volume {name} continues with the copies of {from}")))
        }
        Command::Delete { names, confirm, api } => delete(&names, &confirm, &api),
    };
    done.unwrap_or_else(|why| why.print_error())
}

fn attach(args: &AttachTo) -> Result<Exit, Failed> {
    let Some(names) = expanded(&args.names) else { return Ok(Exit::Usage) };
    let attached = many::each(&names, "attached", |name| {
        let path = format!("/v1/volumes/{}/attach", escaped(name));
        args.api.post::<_, Use>(
            &path,
            Attach { node: args.node.clone(), when_started: args.when_started, key: None },
        )
    })?;
    Ok(match attached.as_slice() {
        [how] if args.api.json => print_json(how),
        [how] => {
            let done = match how.waits {
                false => format!("volume {} is attached at node {}", how.volume, how.node),
                true => format!(
                    "volume {} is attached at node {} when a virtual machine starts there; until then nothing changes",
                    how.volume, how.node
                ),
            };
            print_line!("{}", args.api.naming(&done));
            how.notes().iter().for_each(|note| print_line!("{note}"));
            print_line!();
            ways::print_all(how);
            Exit::Done
        }
        all if args.api.json => print_json(&all),
        _ if args.when_started => args.api.done(&format!(
            "{} are attached when their virtual machines start; until then nothing changes",
            alike::volumes(&names)
        )),
        all => {
            let all = all.iter().filter(|how| !how.without_path.is_empty());
            let without: Vec<&str> = all.map(|how| how.volume.as_str()).collect();
            let without = match without.as_slice() {
                [] => String::new(),
                some => format!(
                    ". Initiators of {} have no session at the new owner ('loadline volume show NAME'). Such a volume moves to where they \
                     have one within seconds, unless another client uses it",
                    alike::volumes(some)
                ),
            };
            let all = alike::volumes(&names);
            args.api.done(&format!("{all} are attached; 'loadline volume list' shows where{without}"))
        }
    })
}

fn detach(names: &[String], force: bool, api: &Api) -> Result<Exit, Failed> {
    let Some(names) = expanded(names) else { return Ok(Exit::Usage) };
    let clients = many::each(&names, "detached", |name| {
        let path = format!("/v1/volumes/{}/detach", escaped(name));
        api.post::<_, ClientsView>(&path, Detach { force, key: None })
    })?;
    Ok(api.done(&match (names.as_slice(), clients.as_slice()) {
        ([name], [clients]) => match clients.words() {
            Some(clients) => format!("volume {name} is detached; disconnected: {clients}"),
            None => format!("volume {name} is detached"),
        },
        (names, _) => format!("{} are detached", alike::volumes(names)),
    }))
}

fn resize(names: &[String], size: ByteSize, api: &Api) -> Result<Exit, Failed> {
    if let Err(why) = check_size(size) {
        return Ok(print_error(Exit::Usage, &why));
    }
    let Some(names) = expanded(names) else { return Ok(Exit::Usage) };
    many::each(&names, "resized", |name| -> Result<(), Failed> {
        api.post(&format!("/v1/volumes/{}/resize", escaped(name)), Resize { bytes: size.bytes() })
    })?;
    let seen = "clients see the new size when they connect again";
    Ok(api.done(&match names.as_slice() {
        [name] => format!("volume {name} has {size}; its {seen}"),
        names => format!("{} have {size} each; their {seen}", alike::volumes(names)),
    }))
}

fn delete(names: &[String], confirm: &[String], api: &Api) -> Result<Exit, Failed> {
    let (Some(all), Some(confirmed)) = (expanded(names), expanded(confirm)) else { return Ok(Exit::Usage) };
    if all != confirmed {
        let (what, data) = match all.as_slice() {
            [name] => (format!("volume {name}"), "its data"),
            all => (alike::volumes(all), "their data"),
        };
        let quoted = |name: &String| match name.contains('{') {
            true => format!("--confirm '{name}'"),
            false => format!("--confirm {name}"),
        };
        let options = match names.len() {
            0..=3 => names.iter().map(quoted).collect::<Vec<_>>().join(" "),
            _ => "--confirm NAME for each name, in the same order".into(),
        };
        let why = format!("nothing is deleted: to delete {what} with all {data}, add {options}");
        return Ok(print_error(Exit::Usage, &why));
    }
    many::each(&all, "deleted", |name| -> Result<(), Failed> {
        api.delete(&format!("/v1/volumes/{}", escaped(name)))
    })?;
    Ok(api.done(&match all.as_slice() {
        [name] => format!("volume {name} is deleted"),
        all => format!("{} are deleted", alike::volumes(all)),
    }))
}

/// All names that were given, with each range replaced by its numbers. `None`, after the error was printed, if a name is wrong.
fn expanded(names: &[String]) -> Option<Vec<String>> {
    names::expand(names).map_err(|why| print_error(Exit::Usage, &why)).ok()
}

fn show(volume: &VolumeView) -> Exit {
    print_line!("volume    {}", volume.name);
    print_line!("size      {}", ByteSize(volume.bytes));
    print_line!("state     {}", health(volume.health));
    print_line!("copies    {} in sync; writes need {}", copies_in_sync(volume), volume.least);
    print_line!("stripes   {}", volume.stripes);
    if volume.requires_tls {
        print_line!("tls       required");
    }
    if volume.cache_bytes > 0 {
        print_line!("cache     {} of each copy with a log device", ByteSize(volume.cache_bytes));
    }
    if let Some(limit) = &volume.limit {
        print_line!("limit     {}", limit);
    }
    print_line!("attached  {}", volume.attached.as_deref().unwrap_or("-"));
    print_line!("owner     {}", volume.owner.as_deref().unwrap_or("-"));
    print_line!("epoch     {}", volume.epoch);
    paths::print_lines(volume);
    if let Some(note) = &volume.note {
        print_line!("note      {note}");
    }
    print_line!();
    let rows: Vec<Vec<String>> = volume
        .replicas
        .iter()
        .map(|replica| {
            let left = replica.left_bytes.map_or("-".into(), |bytes| ByteSize(bytes).to_string());
            let (id, group) = (replica.id.to_string(), replica.group.to_string());
            let state =
                if replica.leaving { format!("{}, leaves", replica.state) } else { replica.state.clone() };
            let epoch = replica.epoch.map_or("-".into(), |epoch| epoch.to_string());
            let device = match replica.log_device == replica.device {
                true => replica.device.to_string(),
                false => format!("{} (log {})", replica.device, replica.log_device),
            };
            vec![id, group, replica.node.clone(), device, state, epoch, left]
        })
        .collect();
    write(table(&["copy", "group", "node", "device", "state", "epoch", "left to copy"], &rows).as_bytes());
    for replica in &volume.replicas {
        if let Some(note) = &replica.note {
            print_line!("copy {}: {note}", replica.id);
        }
    }
    paths::print_tables(volume);
    Exit::Done
}
