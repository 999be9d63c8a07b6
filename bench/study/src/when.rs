//! Wall-clock time as it is written into a run's folder: UTC, RFC 3339.

use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A moment, `2026-11-21T22:00:47.123Z`: what people and other programs correlate with their own logs. Spans are
/// never computed from it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct When(String);

impl When {
    /// The present moment.
    pub fn now() -> When {
        When::at(SystemTime::now())
    }

    /// This moment. Before 1970 is 1970.
    pub fn at(time: SystemTime) -> When {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (seconds, millis) = (since.as_secs(), since.subsec_millis());
        let (year, month, day) = date_of(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        When(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z"))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `20261121-220047`: for names of folders, in the order of time.
    pub fn compact(&self) -> String {
        let digits: String = self.0.chars().filter(char::is_ascii_digit).take(14).collect();
        let (date, time) = digits.split_at(digits.len().min(8));
        format!("{date}-{time}")
    }
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
fn date_of(mut day: u64) -> (u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // Whole 400-year cycles have 146 097 days; the rest is at most 400 steps.
    let mut year = 1970 + day / 146_097 * 400;
    day %= 146_097;
    loop {
        let days = if leap(year) { 366 } else { 365 };
        if day < days {
            break;
        }
        (day, year) = (day - days, year + 1);
    }
    let february = if leap(year) { 29 } else { 28 };
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < days {
            break;
        }
        (day, month) = (day - days, month + 1);
    }
    (year, month, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn moments_are_written_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(When::at(UNIX_EPOCH + Duration::from_secs(seconds)).as_str(), text);
        }
        assert_eq!(When::at(UNIX_EPOCH + Duration::from_secs(951_782_400)).compact(), "20000229-000000");
    }
}
