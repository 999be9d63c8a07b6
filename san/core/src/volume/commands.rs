//! Commands of an operator for a volume.

use std::collections::BTreeMap;

use super::takeover::Takeover;
use super::{Action, CommandError, Failure, Role, Volume, VolumeCommand};
use crate::ids::{Epoch, ProposalId, ReplicaId};
use crate::layout::GroupIndex;
use crate::lease::Moment;
use crate::record::Record;
use crate::swap::Swap;

impl<D: Clone> Volume<D> {
    pub(super) fn command(
        &mut self,
        now: Moment,
        command: VolumeCommand,
        out: &mut Vec<Action<D>>,
    ) -> Result<(), CommandError> {
        let id = self.c.proposal();
        let active = matches!(self.role, Role::Active(_));
        if let VolumeCommand::Recover { record, survivors, promised } = command {
            return if active {
                Err(CommandError::Active)
            } else {
                self.recover(now, *record, &survivors, promised, id, out)
            };
        }
        if self.c.is_undecided() {
            return Err(CommandError::Busy);
        }
        let record = self.c.record().ok_or(CommandError::NotOwner)?;
        let next = match command {
            _ if !active => return Err(CommandError::NotOwner),
            VolumeCommand::Recover { .. } => unreachable!("it was taken before"),
            VolumeCommand::Add { group, replica, home } => record.with_new(id, group, replica, home)?,
            VolumeCommand::Forget { group, replica } => record.forgotten(id, group, replica)?,
            VolumeCommand::Remove { group, replica, instead } => {
                let Role::Active(active) = &self.role else { return Err(CommandError::NotOwner) };
                if !active.can_spare(&self.c, now, group, replica, instead) {
                    return Err(CommandError::Needed(replica));
                }
                record.removed(id, group, replica)?
            }
            VolumeCommand::Grow { blocks, added } => record.grown(id, blocks, &added)?,
        };
        self.command_proposal = Some(id);
        self.c.propose(now, next, out);
        if let Role::Active(active) = &mut self.role {
            active.follow_record(&mut self.c, now, out);
        }
        Ok(())
    }

    /// A person chooses the surviving replicas. The volume is taken over from them.
    fn recover(
        &mut self,
        now: Moment,
        record: Record,
        survivors: &BTreeMap<GroupIndex, ReplicaId>,
        promised: Epoch,
        id: ProposalId,
        out: &mut Vec<Action<D>>,
    ) -> Result<(), CommandError> {
        // The new epoch is above all that any replica has promised or known, also what was known before an earlier recovery.
        let passed = promised.max(self.c.promised).max(self.c.epoch()).max(self.c.passed);
        let next = record.recovered(id, survivors, passed)?;
        let swap = Swap::new(record)?;
        (self.c.passed, self.c.swap, self.c.blocked) = (passed, Some(swap), None);
        // How often the volume was attached is not known any more: what waits here may be older than what is left.
        self.turn_out(out);
        self.retire(now, Failure::Deposed, out);
        if self.command_proposal.take().is_some() {
            out.push(Action::Done(Err(CommandError::Superseded)));
        }
        self.role = Role::Takeover(Takeover::forced(now, survivors.keys().copied()));
        self.command_proposal = Some(id);
        self.c.propose(now, next, out);
        Ok(())
    }
}
