//! Task management: functions end commands, and are answered once none of those is under way any more (RFC 7143, 11.5 and 11.6). A function
//! that ends commands of other sessions is rejected at a node that stands by: it would end nothing at the owner.

use std::collections::VecDeque;

use loadline_base::iscsi::{Header, field, function, function_response, opcode};

use super::sender::{Sender, answer_to};
use super::tasks::Tasks;
use crate::scsi::unit::{NexusId, SharedUnit};

/// Functions that wait for their answers at most; more are refused.
const MOST: usize = 16;

/// A function whose answer waits.
#[derive(Debug)]
struct Pending {
    header: Header,
    /// The commands of all sessions have to end, and not only those of this one.
    is_of_all: bool,
}

/// The functions of a session that wait for their answers.
#[derive(Debug, Default)]
pub(super) struct Management {
    pending: VecDeque<Pending>,
}

impl Management {
    /// Carries out a function. It is answered now, or by [`settle`](Self::settle).
    pub(super) fn carry_out(
        &mut self,
        header: &Header,
        unit: &SharedUnit,
        nexus: Option<NexusId>,
        tasks: &mut Tasks,
        sender: &mut Sender,
    ) {
        let function = header.flags() & 0x7f;
        let is_of_unit = !matches!(function, function::TARGET_WARM_RESET | function::TARGET_COLD_RESET);
        let response = match function {
            function::TASK_REASSIGN => Some(function_response::NO_REASSIGNMENT),
            _ if self.pending.len() >= MOST => Some(function_response::REJECTED),
            _ if is_of_unit && header.lun() != [0; 8] => Some(function_response::NO_LUN),
            function::ABORT_TASK => {
                let is_there = tasks.end(header.u32(field::REFERENCED_TAG));
                (!is_there).then_some(function_response::NO_TASK)
            }
            function::ABORT_TASK_SET => {
                tasks.end_all();
                None
            }
            function::CLEAR_TASK_SET
            | function::LUN_RESET
            | function::TARGET_WARM_RESET
            | function::TARGET_COLD_RESET => {
                let active = nexus.filter(|nexus| unit.borrow().is_active(*nexus));
                // Other sessions are those at the owner, which this one does not reach.
                let Some(nexus) = active else { return respond(header, function_response::REJECTED, sender) };
                tasks.end_all();
                let mut unit = unit.borrow_mut();
                match function {
                    function::CLEAR_TASK_SET => unit.clear_tasks(nexus),
                    _ => unit.reset(),
                }
                // Those of this session were ended already; what comes from now on is none of them.
                unit.take_ended(nexus);
                None
            }
            _ => Some(function_response::NOT_SUPPORTED),
        };
        match response {
            Some(response) => respond(header, response, sender),
            None => {
                let is_of_all = !matches!(function, function::ABORT_TASK | function::ABORT_TASK_SET);
                self.pending.push_back(Pending { header: *header, is_of_all });
            }
        }
    }

    /// Answers functions for which nothing is under way any more, in their order.
    pub(super) fn settle(&mut self, unit: &SharedUnit, tasks: &Tasks, sender: &mut Sender) {
        while let Some(first) = self.pending.front() {
            if tasks.have_ended() || first.is_of_all && unit.borrow().is_ending() {
                return;
            }
            tasks.allow(sender);
            respond(&first.header, function_response::COMPLETE, sender);
            self.pending.pop_front();
        }
    }
}

fn respond(request: &Header, response: u8, sender: &mut Sender) {
    let mut header = answer_to(request, opcode::TASK_MANAGEMENT_RESPONSE);
    header.0[2] = response;
    sender.status(header, &[]);
}
