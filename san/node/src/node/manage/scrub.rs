//! Looking through the copies of a volume that this node has.

use loadline_san_core::ids::ReplicaId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ManageError;
use crate::config::catalog::ReplicaState;
use crate::event_loop::order::Order;
use crate::node::Node;

/// How far a replica was looked through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScrubView {
    /// Which.
    pub replica: u64,
    /// Its node.
    pub node: String,
    /// Bytes that are to be looked at, about.
    pub bytes: u64,
    /// Bytes that were.
    pub done: u64,
    /// Blocks that did not match their checksums. Those of an attached volume are written anew from another copy.
    pub rotten: u64,
    /// All were looked at.
    pub ended: bool,
}

impl Node {
    fn of_volume_here(&self, id: u64) -> Vec<u64> {
        let state = self.state();
        let replicas = state.catalog.replicas.iter();
        let here = replicas.filter(|(_, (r, _))| r.volume == id && r.node == self.id());
        here.filter(|(_, (r, _))| r.state == ReplicaState::Ready).map(|(id, _)| *id).collect()
    }

    /// Begins to look through the copies of a volume that this node has.
    pub async fn scrub_volume(&self, name: &str) -> Result<(), ManageError> {
        self.refresh().await?;
        let (id, _) = self.volume(name)?;
        let here = self.of_volume_here(id).into_iter().map(ReplicaId).collect();
        self.loop_of(id).give(Order::Scrub(here));
        Ok(())
    }

    /// How far that is.
    pub async fn scrubs(&self, name: &str) -> Result<Vec<ScrubView>, ManageError> {
        self.refresh().await?;
        let (id, _) = self.volume(name)?;
        if !self.look_at_loops().await {
            return Err(ManageError::TimedOut(
                "a thread of the data path does not answer in time: try again".into(),
            ));
        }
        let here = self.of_volume_here(id);
        let state = self.state();
        let scrubs = state.loops.iter().flat_map(|of| &of.scrubs).filter(|(id, _)| here.contains(&id.0));
        let view = |(id, scrub): &(ReplicaId, crate::event_loop::order::Scrub)| ScrubView {
            replica: id.0,
            node: self.name().into(),
            bytes: scrub.bytes,
            done: scrub.done,
            rotten: scrub.rotten,
            ended: scrub.ended,
        };
        Ok(scrubs.map(view).collect())
    }
}
