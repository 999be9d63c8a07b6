//! A login: names, CHAP, and what both ends agree on (RFC 7143, 6 and 13).

use std::io;

use loadline_base::chap;
use loadline_base::iscsi::{
    Header, IMMEDIATE, LEAST_SEGMENT, add_key, field, flag, keys, login_status, opcode, stage,
};

use super::channel::{Channel, Numbers, broken};

/// The most bytes of a data segment that the target may send.
pub(crate) const SEGMENT: u32 = 256 << 10;
/// The most bytes of one burst, and of what is sent without being asked for, as they are offered.
const BURST: u32 = (16 << 20) - 1024;
const FIRST_BURST: u32 = 256 << 10;
/// The largest length that is agreed on in bytes, and the smallest.
const LENGTHS: std::ops::RangeInclusive<u32> = 512..=(1 << 24) - 1;
/// The most PDUs of one login.
const MOST_ROUNDS: u32 = 32;
/// The most bytes of one answer, all its PDUs together.
const MOST_TEXT: usize = 64 << 10;
/// The tag of a login. No command has it at the same time.
const TAG: u32 = 1;

const WANTS_CHAP: &str = "the target requires CHAP: write iscsi://USER@HOST/TARGET/LUN, with the secret in a file that ?secret=PATH \
    names, or in LOADLINE_ISCSI_SECRET";

/// Who logs in, and where.
pub(super) struct Who<'a> {
    pub(super) initiator: &'a str,
    pub(super) isid: [u8; 6],
    pub(super) target: &'a str,
    /// Headers and data shall have digests.
    pub(super) digest: bool,
    /// User and secret.
    pub(super) chap: Option<(&'a str, &'a str)>,
}

/// What was agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
    /// The most bytes of a data segment that the target takes.
    pub(crate) segment: u32,
    /// Data may come with a command.
    pub(crate) immediate: bool,
    /// Whatever does not come with a command is sent only if the target asks for it.
    pub(crate) asks_first: bool,
    /// The most bytes that are sent without being asked for.
    pub(crate) first_burst: u32,
    /// The most bytes that the target asks for at once.
    pub(crate) burst: u32,
}

impl Parameters {
    /// What holds where nothing else is said.
    pub(crate) const DEFAULT: Parameters = Parameters {
        header_digest: false,
        data_digest: false,
        segment: LEAST_SEGMENT,
        immediate: true,
        asks_first: true,
        first_burst: 64 << 10,
        burst: 256 << 10,
    };

    /// Takes over the answer to one offer. `false` if no such key is known.
    fn take(&mut self, key: &str, value: &str, digest: bool) -> io::Result<bool> {
        let wrong = || broken(&format!("answered {key}={value}"));
        if matches!(value, "Irrelevant" | "NotUnderstood") && !key.ends_with("Digest") {
            return Ok(true);
        }
        let length = |most: u32| match number(value) {
            Some(length) if LENGTHS.contains(&length) && length <= most => Ok(length),
            _ => Err(wrong()),
        };
        let flag = || match value {
            "Yes" => Ok(true),
            "No" => Ok(false),
            _ => Err(wrong()),
        };
        match key {
            "HeaderDigest" | "DataDigest" => {
                let has = match (value, digest) {
                    ("CRC32C", true) => true,
                    ("None", false) => false,
                    (_, true) => {
                        return Err(io::Error::other(format!(
                            "the target refuses digests ({key}={value}): leave out ?digest=crc32c, or allow them there"
                        )));
                    }
                    (_, false) => {
                        return Err(io::Error::other(format!(
                            "the target does not do without digests ({key}={value}): add ?digest=crc32c"
                        )));
                    }
                };
                *(if key == "DataDigest" { &mut self.data_digest } else { &mut self.header_digest }) = has;
            }
            "MaxRecvDataSegmentLength" => self.segment = length(u32::MAX)?,
            "FirstBurstLength" => self.first_burst = length(FIRST_BURST)?,
            "MaxBurstLength" => self.burst = length(BURST)?,
            "ImmediateData" => self.immediate = flag()?,
            "InitialR2T" => self.asks_first = flag()?,
            "DataPDUInOrder" | "DataSequenceInOrder" if !flag()? => return Err(wrong()),
            "ErrorRecoveryLevel" if number(value) != Some(0) => return Err(wrong()),
            "MaxOutstandingR2T" if number(value) != Some(1) => return Err(wrong()),
            "DataPDUInOrder"
            | "DataSequenceInOrder"
            | "ErrorRecoveryLevel"
            | "MaxOutstandingR2T"
            | "MaxConnections"
            | "DefaultTime2Wait"
            | "DefaultTime2Retain"
            | "TargetPortalGroupTag"
            | "TargetAlias"
            | "TargetAddress"
            | "TargetName"
            | "AuthMethod" => {}
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// A number as a text of the protocol has it.
fn number(value: &str) -> Option<u32> {
    match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => value.parse().ok(),
    }
}

/// What a login comes to.
pub(super) enum Entered {
    /// Commands may follow.
    In(Parameters, Numbers),
    /// The target is at this portal for now.
    Elsewhere(String),
}

/// What ends a login before its end.
enum Stop {
    Elsewhere(String),
    Failed(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Failed(error)
    }
}

/// Logs in. Digests are in use from then on, if they were agreed on.
pub(super) fn log_in(channel: &mut Channel, who: &Who<'_>) -> io::Result<Entered> {
    let numbers = Numbers { next: 1, last: 1, status: 0 };
    let mut login = Login { channel, who, numbers, rounds: 0 };
    match login.whole() {
        Ok(parameters) => {
            let numbers = login.numbers;
            channel.header_digest = parameters.header_digest;
            channel.data_digest = parameters.data_digest;
            Ok(Entered::In(parameters, numbers))
        }
        Err(Stop::Elsewhere(address)) => Ok(Entered::Elsewhere(address)),
        Err(Stop::Failed(error)) => Err(error),
    }
}

/// An answer of the target: its text, and whether the stage has ended.
struct Answer {
    text: Vec<u8>,
    goes_on: bool,
}

impl Answer {
    fn keys(&self) -> io::Result<Vec<(&str, &str)>> {
        keys(&self.text).ok_or_else(|| broken("answered the login with a text that has no keys"))
    }

    fn value(&self, wanted: &str) -> io::Result<Option<&str>> {
        Ok(self.keys()?.into_iter().find(|(key, _)| *key == wanted).map(|(_, value)| value))
    }
}

struct Login<'a> {
    channel: &'a mut Channel,
    who: &'a Who<'a>,
    numbers: Numbers,
    rounds: u32,
}

impl Login<'_> {
    fn whole(&mut self) -> Result<Parameters, Stop> {
        self.security()?;
        self.operational()
    }

    /// Names, and CHAP.
    fn security(&mut self) -> Result<(), Stop> {
        let who = self.who;
        let mut text = Vec::new();
        add_key(&mut text, "InitiatorName", who.initiator);
        add_key(&mut text, "TargetName", who.target);
        add_key(&mut text, "SessionType", "Normal");
        add_key(&mut text, "AuthMethod", if who.chap.is_some() { "CHAP,None" } else { "None" });
        let next = who.chap.is_none().then_some(stage::OPERATIONAL);
        let mut answer = self.exchange(stage::SECURITY, next, &text)?;
        match (answer.value("AuthMethod")?, who.chap) {
            (Some("CHAP"), Some((user, secret))) => return self.chap(user, secret),
            // Otherwise a wrong secret, or one that is for another initiator, would look right.
            (Some("None") | None, Some((user, _))) => {
                let initiator = who.initiator;
                return Err(Stop::Failed(io::Error::other(format!(
                    "the target lets initiator {initiator} in without CHAP, so nothing shows that the secret of {user} is right: leave out \
                     {user}@ and the secret, or name the initiator that needs one there by ?initiator=IQN"
                ))));
            }
            (Some("None") | None, None) => {}
            (Some("Reject" | "CHAP"), None) => return Err(Stop::Failed(io::Error::other(WANTS_CHAP))),
            (Some(other), _) => {
                return Err(Stop::Failed(io::Error::other(format!(
                    "the target wants an authentication that is not known here (AuthMethod={})",
                    other.escape_debug()
                ))));
            }
        }
        while !answer.goes_on {
            answer = self.exchange(stage::SECURITY, Some(stage::OPERATIONAL), &[])?;
        }
        Ok(())
    }

    fn chap(&mut self, user: &str, secret: &str) -> Result<(), Stop> {
        let mut text = Vec::new();
        add_key(&mut text, "CHAP_A", chap::MD5);
        let asked = self.exchange(stage::SECURITY, None, &text)?;
        let id = asked.value("CHAP_I")?.and_then(number).and_then(|id| u8::try_from(id).ok());
        let challenge = asked.value("CHAP_C")?.and_then(|text| chap::decode_binary(text, chap::MOST_BYTES));
        let (Some(id), Some(challenge), Some(chap::MD5)) = (id, challenge, asked.value("CHAP_A")?) else {
            return Err(Stop::Failed(io::Error::other(
                "the target agreed to CHAP, and sent no challenge for MD5, the hash that is known here",
            )));
        };
        text.clear();
        add_key(&mut text, "CHAP_N", user);
        let response = chap::response(id, secret.as_bytes(), &challenge);
        add_key(&mut text, "CHAP_R", &chap::encode_binary(&response));
        let mut answer = self.exchange(stage::SECURITY, Some(stage::OPERATIONAL), &text)?;
        while !answer.goes_on {
            answer = self.exchange(stage::SECURITY, Some(stage::OPERATIONAL), &[])?;
        }
        Ok(())
    }

    /// What both ends agree on.
    fn operational(&mut self) -> Result<Parameters, Stop> {
        let digest = self.who.digest;
        let mut text = Vec::new();
        for key in ["HeaderDigest", "DataDigest"] {
            add_key(&mut text, key, if digest { "CRC32C" } else { "None" });
        }
        for (key, value) in [
            ("MaxRecvDataSegmentLength", SEGMENT),
            ("MaxBurstLength", BURST),
            ("FirstBurstLength", FIRST_BURST),
            ("MaxConnections", 1),
            ("MaxOutstandingR2T", 1),
            ("DefaultTime2Wait", 2),
            ("DefaultTime2Retain", 0),
            ("ErrorRecoveryLevel", 0),
        ] {
            add_key(&mut text, key, &value.to_string());
        }
        for (key, value) in [
            ("ImmediateData", "Yes"),
            ("InitialR2T", "No"),
            ("DataPDUInOrder", "Yes"),
            ("DataSequenceInOrder", "Yes"),
        ] {
            add_key(&mut text, key, value);
        }
        let mut parameters = Parameters::DEFAULT;
        loop {
            let answer = self.exchange(stage::OPERATIONAL, Some(stage::FULL_FEATURE), &text)?;
            text.clear();
            for (key, value) in answer.keys()? {
                if !parameters.take(key, value, digest)? {
                    add_key(&mut text, key, "NotUnderstood");
                }
            }
            if answer.goes_on {
                break;
            }
        }
        if (parameters.header_digest, parameters.data_digest) != (digest, digest) {
            let why = "the target has not answered whether it has digests: leave out ?digest=crc32c";
            return Err(Stop::Failed(io::Error::other(why)));
        }
        Ok(parameters)
    }

    /// Sends a text in this stage, `next`: and proposes to go on to that one. Returns the whole answer.
    fn exchange(&mut self, now: u8, next: Option<u8>, text: &[u8]) -> Result<Answer, Stop> {
        self.send(now, next, text)?;
        let mut whole = Vec::new();
        loop {
            let (header, part) = self.channel.receive()?;
            if header.opcode() != opcode::LOGIN_RESPONSE || header.task_tag() != TAG {
                return Err(Stop::Failed(broken("did not answer the login")));
            }
            whole.extend(part);
            if whole.len() > MOST_TEXT {
                return Err(Stop::Failed(broken("answered the login with a text without end")));
            }
            self.numbers.learn(&header, true);
            let status = (header.0[36], header.0[37]);
            if status != login_status::SUCCESS {
                return Err(self.ended(status, Answer { text: whole, goes_on: false }));
            }
            self.numbers.last = header.u32(field::LAST_COMMAND_NUMBER);
            if header.has(flag::CONTINUE) {
                if header.has(flag::TRANSIT) {
                    return Err(Stop::Failed(broken("ended a stage of the login in the middle of a text")));
                }
                self.send(now, None, &[])?;
                continue;
            }
            let goes_on = header.has(flag::TRANSIT);
            if goes_on && next != Some(header.flags() & 3) {
                return Err(Stop::Failed(broken("went on to another stage of the login than was proposed")));
            }
            return Ok(Answer { text: whole, goes_on });
        }
    }

    fn send(&mut self, now: u8, next: Option<u8>, text: &[u8]) -> io::Result<()> {
        self.rounds += 1;
        if self.rounds > MOST_ROUNDS {
            return Err(broken("does not come to the end of the login"));
        }
        let transit = next.map_or(0, |next| flag::TRANSIT | next);
        let mut header = Header::new(opcode::LOGIN | IMMEDIATE, transit | now << 2);
        header.0[8..14].copy_from_slice(&self.who.isid);
        header.set_u32(field::TASK_TAG, TAG);
        header.set_u32(field::COMMAND_NUMBER, self.numbers.next);
        header.set_u32(field::EXPECTED_STATUS_NUMBER, self.numbers.status);
        self.channel.send(header, text)
    }

    /// Why the target ended the login.
    fn ended(&self, status: (u8, u8), answer: Answer) -> Stop {
        let Who { initiator, target, chap, .. } = self.who;
        let why = match status {
            (1, _) => match answer.value("TargetAddress") {
                Ok(Some(address)) => return Stop::Elsewhere(address.to_string()),
                _ => return Stop::Failed(broken("is at another portal, and does not say at which one")),
            },
            login_status::AUTHENTICATION_FAILED => match chap {
                Some((user, _)) => format!(
                    "the target does not let {user} in: check the user and its secret, and that they are for initiator {initiator}"
                ),
                None => WANTS_CHAP.into(),
            },
            login_status::FORBIDDEN => format!(
                "the target does not let this initiator in: allow {initiator} there, or name one that is allowed by ?initiator=IQN"
            ),
            login_status::NOT_FOUND => format!(
                "there is no target {target} at this portal, or none for initiator {initiator}: check the name, and what the \
                 target allows; a volume of Loadline must be attached, and 'loadline volume show NAME' prints the name of its target"
            ),
            (2, 4) => format!("the target {target} was removed"),
            login_status::UNSUPPORTED_VERSION => "the target has another version of the protocol".into(),
            login_status::TOO_MANY_CONNECTIONS | login_status::OUT_OF_RESOURCES => {
                "the target takes no more sessions: use fewer threads, or raise its limit".into()
            }
            login_status::UNAVAILABLE => {
                "the target cannot be used at this portal now: is it running, and is this its active path?"
                    .into()
            }
            (2, _) => "the target does not take this login".into(),
            (3, _) => "the target failed".into(),
            _ => "the target refused the login".into(),
        };
        let (class, detail) = status;
        Stop::Failed(io::Error::other(format!("{why} (login status {class:02x}/{detail:02x})")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_no_offer_allows_are_refused() {
        let take = |key, value, digest| Parameters { ..Parameters::DEFAULT }.take(key, value, digest);
        for (key, value) in [
            ("MaxBurstLength", "16777215"),
            ("MaxBurstLength", "511"),
            ("FirstBurstLength", "262145"),
            ("FirstBurstLength", "many"),
            ("MaxRecvDataSegmentLength", "16777216"),
            ("ImmediateData", "yes"),
            ("InitialR2T", ""),
            ("DataPDUInOrder", "No"),
            ("ErrorRecoveryLevel", "1"),
            ("MaxOutstandingR2T", "8"),
            ("HeaderDigest", "CRC32C"),
        ] {
            assert!(take(key, value, false).is_err(), "{key}={value}");
        }
        let error = take("DataDigest", "None", true).unwrap_err().to_string();
        assert!(error.contains("?digest=crc32c"), "{error}");
        assert!(!take("X-other", "1", false).unwrap());
        assert!(take("FirstBurstLength", "Irrelevant", false).unwrap());
    }

    #[test]
    fn numbers_are_read_in_both_notations() {
        assert_eq!(
            [number("65536"), number("0x10000"), number("-1"), number("")],
            [Some(65536), Some(65536), None, None]
        );
    }
}
