//! Which clients may send requests: clients are let in when it is known how often the volume was attached, and lose it when others attach it
//! elsewhere (rule T12).

use super::{Action, Failure, Role, Volume};
use crate::ids::ProposalId;
use crate::lease::Moment;
use crate::rule::{Rule, left_out};

/// The clients here.
#[derive(Debug, Default)]
pub(super) struct Clients {
    /// Clients have been let in, at this attachment number. If the volume is attached once more, elsewhere, they lose
    /// it.
    here: Option<u64>,
    /// Clients were announced, and may send no requests yet. The attachment number of the record shows whether
    /// others come after them, and it has not been seen, or raised, since.
    coming: bool,
    /// The swap that lets them in.
    swap: Option<ProposalId>,
    /// An attach was ordered. Clients are let in when a claim has raised the record's fence.
    fence: Option<Fence>,
}

/// An attach that was ordered, and is not in the record yet.
#[derive(Debug)]
struct Fence {
    /// The claim that raises the record's fence, once it is proposed.
    claim: Option<ProposalId>,
}

impl Clients {
    pub(super) fn are_here(&self) -> bool {
        self.here.is_some()
    }

    /// No client has been let in, and some were announced: the record must be read first.
    pub(super) fn want_the_record(&self) -> bool {
        self.coming && self.here.is_none()
    }

    /// Whether the volume is to be claimed whichever node owns it: for clients that are here, or because an attach was ordered.
    pub(super) fn claim_it(&self) -> bool {
        self.are_here() || self.fence.is_some()
    }

    /// Whether an attach was ordered that no claim has carried out.
    pub(super) fn fence_waits(&self) -> bool {
        self.fence.is_some()
    }

    /// The volume is claimed by this proposal. Whether that carries out an attach that was ordered.
    pub(super) fn fences_by(&mut self, claim: ProposalId) -> bool {
        let fences = self.fence.is_some() && !left_out(Rule::T13);
        if let Some(fence) = &mut self.fence {
            fence.claim = Some(claim);
        }
        fences
    }

    /// The record is the one that this proposal made.
    pub(super) fn fenced(&mut self, made_by: ProposalId) {
        self.fence.take_if(|fence| fence.claim == Some(made_by));
    }

    /// The attachment number that the owner on this node has seen.
    pub(super) fn count(&mut self, attachment: u64) {
        self.here = self.here.map(|_| attachment);
    }
}

impl<D: Clone> Volume<D> {
    /// Clients are announced.
    pub(super) fn attach(&mut self, now: Moment, out: &mut Vec<Action<D>>) {
        self.clients.coming = true;
        // A swap that was proposed before does not count them.
        self.clients.swap = None;
        // It has not claimed the volume yet, and when it does that is counted.
        let unclaimed = matches!(self.role, Role::Watch(_)) && !self.c.is_undecided();
        if self.clients.are_here() && unclaimed && self.c.blocked.is_none() {
            self.clients.coming = false;
            out.push(Action::Attached);
        }
        self.tick(now, out);
    }

    /// An attach was ordered: requests from before it are never carried out after it (rule T13). A recovery by force that is under
    /// way is carried out first; then the volume is claimed anew, because the node that ordered the attach waits until the record's
    /// fence has risen.
    pub(super) fn fence(&mut self, now: Moment, out: &mut Vec<Action<D>>) {
        let forced = matches!(&self.role, Role::Takeover(takeover) if takeover.is_forced());
        if !left_out(Rule::T13) {
            self.clients = Clients { fence: Some(Fence { claim: None }), ..Clients::default() };
            if !forced {
                self.retire(now, Failure::Deposed, out);
            }
        }
        self.attach(now, out);
    }

    /// The clients lose the volume.
    pub(super) fn turn_out(&mut self, out: &mut Vec<Action<D>>) {
        if self.clients.here.take().is_some() {
            out.push(Action::Detached);
        }
    }

    /// The clients lose the volume if others have attached it since they connected (rule T12).
    pub(super) fn give_way(&mut self, out: &mut Vec<Action<D>>) {
        let attachment = self.c.record().map_or(0, |record| record.attachment);
        if self.clients.here.is_some_and(|number| attachment > number) && !left_out(Rule::T12) {
            self.turn_out(out);
        }
    }

    /// The record was seen after clients were announced. They may send requests from now on, or once the record counts them.
    pub(super) fn let_in(&mut self, now: Moment, out: &mut Vec<Action<D>>) {
        let may_ask = self.clients.coming && self.c.blocked.is_none();
        let Some(record) = self.c.record().filter(|_| may_ask) else { return };
        let number = record.attachment;
        let may_come = match &mut self.role {
            Role::Watch(_) => !self.c.is_undecided() && self.clients.fence.is_none(),
            // A store that has this claim already would not get the change that announces these clients.
            Role::Takeover(_) => false,
            Role::Active(_) if self.clients.swap == Some(record.made_by) => true,
            Role::Active(active) => {
                if !self.c.is_undecided() {
                    let id = self.c.proposal();
                    let next = self.c.record().expect("it owns the volume").attached(id);
                    self.clients.swap = Some(id);
                    self.c.propose(now, next, out);
                    active.follow_record(&mut self.c, now, out);
                }
                false
            }
        };
        if may_come {
            self.clients.here.get_or_insert(number);
            self.clients.coming = false;
            out.push(Action::Attached);
        }
    }
}
