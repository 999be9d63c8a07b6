//! `loadline console`: clusters on a page, as they are now.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use loadline_api_client::ApiAddress;
use loadline_base::limits::STACK;
use loadline_console::following::{Following, Place};
use loadline_console::server::Console;

use crate::output::{print_error, print_line};
use crate::process::exit::Exit;
use crate::process::interrupt;

/// How soon Ctrl-C ends the command.
const TURN: Duration = Duration::from_millis(100);

/// Show clusters on a web page while they work: what clients get and what devices do, each second, of every node, volume and
/// device; resyncs with the time that is left; and events. Ctrl-C ends it, and the clusters go on.
///
/// The page is at http://127.0.0.1:7480, for programs of this machine only. From another machine, use a tunnel: ssh -L
/// 7480:127.0.0.1:7480 HOST. The command keeps the totals of each cluster in memory for 24 hours, while it runs.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline console\n  \
    loadline console lab=127.0.0.1:7400\n  \
    loadline console prod=https://node-1:7400 --access admin.pem")]
pub(crate) struct Args {
    /// The clusters: for each, the API of any of its nodes as for --api of other commands, after a name of your choice if there
    /// is one. [default: LOADLINE_API, or else 127.0.0.1:7400]
    #[arg(value_name = "[NAME=]ADDRESS")]
    clusters: Vec<Named>,
    /// The file that proves your access to APIs at https addresses, from 'loadline san access add'. The role viewer is enough.
    #[arg(long, value_name = "FILE", env = "LOADLINE_ACCESS")]
    access: Option<PathBuf>,
    /// The port of the page, on 127.0.0.1.
    #[arg(long, default_value_t = 7480)]
    port: u16,
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
    let stop = interrupt::flag();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().thread_stack_size(STACK).build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(why) => return print_error(Exit::Failed, &format!("cannot start a thread: {why}")),
    };
    runtime.block_on(async {
        let listener = match Console::listen(args.port).await {
            Ok(listener) => listener,
            Err(why) => {
                let port = args.port;
                let message = format!(
                    "cannot listen at 127.0.0.1:{port}: {why}. If another console runs there, its page shows its clusters; otherwise choose another port with --port"
                );
                return print_error(Exit::Failed, &message);
            }
        };
        let port = listener.local_addr().map_or(args.port, |address| address.port());
        let mut clusters = Vec::new();
        for named in args.clusters {
            let place = Place { name: named.name, api: named.api, access: args.access.clone() };
            match Following::start(place) {
                Ok(following) => clusters.push(following),
                Err(why) => return print_error(Exit::Failed, &format!("cannot start a thread: {why}")),
            }
        }
        print_line!("the console is at http://127.0.0.1:{port}; Ctrl-C ends it");
        let interrupted = async {
            while !stop.load(Ordering::Relaxed) {
                tokio::time::sleep(TURN).await;
            }
        };
        tokio::select! {
            ended = Console::new(clusters).serve(listener) => match ended {
                Ok(()) => Exit::Done,
                Err(why) => print_error(Exit::Failed, &format!("the console cannot go on: {why}")),
            },
            () = interrupted => Exit::Interrupted,
        }
    })
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
