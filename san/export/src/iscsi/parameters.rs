//! What the two ends of a session agree on: parameters of the login, and what becomes of each key.

use loadline_base::iscsi::LEAST_SEGMENT;

/// The most commands that an initiator may have under way.
pub const MOST_COMMANDS: u32 = 128;
/// The most bytes of a data segment that this target takes: what is written in one piece up to this length comes in one segment.
pub const MOST_SEGMENT: u32 = 256 << 10;
/// The most bytes that an initiator sends of a command without being asked.
const MOST_FIRST_BURST: u32 = 256 << 10;
/// The most bytes that are asked for at once.
const MOST_BURST: u32 = 1 << 20;
/// The most times that data of a command is asked for before the first is there.
const MOST_OUTSTANDING: u32 = 16;
/// The largest length that can be negotiated (RFC 7143, 13.12 to 13.14).
const LARGEST: u32 = (1 << 24) - 1;

/// What was agreed on. The default is what holds before anything was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// Headers have a digest.
    pub header_digest: bool,
    /// Data has a digest.
    pub data_digest: bool,
    /// The most bytes of a data segment that the initiator takes.
    pub sends: u32,
    /// The most bytes of a data segment that the target takes.
    pub receives: u32,
    /// Data may come with its command.
    pub immediate_data: bool,
    /// Data that does not come with its command must be asked for.
    pub initial_r2t: bool,
    /// The most bytes of a command that come without being asked for, with it and behind it.
    pub first_burst: u32,
    /// The most bytes of a sequence of data.
    pub burst: u32,
    /// The most sequences of a command that are asked for at once.
    pub outstanding: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters {
            header_digest: false,
            data_digest: false,
            sends: LEAST_SEGMENT,
            receives: LEAST_SEGMENT,
            immediate_data: true,
            initial_r2t: true,
            first_burst: 64 << 10,
            burst: 256 << 10,
            outstanding: 1,
        }
    }
}

/// The answer to a key that is not negotiated so.
const REJECT: &str = "Reject";

impl Parameters {
    /// What the target answers to a key, if anything: the negotiation of one key. In a discovery session most have no meaning.
    pub fn negotiate(&mut self, key: &str, value: &str, is_discovery: bool) -> Option<String> {
        let answer = match key {
            // What the other end states of itself, and its answers.
            "InitiatorName" | "InitiatorAlias" | "TargetName" | "SessionType" => return None,
            _ if matches!(value, "Irrelevant" | "NotUnderstood" | REJECT) => return None,
            "HeaderDigest" => digest(value, is_discovery, &mut self.header_digest),
            "DataDigest" => digest(value, is_discovery, &mut self.data_digest),
            "MaxRecvDataSegmentLength" => match number(value, 512, LARGEST) {
                Some(sends) => {
                    self.sends = sends;
                    return None;
                }
                None => REJECT.into(),
            },
            "DefaultTime2Wait" => chosen(number(value, 0, 3600)),
            // Nothing is kept of a session that has lost its connection.
            "DefaultTime2Retain" => chosen(number(value, 0, 3600).map(|_| 0)),
            "ErrorRecoveryLevel" => chosen(number(value, 0, 2).map(|_| 0)),
            "IFMarker" | "OFMarker" => "No".into(),
            "IFMarkInt" | "OFMarkInt" => REJECT.into(),
            "MaxConnections"
            | "InitialR2T"
            | "ImmediateData"
            | "MaxBurstLength"
            | "FirstBurstLength"
            | "MaxOutstandingR2T"
            | "DataPDUInOrder"
            | "DataSequenceInOrder"
            | "TaskReporting"
                if is_discovery =>
            {
                "Irrelevant".into()
            }
            "MaxConnections" => chosen(number(value, 1, 65535).map(|_| 1)),
            "InitialR2T" => boolean(value, &mut self.initial_r2t),
            "ImmediateData" => boolean(value, &mut self.immediate_data),
            "MaxBurstLength" => at_most(number(value, 512, LARGEST), MOST_BURST, &mut self.burst),
            "FirstBurstLength" => {
                at_most(number(value, 512, LARGEST), MOST_FIRST_BURST, &mut self.first_burst)
            }
            "MaxOutstandingR2T" => at_most(number(value, 1, 65535), MOST_OUTSTANDING, &mut self.outstanding),
            "DataPDUInOrder" | "DataSequenceInOrder" => match value {
                "Yes" | "No" => "Yes".into(),
                _ => REJECT.into(),
            },
            "TaskReporting" => "RFC3720".into(),
            "iSCSIProtocolLevel" => chosen(number(value, 0, 31).map(|level| level.min(1))),
            _ => "NotUnderstood".into(),
        };
        Some(answer)
    }

    /// As bytes, for another node or this one.
    pub(super) fn encode(&self) -> Vec<u8> {
        let flags = [self.header_digest, self.data_digest, self.immediate_data, self.initial_r2t];
        let mut bytes: Vec<u8> = flags.map(u8::from).to_vec();
        let numbers = [self.sends, self.receives, self.first_burst, self.burst, self.outstanding];
        numbers.iter().for_each(|number| bytes.extend(number.to_be_bytes()));
        bytes
    }

    /// From what was [encoded](Self::encode); `None` if it was not.
    pub(super) fn decode(bytes: &[u8; Parameters::ENCODED]) -> Option<Parameters> {
        let flag = |at: usize| match bytes[at] {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        let number = |at: usize| {
            let four = bytes[4 + 4 * at..].first_chunk().expect("there are five numbers");
            u32::from_be_bytes(*four)
        };
        let parameters = Parameters {
            header_digest: flag(0)?,
            data_digest: flag(1)?,
            immediate_data: flag(2)?,
            initial_r2t: flag(3)?,
            sends: number(0),
            receives: number(1),
            first_burst: number(2),
            burst: number(3),
            outstanding: number(4),
        };
        let lengths = [parameters.sends, parameters.receives, parameters.first_burst, parameters.burst];
        let are_lengths = lengths.iter().all(|length| (512..=LARGEST).contains(length));
        (are_lengths && (1..=MOST_OUTSTANDING).contains(&parameters.outstanding)).then_some(parameters)
    }

    /// Bytes of an encoding.
    pub(super) const ENCODED: usize = 4 + 5 * 4;
}

/// A number, decimal or after `0x`, if it is within these limits.
fn number(value: &str, least: u32, most: u32) -> Option<u32> {
    let (digits, base) = match value.strip_prefix("0x").or(value.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (value, 10),
    };
    let is_number = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(base));
    let number = is_number.then(|| u32::from_str_radix(digits, base).ok()).flatten()?;
    (least..=most).contains(&number).then_some(number)
}

fn chosen(number: Option<u32>) -> String {
    number.map_or(REJECT.into(), |number| number.to_string())
}

fn at_most(offered: Option<u32>, most: u32, into: &mut u32) -> String {
    if let Some(offered) = offered {
        *into = offered.min(most);
    }
    chosen(offered.map(|offered| offered.min(most)))
}

/// What the initiator wants holds: the target can do both.
fn boolean(value: &str, into: &mut bool) -> String {
    match value {
        "Yes" | "No" => {
            *into = value == "Yes";
            value.into()
        }
        _ => REJECT.into(),
    }
}

/// The first of the offered digests that the target has.
fn digest(offered: &str, is_discovery: bool, into: &mut bool) -> String {
    let known = |digest: &&str| *digest == "None" || *digest == "CRC32C" && !is_discovery;
    match offered.split(',').find(known) {
        Some(digest) => {
            *into = digest == "CRC32C";
            digest.into()
        }
        None => REJECT.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(offers: &[(&str, &str)], is_discovery: bool) -> (Parameters, Vec<String>) {
        let mut parameters = Parameters::default();
        let answers = offers
            .iter()
            .map(|(key, value)| parameters.negotiate(key, value, is_discovery).unwrap_or_default());
        let answers = answers.collect();
        (parameters, answers)
    }

    #[test]
    fn each_key_is_answered_by_its_rule() {
        let offers = [
            ("HeaderDigest", "None,CRC32C"),
            ("DataDigest", "SHA,CRC32C,None"),
            ("InitialR2T", "No"),
            ("ImmediateData", "No"),
            ("MaxBurstLength", "16776192"),
            ("FirstBurstLength", "0x10000"),
            ("MaxOutstandingR2T", "1"),
            ("DataPDUInOrder", "No"),
            ("ErrorRecoveryLevel", "2"),
            ("DefaultTime2Wait", "2"),
            ("DefaultTime2Retain", "20"),
            ("OFMarker", "No"),
            ("X-com.example.colour", "red"),
            ("MaxRecvDataSegmentLength", "65536"),
        ];
        let (agreed, answers) = answers(&offers, false);
        let expected = [
            "None",
            "CRC32C",
            "No",
            "No",
            "1048576",
            "65536",
            "1",
            "Yes",
            "0",
            "2",
            "0",
            "No",
            "NotUnderstood",
            "",
        ];
        assert_eq!(answers, expected);
        let expected = Parameters {
            data_digest: true,
            immediate_data: false,
            initial_r2t: false,
            burst: 1 << 20,
            first_burst: 65536,
            sends: 65536,
            ..Parameters::default()
        };
        assert_eq!(agreed, expected);
        let encoded = agreed.encode();
        assert_eq!(Parameters::decode(encoded.first_chunk().unwrap()), Some(agreed));
    }

    #[test]
    fn what_cannot_be_is_rejected_and_changes_nothing() {
        let offers = [
            ("MaxBurstLength", "511"),
            ("MaxBurstLength", "16777216"),
            ("MaxBurstLength", "-1"),
            ("MaxBurstLength", "+600"),
            ("MaxBurstLength", ""),
            ("MaxBurstLength", "0x"),
            ("MaxRecvDataSegmentLength", "1"),
            ("InitialR2T", "yes"),
            ("HeaderDigest", "MD5"),
            ("MaxOutstandingR2T", "0"),
            ("DataPDUInOrder", "Maybe"),
        ];
        let (agreed, answers) = answers(&offers, false);
        assert!(answers.iter().all(|answer| answer == "Reject"), "{answers:?}");
        assert_eq!(agreed, Parameters::default());
    }

    #[test]
    fn what_a_discovery_session_has_no_use_for_is_irrelevant() {
        let offers = [("InitialR2T", "No"), ("MaxBurstLength", "512"), ("HeaderDigest", "CRC32C,None")];
        let (agreed, answers) = answers(&offers, true);
        assert_eq!(answers, ["Irrelevant", "Irrelevant", "None"]);
        assert_eq!(agreed, Parameters::default());
    }
}
