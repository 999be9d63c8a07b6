//! The contract between a node's listeners and a client that has not chosen a volume yet: bytes in, bytes out, and questions about
//! volumes. A login owns no socket and no clock: the node feeds it, and limits how long it takes.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A volume, as a client sees it before it has chosen one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Export {
    /// A line for people.
    pub description: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The most bytes that are written at once: a power of two, from 1 to 32 MiB.
    pub most: u32,
    /// Where initiators reach the volume: the portal of each node, with the tag of its portal group.
    pub portals: Vec<(SocketAddr, u16)>,
    /// The tag of the portal group of the node that answers; 0 if it has none.
    pub group: u16,
    /// The initiators that may log in from other machines, and how each proves its name.
    pub initiators: Vec<Initiator>,
}

/// An initiator that may use a volume. An initiator that is not named may use it only from the node's own machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Initiator {
    /// Its name. Upper and lower case are the same.
    pub name: String,
    /// How it proves its name, if it must.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chap: Option<Credential>,
    /// How the volume proves its name to it, if the initiator asks for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual: Option<Credential>,
    /// Another number whenever the volume names it after it did not: sessions of one naming end with it.
    #[serde(default)]
    pub naming: u64,
}

/// A user and the secret that proves it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    /// The user.
    pub user: String,
    /// The secret.
    pub secret: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Why a client does not get the volume that it has named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// There is no volume of this name.
    Unknown(String),
    /// The volume cannot be served now, for this reason.
    NotNow(String),
    /// The volume is served only to clients whose connection is protected by TLS.
    NeedsTls(String),
}

/// What a login needs to continue, or its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoginStep {
    /// More bytes of the client: [`Login::feed`].
    Bytes,
    /// The names of all volumes: [`Login::list`].
    List,
    /// Whether there is a volume of this name: [`Login::export`].
    Export(String),
    /// The client has chosen the volume that was found last.
    Chosen(Chosen),
    /// What follows is protected by TLS: its handshake begins once the output is sent. Only if [TLS was offered](Login::offer_tls).
    StartTls,
    /// The client leaves, as it may.
    Gone,
}

/// What a login hands to the session, besides the connection and the volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chosen {
    /// The negotiated options, in a form of the protocol's own: at most [`Chosen::MOST`] bytes. With them another node can
    /// serve the client.
    pub negotiated: Vec<u8>,
    /// Bytes that the client has sent since it chose.
    pub rest: Vec<u8>,
}

impl Chosen {
    /// The most bytes of what was negotiated.
    pub const MOST: usize = 1024;
}

/// Why a client is disconnected before it has chosen.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct LoginError(pub String);

/// A client that has not chosen a volume yet.
pub trait Login: Send {
    /// Takes bytes that the client has sent. The login limits how many it keeps; the node limits the time.
    fn feed(&mut self, bytes: &[u8]);

    /// The node can continue with TLS, if the client requests that. Called before anything is fed, or not at all.
    fn offer_tls(&mut self);

    /// Returns the next step of the login. An error disconnects the client.
    fn step(&mut self) -> Result<LoginStep, LoginError>;

    /// Bytes for the client, which are to be sent before anything else. There are none of them afterwards.
    fn take_output(&mut self) -> Vec<u8>;

    /// Answers [`LoginStep::List`].
    ///
    /// # Panics
    /// If that was not asked.
    fn list(&mut self, exports: &[(String, Export)]);

    /// Answers [`LoginStep::Export`]. An error disconnects the client at once, and no output is sent: a refusal that the client is to
    /// read is `Ok`.
    ///
    /// # Panics
    /// If that was not asked.
    fn export(&mut self, found: Result<&Export, Refusal>) -> Result<(), LoginError>;
}
