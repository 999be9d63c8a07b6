//! Which initiators of iSCSI may use a volume from beyond a node's own machine, and how they prove who they are.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use loadline_san_export::login::{Credential, Initiator};

use super::ManageError;
use crate::config::catalog::Volume;
use crate::identity::random_bytes;
use crate::node::Node;

/// The longest name of an initiator (RFC 7143, section 4.2.7.1).
const LONGEST_NAME: usize = 223;
/// The fewest and the most bytes of a secret. Windows takes 12 to 16 (RFC 7143 wants 12 at least).
const SECRET: std::ops::RangeInclusive<usize> = 12..=255;
/// The longest name of a user.
const LONGEST_USER: usize = 255;
/// The most initiators of a volume.
const MOST: usize = 256;

/// A user and a secret, by which one end proves to the other one who it is (CHAP).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChapSecret {
    /// The name of the user.
    pub user: String,
    /// The secret: 12 bytes at least; Windows takes 16 at most.
    pub secret: String,
}

impl std::fmt::Debug for ChapSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChapSecret({}, …)", self.user)
    }
}

/// An initiator that may use a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LetInitiator {
    /// The name of the initiator, such as `iqn.1993-08.org.debian:01:abcdef`.
    pub name: String,
    /// How it proves who it is; not at all, if nothing is given: then its name is all that it has to know.
    #[serde(default)]
    pub chap: Option<ChapSecret>,
    /// How the node proves to the initiator that it is the target.
    #[serde(default)]
    pub mutual: Option<ChapSecret>,
}

/// An initiator that is not to use a volume any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EndInitiator {
    /// The name of the initiator.
    pub name: String,
}

/// An initiator that may use a volume, without its secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InitiatorView {
    /// The name of the initiator.
    pub name: String,
    /// The user as whom it proves who it is.
    pub chap_user: Option<String>,
    /// The user as whom the node proves to it that it is the target.
    pub mutual_user: Option<String>,
}

/// An initiator that was let in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InitiatorLetIn {
    /// As it is kept: its name in lower case.
    pub now: InitiatorView,
    /// What was known of it before; `null` if the volume did not name it.
    pub before: Option<InitiatorView>,
}

impl From<&Initiator> for InitiatorView {
    fn from(of: &Initiator) -> InitiatorView {
        let user = |of: &Option<Credential>| of.as_ref().map(|of| of.user.clone());
        InitiatorView { name: of.name.clone(), chap_user: user(&of.chap), mutual_user: user(&of.mutual) }
    }
}

impl LetInitiator {
    /// The initiator. The error says what is wrong with it.
    fn checked(self) -> Result<Initiator, String> {
        let name = checked_name(&self.name)?;
        if self.mutual.is_some() && self.chap.is_none() {
            return Err(
                "a node proves who it is only to an initiator that does so too: give --chap as well as --mutual".into()
            );
        }
        let secret = |of: ChapSecret| {
            if of.user.is_empty() || of.user.len() > LONGEST_USER || of.user.chars().any(char::is_control) {
                return Err(format!(
                    "the user of CHAP has 1 to {LONGEST_USER} bytes, and no control characters"
                ));
            }
            if !SECRET.contains(&of.secret.len()) {
                return Err(format!(
                    "the secret of {} has {} bytes: {} to {} are possible, and 12 to 16 with Windows",
                    of.user,
                    of.secret.len(),
                    SECRET.start(),
                    SECRET.end()
                ));
            }
            Ok(Credential { user: of.user, secret: of.secret })
        };
        let chap = self.chap.map(secret).transpose()?;
        let mutual = self.mutual.map(secret).transpose()?;
        if chap.as_ref().zip(mutual.as_ref()).is_some_and(|(one, other)| one.secret == other.secret) {
            return Err(
                "both directions have the same secret, so that each end could answer with what the other one has sent: give two".into()
            );
        }
        Ok(Initiator { name, chap, mutual, naming: 0 })
    }
}

/// The name of an initiator as it is kept: in lower case (RFC 3722).
fn checked_name(name: &str) -> Result<String, String> {
    let name = name.trim().to_lowercase();
    let kind = name.get(..4).unwrap_or_default();
    let is_plain = |letter: char| letter.is_alphanumeric() || "-.:".contains(letter);
    if !["iqn.", "eui.", "naa."].contains(&kind) || name.len() > LONGEST_NAME || !name.chars().all(is_plain) {
        return Err(format!(
            "{name:?} is no name of an initiator: it begins with iqn., eui. or naa., and has letters, digits and '-', '.', ':', \
             {LONGEST_NAME} bytes at most. On Linux it is in /etc/iscsi/initiatorname.iscsi; Windows shows it in 'iSCSI Initiator'"
        ));
    }
    Ok(name)
}

/// These initiators with another one. The number of its naming is this new one, unless it is named already: sessions of a naming end when
/// it does.
fn with(mut initiators: Vec<Initiator>, wanted: Initiator, new: u64) -> Vec<Initiator> {
    let known = initiators.extract_if(.., |of| of.name == wanted.name).last();
    let naming = known.map_or(new, |of| of.naming);
    initiators.push(Initiator { naming, ..wanted });
    initiators
}

impl Node {
    /// Lets an initiator use a volume, from anywhere. One that is named already has what is given now. It holds for sessions that begin
    /// from now on.
    pub async fn let_initiator(
        &self,
        name: &str,
        wanted: LetInitiator,
    ) -> Result<InitiatorLetIn, ManageError> {
        let wanted = wanted.checked().map_err(ManageError::Wrong)?;
        self.refresh().await?;
        let (id, volume) = self.volume(name)?;
        let others = volume.initiators.iter().filter(|of| of.name != wanted.name).count();
        if others >= MOST {
            return Err(ManageError::Wrong(format!(
                "volume {name} has {MOST} initiators already, the maximum: 'loadline volume access {name} --remove' ends the access of one"
            )));
        }
        let before = volume.initiators.iter().find(|of| of.name == wanted.name).map(InitiatorView::from);
        let now = InitiatorView::from(&wanted);
        let new = u64::from_ne_bytes(random_bytes());
        self.change_volume(id, move |volume| {
            let initiators = with(volume.initiators.clone(), wanted.clone(), new);
            Volume { initiators, ..volume }
        })
        .await?;
        Ok(InitiatorLetIn { now, before })
    }

    /// Ends the access of an initiator from beyond the nodes' machines, and the sessions that it has so.
    pub async fn end_initiator(&self, name: &str, ends: EndInitiator) -> Result<(), ManageError> {
        let initiator = checked_name(&ends.name).map_err(ManageError::Wrong)?;
        self.refresh().await?;
        let (id, volume) = self.volume(name)?;
        if !volume.initiators.iter().any(|of| of.name == initiator) {
            let are: Vec<&str> = volume.initiators.iter().map(|of| of.name.as_str()).collect();
            return Err(ManageError::Wrong(format!(
                "volume {name} does not name initiator {initiator}; it names {}",
                if are.is_empty() { "none".into() } else { are.join(", ") }
            )));
        }
        self.change_volume(id, move |volume| {
            let mut initiators = volume.initiators.clone();
            initiators.retain(|of| of.name != initiator);
            Volume { initiators, ..volume }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(user: &str, secret: &str) -> Option<ChapSecret> {
        Some(ChapSecret { user: user.into(), secret: secret.into() })
    }

    fn wanted(name: &str, chap: Option<ChapSecret>, mutual: Option<ChapSecret>) -> LetInitiator {
        LetInitiator { name: name.into(), chap, mutual }
    }

    #[test]
    fn an_initiator_is_named_as_the_standard_says_and_secrets_differ() {
        let plain = wanted(" IQN.1991-05.com.Microsoft:PC-1 ", None, None).checked().unwrap();
        assert_eq!(plain.name, "iqn.1991-05.com.microsoft:pc-1");
        let both =
            wanted("iqn.2003-01.org.example:a", secret("a", "twelve bytes"), secret("b", "other twelve"));
        assert!(!format!("{both:?}").contains("twelve"), "{both:?}");
        assert!(both.checked().is_ok());
        let wrong = [
            (wanted("server-1", None, None), "no name of an initiator"),
            (wanted("iqn.2003-01.org.example:a b", None, None), "no name of an initiator"),
            (wanted("iqn.x", secret("a", "short"), None), "has 5 bytes"),
            (wanted("iqn.x", secret("", "twelve bytes"), None), "the user of CHAP"),
            (wanted("iqn.x", None, secret("b", "twelve bytes")), "give --chap"),
            (wanted("iqn.x", secret("a", "twelve bytes"), secret("b", "twelve bytes")), "the same secret"),
        ];
        for (wanted, words) in wrong {
            let why = wanted.checked().expect_err(words);
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn an_initiator_that_has_another_secret_is_the_same_and_one_that_was_removed_and_named_again_is_another()
    {
        let plain = || wanted("iqn.x", None, None).checked().unwrap();
        let namings = |of: &[Initiator]| of.iter().map(|of| of.naming).collect::<Vec<_>>();
        let first =
            with(vec![Initiator { naming: 7, ..wanted("iqn.y", None, None).checked().unwrap() }], plain(), 1);
        assert_eq!(namings(&first), [7, 1]);
        let proves = wanted("iqn.x", secret("a", "twelve bytes"), None).checked().unwrap();
        let second = with(first, proves.clone(), 2);
        assert_eq!(namings(&second), [7, 1], "its sessions go on");
        assert_eq!(second[1].chap, proves.chap);
        assert_eq!(namings(&with(second[..1].to_vec(), plain(), 3)), [7, 3]);
    }
}
