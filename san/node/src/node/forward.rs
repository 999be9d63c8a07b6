//! Clients of volumes that are owned elsewhere: their bytes are forwarded, by a [session](super::sessions) with the owner.
//!
//! When a client's connection ends, what it sent and the owner has not received is dropped: its connection to the owner is reset.
//! A client of NBD waits for its answers before it takes its leave, so none of that was acknowledged. When the owner ends the
//! connection, the client gets what the owner had answered, and then the end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use loadline_san_export::front_ends::Protocol;
use loadline_san_export::login::Chosen;
use loadline_san_protocol::ClusterId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::connection::{Connection, Link, Socket};
use super::links::is_end;
use super::sessions::{self, Session};
use super::{CONFIG_POLL, Node, sockets};
use crate::event_loop::command::SessionId;
use crate::event_loop::confirmed::{self, Confirmed};
use crate::event_loop::peer_sender::Preamble;
use crate::identity::hexadecimal;

/// How long the owner may take to let a client in.
pub(super) const TAKES: Duration = Duration::from_secs(4);
/// How long a client may take to read what it was answered when the owner has ended the connection.
const READS: Duration = Duration::from_secs(1);
/// How often the node checks whether a client has gone while the owner does not take what it sends, and whether what was sent
/// is confirmed.
const CHECKS: Duration = Duration::from_millis(200);
const BUFFER: usize = 256 << 10;
/// Why a client ends that was let in by a certificate which may not use volumes any more.
pub(super) const REVOKED: &str = "its access was revoked";
/// Bytes of a client's address, as text.
const FROM: usize = 56;
/// Bytes of the fingerprint of a certificate. All are zero if the client has none.
const FINGERPRINT: usize = 32;

/// What a forwarded connection begins with. What follows is what the client sends, as if it had chosen its volume at the owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Forward {
    pub(super) cluster: ClusterId,
    pub(super) volume: u64,
    /// The [number](Protocol::number) of the client's protocol.
    pub(super) protocol: u8,
    /// The session with the owner.
    pub(super) session: SessionId,
    /// The fence of the volume's record when the client chose it.
    pub(super) fence: u64,
    /// Where the client is, for messages.
    pub(super) from: String,
    /// The fingerprint of the certificate by which the client was let in, if it has one: 64 hexadecimal digits. When its access is
    /// revoked, the owner disconnects the client, also if the node that forwards it has not read that.
    pub(super) certificate: Option<String>,
    /// What the client has negotiated, as its protocol writes it: at most [`Chosen::MOST`] bytes.
    pub(super) negotiated: Vec<u8>,
}

impl Forward {
    const MAGIC: [u8; 8] = *b"LLfwd\0\0\x04";
    /// The owner's answer: requests may follow.
    pub(super) const TAKEN: [u8; 8] = *b"LLtaken\x01";
    /// The owner's answer: it does not know the session, or has given it up.
    pub(super) const NO_SESSION: [u8; 8] = *b"LLnosess";
    /// Bytes that follow those of a [`Preamble`]. What was negotiated comes behind them.
    pub(super) const MORE: usize = 24 + FROM + FINGERPRINT;

    fn encode(&self) -> Vec<u8> {
        let length =
            u16::try_from(self.negotiated.len()).ok().filter(|length| *length as usize <= Chosen::MOST);
        let length = length.expect("a login keeps to the limit of what is negotiated");
        let mut bytes = vec![0; Preamble::BYTES + Forward::MORE];
        bytes[..8].copy_from_slice(&Self::MAGIC);
        bytes[8..24].copy_from_slice(&self.cluster.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.volume.to_le_bytes());
        bytes[32] = self.protocol;
        bytes[34..36].copy_from_slice(&length.to_le_bytes());
        let more = &mut bytes[Preamble::BYTES..];
        sessions::encode_id(self.session, &mut more[..16]);
        more[16..24].copy_from_slice(&self.fence.to_le_bytes());
        let from = &self.from.as_bytes()[..self.from.len().min(FROM)];
        more[24..24 + from.len()].copy_from_slice(from);
        let digits = self.certificate.as_deref().unwrap_or_default().as_bytes();
        let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).ok());
        for (byte, pair) in more[24 + FROM..].iter_mut().zip(pairs) {
            let byte_of = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok());
            *byte = byte_of.expect("a fingerprint has hexadecimal digits alone");
        }
        bytes.extend_from_slice(&self.negotiated);
        bytes
    }

    /// Whether a preamble is one of a forwarded connection: [more](Self::MORE) follows then.
    pub(super) fn begins_with(bytes: &[u8; Preamble::BYTES]) -> bool {
        bytes[..8] == Self::MAGIC
    }

    /// From the wire, but for what was negotiated; and how many bytes of that follow. `None` if these are too many.
    pub(super) fn decode(
        bytes: &[u8; Preamble::BYTES],
        more: &[u8; Forward::MORE],
    ) -> Option<(Forward, usize)> {
        let certificate = &more[24 + FROM..];
        let certificate = certificate.iter().any(|byte| *byte != 0).then(|| hexadecimal(certificate));
        let from = more[24..24 + FROM].split(|byte| *byte == 0).next().unwrap_or_default();
        // It goes into messages: nothing in it may look like more than one.
        let from = String::from_utf8_lossy(from).replace(char::is_control, "?");
        let length = usize::from(u16::from_le_bytes([bytes[34], bytes[35]]));
        let forward = Forward {
            cluster: ClusterId(u128::from_le_bytes(bytes[8..24].try_into().expect("sixteen bytes"))),
            volume: u64::from_le_bytes(bytes[24..32].try_into().expect("eight bytes")),
            protocol: bytes[32],
            session: sessions::decode_id(&more[..16]),
            fence: u64::from_le_bytes(more[16..24].try_into().expect("eight bytes")),
            from,
            certificate,
            negotiated: Vec::new(),
        };
        (length <= Chosen::MOST).then_some((forward, length))
    }
}

/// Where a client is forwarded to.
#[derive(Debug, Clone)]
pub(super) struct Route {
    /// The name of the owner, for messages.
    pub(super) name: String,
    /// Its id.
    pub(super) node: u32,
    pub(super) address: SocketAddr,
    pub(super) session: Arc<Session>,
}

/// A client that is to be forwarded.
#[derive(Debug)]
pub(super) struct ForwardedClient<'a> {
    pub(super) volume: u64,
    /// The fence of the volume's record when the client chose it.
    pub(super) fence: u64,
    pub(super) protocol: Protocol,
    pub(super) chosen: Chosen,
    /// Where the client is, for messages.
    pub(super) from: &'a str,
    /// The fingerprint of the certificate by which it was let in.
    pub(super) certificate: Option<String>,
}

/// Why an owner does not take a client.
enum NotTaken {
    /// It has closed the connection.
    Closed,
    /// It is not reached, for people.
    Failed(String),
}

/// Why bytes are not forwarded any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The client has closed its connection.
    Client,
    /// The owner has ended the connection, and what it answered before was sent on.
    Owner,
    Lost,
    Unconfirmed,
    Moved,
    Revoked,
    /// Of this process, or of the machine.
    NoDescriptors,
}

impl Node {
    /// Ends when another node than this one owns a volume: the one that is asked may never answer again.
    async fn owned_elsewhere(&self, volume: u64, owner: SocketAddr) {
        loop {
            tokio::time::sleep(CONFIG_POLL).await;
            let state = self.state();
            let record = state.catalog.record(volume);
            let node = record.and_then(|record| state.catalog.nodes.get(&record.owner.node.0));
            if node.is_none_or(|(node, _)| node.peer != owner) {
                return;
            }
        }
    }

    /// Has an owner take a client. The connection to it then, and what it has answered.
    async fn take(
        &self,
        node: u32,
        address: SocketAddr,
        forward: &Forward,
    ) -> Result<(Link, [u8; 8]), NotTaken> {
        let mut owner = self.link_to(node, address).await.map_err(NotTaken::Failed)?;
        // If the owner closes the connection while the link is cut, this node does not receive the reset. If the owner has acknowledged the
        // client's request, this node has nothing to send, and would wait for the answer for ever.
        sockets::watch_closely(&owner).map_err(|error| NotTaken::Failed(error.to_string()))?;
        let mut answer = [0; 8];
        let exchanged = async {
            owner.write_all(&forward.encode()).await?;
            owner.flush().await?;
            owner.read_exact(&mut answer).await
        };
        match exchanged.await {
            Ok(_) => Ok((owner, answer)),
            Err(error) if is_end(&error) => Err(NotTaken::Closed),
            Err(error) => Err(NotTaken::Failed(error.to_string())),
        }
    }

    /// Carries what a client and the owner of its volume send, until either ends. Why it has ended, if the client has not.
    pub(super) async fn forward<S: Socket>(
        &self,
        mut client: Connection<S>,
        route: &Route,
        of: ForwardedClient<'_>,
    ) -> Option<String> {
        let Route { name, node, address, session } = route;
        let ForwardedClient { volume, fence, protocol, chosen, from, certificate } = of;
        let revoked = async {
            match &certificate {
                Some(of) => self.until_revoked(|accesses| accesses.may_use_volumes(of)).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(revoked);
        let forward = Forward {
            cluster: self.0.cluster,
            volume,
            protocol: protocol.number(),
            session: session.id,
            fence,
            from: from.into(),
            certificate: certificate.clone(),
            negotiated: chosen.negotiated.clone(),
        };
        let taken = tokio::select! {
            taken = tokio::time::timeout(TAKES, self.take(*node, *address, &forward)) => taken,
            () = session.lost() => return Some(session.why_lost(name)),
            () = &mut revoked => return Some(REVOKED.into()),
        };
        let mut owner = match taken {
            Ok(Ok((owner, Forward::TAKEN))) => owner,
            Ok(Ok((_, Forward::NO_SESSION))) => {
                session.lose();
                return Some(format!("{name}, which owns the volume, has ended the session with this node"));
            }
            Ok(Ok(_)) => return Some(format!("{name} does not serve the volume")),
            Ok(Err(NotTaken::Closed)) => return Some(format!("{name} does not serve the volume now")),
            Ok(Err(NotTaken::Failed(error))) => {
                return Some(format!("{name}, which owns the volume, is not reachable: {error}"));
            }
            Err(_) => return Some(format!("{name} does not serve the volume in time")),
        };
        let sent = async {
            owner.write_all(&chosen.rest).await?;
            owner.flush().await
        };
        let end = match sent.await {
            Err(_) => End::Owner,
            Ok(()) => tokio::select! {
                end = carry(&mut client, &mut owner) => end,
                () = session.lost() => End::Lost,
                () = self.owned_elsewhere(volume, *address) => End::Moved,
                () = &mut revoked => End::Revoked,
            },
        };
        // What the owner has not received is dropped.
        sockets::abort(owner);
        if matches!(end, End::Owner | End::Client) {
            // It may have taken its leave, closed its own direction, and wait for the end: it is not to be reset.
            let gone = client.watched().is_ok_and(|client| sockets::is_closed(&client));
            let _ = tokio::time::timeout(READS, end_gently(&mut client)).await;
            if gone {
                return None;
            }
        }
        let why = match end {
            End::Client => return None,
            End::Owner => format!("{name}, which owns the volume, has ended the connection"),
            End::Lost => session.why_lost(name),
            End::Unconfirmed => {
                format!("sent data was not acknowledged for {} s", confirmed::LIMIT.as_secs())
            }
            End::Moved => "another node owns the volume now".into(),
            End::Revoked => REVOKED.into(),
            End::NoDescriptors => {
                "this node has no file descriptors left: raise its limit (LimitNOFILE)".into()
            }
        };
        Some(why)
    }
}

/// Carries bytes both ways until either side ends, or the host of either does not confirm what it is sent.
async fn carry<S: Socket>(client: &mut Connection<S>, owner: &mut Link) -> End {
    // Their descriptors, while both are written to and read from.
    let (Ok(watched), Ok(watched_owner)) = (client.watched(), owner.watched()) else {
        return End::NoDescriptors;
    };
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_owner, mut to_owner) = tokio::io::split(owner);
    let up = async {
        let mut buffer = vec![0; BUFFER];
        loop {
            let Ok(count @ 1..) = from_client.read(&mut buffer).await else { return End::Client };
            // It may have closed the connection long ago, if this process was stopped since.
            if sockets::is_closed(&watched) {
                return End::Client;
            }
            let sent = async {
                to_owner.write_all(&buffer[..count]).await?;
                to_owner.flush().await
            };
            if sent.await.is_err() {
                // What it has answered is still to be read.
                return std::future::pending().await;
            }
        }
    };
    let down = async {
        let mut buffer = vec![0; BUFFER];
        loop {
            let Ok(count @ 1..) = from_owner.read(&mut buffer).await else { return End::Owner };
            let sent = async {
                to_client.write_all(&buffer[..count]).await?;
                to_client.flush().await
            };
            if sent.await.is_err() {
                return End::Client;
            }
        }
    };
    let check = async {
        let (mut by_client, mut by_owner) = (Confirmed::default(), Confirmed::default());
        loop {
            tokio::time::sleep(CHECKS).await;
            if sockets::is_closed(&watched) {
                return End::Client;
            }
            if !by_owner.is_so(&watched_owner) || !by_client.is_so(&watched) {
                return End::Unconfirmed;
            }
        }
    };
    tokio::select! {
        end = up => end,
        end = down => end,
        end = check => end,
    }
}

/// Ends a connection so that the client can read what it was sent: a close would reset it if something of the client is not read.
async fn end_gently(client: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin)) {
    let mut rest = [0; 4096];
    if client.shutdown().await.is_ok() {
        while client.read(&mut rest).await.is_ok_and(|count| count > 0) {}
    }
}

#[cfg(test)]
mod tests {
    use loadline_san_core::ids::{Incarnation, NodeId};

    use super::*;

    #[test]
    fn a_forwarded_connection_says_all_that_the_owner_needs() {
        let session = SessionId { node: NodeId(2), incarnation: Incarnation(1 << 41), number: 7 };
        let forward = Forward {
            cluster: ClusterId(5 << 90),
            volume: 1 << 50,
            protocol: Protocol::Nbd.number(),
            session,
            fence: 9,
            from: "[fe80::1]:4711".into(),
            certificate: Some("0fa1".repeat(16)),
            negotiated: vec![7; Chosen::MOST],
        };
        let decoded = |bytes: &[u8]| {
            let (head, rest) = bytes.split_first_chunk::<{ Preamble::BYTES }>().unwrap();
            let (more, negotiated) = rest.split_first_chunk::<{ Forward::MORE }>().unwrap();
            assert!(Forward::begins_with(head));
            let (forward, length) = Forward::decode(head, more)?;
            assert_eq!(negotiated.len(), length);
            Some(Forward { negotiated: negotiated.to_vec(), ..forward })
        };
        let mut bytes = forward.encode();
        assert_eq!(decoded(&bytes), Some(forward.clone()));
        let plain = Forward { certificate: None, ..forward.clone() };
        assert_eq!(decoded(&plain.encode()), Some(plain));
        let evil = Forward { from: "x\nloadline: all is well".repeat(9), ..forward };
        assert!(!decoded(&evil.encode()).unwrap().from.contains('\n'));
        bytes[34..36].copy_from_slice(&(Chosen::MOST as u16 + 1).to_le_bytes());
        assert_eq!(decoded(&bytes), None, "no more is received for it");
    }
}
