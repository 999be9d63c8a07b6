//! The store in an etcd, for clusters whose nodes are hosts of their own.
//!
//! Keys of a cluster are `PREFIX/format` (which format it has), `PREFIX/data/KEY`, and `PREFIX/commits/CLIENT` (the last commit of a client). The version of a value is etcd's `mod_revision`; the
//! revision of the store is that of the etcd when a change of the cluster's keys was seen last, so changes of other keys do not raise it.
//!
//! | module | idea |
//! | --- | --- |
//! | [`address`] | where an etcd is, and how a client proves its identity |
//! | `members` | which member is used, and what is asked of it |
//! | `refusal` | what an error of etcd says |
//! | `watch` | notices of changes |

pub mod address;
pub(crate) mod health;
mod members;
mod refusal;
#[cfg(test)]
mod tests;
mod watch;

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::channel;
use std::time::Duration;

use loadline_base::limits::STACK;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::watch::Watch;
use super::{Change, ConfigError, ConfigStore, Stored};
use address::EtcdAddress;
use members::Members;

/// The format of the keys and values, under the key `PREFIX/format`.
const FORMAT: u32 = 1;
/// How long a call waits, whatever etcd does.
const LIMIT: Duration = Duration::from_secs(9);

type Answering<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;
type Task = Box<dyn for<'a> FnOnce(&'a mut Members) -> Answering<'a> + Send>;

/// Connections to an etcd, which a thread of their own keeps alive.
#[derive(Debug)]
pub struct EtcdStore {
    address: EtcdAddress,
    tasks: UnboundedSender<Task>,
}

impl EtcdStore {
    /// Makes an empty configuration. No key may have its prefix.
    pub fn create(address: &EtcdAddress) -> Result<EtcdStore, ConfigError> {
        let mut store = EtcdStore::connect(address)?;
        store.call(|members| Box::pin(members.agree()))?;
        let format = Change {
            key: address.format_key(),
            expected: None,
            value: Some(FORMAT.to_string().into_bytes()),
        };
        let made = store.call(move |members| {
            Box::pin(async move {
                let at = members.address().data_key("");
                match members.list(&at).await?.1.is_empty() {
                    true => members.commit(&[format]).await,
                    false => Ok(false),
                }
            })
        })?;
        match made {
            true => Ok(store),
            false => Err(ConfigError::Exists(address.to_string())),
        }
    }

    /// Opens a configuration that is there.
    pub fn open(address: &EtcdAddress) -> Result<EtcdStore, ConfigError> {
        let mut store = EtcdStore::connect(address)?;
        store.call(|members| Box::pin(members.agree()))?;
        let (shown, key) = (address.to_string(), address.format_key());
        let Some(found) = store.call(move |members| Box::pin(async move { members.get(&key).await }))? else {
            return Err(ConfigError::Missing(shown));
        };
        match std::str::from_utf8(&found.value).ok().and_then(|text| text.parse().ok()) {
            Some(FORMAT) => Ok(store),
            Some(found) => Err(ConfigError::Format { path: shown, found, ours: FORMAT }),
            None => Err(ConfigError::NotOurs(shown)),
        }
    }

    /// Starts the thread. It ends, and its connections with it, when the store is dropped.
    fn connect(address: &EtcdAddress) -> Result<EtcdStore, ConfigError> {
        if address.sends_a_password_in_clear_text() {
            tracing::warn!(
                "the password of etcd's user is sent in clear text: name the authority of etcd's certificates with ca=FILE"
            );
        }
        let failed = |error: std::io::Error| ConfigError::Unavailable(error.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (tasks, mut wanted) = unbounded_channel::<Task>();
        let mut members = Members::new(address.clone());
        let serve = move || {
            runtime.block_on(async {
                while let Some(task) = wanted.recv().await {
                    task(&mut members).await;
                }
            });
        };
        std::thread::Builder::new().name("etcd".into()).stack_size(STACK).spawn(serve).map_err(failed)?;
        Ok(EtcdStore { address: address.clone(), tasks })
    }

    /// Has the thread do something, and waits for it within a limit.
    fn call<T, Act>(&mut self, act: Act) -> Result<T, ConfigError>
    where
        T: Send + 'static,
        Act: for<'a> FnOnce(&'a mut Members) -> Pin<Box<dyn Future<Output = Result<T, ConfigError>> + 'a>>
            + Send
            + 'static,
    {
        let (answer, answered) = channel();
        let task: Task = Box::new(move |members| {
            Box::pin(async move {
                let done = tokio::time::timeout(LIMIT, act(members)).await;
                // The caller may have given up.
                let _ = answer.send(done);
            })
        });
        let ended = || ConfigError::Unavailable("the thread of the connection to etcd has ended".into());
        self.tasks.send(task).map_err(|_| ended())?;
        answered.recv().map_err(|_| ended())?.unwrap_or_else(|_| {
            Err(ConfigError::Unavailable(format!("etcd has not answered within {} s", LIMIT.as_secs())))
        })
    }
}

impl ConfigStore for EtcdStore {
    fn get(&mut self, key: &str) -> Result<Option<Stored>, ConfigError> {
        let key = self.address.data_key(key);
        self.call(move |members| Box::pin(async move { members.get(&key).await }))
    }

    fn list(&mut self, prefix: &str) -> Result<(u64, Vec<(String, Stored)>), ConfigError> {
        let (prefix, before) = (self.address.data_key(prefix), self.address.data_key("").len());
        let (revision, listed) = self.call(move |members| {
            Box::pin(async move {
                let (at, listed) = members.list(&prefix).await?;
                Ok((members.revision_at(Some(at)).await?, listed))
            })
        })?;
        Ok((revision, listed.into_iter().map(|(key, stored)| (key[before..].to_owned(), stored)).collect()))
    }

    fn commit(&mut self, changes: &[Change]) -> Result<bool, ConfigError> {
        let named = |change: &Change| Change { key: self.address.data_key(&change.key), ..change.clone() };
        let changes: Vec<Change> = changes.iter().map(named).collect();
        self.call(move |members| Box::pin(async move { members.commit(&changes).await }))
    }

    fn revision(&mut self) -> Result<u64, ConfigError> {
        self.call(|members| Box::pin(members.revision()))
    }

    fn watch(&self) -> Result<Box<dyn Watch>, ConfigError> {
        let mut store = EtcdStore { address: self.address.clone(), tasks: self.tasks.clone() };
        let address = self.address.clone();
        let watch = store.call(move |members| {
            Box::pin(async move {
                let revision = members.revision_of_etcd().await?;
                Ok(watch::start(address, members.used(), revision))
            })
        })?;
        Ok(Box::new(watch))
    }
}
