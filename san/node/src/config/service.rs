//! The store on a thread of its own: nobody who must not wait waits for it.

use std::sync::mpsc::{Receiver, Sender, channel};

use loadline_san_core::ids::{Epoch, VolumeId};
use loadline_san_core::record::Record;
use loadline_san_core::swap::Answer;
use loadline_san_protocol::record;
use tokio::sync::oneshot;

use super::{Change, ConfigError, ConfigStore};
use crate::event_loop::Orders;
use crate::event_loop::order::Order;

type Job = Box<dyn FnOnce(&mut dyn ConfigStore) + Send>;

/// To use the store, from anywhere.
#[derive(Debug, Clone)]
pub struct Config(Sender<Job>);

impl Config {
    /// Starts the thread. It ends when the last of these is dropped.
    pub fn start(store: Box<dyn ConfigStore>) -> std::io::Result<Config> {
        let (sender, jobs) = channel();
        std::thread::Builder::new().name("config".into()).spawn(move || serve(store, &jobs))?;
        Ok(Config(sender))
    }

    /// Does something with the store.
    pub async fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut dyn ConfigStore) -> Result<T, ConfigError> + Send + 'static,
    ) -> Result<T, ConfigError> {
        let (answer, answered) = oneshot::channel();
        self.give(Box::new(move |store| {
            // Who asked may have gone.
            let _ = answer.send(job(store));
        }));
        answered.await.unwrap_or_else(|_| Err(ConfigError::Unavailable("its thread has ended".into())))
    }

    /// What is the record? The loop is told, if there is an answer; otherwise it asks again.
    pub fn look(&self, volume: VolumeId, asked_at: Epoch, orders: Orders) {
        self.give(Box::new(move |store| match read_record(store, volume) {
            Ok(Some((record, _))) => _ = orders.give(Order::Seen(volume, Box::new(record), asked_at)),
            Ok(None) => {}
            Err(why) => eprintln!("loadline: the record of volume {}: {why}", volume.0),
        }));
    }

    /// Makes this the record, if it is at this epoch. The loop is told, if the answer is known; otherwise it proposes again.
    pub fn propose(&self, volume: VolumeId, record: Box<Record>, replaces: Epoch, orders: Orders) {
        self.give(Box::new(move |store| match swap(store, volume, &record, replaces) {
            Ok(answer) => _ = orders.give(Order::Swapped(volume, record.made_by, answer, replaces)),
            Err(why) => eprintln!("loadline: the record of volume {}: {why}", volume.0),
        }));
    }

    fn give(&self, job: Job) {
        // The thread ends only when nobody can give it anything.
        let _ = self.0.send(job);
    }
}

fn serve(mut store: Box<dyn ConfigStore>, jobs: &Receiver<Job>) {
    for job in jobs {
        job(&mut *store);
    }
}

/// Where the record of a volume is kept.
pub fn record_key(volume: VolumeId) -> String {
    format!("record/{}", volume.0)
}

/// The record of a volume, and its version. None, if there is no such volume.
pub fn read_record(
    store: &mut dyn ConfigStore,
    volume: VolumeId,
) -> Result<Option<(Record, u64)>, ConfigError> {
    let key = record_key(volume);
    let Some(stored) = store.get(&key)? else { return Ok(None) };
    let record =
        record::decode(&stored.value).map_err(|why| ConfigError::Broken { key, why: why.to_string() })?;
    Ok(Some((record, stored.version)))
}

/// The change that makes this the record.
pub fn record_change(volume: VolumeId, expected: Option<u64>, next: &Record) -> Result<Change, ConfigError> {
    let key = record_key(volume);
    let value =
        record::encode(next).map_err(|why| ConfigError::Broken { key: key.clone(), why: why.to_string() })?;
    Ok(Change { key, expected, value: Some(value) })
}

fn swap(
    store: &mut dyn ConfigStore,
    volume: VolumeId,
    next: &Record,
    replaces: Epoch,
) -> Result<Answer, ConfigError> {
    for _ in 0..8 {
        let Some((record, version)) = read_record(store, volume)? else {
            return Err(ConfigError::Missing(record_key(volume)));
        };
        // Asked again: it is there already.
        if record.made_by == next.made_by && record.epoch == next.epoch {
            return Ok(Answer::Committed);
        }
        if record.epoch != replaces {
            return Ok(Answer::Refused(record));
        }
        if store.commit(&[record_change(volume, Some(version), next)?])? {
            return Ok(Answer::Committed);
        }
    }
    Err(ConfigError::Contended)
}
