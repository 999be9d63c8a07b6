//! What a logical unit says of itself, and what those are called that use it.

use serde::{Deserialize, Serialize};

use super::SECTOR;

/// What a logical unit says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// The id of the cluster.
    pub cluster: u128,
    /// The id of the volume.
    pub volume: u64,
    /// The name of the volume.
    pub name: String,
    /// The size, bytes: a multiple of 512, and not 0.
    pub bytes: u64,
    /// The most bytes that are read or written at once: a power of two, at least 4096.
    pub most: u32,
    /// The target port groups, one a node, in rising order. The number of the only port of a group is that of the group. The state of
    /// this node's group is what [`Unit::activate`](super::unit::Unit::activate) makes of it.
    pub ports: Vec<Port>,
    /// The target port group of this node.
    pub here: u16,
}

/// A target port group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// Its number, and the relative target port identifier of its port: not 0.
    pub group: u16,
    /// Whether the volume is reached there.
    pub state: AccessState,
}

/// Whether the volume is reached by a target port group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessState {
    /// By this one.
    ActiveOptimized,
    /// It could be, if the volume is moved there.
    Standby,
    /// The node is not there.
    Unavailable,
}

impl About {
    /// The number of logical blocks.
    pub fn sectors(&self) -> u64 {
        self.bytes / u64::from(SECTOR)
    }

    /// The most blocks that are read or written at once.
    pub(super) fn most_sectors(&self) -> u32 {
        self.most / SECTOR
    }
}

/// What sends commands: an I_T nexus.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NexusName {
    /// The name of the initiator.
    pub initiator: String,
    /// The initiator's part of the session's identifier.
    #[serde(with = "hex")]
    pub isid: [u8; 6],
    /// The target port group.
    pub group: u16,
}

/// The number of an I_T nexus that has [come](super::unit::Unit::arrive): a larger one than those that came before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexusId(pub(super) u32);

/// The identifier of a session as text: 12 digits.
mod hex {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(isid: &[u8; 6], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::hex_of(isid))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 6], D::Error> {
        let text = String::deserialize(from)?;
        let number = Some(&text)
            .filter(|text| text.len() == 12 && text.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let number = number.and_then(|text| u64::from_str_radix(text, 16).ok());
        let number = number.ok_or_else(|| D::Error::custom("an isid has 12 hexadecimal digits"))?;
        let [_, _, isid @ ..] = number.to_be_bytes();
        Ok(isid)
    }
}

/// Bytes as hexadecimal digits.
pub(super) fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
