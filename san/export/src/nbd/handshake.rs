//! The login of an NBD client: it lists the exports, and chooses one.
//!
//! The owner of the socket feeds bytes, sends what is in [`Handshake::out`], and answers the questions of [`Handshake::step`]. It
//! limits the time, and the number of its clients.

use loadline_base::nbd::{
    BASE_ALLOCATION, INIT_MAGIC, MOST_DATA, MOST_STRING, OPTION_MAGIC, OPTION_REPLY_MAGIC, get_u16, get_u32,
    get_u64, handshake, info, option, reply, transmission,
};
use thiserror::Error;

use crate::login::{Chosen, Export, Login, LoginError, LoginStep, Refusal};

/// The most bytes of an option that are read; of longer ones, up to [`MOST_SKIPPED`] are skipped.
const MOST_OPTION: usize = 16 << 10;
/// A client that sends a longer option is disconnected.
const MOST_SKIPPED: u32 = 1 << 20;
/// A client that has not chosen an export after so many options is disconnected.
const MOST_OPTIONS: u32 = 256;
/// The number by which a client names [`BASE_ALLOCATION`].
pub const ALLOCATION_ID: u32 = 1;
/// The least bytes of a request, and what they must be a multiple of.
pub const SECTOR: u32 = 512;
/// Requests of this length, and aligned to it, need not read what is around them.
const PREFERRED: u32 = 4096;

/// What can be done with an export.
fn flags() -> u16 {
    use transmission::*;
    let writes = SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES;
    HAS_FLAGS | writes | SEND_DF | CAN_MULTI_CONN
}

/// What a client has chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The export's name.
    pub name: String,
    /// Replies come in chunks.
    pub structured: bool,
    /// It may ask what is allocated.
    pub allocation: bool,
}

impl Choice {
    /// What was negotiated, for another node or this one: of the export's name nothing.
    fn encode(&self) -> Vec<u8> {
        vec![self.structured.into(), self.allocation.into()]
    }

    /// From what was [encoded](Self::encode). What is missing was not negotiated.
    pub(super) fn decode(bytes: &[u8]) -> Choice {
        let is_set = |at: usize| bytes.get(at) == Some(&1);
        Choice { name: String::new(), structured: is_set(0), allocation: is_set(1) }
    }
}

/// The question that must be answered before the handshake continues, or its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// More bytes.
    Bytes,
    /// Which exports are there? → [`Handshake::list`]
    List,
    /// Is there this one? → [`Handshake::export`]
    Export(String),
    /// TLS begins, once what is to be sent is sent.
    StartTls,
    /// It has chosen. What is behind the handshake in the stream is [`Handshake::rest`].
    Chosen(Choice),
    /// It has gone, as it should.
    Gone,
}

/// Why a client is disconnected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HandshakeError {
    /// It speaks something else.
    #[error("it does not speak fixed newstyle NBD (flags {0:#x})")]
    Flags(u32),
    /// It does not follow the protocol.
    #[error("an option begins with {0:#018x}, and not with the magic number of NBD")]
    Magic(u64),
    /// It sends too much.
    #[error("an option of {0} bytes; {MOST_SKIPPED} are the most")]
    TooLong(u32),
    /// It does not choose.
    #[error("it has not chosen an export after {MOST_OPTIONS} options")]
    TooMany,
    /// It has sent something before TLS has begun, which would be taken as if TLS had protected it.
    #[error("it sent {0} bytes before TLS began")]
    BeforeTls(usize),
    /// The old way of choosing has no other answer.
    #[error("it chose an export that cannot be used: {0}")]
    Refused(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Flags,
    Option,
    /// So many bytes of an option are skipped.
    Skipping {
        option: u32,
        left: u32,
    },
    /// An answer is waited for.
    Listing,
    /// The caller is to look up the export.
    ExportWanted(ExportQuery),
    StartTls,
    Done(Next),
}

/// An option that names an export, until the caller has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ExportQuery {
    option: u32,
    name: String,
    /// The kinds of information that the client requests.
    wants: Vec<u16>,
}

/// An NBD handshake, from the greeting until the client has chosen a volume. It owns no socket and does no I/O.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    /// Bytes that are not parsed yet.
    bytes: Vec<u8>,
    /// Bytes for the client: to be sent and removed.
    pub out: Vec<u8>,
    no_zeroes: bool,
    structured: bool,
    /// The export whose contexts were chosen.
    allocation: Option<String>,
    options: u32,
    tls: Tls,
}

/// Whether a connection is protected by TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tls {
    NotOffered,
    Offered,
    Begun,
}

impl Default for Handshake {
    fn default() -> Self {
        let mut out = Vec::with_capacity(512);
        out.extend(INIT_MAGIC.to_be_bytes());
        out.extend(OPTION_MAGIC.to_be_bytes());
        out.extend((handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes());
        Handshake {
            state: State::Flags,
            bytes: Vec::new(),
            out,
            no_zeroes: false,
            structured: false,
            allocation: None,
            options: 0,
            tls: Tls::NotOffered,
        }
    }
}

impl Handshake {
    /// Takes bytes of the client.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// TLS is possible, if the client requests it.
    pub fn offer_tls(&mut self) {
        self.tls = Tls::Offered;
    }

    /// What comes next. A client that does not follow the protocol is to be disconnected.
    pub fn step(&mut self) -> Result<Next, HandshakeError> {
        loop {
            match &mut self.state {
                State::Flags => {
                    let Some(flags) = self.take(4) else { return Ok(Next::Bytes) };
                    let flags = get_u32(&flags, 0);
                    let known = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
                    if flags & !known != 0 || flags & u32::from(handshake::FIXED_NEWSTYLE) == 0 {
                        return Err(HandshakeError::Flags(flags));
                    }
                    self.no_zeroes = flags & u32::from(handshake::NO_ZEROES) != 0;
                    self.state = State::Option;
                }
                State::Option => {
                    if !self.option()? {
                        return Ok(Next::Bytes);
                    }
                }
                State::Skipping { option, left } => {
                    let (option, some) = (*option, (*left as usize).min(self.bytes.len()));
                    *left -= some as u32;
                    let done = *left == 0;
                    self.bytes.drain(..some);
                    if !done {
                        return Ok(Next::Bytes);
                    }
                    self.reply(option, reply::ERR_TOO_BIG, b"the option is longer than this server reads");
                    self.state = State::Option;
                }
                State::Listing => return Ok(Next::List),
                State::ExportWanted(query) => return Ok(Next::Export(query.name.clone())),
                State::StartTls => {
                    if !self.bytes.is_empty() {
                        return Err(HandshakeError::BeforeTls(self.bytes.len()));
                    }
                    self.state = State::Option;
                    return Ok(Next::StartTls);
                }
                State::Done(next) => return Ok(next.clone()),
            }
        }
    }

    /// What came after the client's choice.
    pub fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    fn take(&mut self, bytes: usize) -> Option<Vec<u8>> {
        (self.bytes.len() >= bytes).then(|| self.bytes.drain(..bytes).collect())
    }

    /// Takes an option, if there is a whole one.
    fn option(&mut self) -> Result<bool, HandshakeError> {
        if self.bytes.len() < 16 {
            return Ok(false);
        }
        let (magic, option, length) =
            (get_u64(&self.bytes, 0), get_u32(&self.bytes, 8), get_u32(&self.bytes, 12));
        if magic != OPTION_MAGIC {
            return Err(HandshakeError::Magic(magic));
        }
        if length > MOST_SKIPPED {
            return Err(HandshakeError::TooLong(length));
        }
        let (data_length, left) = (length as usize, length);
        if data_length > MOST_OPTION {
            self.bytes.drain(..16);
            self.count()?;
            self.state = State::Skipping { option, left };
            return Ok(true);
        }
        let Some(whole) = self.take(16 + data_length) else { return Ok(false) };
        self.count()?;
        let data = &whole[16..];
        match option {
            option::EXPORT_NAME => match text(data) {
                Some(name) => {
                    self.state = State::ExportWanted(ExportQuery { option, name, wants: Vec::new() });
                }
                None => return Err(HandshakeError::Refused("its name is no text".into())),
            },
            option::ABORT => {
                self.reply(option, reply::ACK, b"");
                self.state = State::Done(Next::Gone);
            }
            option::STARTTLS if data.is_empty() => match self.tls {
                Tls::NotOffered => self.reply(option, reply::ERR_UNSUP, b"this server does not offer TLS"),
                Tls::Begun => self.reply(option, reply::ERR_INVALID, b"TLS has begun already"),
                Tls::Offered => {
                    self.reply(option, reply::ACK, b"");
                    // An attacker on the way may have sent what was agreed on before.
                    (self.structured, self.allocation) = (false, None);
                    (self.tls, self.state) = (Tls::Begun, State::StartTls);
                }
            },
            option::LIST if data.is_empty() => self.state = State::Listing,
            option::INFO | option::GO => match parse_query(data) {
                Some((name, wants)) => self.state = State::ExportWanted(ExportQuery { option, name, wants }),
                None => self.reply(option, reply::ERR_INVALID, b"a name and a list of numbers are expected"),
            },
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                self.reply(option, reply::ACK, b"");
            }
            option::LIST | option::STRUCTURED_REPLY | option::STARTTLS => {
                self.reply(option, reply::ERR_INVALID, b"this option has no data");
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(option, data),
            _ => self.reply(option, reply::ERR_UNSUP, b"this server does not know the option"),
        }
        Ok(true)
    }

    fn count(&mut self) -> Result<(), HandshakeError> {
        self.options += 1;
        if self.options > MOST_OPTIONS { Err(HandshakeError::TooMany) } else { Ok(()) }
    }

    fn contexts(&mut self, option: u32, data: &[u8]) {
        let sets = option == option::SET_META_CONTEXT;
        if sets {
            self.allocation = None;
        }
        let Some((name, queries)) = queries(data) else {
            self.reply(option, reply::ERR_INVALID, b"a name and a list of queries are expected");
            return;
        };
        if !self.structured {
            self.reply(option, reply::ERR_INVALID, b"ask for structured replies first");
            return;
        }
        let all = !sets && queries.is_empty();
        let matches = |query: &String| query == BASE_ALLOCATION || !sets && query == "base:";
        if all || queries.iter().any(matches) {
            let id = if sets { ALLOCATION_ID } else { 0 };
            let mut payload = id.to_be_bytes().to_vec();
            payload.extend_from_slice(BASE_ALLOCATION.as_bytes());
            self.reply(option, reply::META_CONTEXT, &payload);
            if sets {
                self.allocation = Some(name);
            }
        }
        self.reply(option, reply::ACK, b"");
    }

    /// Answers with the list of exports, by name.
    ///
    /// # Panics
    /// If that was not asked for.
    pub fn list(&mut self, exports: &[(String, Export)]) {
        assert_eq!(self.state, State::Listing, "the client did not ask for it");
        for (name, export) in exports {
            let mut payload = (name.len() as u32).to_be_bytes().to_vec();
            payload.extend_from_slice(name.as_bytes());
            payload.extend_from_slice(export.description.as_bytes());
            self.reply(option::LIST, reply::SERVER, &payload);
        }
        self.reply(option::LIST, reply::ACK, b"");
        self.state = State::Option;
    }

    /// Answers with the properties of the requested export, or with the reason for a refusal.
    ///
    /// # Panics
    /// If that was not asked for.
    pub fn export(&mut self, found: Result<&Export, Refusal>) -> Result<(), HandshakeError> {
        let State::ExportWanted(query) = std::mem::replace(&mut self.state, State::Option) else {
            panic!("the client did not ask for it");
        };
        let ExportQuery { option, name, wants } = query;
        let export = match found {
            Ok(export) => export,
            Err(Refusal::Unknown(why) | Refusal::NotNow(why) | Refusal::NeedsTls(why))
                if option == option::EXPORT_NAME =>
            {
                return Err(HandshakeError::Refused(why));
            }
            Err(Refusal::Unknown(why)) => {
                self.reply(option, reply::ERR_UNKNOWN, why.as_bytes());
                return Ok(());
            }
            Err(Refusal::NotNow(why)) => {
                self.reply(option, reply::ERR_SHUTDOWN, why.as_bytes());
                return Ok(());
            }
            Err(Refusal::NeedsTls(why)) => {
                self.reply(option, reply::ERR_TLS_REQD, why.as_bytes());
                return Ok(());
            }
        };
        if option == option::EXPORT_NAME {
            self.out.extend(export.bytes.to_be_bytes());
            self.out.extend(flags().to_be_bytes());
            if !self.no_zeroes {
                self.out.extend([0; 124]);
            }
        } else {
            self.describe(option, &name, export, &wants);
            self.reply(option, reply::ACK, b"");
        }
        if option != option::INFO {
            let allocation = self.structured && self.allocation.as_deref() == Some(&name);
            self.state = State::Done(Next::Chosen(Choice { name, structured: self.structured, allocation }));
        }
        Ok(())
    }

    fn describe(&mut self, option: u32, name: &str, export: &Export, wants: &[u16]) {
        let mut payload = info::EXPORT.to_be_bytes().to_vec();
        payload.extend(export.bytes.to_be_bytes());
        payload.extend(flags().to_be_bytes());
        self.reply(option, reply::INFO, &payload);
        let mut payload = info::BLOCK_SIZE.to_be_bytes().to_vec();
        [SECTOR, PREFERRED, export.most.min(MOST_DATA)]
            .iter()
            .for_each(|size| payload.extend(size.to_be_bytes()));
        self.reply(option, reply::INFO, &payload);
        for (kind, text) in [(info::NAME, name), (info::DESCRIPTION, &export.description)] {
            if wants.contains(&kind) {
                let mut payload = kind.to_be_bytes().to_vec();
                payload.extend_from_slice(text.as_bytes());
                self.reply(option, reply::INFO, &payload);
            }
        }
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        self.out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        self.out.extend(option.to_be_bytes());
        self.out.extend(kind.to_be_bytes());
        self.out.extend((data.len() as u32).to_be_bytes());
        self.out.extend_from_slice(data);
    }
}

impl Login for Handshake {
    fn feed(&mut self, bytes: &[u8]) {
        Handshake::feed(self, bytes);
    }

    fn offer_tls(&mut self) {
        Handshake::offer_tls(self);
    }

    fn step(&mut self) -> Result<LoginStep, LoginError> {
        Ok(match Handshake::step(self).map_err(login_error)? {
            Next::Bytes => LoginStep::Bytes,
            Next::List => LoginStep::List,
            Next::Export(name) => LoginStep::Export(name),
            Next::StartTls => LoginStep::StartTls,
            Next::Chosen(choice) => {
                LoginStep::Chosen(Chosen { negotiated: choice.encode(), rest: self.rest() })
            }
            Next::Gone => LoginStep::Gone,
        })
    }

    fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    fn list(&mut self, exports: &[(String, Export)]) {
        Handshake::list(self, exports);
    }

    fn export(&mut self, found: Result<&Export, Refusal>) -> Result<(), LoginError> {
        Handshake::export(self, found).map_err(login_error)
    }
}

fn login_error(why: HandshakeError) -> LoginError {
    LoginError(why.to_string())
}

fn text(bytes: &[u8]) -> Option<String> {
    (bytes.len() <= MOST_STRING).then(|| String::from_utf8(bytes.to_vec()).ok()).flatten()
}

/// A string with its length before it, and what comes after.
fn string(data: &[u8]) -> Option<(String, &[u8])> {
    let length = get_u32(data.get(..4)?, 0) as usize;
    let bytes = data[4..].get(..length)?;
    Some((text(bytes)?, &data[4 + length..]))
}

/// A name, and a counted list of 16-bit numbers.
fn parse_query(data: &[u8]) -> Option<(String, Vec<u16>)> {
    let (name, rest) = string(data)?;
    let count = get_u16(rest.get(..2)?, 0) as usize;
    let wants = &rest[2..];
    (wants.len() == 2 * count).then(|| (name, (0..count).map(|i| get_u16(wants, 2 * i)).collect()))
}

/// A name, and a counted list of strings.
fn queries(data: &[u8]) -> Option<(String, Vec<String>)> {
    let (name, rest) = string(data)?;
    let count = get_u32(rest.get(..4)?, 0);
    let mut rest = &rest[4..];
    let mut queries = Vec::new();
    for _ in 0..count {
        let (query, behind) = string(rest)?;
        queries.push(query);
        rest = behind;
    }
    rest.is_empty().then_some((name, queries))
}
