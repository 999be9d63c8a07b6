//! `loadline console`: clusters on a page, as they are now.

pub(crate) mod access;
mod key;
pub(crate) mod served;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use loadline_api_client::ApiAddress;
use loadline_base::limits::STACK;
use loadline_console::following::{Following, Place};
use loadline_console::runs::Runs;
use loadline_console::server::Console;
use tokio::net::TcpListener;

use crate::output::{print_error, print_line};
use crate::process::exit::Exit;
use crate::process::interrupt;

/// How soon Ctrl-C ends the command.
const TURN: Duration = Duration::from_millis(100);

/// Show clusters on a web page while they work: what clients get and what devices do, each second, of every node, volume and
/// device; resyncs with the time that is left; and events. The page also has the history of the runs of 'loadline run': it finds, compares
/// and notes them, shows a figure over many runs, and starts new studies. Ctrl-C ends the console; the clusters and the runs go on.
///
/// The page is at http://127.0.0.1:7480, for programs of this machine only. The command prints a link by which its user signs in to act on
/// clusters: make, change and delete volumes, drain nodes. Without the link, the page only shows. The link is valid while the command runs.
///
/// From another machine, use a tunnel (ssh -L 7480:127.0.0.1:7480 HOST), or give --listen with a certificate and sign-in keys. The command
/// keeps the totals of each cluster in memory for 24 hours, while it runs.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
    loadline console\n  \
    loadline console lab=127.0.0.1:7400\n  \
    loadline console prod=https://node-1:7400 --access admin.pem\n  \
    loadline console --runs /srv/runs --runs ~/runs\n  \
    loadline console key add keys --role operator anna\n  \
    loadline console --listen 0.0.0.0:7480 --cert console.pem --key console.key --keys keys"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The clusters: for each, the API of any of its nodes as for --api of other commands, after a name of your choice if there
    /// is one. [default: LOADLINE_API, or else 127.0.0.1:7400]
    #[arg(value_name = "[NAME=]ADDRESS")]
    clusters: Vec<Named>,
    /// The file that proves your access to APIs at https addresses, from 'loadline san access add'. To show clusters, the role viewer is
    /// enough; what the page does needs the role operator.
    #[arg(long, value_name = "FILE", env = "LOADLINE_ACCESS")]
    access: Option<PathBuf>,
    /// A folder that contains the folders of runs. May be given several times. The console only adds the file notes.json to the folder of a
    /// run, for tags and a note. The first folder also gets the runs of studies that are started from the page, each with its study and its
    /// log. The console keeps an index in the folder loadline of CACHE_DIRECTORY, XDG_CACHE_HOME or ~/.cache, whichever is set
    /// first. [default: runs]
    #[arg(long, value_name = "FOLDER")]
    runs: Vec<PathBuf>,
    #[command(flatten)]
    open: access::Open,
}

#[derive(clap::Subcommand)]
enum Command {
    Key(key::Args),
}

/// A cluster, and what the page calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Named {
    name: String,
    api: ApiAddress,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Named, String> {
        let (name, address) = match text.split_once('=') {
            Some((name, address)) if !name.contains('/') => (Some(name), address),
            _ => (None, text),
        };
        if name.is_some_and(str::is_empty) {
            return Err("give the cluster a name before '=', or leave '=' out".into());
        }
        Ok(Named { name: name.unwrap_or(address).to_owned(), api: address.parse()? })
    }
}

pub(crate) fn run(mut args: Args) -> Exit {
    if let Some(Command::Key(args)) = args.command {
        return key::run(&args);
    }
    if args.clusters.is_empty() {
        let address = std::env::var("LOADLINE_API").unwrap_or_else(|_| "127.0.0.1:7400".into());
        match address.parse() {
            Ok(named) => args.clusters.push(named),
            Err(why) => return print_error(Exit::Usage, &format!("LOADLINE_API is {address}: {why}")),
        }
    }
    let mut names: Vec<&str> = args.clusters.iter().map(|of| of.name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let message =
            format!("two clusters have the name {}: give each a name of its own, NAME=ADDRESS", twice[0]);
        return print_error(Exit::Usage, &message);
    }
    // An access that cannot be read is found now, and not by each node.
    for named in &args.clusters {
        let access = args.access.clone().or_else(|| named.api.own_access());
        if let Err(why) = named.api.agent(access.as_deref(), TURN) {
            return print_error(Exit::Usage, &why);
        }
    }
    let open = match args.open.check() {
        Ok(open) => open,
        Err(why) => return print_error(Exit::Usage, &why),
    };
    if let Some(why) = args.runs.iter().find_map(|folder| fault_of(folder)) {
        return print_error(Exit::Usage, &why);
    }
    if args.runs.is_empty() {
        // It may come later: with the first run.
        args.runs.push("runs".into());
    }
    let runs = Runs::new(args.runs, cache());
    let stop = interrupt::flag();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().thread_stack_size(STACK).build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(why) => return print_error(Exit::Failed, &format!("cannot start a thread: {why}")),
    };
    let exit = runtime.block_on(async {
        let listener = match TcpListener::bind(open.address).await {
            Ok(listener) => listener,
            Err(why) => {
                let message = format!(
                    "cannot listen at {}: {why}. If another console runs there, its page shows its clusters; otherwise choose another port with --port or --listen",
                    open.address
                );
                return print_error(Exit::Failed, &message);
            }
        };
        let address = listener.local_addr().unwrap_or(open.address);
        let mut clusters = Vec::new();
        for named in args.clusters {
            let place = Place { name: named.name, api: named.api, access: args.access.clone() };
            match Following::start(place) {
                Ok(following) => clusters.push(following),
                Err(why) => return print_error(Exit::Failed, &format!("cannot start a thread: {why}")),
            }
        }
        if let Err(why) = runs.follow() {
            return print_error(Exit::Failed, &format!("cannot start a thread: {why}"));
        }
        // In one piece: whoever reads one line only ends nothing.
        print_line!("{}", open.greeting(address));
        let interrupted = async {
            while !stop.load(Ordering::Relaxed) {
                tokio::time::sleep(TURN).await;
            }
        };
        tokio::select! {
            ended = Console::new(clusters, runs, open.access).serve(listener, open.tls, &open.names) => match ended {
                Ok(()) => Exit::Done,
                Err(why) => print_error(Exit::Failed, &format!("the console cannot go on: {why}")),
            },
            () = interrupted => Exit::Interrupted,
        }
    });
    // A node that is asked and does not answer does not keep the command.
    runtime.shutdown_background();
    exit
}

/// Why this is no folder of run folders.
fn fault_of(folder: &Path) -> Option<String> {
    if folder.join("run.json").exists() {
        return Some(format!(
            "--runs {}: this is the folder of one run. Give the folder that contains it",
            folder.display()
        ));
    }
    let why = std::fs::read_dir(folder).err()?;
    Some(format!("--runs {}: {why}. Give a folder that contains the folders of runs", folder.display()))
}

/// The folder for the index of runs; `None` if the environment names no folder for what can be made anew.
fn cache() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let of_user = || named("HOME").map(|home| home.join(".cache"));
    Some(named("CACHE_DIRECTORY").or_else(|| named("XDG_CACHE_HOME")).or_else(of_user)?.join("loadline"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_an_address_with_a_name_or_without() {
        let read = |text: &str| text.parse::<Named>().map(|of| (of.name, of.api.to_string()));
        let is = |name: &str, api: &str| Ok((name.to_owned(), api.to_owned()));
        assert_eq!(read("lab=127.0.0.1:7400"), is("lab", "127.0.0.1:7400"));
        assert_eq!(read("127.0.0.1:7400"), is("127.0.0.1:7400", "127.0.0.1:7400"));
        assert_eq!(read("p=https://a:1"), is("p", "https://a:1"));
        assert_eq!(read("/srv/a=b/api.sock"), is("/srv/a=b/api.sock", "/srv/a=b/api.sock"));
        for wrong in ["", "=127.0.0.1:1", "lab=", "lab"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
