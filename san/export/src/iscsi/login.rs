//! The login of an initiator, from its first bytes until it has a session of a volume; or until it has found out which volumes there are, in
//! a discovery session (RFC 7143, 6).
//!
//! ```text
//!  request ─▶ who, and which target? ─▶ volume: let in? ─▶ security stage ─▶ operational stage ─┬─▶ chosen
//!                                                                                               └─▶ discovery
//! ```

use std::sync::atomic::{AtomicU16, Ordering};

use loadline_base::iscsi::{
    Header, LEAST_SEGMENT, LONGEST_NAME, add_key, field, flag, keys, login_status, opcode, stage,
};

use super::authentication::{Authentication, Rule, rule};
use super::discovery::{Discovery, DiscoveryStep};
use super::name::volume_of;
use super::negotiated::Negotiated;
use super::parameters::{MOST_COMMANDS, MOST_SEGMENT, Parameters};
use super::pdu;
use crate::login::{Chosen, Export, Initiator, Login, LoginError, LoginStep, Refusal};

/// An initiator that has not logged in after so many requests is disconnected.
const MOST_REQUESTS: u32 = 64;
/// The most bytes of the text of a request, in all its parts.
const MOST_TEXT: usize = 16 << 10;
/// The most bytes of data of a PDU before anything else was agreed on.
const MOST_DATA: usize = LEAST_SEGMENT as usize;

/// The class and the detail of how a login ended, and the same for people.
type Failure = ((u8, u8), String);

/// A request whose text is complete.
#[derive(Debug)]
struct Request {
    header: Header,
    text: Vec<u8>,
}

/// What the first request says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    /// The initiator, in lower case.
    initiator: String,
    /// The volume that it names; none for a discovery session.
    volume: Option<String>,
}

impl Identity {
    /// How the reason of a refusal begins: with the initiator and its volume.
    fn named(&self) -> String {
        match &self.volume {
            Some(volume) => format!("initiator {} of volume {volume}: ", self.initiator),
            None => format!("initiator {}, which asks for the targets: ", self.initiator),
        }
    }

    /// What to do if it does not prove its name.
    fn remedy(&self) -> String {
        match &self.volume {
            Some(volume) => format!(
                ". 'loadline volume access {volume}' shows the user that it must log in as; that command with --initiator, --chap and \
                 --secret-file gives it a user and a secret"
            ),
            None => ". To be told the targets it needs no secret: leave CHAP out there".into(),
        }
    }
}

#[derive(Debug)]
enum State {
    /// Requests are read.
    Requests,
    /// The volume is looked up, or all volumes are; then the first request is answered.
    Wanted(Identity, Request),
    Discovery(Discovery),
    Refused(String),
    Over(LoginStep),
}

/// An initiator whose first request is known, and that may come in, if it proves what it has to.
#[derive(Debug)]
struct Known {
    identity: Identity,
    /// The tag of the target's portal group; 0 if it has none.
    group: u16,
    authentication: Authentication,
}

/// The login of an initiator. It owns no socket and does no I/O.
#[derive(Debug)]
pub struct TargetLogin {
    /// The initiator is on the node's own machine.
    is_local: bool,
    bytes: Vec<u8>,
    out: Vec<u8>,
    state: State,
    requests: u32,
    /// The header of the first request: the others are of the same session, connection and task.
    first: Option<Header>,
    known: Option<Known>,
    stage: u8,
    /// What there is of the text of a request in several parts.
    text: Vec<u8>,
    parameters: Parameters,
    /// The target has stated what it takes.
    is_declared: bool,
    status_number: u32,
}

/// The last number of a session that was given. A session of another node has another target portal group.
static SESSIONS: AtomicU16 = AtomicU16::new(0);

impl TargetLogin {
    /// Of an initiator that has just connected.
    pub fn new(is_local: bool) -> TargetLogin {
        TargetLogin {
            is_local,
            bytes: Vec::new(),
            out: Vec::new(),
            state: State::Requests,
            requests: 0,
            first: None,
            known: None,
            stage: stage::SECURITY,
            text: Vec::new(),
            parameters: Parameters::default(),
            is_declared: false,
            status_number: 1,
        }
    }

    /// Takes a request, if there is a whole one.
    fn next_request(&mut self) -> Result<bool, LoginError> {
        let taken = pdu::take(&mut self.bytes, MOST_DATA).map_err(|bytes| {
            LoginError(format!("it sends {bytes} bytes of data in its login; {MOST_DATA} are the most"))
        })?;
        let Some((header, data)) = taken else { return Ok(false) };
        self.requests += 1;
        if self.requests > MOST_REQUESTS {
            return Err(LoginError(format!("it has not logged in after {MOST_REQUESTS} requests")));
        }
        if header.opcode() != opcode::LOGIN {
            let code = header.opcode();
            return Err(LoginError(format!("it sends operation code {code:#04x} before it has logged in")));
        }
        match self.take_request(&header, &data) {
            Ok(Some(text)) => self.begin_answer(Request { header, text }),
            Ok(None) => self.respond(&header, 0, login_status::SUCCESS, &[]),
            Err(failure) => self.refuse(&header, failure),
        }
        Ok(true)
    }

    /// Checks a request. Its text, if that is complete.
    fn take_request(&mut self, header: &Header, data: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let (now, next) = (header.flags() >> 2 & 3, header.flags() & 3);
        let wrong = |why: &str| (login_status::INITIATOR_ERROR, why.to_string());
        // The lowest version that it speaks: there is one, 0.
        if header.0[3] > 0 {
            return Err((login_status::UNSUPPORTED_VERSION, format!("it speaks version {}", header.0[3])));
        }
        if session_of(header) != 0 {
            let why = "it wants to add a connection to a session, and a session has one";
            return Err((login_status::NO_SESSION, why.into()));
        }
        match &self.first {
            None if now <= stage::OPERATIONAL => (self.first, self.stage) = (Some(*header), now),
            None => return Err(wrong("its login begins in a stage that is none of a login")),
            Some(first) if first.0[8..22] != header.0[8..22] => {
                return Err((login_status::INVALID, "a request of its login is of another session".into()));
            }
            Some(_) if now != self.stage => return Err(wrong("it is in another stage of the login")),
            Some(_) => {}
        }
        let is_partial = header.has(flag::CONTINUE);
        if header.has(flag::TRANSIT) && (is_partial || next <= now || next == 2) {
            return Err(wrong("it wants to go on to a stage that does not follow"));
        }
        if self.text.len() + data.len() > MOST_TEXT {
            return Err(wrong("the text of its request is too long"));
        }
        self.text.extend_from_slice(data);
        Ok((!is_partial).then(|| std::mem::take(&mut self.text)))
    }

    /// Answers a request, or finds out first what the answer depends on.
    fn begin_answer(&mut self, request: Request) {
        if self.known.is_some() {
            return self.answer(&request);
        }
        match identify(&request.text) {
            Ok(identity) => self.state = State::Wanted(identity, request),
            Err(failure) => self.refuse(&request.header, failure),
        }
    }

    fn answer(&mut self, request: &Request) {
        let mut text = Vec::new();
        match self.negotiate(request, &mut text) {
            Ok(()) if text.len() <= MOST_DATA => self.go_on(&request.header, &text),
            Ok(()) => {
                let why = "the answer to its request would be too long".into();
                self.refuse(&request.header, (login_status::INITIATOR_ERROR, why));
            }
            Err(failure) => self.refuse(&request.header, failure),
        }
    }

    /// Adds the answers to the keys of a request.
    fn negotiate(&mut self, request: &Request, text: &mut Vec<u8>) -> Result<(), Failure> {
        let Some(known) = &mut self.known else { return Ok(()) };
        let keys = keys(&request.text);
        let keys = keys.ok_or_else(|| (login_status::INITIATOR_ERROR, "its text has no keys".into()))?;
        let is_discovery = known.identity.volume.is_none();
        // It is stated once, in the first answer to a request that names the target.
        let group = std::mem::take(&mut known.group);
        if group != 0 {
            add_key(text, "TargetPortalGroupTag", &group.to_string());
        }
        let failed = |why: &str| (login_status::AUTHENTICATION_FAILED, why.to_string());
        if self.stage == stage::SECURITY {
            known.authentication.negotiate(&keys, text).map_err(failed)?;
        } else if !known.authentication.is_done() {
            return Err(failed("it must prove its name by CHAP, and does not"));
        }
        for (key, value) in keys {
            if !is_of_security(key) {
                if let Some(answer) = self.parameters.negotiate(key, value, is_discovery) {
                    add_key(text, key, &answer);
                }
            } else if self.stage != stage::SECURITY {
                add_key(text, key, "Irrelevant");
            }
        }
        if self.stage == stage::OPERATIONAL && !std::mem::replace(&mut self.is_declared, true) {
            self.parameters.receives = if is_discovery { LEAST_SEGMENT } else { MOST_SEGMENT };
            add_key(text, "MaxRecvDataSegmentLength", &self.parameters.receives.to_string());
        }
        Ok(())
    }

    /// Responds, and goes on to the next stage if the initiator wants that and may.
    fn go_on(&mut self, header: &Header, text: &[u8]) {
        let Some(known) = &self.known else { return };
        let wants = header.has(flag::TRANSIT);
        if wants && !known.authentication.is_done() && !known.authentication.has_begun() {
            let why = "it must prove its name by CHAP, and does not";
            return self.refuse(header, (login_status::AUTHENTICATION_FAILED, why.into()));
        }
        if !wants || !known.authentication.is_done() {
            return self.respond(header, self.stage << 2, login_status::SUCCESS, text);
        }
        let next = header.flags() & 3;
        self.respond(header, flag::TRANSIT | self.stage << 2 | next, login_status::SUCCESS, text);
        self.stage = next;
        if next == stage::FULL_FEATURE {
            self.finish(header);
        }
    }

    fn finish(&mut self, header: &Header) {
        let Some(known) = &self.known else { return };
        let initiator = known.identity.initiator.clone();
        let command_number = header.u32(field::COMMAND_NUMBER);
        if known.identity.volume.is_none() {
            let numbers = (command_number, self.status_number);
            let discovery = Discovery::new(&initiator, self.is_local, self.parameters.sends, numbers);
            self.state = State::Discovery(discovery);
            return;
        }
        let negotiated = Negotiated {
            initiator,
            isid: *header.0[8..].first_chunk().expect("a header is longer"),
            connection: u16::from_be_bytes([header.0[20], header.0[21]]),
            command_number,
            status_number: self.status_number,
            parameters: self.parameters.clone(),
        };
        let chosen = Chosen { negotiated: negotiated.encode(), rest: std::mem::take(&mut self.bytes) };
        self.state = State::Over(LoginStep::Chosen(chosen));
    }

    fn refuse(&mut self, header: &Header, (status, why): Failure) {
        self.respond(header, self.stage << 2, status, &[]);
        let identity = self.known.as_ref().map(|known| &known.identity);
        let who = identity.map_or(String::new(), Identity::named);
        let remedy = identity.filter(|_| status == login_status::AUTHENTICATION_FAILED);
        let remedy = remedy.map_or(String::new(), Identity::remedy);
        self.state = State::Refused(format!("its login to iSCSI is refused: {who}{why}{remedy}"));
    }

    fn respond(&mut self, request: &Header, flags: u8, status: (u8, u8), text: &[u8]) {
        let mut header = Header::new(opcode::LOGIN_RESPONSE, flags);
        header.0[8..14].copy_from_slice(&request.0[8..14]);
        if flags & flag::TRANSIT != 0 && flags & 3 == stage::FULL_FEATURE {
            header.0[14..16].copy_from_slice(&new_session().to_be_bytes());
        }
        header.set_u32(field::TASK_TAG, request.task_tag());
        header.set_u32(field::STATUS_NUMBER, self.status_number);
        let expected = request.u32(field::COMMAND_NUMBER);
        header.set_u32(field::EXPECTED_COMMAND_NUMBER, expected);
        header.set_u32(field::LAST_COMMAND_NUMBER, expected.wrapping_add(MOST_COMMANDS - 1));
        (header.0[36], header.0[37]) = status;
        self.status_number = self.status_number.wrapping_add(1);
        pdu::put(&mut self.out, header, text);
    }

    /// The first request is answered: the initiator may come in.
    fn let_in(&mut self, known: Known, request: &Request) {
        self.known = Some(known);
        self.state = State::Requests;
        self.answer(request);
    }
}

impl Login for TargetLogin {
    fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// iSCSI has no TLS of its own.
    fn offer_tls(&mut self) {}

    fn step(&mut self) -> Result<LoginStep, LoginError> {
        loop {
            match &mut self.state {
                State::Requests => {
                    if !self.next_request()? {
                        return Ok(LoginStep::Bytes);
                    }
                }
                State::Wanted(Identity { volume: Some(volume), .. }, _) => {
                    return Ok(LoginStep::Export(volume.clone()));
                }
                State::Wanted(..) => return Ok(LoginStep::List),
                State::Discovery(discovery) => match discovery.step(&mut self.bytes, &mut self.out)? {
                    DiscoveryStep::Bytes => return Ok(LoginStep::Bytes),
                    DiscoveryStep::List => return Ok(LoginStep::List),
                    DiscoveryStep::Gone => self.state = State::Over(LoginStep::Gone),
                },
                State::Refused(why) => return Err(LoginError(why.clone())),
                State::Over(step) => return Ok(step.clone()),
            }
        }
    }

    fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    fn list(&mut self, exports: &[(String, Export)]) {
        match std::mem::replace(&mut self.state, State::Requests) {
            State::Wanted(identity, request) if identity.volume.is_none() => {
                // It may prove its name by what any volume knows of it.
                let known: Vec<Initiator> = exports
                    .iter()
                    .filter_map(|(_, export)| match rule(export, &identity.initiator, self.is_local) {
                        Rule::Proof(known) => Some(known.clone()),
                        Rule::Open | Rule::Refused => None,
                    })
                    .collect();
                let authentication = Authentication::may(known);
                self.let_in(Known { identity, group: 0, authentication }, &request);
            }
            State::Discovery(mut discovery) => {
                discovery.list(exports, &mut self.out);
                self.state = State::Discovery(discovery);
            }
            _ => panic!("the initiator did not ask for it"),
        }
    }

    fn export(&mut self, found: Result<&Export, Refusal>) -> Result<(), LoginError> {
        let (identity, request) = match std::mem::replace(&mut self.state, State::Requests) {
            State::Wanted(identity, request) if identity.volume.is_some() => (identity, request),
            _ => panic!("the initiator did not ask for it"),
        };
        let export = match found {
            Ok(export) => export,
            Err(refusal) => {
                let failure = match refusal {
                    Refusal::Unknown(why) => (login_status::NOT_FOUND, why),
                    Refusal::NotNow(why) => (login_status::UNAVAILABLE, why),
                    Refusal::NeedsTls(why) => (login_status::FORBIDDEN, why),
                };
                self.refuse(&request.header, failure);
                return Ok(());
            }
        };
        let authentication = match rule(export, &identity.initiator, self.is_local) {
            Rule::Refused => {
                let initiator = &identity.initiator;
                let name = identity.volume.as_deref().unwrap_or_default();
                let why = format!(
                    "volume {name} does not name initiator {initiator}: 'loadline volume access {name} --initiator {initiator}' lets it in"
                );
                self.refuse(&request.header, (login_status::FORBIDDEN, why));
                return Ok(());
            }
            Rule::Open => Authentication::may(Vec::new()),
            Rule::Proof(known) => Authentication::must(known.clone()),
        };
        self.let_in(Known { identity, group: export.group, authentication }, &request);
        Ok(())
    }
}

/// The session that a request names; 0 for a new one.
fn session_of(header: &Header) -> u16 {
    u16::from_be_bytes([header.0[14], header.0[15]])
}

/// The number of a new session: never 0.
fn new_session() -> u16 {
    loop {
        let number = SESSIONS.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if number != 0 {
            return number;
        }
    }
}

/// Whether a key is one of the security stage.
fn is_of_security(key: &str) -> bool {
    key == "AuthMethod" || key.starts_with("CHAP_")
}

/// Who logs in, and to what.
fn identify(text: &[u8]) -> Result<Identity, Failure> {
    let missing = |key: &str| (login_status::MISSING_PARAMETER, format!("its first request has no {key}"));
    let keys =
        keys(text).ok_or_else(|| (login_status::INITIATOR_ERROR, "its text has no keys".to_string()))?;
    let value = |wanted: &str| keys.iter().find(|(key, _)| *key == wanted).map(|(_, value)| *value);
    let is_name =
        |name: &&str| !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains(char::is_control);
    let initiator = value("InitiatorName").filter(is_name).ok_or_else(|| missing("InitiatorName"))?;
    let volume = match value("SessionType") {
        Some("Discovery") => None,
        None | Some("Normal") => {
            let target = value("TargetName").ok_or_else(|| missing("TargetName"))?;
            let unknown =
                || (login_status::NOT_FOUND, format!("no volume is target {}", target.escape_debug()));
            Some(volume_of(target).ok_or_else(unknown)?)
        }
        Some(_) => {
            let why = "its session is neither a normal one nor one for discovery";
            return Err((login_status::SESSION_TYPE, why.into()));
        }
    };
    Ok(Identity { initiator: initiator.to_lowercase(), volume })
}
