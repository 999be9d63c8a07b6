//! Clients of volumes that are owned elsewhere: their bytes go through.

use std::net::SocketAddr;
use std::time::Duration;

use loadline_san_export::nbd::handshake::Choice;
use loadline_san_protocol::{ClusterId, record};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;

use super::{LOOK, Node};
use crate::event_loop::peer::Preamble;

/// How long the owner may take to let a client in.
const TAKES: Duration = Duration::from_secs(10);
const BUFFER: usize = 256 << 10;

/// What a forwarded connection begins with. What follows are requests of NBD, as if the client had chosen at the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Forward {
    pub(super) cluster: ClusterId,
    pub(super) volume: u64,
    structured: bool,
    allocation: bool,
}

impl Forward {
    const MAGIC: [u8; 8] = *b"LLfwd\0\0\x01";
    /// The owner's answer: requests may follow.
    pub(super) const TAKEN: [u8; 8] = *b"LLtaken\x01";

    fn encode(&self) -> [u8; Preamble::BYTES] {
        let mut bytes = [0; Preamble::BYTES];
        bytes[..8].copy_from_slice(&Self::MAGIC);
        bytes[8..24].copy_from_slice(&self.cluster.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.volume.to_le_bytes());
        (bytes[32], bytes[33]) = (self.structured.into(), self.allocation.into());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; Preamble::BYTES]) -> Option<Forward> {
        (bytes[..8] == Self::MAGIC).then(|| Forward {
            cluster: ClusterId(u128::from_le_bytes(bytes[8..24].try_into().expect("sixteen bytes"))),
            volume: u64::from_le_bytes(bytes[24..32].try_into().expect("eight bytes")),
            structured: bytes[32] == 1,
            allocation: bytes[33] == 1,
        })
    }

    pub(super) fn choice(&self) -> Choice {
        Choice { name: String::new(), structured: self.structured, allocation: self.allocation }
    }
}

impl Node {
    /// Ends when another node than this one owns a volume: the one that is asked may never answer again.
    async fn owned_elsewhere(&self, volume: u64, owner: SocketAddr) {
        loop {
            tokio::time::sleep(LOOK).await;
            let state = self.state();
            let record =
                state.catalog.records.get(&volume).and_then(|stored| record::decode(&stored.value).ok());
            let node = record.and_then(|record| state.catalog.nodes.get(&record.owner.node.0));
            if node.is_none_or(|(node, _)| node.peer != owner) {
                return;
            }
        }
    }

    /// Carries what a client and the owner of its volume say, until either ends.
    pub(super) async fn forward(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        owner: SocketAddr,
        volume: u64,
        choice: &Choice,
        rest: &[u8],
    ) {
        let Choice { structured, allocation, .. } = *choice;
        let forward = Forward { cluster: self.0.cluster, volume, structured, allocation };
        let taken = async {
            let mut to_owner = TcpStream::connect(owner).await?;
            to_owner.set_nodelay(true)?;
            to_owner.write_all(&forward.encode()).await?;
            let mut answer = [0; 8];
            to_owner.read_exact(&mut answer).await?;
            to_owner.write_all(rest).await?;
            Ok::<_, std::io::Error>((to_owner, answer))
        };
        if let Ok(Ok((mut to_owner, Forward::TAKEN))) = tokio::time::timeout(TAKES, taken).await {
            tokio::select! {
                _ = copy_bidirectional_with_sizes(&mut stream, &mut to_owner, BUFFER, BUFFER) => {}
                () = self.owned_elsewhere(volume, owner) => {}
            }
        }
    }
}
