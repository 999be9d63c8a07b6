//! The limit of a volume: how much its clients may do a second.

use std::fmt;

use loadline_base::figures::counted;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ManageError;
use crate::config::catalog::{Limit, Volume};
use crate::node::Node;

/// The longest burst, milliseconds.
const LONGEST_BURST_MS: u64 = 60_000;

/// How much the clients of a volume may do a second, all together. Without figures there is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitVolume {
    /// Requests a second.
    #[serde(default)]
    pub iops: Option<u64>,
    /// Bytes a second of reads and writes.
    #[serde(default)]
    pub bytes_per_s: Option<u64>,
    /// How much of the time before they may catch up, milliseconds; 100 if nothing is given.
    #[serde(default)]
    pub burst_ms: Option<u64>,
}

impl fmt::Display for LimitVolume {
    /// `5000 requests a second and 200 MB/s, with bursts of 100 ms`; `no limit`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let iops = self.iops.map(|iops| format!("{} a second", counted(iops, "request")));
        let bytes = self.bytes_per_s.map(|bytes| format!("{} MB/s", bytes as f64 / 1e6));
        let burst = self.burst_ms.map_or(String::new(), |ms| format!(", with bursts of {ms} ms"));
        match (iops, bytes) {
            (None, None) => f.write_str("no limit"),
            (Some(one), None) | (None, Some(one)) => write!(f, "{one}{burst}"),
            (Some(iops), Some(bytes)) => write!(f, "{iops} and {bytes}{burst}"),
        }
    }
}

/// How long a burst is if nothing is given, milliseconds.
const BURST_MS: u64 = 100;

impl LimitVolume {
    /// The limit. The error says what is wrong with it.
    fn checked(self) -> Result<Option<Limit>, String> {
        let LimitVolume { iops, bytes_per_s, burst_ms } = self;
        if iops == Some(0) || bytes_per_s == Some(0) {
            return Err("a limit of 0 would stop the volume's clients for good: give at least 1, or remove the limit ('loadline volume \
                        limit NAME --none')"
                .into());
        }
        if iops.is_none() && bytes_per_s.is_none() {
            return match burst_ms {
                Some(_) => Err("a burst alone is no limit: give requests or bytes a second too".into()),
                None => Ok(None),
            };
        }
        let burst_ms = burst_ms.unwrap_or(BURST_MS);
        if burst_ms > LONGEST_BURST_MS {
            return Err(format!("a burst of {burst_ms} ms is too long: at most 1 minute is possible"));
        }
        Ok(Some(Limit { iops, bytes_per_s, burst_ms }))
    }
}

impl LimitVolume {
    /// Why this is no limit of a volume, if it is none. The reason is for people.
    pub fn why_not(self) -> Option<String> {
        self.checked().err()
    }
}

impl Node {
    /// Limits what the clients of a volume do from now on, wherever it is owned.
    pub async fn limit_volume(&self, name: &str, limit: LimitVolume) -> Result<(), ManageError> {
        let limit = limit.checked().map_err(ManageError::Wrong)?;
        self.refresh().await?;
        let (id, _) = self.volume(name)?;
        self.change_volume(id, move |volume| Volume { limit, ..volume }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_words_for_people() {
        let words = |iops, bytes_per_s, burst_ms| LimitVolume { iops, bytes_per_s, burst_ms }.to_string();
        assert_eq!(
            words(Some(5), Some(2_500_000), Some(100)),
            "5 requests a second and 2.5 MB/s, with bursts of 100 ms"
        );
        assert_eq!(words(Some(1), None, None), "1 request a second");
        assert_eq!(words(None, Some(1_000_000), None), "1 MB/s");
        assert_eq!(words(None, None, None), "no limit");
    }

    #[test]
    fn what_is_no_limit_is_refused() {
        let limit = |iops, bytes_per_s, burst_ms| LimitVolume { iops, bytes_per_s, burst_ms }.checked();
        assert_eq!(limit(None, None, None), Ok(None));
        let all = Limit { iops: Some(5), bytes_per_s: Some(6), burst_ms: 100 };
        assert_eq!(limit(Some(5), Some(6), None), Ok(Some(all)));
        assert!(limit(Some(0), None, None).unwrap_err().contains("--none"));
        assert!(limit(None, Some(0), None).unwrap_err().contains("--none"));
        assert!(limit(None, None, Some(5)).unwrap_err().contains("a burst alone"));
        assert!(limit(Some(1), None, Some(60_001)).unwrap_err().contains("at most 1 minute"));
    }
}
