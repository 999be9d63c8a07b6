//! Asks a node's API.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use loadline_san_node::api::{CLUSTER_HEADER, Fault};
use loadline_san_node::node::manage::ErrorKind;
use serde::Serialize;
use serde::de::DeserializeOwned;

use loadline_api_client::Events;
pub(crate) use loadline_api_client::{ApiAddress, escaped};

use crate::output::print_error;
use crate::process::exit::Exit;

/// Longer than anything that a node waits for.
const LIMIT: Duration = Duration::from_secs(90);

/// Which node is asked.
#[derive(clap::Args, Clone)]
pub(crate) struct Api {
    /// The API of any node of the cluster: IP:PORT of a node of this machine, https://HOST:PORT, or the path of a node's
    /// api.sock.
    #[arg(long, value_name = "ADDRESS", env = "LOADLINE_API", default_value = "127.0.0.1:7400")]
    pub(crate) api: ApiAddress,
    /// The file that proves your access to an API at an https address, from 'loadline san access add'. With the path of a
    /// node's api.sock no such file is needed.
    #[arg(long, value_name = "FILE", env = "LOADLINE_ACCESS")]
    access: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// How long an answer is waited for.
    #[arg(skip = LIMIT)]
    limit: Duration,
    /// The id of the cluster that has answered.
    #[arg(skip)]
    cluster: Arc<OnceLock<String>>,
}

/// Why there is no answer.
pub(crate) struct Failed {
    exit: Exit,
    message: String,
    /// Whether a like request for another volume would fail for the same reason: no node, or not the configuration store, answers.
    is_for_all: bool,
}

impl Failed {
    pub(crate) fn print_error(&self) -> Exit {
        print_error(self.exit, &self.message)
    }

    /// A failure that no node has reported.
    pub(crate) fn new(exit: Exit, message: String, is_for_all: bool) -> Failed {
        Failed { exit, message, is_for_all }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// Whether a like request for another volume would fail for the same reason.
    pub(crate) fn is_for_all(&self) -> bool {
        self.is_for_all
    }

    /// This failure of one of several requests, of which some may have been carried out, as a message about all of them.
    pub(crate) fn among(self, some_are_done: bool, message: String) -> Failed {
        Failed { exit: if some_are_done { Exit::Failed } else { self.exit }, message, ..self }
    }

    /// The same, with more of what to do.
    pub(crate) fn with(self, more: &str) -> Failed {
        Failed { message: format!("{}{more}", self.message), ..self }
    }

    /// The same, after what was done before it. So this is no mere mistake on the command line.
    pub(crate) fn after(self, done: &str) -> Failed {
        Failed { exit: Exit::Failed, message: format!("{done}: {}", self.message), ..self }
    }
}

enum Method<B> {
    Get,
    Delete,
    Post(B),
}

impl Api {
    /// The API at an address of this machine.
    pub(crate) fn at(api: SocketAddr) -> Api {
        Api { api: ApiAddress::Http(api), access: None, json: false, limit: LIMIT, cluster: Arc::default() }
    }

    /// The API of another node of the same cluster.
    pub(crate) fn of_other(&self, node: SocketAddr) -> Api {
        let api = self.api.of_other(node);
        let access = self.access.clone().or_else(|| self.api.own_access());
        Api { api, access, json: false, limit: self.limit, cluster: Arc::default() }
    }

    /// The options by which another process of this program calls the same API.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let mut arguments = vec!["--api".into(), self.api.to_string().into()];
        if let Some(access) = &self.access {
            arguments.extend(["--access".into(), access.into()]);
        }
        arguments
    }

    /// Follows a stream of events of the node. Whenever nothing comes within `idle`, the stream ends with an error. Errors are for people.
    pub(crate) fn follow(&self, path: &str, idle: Duration) -> Result<Events, String> {
        let access = self.access.clone().or_else(|| self.api.own_access());
        self.api.follow(access.as_deref(), path, None, idle)
    }

    /// The same API, each of whose answers is waited for this long.
    pub(crate) fn within(self, limit: Duration) -> Api {
        Api { limit, ..self }
    }

    /// What a node answers that is no JSON; 10 MB at most.
    pub(crate) fn text(&self, path: &str) -> Result<String, String> {
        let access = self.access.clone().or_else(|| self.api.own_access());
        let agent = self.api.agent(access.as_deref(), self.limit)?;
        let answered = agent.get(self.api.url(path)).call();
        let mut answer =
            answered.map_err(|why| format!("the node at {} does not answer: {why}", self.api))?;
        let status = answer.status();
        let text = answer.body_mut().read_to_string().map_err(|why| why.to_string())?;
        if status.is_success() {
            Ok(text)
        } else {
            Err(format!("the node at {} answered {status}", self.api))
        }
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failed> {
        self.ask::<(), T>(path, &Method::Get)
    }

    pub(crate) fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failed> {
        self.ask::<(), T>(path, &Method::Delete)
    }

    pub(crate) fn post<B: Serialize, T: DeserializeOwned>(&self, path: &str, body: B) -> Result<T, Failed> {
        self.ask(path, &Method::Post(body))
    }

    fn ask<B: Serialize, T: DeserializeOwned>(&self, path: &str, method: &Method<B>) -> Result<T, Failed> {
        let mut api = self.api.clone();
        let access = self.access.clone().or_else(|| self.api.own_access());
        // A node that cannot do it names the one that can; that may have changed when the request arrives there.
        for _ in 0..4 {
            let Answer { cluster, answer } = ask_one(&api, access.as_deref(), self.limit, path, method)?;
            if let Some(cluster) = &cluster {
                let _ = self.cluster.set(cluster.clone());
            }
            match answer {
                Ok(answer) => return Ok(answer),
                Err(Fault { kind: ErrorKind::Elsewhere, api: Some(other), .. }) => api = api.of_other(other),
                Err(Fault { kind, message, .. }) => {
                    let exit = match kind {
                        ErrorKind::Late | ErrorKind::Unavailable | ErrorKind::Elsewhere => Exit::Failed,
                        _ => Exit::Usage,
                    };
                    let is_for_all = kind == ErrorKind::Unavailable;
                    let cluster = cluster.map_or(String::new(), |id| format!(" (cluster {})", short(&id)));
                    return Err(Failed { exit, message: format!("{message}{cluster}"), is_for_all });
                }
            }
        }
        Err(Failed {
            exit: Exit::Failed,
            message: "each node refers to another node for this request: try again".into(),
            is_for_all: false,
        })
    }
}

/// What a node has answered, and the id of its cluster.
struct Answer<T> {
    cluster: Option<String>,
    answer: Result<T, Fault>,
}

/// What to do about a connection that failed for this reason.
fn advice(why: &str) -> &'static str {
    // The words are those of rustls and of the HTTP client.
    let has = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if has(&["InvalidContentType"]) {
        "Its API speaks HTTP and not HTTPS: leave out https:// and --access"
    } else if has(&["invalid HTTP version", "http parse fail"]) {
        "Its API may speak HTTPS: give --api https://ADDRESS:PORT, and an access with --access"
    } else if has(&["CertificateExpired"]) {
        "The access has expired, or the clock of a host is wrong: 'loadline san access add' makes a new access"
    } else {
        "Check that the node runs"
    }
}

fn ask_one<B: Serialize, T: DeserializeOwned>(
    api: &ApiAddress,
    access: Option<&Path>,
    limit: Duration,
    path: &str,
    method: &Method<B>,
) -> Result<Answer<T>, Failed> {
    let agent = api.agent(access, limit).map_err(|message| Failed {
        exit: Exit::Usage,
        message,
        is_for_all: true,
    })?;
    let url = api.url(path);
    let answered = match method {
        Method::Get => agent.get(&url).call(),
        Method::Delete => agent.delete(&url).call(),
        Method::Post(body) => agent.post(&url).send_json(body),
    };
    let failed = |why: String| Failed {
        exit: Exit::Failed,
        message: format!(
            "the node at {api} does not answer: {why}. {}, or name another node with --api or LOADLINE_API",
            advice(&why)
        ),
        is_for_all: true,
    };
    let mut answer = answered.map_err(|why| failed(why.to_string()))?;
    let is_fine = answer.status().is_success();
    let cluster = answer.headers().get(CLUSTER_HEADER).and_then(|id| id.to_str().ok()).map(str::to_owned);
    let text = answer.body_mut().read_to_string().map_err(|why| failed(why.to_string()))?;
    let strange = |why: serde_json::Error| failed(format!("the answer cannot be parsed ({why}): {text}"));
    let answer = match is_fine {
        true => Ok(serde_json::from_str(&text).map_err(strange)?),
        false => Err(serde_json::from_str(&text).map_err(strange)?),
    };
    Ok(Answer { cluster, answer })
}

/// The beginning of a cluster's id, for people.
pub(crate) fn short(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}

/// A table for people: titles, and rows of as many cells.
pub(crate) fn table(titles: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([titles[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let titles: Vec<String> = titles.iter().map(ToString::to_string).collect();
    let mut text = String::new();
    for row in [&titles].into_iter().chain(rows) {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

impl Api {
    /// Prints what was done, and by which cluster: a sentence, or with --json an object that has it and `more`.
    pub(crate) fn done_with(&self, what: &str, more: &[(&str, u64)]) -> Exit {
        let cluster = self.cluster.get();
        if self.json {
            let mut object = serde_json::Map::from_iter([("done".into(), what.into())]);
            object.extend(cluster.map(|id| ("cluster".into(), id.as_str().into())));
            object.extend(more.iter().map(|(key, value)| ((*key).into(), (*value).into())));
            return print_json(&object);
        }
        crate::output::print_line!("{}", self.naming(what));
        Exit::Done
    }

    /// A sentence for people, with the cluster that has answered before it.
    pub(crate) fn naming(&self, what: &str) -> String {
        match self.cluster.get() {
            Some(id) => format!("cluster {}: {what}", short(id)),
            None => what.to_owned(),
        }
    }

    /// The same, with nothing more.
    pub(crate) fn done(&self, what: &str) -> Exit {
        self.done_with(what, &[])
    }
}

/// Prints an answer as JSON.
pub(crate) fn print_json<T: Serialize>(answer: &T) -> Exit {
    let text = serde_json::to_string_pretty(answer).expect("an answer can be written as JSON");
    crate::output::document(&text);
    Exit::Done
}
