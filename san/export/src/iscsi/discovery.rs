//! A discovery session after its login: the initiator asks which targets there are.

use loadline_base::iscsi::{
    Header, LEAST_SEGMENT, NO_TAG, add_key, field, flag, function_response, keys, logout_response, opcode,
    reject,
};

use super::authentication::{Rule, rule};
use super::name::name_of;
use super::numbers::{Arrival, Numbers};
use super::pdu;
use super::text::{TextRequest, Texts};
use crate::login::{Export, LoginError};

/// Commands that are allowed ahead.
const ROOM: u32 = 8;
/// An initiator that has sent so many PDUs is disconnected.
const MOST_PDUS: u32 = 10_000;

/// What a discovery session needs next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DiscoveryStep {
    /// More bytes of the initiator.
    Bytes,
    /// The volumes.
    List,
    /// The initiator leaves.
    Gone,
}

/// Answers an initiator that looks for targets.
#[derive(Debug)]
pub(super) struct Discovery {
    initiator: String,
    is_local: bool,
    /// The most bytes of a data segment that the initiator takes.
    sends: u32,
    numbers: Numbers,
    texts: Texts,
    /// The request that is answered when the volumes are known, and which targets it names.
    asked: Option<(Header, String)>,
    pdus: u32,
}

impl Discovery {
    /// Of this initiator, which takes segments of so many bytes. The next command and the next status have these numbers.
    pub(super) fn new(
        initiator: &str,
        is_local: bool,
        sends: u32,
        (command_number, status_number): (u32, u32),
    ) -> Discovery {
        Discovery {
            initiator: initiator.into(),
            is_local,
            sends,
            numbers: Numbers::new(command_number, status_number, ROOM),
            texts: Texts::default(),
            asked: None,
            pdus: 0,
        }
    }

    /// Answers what is there of these bytes.
    pub(super) fn step(
        &mut self,
        bytes: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<DiscoveryStep, LoginError> {
        loop {
            if self.asked.is_some() {
                return Ok(DiscoveryStep::List);
            }
            let taken = pdu::take(bytes, LEAST_SEGMENT as usize);
            let taken = taken.map_err(|bytes| {
                LoginError(format!("it sends {bytes} bytes of data at once; {LEAST_SEGMENT} are the most"))
            })?;
            let Some((header, data)) = taken else { return Ok(DiscoveryStep::Bytes) };
            self.pdus += 1;
            if self.pdus > MOST_PDUS {
                return Err(LoginError(format!("it has sent {MOST_PDUS} PDUs, and has not logged out")));
            }
            match self.numbers.arrive(&header) {
                Arrival::Now => {}
                Arrival::Ignored => continue,
                Arrival::Gap => return Err(LoginError("it has left out a number of a command".into())),
            }
            self.numbers.allow(ROOM);
            match header.opcode() {
                opcode::TEXT => self.text(&header, &data, out),
                opcode::NOP_OUT => self.ping(&header, &data, out),
                opcode::LOGOUT => {
                    let mut response = Header::new(opcode::LOGOUT_RESPONSE, flag::FINAL);
                    response.0[2] = logout_response::CLOSED;
                    self.send(response, &header, &[], out);
                    return Ok(DiscoveryStep::Gone);
                }
                opcode::TASK_MANAGEMENT => {
                    let mut response = Header::new(opcode::TASK_MANAGEMENT_RESPONSE, flag::FINAL);
                    response.0[2] = function_response::REJECTED;
                    self.send(response, &header, &[], out);
                }
                _ => self.reject(&header, reject::NOT_SUPPORTED, out),
            }
        }
    }

    fn text(&mut self, header: &Header, data: &[u8], out: &mut Vec<u8>) {
        let text = match self.texts.take(header, data) {
            TextRequest::Unfinished => return self.respond(header, true, out),
            TextRequest::Rest => return self.respond(header, false, out),
            TextRequest::TooLong => return self.reject(header, reject::OUT_OF_RESOURCES, out),
            TextRequest::Complete(text) => text,
        };
        let Some(keys) = keys(&text) else { return self.reject(header, reject::PROTOCOL, out) };
        let targets = keys.iter().find(|(key, _)| *key == "SendTargets");
        if let Some((_, targets)) = targets.filter(|(_, targets)| !targets.is_empty()) {
            self.asked = Some((*header, targets.to_string()));
            return;
        }
        let mut answer = Vec::new();
        for (key, _) in keys {
            add_key(&mut answer, key, if key == "SendTargets" { "Reject" } else { "NotUnderstood" });
        }
        self.texts.answer(answer);
        self.respond(header, false, out);
    }

    /// Answers which targets there are: those that the initiator may use.
    pub(super) fn list(&mut self, exports: &[(String, Export)], out: &mut Vec<u8>) {
        let Some((header, targets)) = self.asked.take() else { return };
        let mut answer = Vec::new();
        for (volume, export) in exports {
            let name = name_of(volume);
            let is_meant = targets == "All" || targets.eq_ignore_ascii_case(&name);
            if !is_meant || rule(export, &self.initiator, self.is_local) == Rule::Refused {
                continue;
            }
            add_key(&mut answer, "TargetName", &name);
            // An address that is none says nothing: the initiator then uses the one that it has here.
            for (portal, group) in export.portals.iter().filter(|(portal, _)| !portal.ip().is_unspecified()) {
                add_key(&mut answer, "TargetAddress", &format!("{portal},{group}"));
            }
        }
        self.texts.answer(answer);
        self.respond(&header, false, out);
    }

    /// Sends the next part of an answer.
    fn respond(&mut self, request: &Header, is_unfinished: bool, out: &mut Vec<u8>) {
        let (mut header, data) = self.texts.response(request, is_unfinished, self.sends as usize);
        self.numbers.stamp(&mut header);
        pdu::put(out, header, &data);
    }

    fn ping(&mut self, header: &Header, data: &[u8], out: &mut Vec<u8>) {
        if header.task_tag() != NO_TAG {
            let mut response = Header::new(opcode::NOP_IN, flag::FINAL);
            response.set_u32(field::TRANSFER_TAG, NO_TAG);
            self.send(response, header, &data[..data.len().min(self.sends as usize)], out);
        }
    }

    fn send(&mut self, mut response: Header, request: &Header, data: &[u8], out: &mut Vec<u8>) {
        response.set_u32(field::TASK_TAG, request.task_tag());
        self.numbers.stamp(&mut response);
        pdu::put(out, response, data);
    }

    fn reject(&mut self, request: &Header, reason: u8, out: &mut Vec<u8>) {
        let mut response = Header::new(opcode::REJECT, flag::FINAL);
        response.0[2] = reason;
        response.set_u32(field::TASK_TAG, NO_TAG);
        self.numbers.stamp(&mut response);
        pdu::put(out, response, &request.0);
    }
}
