//! Scrubbing the copies of a volume that this node has.

use loadline_san_core::ids::ReplicaId;
use loadline_san_protocol::record;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ManageError;
use crate::config::catalog::ReplicaState;
use crate::event_loop::command::LoopCommand;
use crate::node::Node;
use crate::node::moving::is_in_sync;

/// The progress of a scrub of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScrubView {
    /// The id of the replica.
    pub replica: u64,
    /// The name of the replica's node.
    pub node: String,
    /// Bytes to check, approximately.
    pub bytes: u64,
    /// Bytes that were.
    pub done: u64,
    /// Blocks that did not match their checksums. Those of an attached volume are written anew from another copy.
    pub corrupt: u64,
    /// All were checked.
    pub ended: bool,
    /// Why the copy is not checked, or not to its end; `null` if nothing keeps it from being checked.
    pub left_out: Option<String>,
}

impl Node {
    fn of_volume_here(&self, id: u64) -> Vec<u64> {
        let state = self.state();
        let replicas = state.catalog.replicas.iter();
        let here = replicas.filter(|(_, (r, _))| r.volume == id && r.node == self.id());
        here.filter(|(_, (r, _))| r.state == ReplicaState::Ready).map(|(id, _)| *id).collect()
    }

    /// Begins to scrub the copies of a volume that this node has.
    pub async fn scrub_volume(&self, name: &str) -> Result<(), ManageError> {
        self.refresh().await?;
        let (id, _) = self.volume(name)?;
        let here = self.of_volume_here(id).into_iter().map(ReplicaId).collect();
        self.loop_of(id).give(LoopCommand::Scrub(here));
        Ok(())
    }

    /// How far that is, of each copy that this node has.
    pub async fn scrubs(&self, name: &str) -> Result<Vec<ScrubView>, ManageError> {
        self.refresh().await?;
        let (id, _) = self.volume(name)?;
        if !self.refresh_loops().await {
            return Err(ManageError::TimedOut(
                "a thread of the data path does not answer in time: try again".into(),
            ));
        }
        let here = self.of_volume_here(id);
        Ok(here.into_iter().map(|replica| self.scrub_of(id, replica)).collect())
    }

    fn scrub_of(&self, volume: u64, id: u64) -> ScrubView {
        let state = self.state();
        let mut scrubs = state.loops.iter().flat_map(|of| &of.scrubs);
        let scrub = scrubs.find(|(replica, _)| replica.0 == id).map(|(_, scrub)| *scrub);
        let record = state.catalog.records.get(&volume);
        let record = record.and_then(|stored| record::decode(&stored.value).ok());
        let replica = state.catalog.replicas.get(&id).map(|(replica, _)| replica);
        let in_sync = record.zip(replica).is_some_and(|(record, replica)| is_in_sync(&record, id, replica));
        let unusable = replica.and_then(|replica| state.unusable(id, replica));
        let left_out = match unusable {
            _ if scrub.is_some_and(|scrub| scrub.ended) && in_sync => None,
            Some(Some(unusable)) => Some(format!("it is {}: {}", unusable.state(), unusable.why())),
            None => Some("the copy's node has not opened the copy yet".into()),
            Some(None) if !in_sync => {
                Some("the copy is not in sync: it is being rebuilt, or waits to be rebuilt".into())
            }
            Some(None) if scrub.is_none() => Some("the copy's node was restarted meanwhile".into()),
            Some(None) => None,
        };
        ScrubView {
            replica: id,
            node: self.name().into(),
            bytes: scrub.map_or(0, |scrub| scrub.bytes),
            done: scrub.map_or(0, |scrub| scrub.done),
            corrupt: scrub.map_or(0, |scrub| scrub.corrupt),
            ended: scrub.is_some_and(|scrub| scrub.ended),
            left_out,
        }
    }
}
