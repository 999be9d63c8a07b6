//! What a login hands to the session.

use super::parameters::Parameters;
use crate::login::Chosen;

/// The first byte of an encoding: its form.
const FORM: u8 = 1;
/// Bytes before the name of the initiator.
const FIXED: usize = 1 + 6 + 2 + 4 + 4 + Parameters::ENCODED;

/// What is known of an initiator that has logged in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    /// The name of the initiator, in lower case.
    pub initiator: String,
    /// The initiator's part of the session's identifier.
    pub isid: [u8; 6],
    /// The number of the connection.
    pub connection: u16,
    /// The number of the next command.
    pub command_number: u32,
    /// The number of the next status.
    pub status_number: u32,
    /// What the two ends have agreed on.
    pub parameters: Parameters,
}

impl Negotiated {
    /// As bytes, for another node or this one.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORM];
        bytes.extend(self.isid);
        bytes.extend(self.connection.to_be_bytes());
        bytes.extend(self.command_number.to_be_bytes());
        bytes.extend(self.status_number.to_be_bytes());
        bytes.extend(self.parameters.encode());
        bytes.extend(self.initiator.as_bytes());
        bytes
    }

    /// From what was [encoded](Self::encode); `None` if it was not.
    pub fn decode(bytes: &[u8]) -> Option<Negotiated> {
        let (fixed, initiator) = bytes.split_at_checked(FIXED)?;
        let four = |at: usize| fixed[at..].first_chunk().map(|four| u32::from_be_bytes(*four));
        if fixed[0] != FORM || bytes.len() > Chosen::MOST {
            return None;
        }
        Some(Negotiated {
            initiator: String::from_utf8(initiator.to_vec()).ok()?,
            isid: *fixed[1..].first_chunk()?,
            connection: u16::from_be_bytes(*fixed[7..].first_chunk()?),
            command_number: four(9)?,
            status_number: four(13)?,
            parameters: Parameters::decode(fixed[17..].first_chunk()?)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use loadline_base::iscsi::LONGEST_NAME;

    use super::*;

    #[test]
    fn what_was_negotiated_is_read_as_it_was_written() {
        let negotiated = Negotiated {
            initiator: "i".repeat(LONGEST_NAME),
            isid: [1, 2, 3, 4, 5, 6],
            connection: 7,
            command_number: u32::MAX,
            status_number: 9,
            parameters: Parameters { sends: 512, ..Parameters::default() },
        };
        let bytes = negotiated.encode();
        assert!(bytes.len() <= Chosen::MOST);
        assert_eq!(Negotiated::decode(&bytes), Some(negotiated));
        for length in 0..FIXED {
            assert_eq!(Negotiated::decode(&bytes[..length]), None);
        }
        assert_eq!(Negotiated::decode(&[0; 100]), None);
    }
}
