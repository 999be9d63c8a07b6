//! `loadline san access`: people and programs that use the API from other machines.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use loadline_base::units::TimeSpan;
use loadline_san_node::cluster;
use loadline_san_node::identity::access::Role;
use loadline_san_node::settings::NodeSettings;

use crate::cluster::client::{print_json, table};
use crate::output::{complain, document, say};
use crate::process::exit::Exit;

/// Give people and programs access to the API, list accesses, and take accesses back. The commands run on the host of a
/// node.
///
/// A node's API is open to the node's own machine if its address is one of that machine alone (127.0.0.1). At any other
/// address it takes only requests of those that have an access.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Give access: write a file that proves it, for --access of other commands.
    #[command(after_help = "Examples:\n  \
        loadline san access add alice --role operator --out alice.pem --config /srv/loadline/node-1/node.toml\n  \
        LOADLINE_API=https://10.0.0.1:7400 LOADLINE_ACCESS=alice.pem loadline san status\n  \
        loadline san access add grafana --role viewer --token --out token --config /srv/loadline/node-1/node.toml\n  \
        curl --cacert /srv/loadline/node-1/identity/cluster-ca.pem -H \"Authorization: Bearer $(cat token)\" https://10.0.0.1:7400/metrics")]
    Add(Add),
    /// List accesses.
    List(List),
    /// Take an access back. Each node refuses it as soon as the node has read the change, within about a second.
    Remove(Remove),
}

#[derive(clap::Args)]
struct Add {
    /// The name of the access: of a person, or of a program.
    name: String,
    /// What it may do.
    #[arg(long, value_name = "ROLE")]
    role: RoleName,
    /// The file to write. The file must not exist.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Write a token for the header 'Authorization: Bearer' instead of a certificate with its key.
    #[arg(long)]
    token: bool,
    /// How long the access is valid.
    #[arg(long, value_name = "TIME", default_value = "365d")]
    valid: TimeSpan,
    /// The node.toml of the node of this host.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

#[derive(clap::Args)]
struct List {
    /// The node.toml of the node of this host.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Remove {
    /// The name of the access.
    name: String,
    /// The node.toml of the node of this host.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum RoleName {
    /// Look at everything.
    Viewer,
    /// Look at everything, and change everything that the API can change.
    Operator,
}

pub(super) fn access(args: &Args) -> Exit {
    let config = match &args.command {
        Command::Add(Add { config, .. })
        | Command::List(List { config, .. })
        | Command::Remove(Remove { config, .. }) => config,
    };
    let settings = match NodeSettings::read(config) {
        Ok(settings) => settings,
        Err(why) => return complain(Exit::Usage, &why.to_string()),
    };
    match &args.command {
        Command::Add(args) => add(args, &settings),
        Command::List(args) => list(args, &settings),
        Command::Remove(args) => match cluster::take_access_back(&settings, &args.name) {
            Ok(true) => {
                say!("access {} is taken back", args.name);
                Exit::Done
            }
            Ok(false) => complain(
                Exit::Usage,
                &format!("there is no access {}: 'loadline san access list' shows all accesses", args.name),
            ),
            Err(why) => complain(Exit::Usage, &why.to_string()),
        },
    }
}

fn add(args: &Add, settings: &NodeSettings) -> Exit {
    let role = match args.role {
        RoleName::Viewer => Role::Viewer,
        RoleName::Operator => Role::Operator,
    };
    // Made before the access is: an access whose proof cannot be written is of no use.
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&args.out);
    let mut file = match file {
        Ok(file) => file,
        Err(why) => return complain(Exit::Usage, &format!("{}: {why}", args.out.display())),
    };
    let given = cluster::give_access(settings, &args.name, role, args.valid.0, args.token);
    let proof = match given {
        Ok(proof) => proof,
        Err(why) => {
            remove(&args.out);
            return complain(Exit::Usage, &why.to_string());
        }
    };
    if let Err(why) = file.write_all(proof.as_bytes()).and_then(|()| file.sync_all()) {
        remove(&args.out);
        let _ = cluster::take_access_back(settings, &args.name);
        return complain(Exit::Failed, &format!("{}: {why}", args.out.display()));
    }
    say!("access {} ({}) is given; its proof is in {}", args.name, role.name(), args.out.display());
    Exit::Done
}

/// Removes the file that this command has made.
fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}

fn list(args: &List, settings: &NodeSettings) -> Exit {
    let catalog = match cluster::read(&settings.cluster) {
        Ok(catalog) => catalog,
        Err(why) => return complain(Exit::Failed, &why.to_string()),
    };
    let now = UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    let rows = catalog.accesses.iter();
    if args.json {
        let rows: Vec<_> = rows
            .map(|(name, (access, _))| {
                serde_json::json!({ "name": name, "role": access.role.name(), "expires": access.expires })
            })
            .collect();
        return print_json(&rows);
    }
    let left = |expires: u64| match expires.saturating_sub(now) {
        0 => "expired".to_owned(),
        left => TimeSpan(Duration::from_secs(left)).to_string(),
    };
    let rows: Vec<Vec<String>> = rows
        .map(|(name, (access, _))| vec![name.clone(), access.role.name().into(), left(access.expires)])
        .collect();
    document(table(&["access", "role", "valid for"], &rows).trim_end());
    Exit::Done
}
