//! `loadline san access`: people and programs that use the API from other machines.

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use loadline_base::units::TimeSpan;
use loadline_san_node::cluster;
use loadline_san_node::identity::access::{ClientCertificate, Proof, Role};
use loadline_san_node::settings::NodeSettings;

use crate::cluster::client::{print_json, table};
use crate::output::{document, print_error, print_line};
use crate::process::exit::Exit;

/// Tokens and accesses are valid for so long at least.
pub(super) const LEAST_VALID: Duration = Duration::from_secs(1);

/// Give people and programs access to the API, list accesses, and revoke them. The commands run on the host of a node.
///
/// A node's API is open to the node's own machine if its address is one of that machine alone (127.0.0.1). At any other
/// address the API accepts only requests that prove an access.
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
    /// Revoke an access. Each node refuses the access as soon as the node has read the change, within about a second.
    Remove(Remove),
}

#[derive(clap::Args)]
struct Add {
    /// The name of the access: of a person, or of a program.
    name: String,
    /// What the holder of the access may do.
    #[arg(long, value_name = "ROLE")]
    role: RoleName,
    /// The file to write; for the role client a folder with ca-cert.pem, client-cert.pem and client-key.pem, as QEMU and
    /// the tools of NBD expect it. It must not exist.
    #[arg(long, value_name = "PATH")]
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
    /// Use volumes over NBD with TLS, and nothing of the API.
    Client,
    /// Read everything and change nothing.
    Viewer,
    /// Read everything, and change everything that the API can change.
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
        Err(why) => return print_error(Exit::Usage, &why.to_string()),
    };
    match &args.command {
        Command::Add(args) => add(args, &settings),
        Command::List(args) => list(args, &settings),
        Command::Remove(args) => match cluster::revoke_access(&settings, &args.name) {
            Ok(true) => {
                print_line!("access {} is revoked", args.name);
                Exit::Done
            }
            Ok(false) => print_error(
                Exit::Usage,
                &format!("there is no access {}: 'loadline san access list' shows all accesses", args.name),
            ),
            Err(why) => print_error(Exit::Usage, &why.to_string()),
        },
    }
}

fn add(args: &Add, settings: &NodeSettings) -> Exit {
    let role = match args.role {
        RoleName::Client => Role::Client,
        RoleName::Viewer => Role::Viewer,
        RoleName::Operator => Role::Operator,
    };
    if args.token && role == Role::Client {
        return print_error(
            Exit::Usage,
            "--token: a client of volumes needs a certificate, so leave the option out",
        );
    }
    if args.valid.0 < LEAST_VALID {
        return print_error(Exit::Usage, "--valid: give at least 1s");
    }
    let out = &args.out;
    if out.symlink_metadata().is_ok() {
        return print_error(
            Exit::Usage,
            &format!("{}: it exists already: choose another name", out.display()),
        );
    }
    let proof = match cluster::give_access(settings, &args.name, role, args.valid.0, args.token) {
        Ok(proof) => proof,
        Err(why) => return print_error(Exit::Usage, &why.to_string()),
    };
    let written = match &proof {
        Proof::Token(token) => write(out, token),
        Proof::Certificate(certificate) if role == Role::Client => write_folder(out, certificate),
        Proof::Certificate(certificate) => write(out, &certificate.bundle()),
    };
    if let Err(why) = written {
        // An access whose proof cannot be written is of no use.
        let _ = cluster::revoke_access(settings, &args.name);
        return print_error(Exit::Failed, &format!("{}: {why}", out.display()));
    }
    print_line!("access {} ({}) is given; its proof is in {}", args.name, role.name(), out.display());
    Exit::Done
}

/// Writes a new file that only its owner can read.
pub(super) fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Writes a new folder as QEMU and the tools of NBD expect it.
fn write_folder(path: &Path, certificate: &ClientCertificate) -> std::io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(path)?;
    write(&path.join("ca-cert.pem"), &certificate.authority)?;
    write(&path.join("client-cert.pem"), &certificate.certificate())?;
    write(&path.join("client-key.pem"), &certificate.key())
}

fn list(args: &List, settings: &NodeSettings) -> Exit {
    let catalog = match cluster::read(&settings.cluster) {
        Ok(catalog) => catalog,
        Err(why) => return print_error(Exit::Failed, &why.to_string()),
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
    let rows: Vec<Vec<String>> = rows
        .map(|(name, (access, _))| {
            vec![name.clone(), access.role.name().into(), validity(access.expires.saturating_sub(now))]
        })
        .collect();
    document(table(&["access", "role", "validity"], &rows).trim_end());
    Exit::Done
}

/// Whether an access is valid that ends in so many seconds, and for how long: in whole days, if there are several.
fn validity(seconds: u64) -> String {
    const DAY: u64 = 86_400;
    match seconds {
        0 => "expired".to_owned(),
        _ if seconds >= 2 * DAY => format!("{} days", (seconds + DAY / 2) / DAY),
        _ => format!("{}", TimeSpan::seconds(seconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::validity;

    #[test]
    fn how_long_an_access_is_valid_is_in_units_that_people_count_in() {
        for (seconds, text) in
            [(0, "expired"), (59, "59s"), (7_200, "2h"), (31_535_999, "365 days"), (2 * 86_400, "2 days")]
        {
            assert_eq!(validity(seconds), text);
        }
    }
}
