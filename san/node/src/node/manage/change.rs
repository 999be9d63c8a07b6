//! What people decide about a volume that is there: a greater size.

use std::time::Duration;

use loadline_base::units::ByteSize;
use loadline_san_core::ids::{Epoch, VolumeId};
use loadline_san_core::layout::BLOCK;
use loadline_san_core::record::Record;
use loadline_san_core::volume::{CommandError, VolumeCommand};
use loadline_san_protocol::record;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::ManageError;
use super::growth::{self, GrowVolume, UndoGrowth, Undone};
use crate::config::ConfigError;
use crate::config::catalog::{Catalog, Volume, change};
use crate::event_loop::command::LoopCommand;
use crate::node::{CONFIG_POLL, Node};

/// A size that a volume is to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// Bytes: more than it has.
    pub bytes: u64,
}

impl Node {
    /// Changes what the configuration says of the volume of this id. Nothing is done if there is none any more.
    pub(super) async fn change_volume(
        &self,
        id: u64,
        changed: impl Fn(Volume) -> Volume + Send + 'static,
    ) -> Result<(), ManageError> {
        let set = self.config().call(move |store| {
            for _ in 0..16 {
                let catalog = Catalog::read(store)?;
                let Some((volume, version)) = catalog.volumes.get(&id) else { return Ok(()) };
                let next = changed(volume.clone());
                if store.commit(&[change(format!("volume/{id}"), Some(*version), &next)])? {
                    return Ok(());
                }
            }
            Err(ConfigError::Contended)
        });
        set.await?;
        self.reconcile_soon();
        Ok(())
    }

    /// Gives a volume a command of an operator, and waits for the result. `None` if the result is not known within 20 s.
    pub(in crate::node) async fn command(
        &self,
        volume: u64,
        command: VolumeCommand,
    ) -> Option<Result<(), CommandError>> {
        self.command_in(volume, command, None).await
    }

    /// The same. With a claim, the command is carried out only if the last claim of the volume's record is the one of this epoch.
    pub(in crate::node) async fn command_in(
        &self,
        volume: u64,
        command: VolumeCommand,
        claim: Option<Epoch>,
    ) -> Option<Result<(), CommandError>> {
        let (answer, answered) = oneshot::channel();
        let number = {
            let mut state = self.state();
            state.commands += 1;
            let number = state.commands;
            state.pending_commands.insert(number, answer);
            number
        };
        self.loop_of(volume).give(LoopCommand::Volume(VolumeId(volume), number, command, claim));
        let answered = tokio::time::timeout(Duration::from_secs(20), answered).await;
        self.state().pending_commands.remove(&number);
        answered.ok()?.ok()
    }

    pub(super) fn record_of(&self, id: u64) -> Result<Record, ManageError> {
        let stored = self.state().catalog.records.get(&id).cloned();
        let stored = stored.ok_or_else(|| ManageError::Wrong("the volume is being made".into()))?;
        record::decode(&stored.value)
            .map_err(|why| ManageError::Wrong(format!("its record cannot be: {why}")))
    }

    /// The owner of a volume does this.
    pub(super) async fn at_owner(&self, name: &str, record: &Record) -> Result<(), ManageError> {
        if record.owner == self.0.me {
            return Ok(());
        }
        let owner = self.state().catalog.nodes.get(&record.owner.node.0).map(|(node, _)| node.clone());
        match owner {
            Some(owner) if owner.name != self.name() && self.answers(owner.peer).await => {
                Err(ManageError::Elsewhere { name: owner.name, api: owner.api })
            }
            _ => Err(ManageError::InUse(format!("no node owns volume {name} now: attach the volume first"))),
        }
    }

    pub(super) async fn carry_out_command(&self, id: u64, command: VolumeCommand) -> Result<(), ManageError> {
        self.outcome(self.command(id, command).await)
    }

    fn outcome(&self, result: Option<Result<(), CommandError>>) -> Result<(), ManageError> {
        match result {
            Some(result) => Ok(result?),
            None => Err(ManageError::TimedOut(
                "the outcome is not known: check the volume with 'loadline volume show'".into(),
            )),
        }
    }

    /// Makes a volume larger. Its clients see that when they connect again.
    pub async fn resize_volume(&self, name: &str, resize: Resize) -> Result<(), ManageError> {
        self.refresh().await?;
        let (id, _) = self.volume(name)?;
        let record = self.record_of(id)?;
        self.at_owner(name, &record).await?;
        let blocks = resize.bytes.div_ceil(BLOCK);
        if blocks <= record.blocks {
            return Err(ManageError::Wrong(format!(
                "volume {name} has {}, and cannot have {}: a volume only grows",
                ByteSize(record.blocks * BLOCK),
                ByteSize(resize.bytes)
            )));
        }
        let running = self.0.under_way.begin();
        if !running.claim().add(id) {
            return Err(ManageError::InUse(format!(
                "another command changes the size of volume {name}: wait until that command ends"
            )));
        }
        if growth::is_left(&self.state().catalog, id) {
            self.end_growth(id).await?;
        }
        let layout = record.layout;
        let groups = layout.groups(blocks).map_err(|why| ManageError::Wrong(why.to_string()))?;
        let old = record.groups.len() as u32;
        let alive = self.alive().await;
        let mut grow = GrowVolume::new(id, layout, old..groups, blocks, alive, (self.0.me, running.claim()));
        let planned = match self.config().in_steps(move |store| grow.step(store)).await? {
            Ok(planned) => planned,
            // What later commits were to make is taken back when the command has ended.
            Err(why) => return Err(why),
        };
        self.reconcile_soon();
        let command = planned.command;
        let ids: Vec<u64> = planned.added.iter().flatten().map(|(replica, _)| replica.0).collect();
        let made = self.made(|_| ids.clone()).await;
        if let Err(why) = made {
            return Err(self.not_grown(id, command, why).await);
        }
        // Nodes read the configuration, and their stores count with the new size, before anything is written there.
        tokio::time::sleep(2 * CONFIG_POLL).await;
        let me = self.0.me;
        let ordered = self.config().call(move |store| growth::order(store, id, command, me)).await?;
        let Some(claim) = ordered else {
            let why = ManageError::InUse(format!(
                "another node owns volume {name} now, or takes back what was made: the volume stays as it is. Try again"
            ));
            return Err(self.not_grown(id, command, why).await);
        };
        let grow = VolumeCommand::Grow { blocks, added: planned.added };
        if let Err(why) = self.outcome(self.command_in(id, grow, Some(claim)).await) {
            // Where it is not known, they may be members: that is found out when the volume's next command is carried out.
            return Err(match why {
                ManageError::TimedOut(_)
                | ManageError::Command(CommandError::Superseded | CommandError::Broken(_)) => why,
                why => self.not_grown(id, command, why).await,
            });
        }
        // Only its plan is left.
        if let Err(why) = self.take_back_growth(id, Undone::Own(command)).await {
            tracing::warn!("the plan of volume {name} cannot be removed now: {why}; the node tries again");
        }
        drop(running);
        self.reconcile_soon();
        Ok(())
    }

    /// A volume was to grow and did not, and its owner was not told to: what it was promised is free again. Returns the reason. What cannot be
    /// taken back now is taken back later.
    async fn not_grown(&self, id: u64, command: u64, why: ManageError) -> ManageError {
        if let Err(also) = self.take_back_growth(id, Undone::Own(command)).await {
            tracing::warn!(
                "what volume {id} was to grow by cannot be taken back now: {also}; the node tries again"
            );
        }
        why
    }

    async fn take_back_growth(&self, id: u64, of: Undone) -> Result<(), ConfigError> {
        let mut undo = UndoGrowth::new(id, of);
        self.config().in_steps(move |store| undo.step(store)).await?;
        self.reconcile_soon();
        Ok(())
    }

    /// Takes back what an interrupted command has left of a volume that was to grow. This node owns the volume, and no such command runs.
    ///
    /// An earlier order to grow may still be under way to the store. So the owner first proposes a record of the present size: once that is
    /// there, the earlier one, which would replace an older record, cannot be made any more. If the record has changed again since, perhaps by
    /// another owner, nothing is taken back.
    pub(in crate::node) async fn end_growth(&self, id: u64) -> Result<(), ManageError> {
        let blocks = self.record_of(id)?.blocks;
        self.carry_out_command(id, VolumeCommand::Grow { blocks, added: Vec::new() }).await?;
        self.refresh().await?;
        let record = self.record_of(id)?;
        if record.owner != self.0.me {
            return Err(ManageError::Command(CommandError::NotOwner));
        }
        Ok(self.take_back_growth(id, Undone::At(record.epoch)).await?)
    }
}
