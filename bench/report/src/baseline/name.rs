//! What a baseline is called: a folder of this name holds its results in every store.

use std::fmt;
use std::str::FromStr;

/// The longest name.
const LONGEST: usize = 64;

/// A name of letters, digits, hyphens and underscores, at most 64, that does not begin with a hyphen. It has no dots, so
/// that no file of a store has the name of a baseline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaselineName(String);

impl BaselineName {
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for BaselineName {
    type Err = String;

    fn from_str(text: &str) -> Result<BaselineName, String> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if text.is_empty() || text.len() > LONGEST || text.starts_with('-') || !text.chars().all(fits) {
            return Err(format!(
                "a baseline has a name of 1 to {LONGEST} letters, digits, hyphens and underscores, and no hyphen \
                 first. A folder is given by --baselines"
            ));
        }
        Ok(BaselineName(text.to_string()))
    }
}

impl fmt::Display for BaselineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_path_and_no_option() {
        for good in ["mirror", "nvme_4k-main", "7", &"x".repeat(64)] {
            assert_eq!(good.parse::<BaselineName>().map(|name| name.to_string()).as_deref(), Ok(good));
        }
        for bad in ["", ".", "..", "a.b", "a/b", "/a", "-x", "a b", "ä", "a\n", &"x".repeat(65)] {
            assert!(bad.parse::<BaselineName>().is_err(), "{bad}");
        }
    }
}
