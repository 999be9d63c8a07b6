//! The console of another command, while that command runs: `loadline run --console`, `loadline san dev --console`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use loadline_base::limits::STACK;
use loadline_console::access::Access;
use loadline_console::access::secret::Secret;
use loadline_console::following::{Following, Place};
use loadline_console::runs::Runs;
use loadline_console::server::Console;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::access::user;

/// Where the page is, if no port is given and no other program listens there.
const PORT: u16 = 7480;
/// How long pages get to read how a run ended.
const LAST: Duration = Duration::from_millis(1500);

/// The console's option of another command.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct WithConsole {
    /// Show it on a web page too while it runs, on 127.0.0.1. [default port: 7480, or another one if that is in use]
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    console: Option<u16>,
}

impl WithConsole {
    /// No console.
    pub(crate) const NONE: WithConsole = WithConsole { console: None };

    /// Starts the console, if it is wanted.
    ///
    /// # Errors
    /// A sentence that says why the port cannot be used.
    pub(crate) fn start(
        self,
        clusters: impl IntoIterator<Item = Place>,
        run: Option<(&str, &Path)>,
    ) -> Result<Option<ServedConsole>, String> {
        let port = self.console.map(|port| Some(port).filter(|port| *port > 0));
        port.map(|port| ServedConsole::start(port, clusters, run)).transpose()
    }
}

/// A console on a port of 127.0.0.1, which ends when this is dropped.
pub(crate) struct ServedConsole {
    /// What it answers.
    pub(crate) console: Console,
    /// Where it is.
    pub(crate) address: SocketAddr,
    /// The key by which the user of the command signs in.
    link: Secret,
    /// The id of the run whose page this console has.
    run: Option<String>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl ServedConsole {
    fn start(
        port: Option<u16>,
        clusters: impl IntoIterator<Item = Place>,
        run: Option<(&str, &Path)>,
    ) -> Result<ServedConsole, String> {
        let no_thread = |e: std::io::Error| format!("cannot start a thread: {e}");
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().thread_stack_size(STACK).build();
        let runtime = runtime.map_err(no_thread)?;
        let listen = |port| runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
        let listener = match (listen(port.unwrap_or(PORT)), port) {
            (Err(_), None) => listen(0),
            (listener, _) => listener,
        };
        let at = port.unwrap_or(PORT);
        let listener = listener.map_err(|e| {
            format!("cannot listen at 127.0.0.1:{at}: {e}. Choose another port with --console=PORT")
        })?;
        let address = listener.local_addr().map_err(|e| e.to_string())?;
        let (access, link) = Access::local(user(), None, None);
        let clusters: Result<_, _> = clusters.into_iter().map(Following::start).collect();
        let mut console = Console::new(clusters.map_err(no_thread)?, Runs::new(Vec::new(), None), access);
        if let Some((id, folder)) = run {
            console = console.with_run(id, folder);
        }
        let (end, ended) = oneshot::channel::<()>();
        let served = console.clone();
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = served.serve(listener, None, &[]) => {}
                    _ = ended => {}
                }
            });
            // What reads a folder for a page ends by itself.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("console".into()).spawn(work).map_err(no_thread)?;
        let run = run.map(|(id, _)| id.to_owned());
        Ok(ServedConsole { console, address, link, run, end: Some(end), thread: Some(thread) })
    }

    /// The link by which the user of the command signs in. That of a run leads to the page of the run.
    pub(crate) fn link(&self) -> String {
        let page = self.run.as_ref().map_or(String::new(), |run| format!("/runs/{run}"));
        format!("http://{}/#/sign-in/{}{page}", self.address, self.link.text())
    }
}

impl Drop for ServedConsole {
    fn drop(&mut self) {
        if self.console.is_watched() {
            std::thread::sleep(LAST);
        }
        self.end = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
