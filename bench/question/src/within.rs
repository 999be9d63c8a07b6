//! The latency limit: a percentile and a time.

use loadline_base::units::TimeSpan;
use loadline_study::goals::Percentile;

/// The longest limit: a run waits this long for I/Os that do not complete.
const LONGEST: u64 = 30;
/// The percentile of a limit that names none. Published studies of acceptance take it; a window of quick studies has I/Os enough for it.
const USUAL: f64 = 95.0;

/// So much of all I/Os completes within a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Within {
    /// The percentile.
    pub(crate) percentile: Percentile,
    /// The time.
    pub(crate) limit: TimeSpan,
}

impl Within {
    /// Reads `10ms` or `p99 <= 10ms`. The error says how a limit is written.
    pub(crate) fn of(text: &str) -> Result<Within, String> {
        let (percent, span) = match text.split_once("<=") {
            None => (USUAL, text),
            Some((name, span)) => {
                let percent = name.trim().strip_prefix('p').and_then(|digits| digits.parse().ok());
                let wrong = || format!("\"{}\" is not a percentile: write p99 <= 10ms", name.trim());
                (percent.ok_or_else(wrong)?, span)
            }
        };
        let percentile = Percentile::try_from(percent).map_err(|why| why.to_string())?;
        let limit: TimeSpan = span.trim().parse().map_err(|why| format!("{why}"))?;
        if limit.0.is_zero() {
            return Err("no I/O completes within a limit of 0: give a longer one, such as 10ms".into());
        }
        if limit.0.as_secs() >= LONGEST {
            return Err(format!("a limit of {limit} is too long: give less than {LONGEST}s, such as 10ms"));
        }
        Ok(Within { percentile, limit })
    }

    /// `95 % of the I/Os complete within 10ms`.
    pub(crate) fn sentence(self) -> String {
        format!("{} % of the I/Os complete within {}", f64::from(self.percentile), self.limit)
    }

    /// `95 % of the I/Os within 10ms`.
    pub(crate) fn words(self) -> String {
        format!("{} % of the I/Os within {}", f64::from(self.percentile), self.limit)
    }

    /// The goal as an inline table of TOML.
    pub(crate) fn goal(self) -> String {
        format!("{{ percentile = {}, limit = \"{}\" }}", f64::from(self.percentile), self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_time_or_a_percentile_and_a_time() {
        assert_eq!(Within::of("10ms").unwrap().goal(), "{ percentile = 95, limit = \"10ms\" }");
        assert_eq!(Within::of(" p99.9 <= 3ms ").unwrap().goal(), "{ percentile = 99.9, limit = \"3ms\" }");
    }

    #[test]
    fn a_limit_that_nothing_or_everything_meets_is_refused() {
        for (text, part) in [
            ("0", "limit of 0"),
            ("0ms", "limit of 0"),
            ("1h", "too long"),
            ("10", "span of time"),
            ("p98 <= 1ms", "98"),
            ("mean <= 1ms", "mean"),
        ] {
            let why = Within::of(text).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }
}
