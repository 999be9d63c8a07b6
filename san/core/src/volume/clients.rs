//! Who may ask: clients are let in when it is known how often the volume was attached, and lose it when others attach it
//! elsewhere (rule T12).

use super::{Action, Role, Volume};
use crate::lease::Moment;
use crate::rule::{Rule, left_out};

/// Whether there are clients here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clients {
    Nowhere,
    /// They are to come, and may ask for nothing yet: whether others come after them is known by the number of the
    /// record's attachment, and that has not been seen since.
    Coming,
    /// They came when the volume had been attached so often. If it is attached once more, elsewhere, they have lost it.
    Here(u64),
}

impl<D: Clone> Volume<D> {
    /// The clients lose the volume if others have attached it since they came (rule T12).
    pub(super) fn give_way(&mut self, out: &mut Vec<Action<D>>) {
        let attachment = self.c.record().map_or(0, |record| record.attachment);
        if let Clients::Here(number) = self.clients
            && attachment > number
            && !left_out(Rule::T12)
        {
            self.clients = Clients::Nowhere;
            out.push(Action::Detached);
        }
    }

    /// The record was seen after clients were announced. They may ask from now on, or when it says that they have come.
    pub(super) fn let_in(&mut self, now: Moment, out: &mut Vec<Action<D>>) {
        let Some(record) = self.c.record().filter(|_| self.clients == Clients::Coming) else { return };
        match &mut self.role {
            Role::Watch(_) => {
                self.clients = Clients::Here(record.attachment);
                out.push(Action::Attached);
            }
            // It has taken over unasked.
            Role::Takeover(_) => {}
            Role::Active(_) if self.coming == Some(record.made_by) => {
                self.clients = Clients::Here(record.attachment);
                out.push(Action::Attached);
            }
            Role::Active(active) => {
                if !self.c.is_undecided() {
                    let id = self.c.proposal();
                    let next = self.c.record().expect("it owns the volume").attached(id);
                    self.coming = Some(id);
                    self.c.propose(now, next, out);
                    active.follow_record(&mut self.c, now, out);
                }
            }
        }
    }
}
