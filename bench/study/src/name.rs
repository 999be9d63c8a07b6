//! Names that are safe as a part of a path and as a word of a table.

use std::fmt;
use std::str::FromStr;

use loadline_profile::Profile;
use loadline_profile::known::is_known;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

const LONGEST: usize = 64;

/// A name of letters, digits, dots, hyphens and underscores, at most 64, that does not begin with a dot or hyphen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("pattern" = "^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$"))]
pub struct Name(String);

/// Text that is not a name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("\"{0}\" is not a name: use up to 64 letters, digits, dots, hyphens and underscores, a letter first")]
pub struct NameError(String);

impl Name {
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Name, NameError> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if text.is_empty() || text.len() > LONGEST || text.starts_with(['.', '-']) || !text.chars().all(fits)
        {
            return Err(NameError(text.chars().take(LONGEST).collect()));
        }
        Ok(Name(text.to_string()))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Name, NameError> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

/// A load by its name, such as `B4-T2-O32-W0-PR` or `oltp`. Checked where it is read, so that an error has its line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("examples" = ["B4-T2-O32-W0-PR", "B64-T1-O8-W30-PS", "oltp", "8k-70-30"]))]
pub struct ProfileName {
    text: String,
    profile: Profile,
}

impl ProfileName {
    /// The load that it names.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The name, in lower case, if it is a known one (`loadline profile list`); `None` if it spells the load out in
    /// letters.
    pub(crate) fn known(&self) -> Option<Name> {
        let text = self.text.trim();
        is_known(text).then(|| text.to_ascii_lowercase().parse().ok()).flatten()
    }
}

impl TryFrom<String> for ProfileName {
    type Error = loadline_profile::ProfileError;

    fn try_from(text: String) -> Result<ProfileName, loadline_profile::ProfileError> {
        Ok(ProfileName { profile: text.parse()?, text })
    }
}

impl From<ProfileName> for String {
    fn from(name: ProfileName) -> String {
        name.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_lead_out_of_its_folder() {
        for good in ["files", "B4-T1-O8-W0-PR", "a_b.c", "7"] {
            assert!(good.parse::<Name>().is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "-x", "a b", "ä", &"x".repeat(65)] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
    }
}
