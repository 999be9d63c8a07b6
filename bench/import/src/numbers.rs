//! Figures from foreign files, kept in bounds: finite, not negative, and no larger than can be calculated with.

use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::point::Stated;

use crate::text::counted;

/// The largest figure that is kept, in whatever unit: no storage reaches it, and products of it stay finite.
const LARGEST: f64 = 1e18;
/// A percentile is kept if at least so many samples lie beyond it; with fewer it is a matter of chance.
pub(crate) const BEYOND: f64 = 100.0;

/// Whether a figure may be kept.
pub(crate) fn is_figure(value: f64) -> bool {
    (0.0..=LARGEST).contains(&value)
}

/// A figure in another unit, if it can be kept.
pub(crate) fn scaled(stated: Stated, factor: f64) -> Option<Stated> {
    let scaled = stated.scaled(factor);
    (is_figure(scaled.value) && is_figure(scaled.half_digit)).then_some(scaled)
}

/// Decimal text in another unit, if it can be kept.
pub(crate) fn parse(text: &str, factor: f64) -> Option<Stated> {
    scaled(Stated::parse(text.trim())?, factor)
}

/// Decimal text as a plain number.
pub(crate) fn number(text: &str) -> Option<f64> {
    parse(text, 1.0).map(|stated| stated.value)
}

/// Digits as a whole number; no sign, no point.
pub(crate) fn whole<T: std::str::FromStr>(text: &str) -> Option<T> {
    let text = text.trim();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// Whether enough samples lie beyond a percentile.
pub(crate) fn deep_enough(samples: u64, percent: f64) -> bool {
    // A hair less, since 100 − 99.9 is not exactly 0.1.
    samples as f64 * (100.0 - percent) / 100.0 >= BEYOND * (1.0 - 1e-9)
}

/// Bytes of a size as benchmarks write it: `4k`, `1m`, `512`, `64KiB`, `8kb`; units are binary, as in fio and vdbench.
pub(crate) fn size(text: &str) -> Option<f64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let scale = match unit {
        "" | "b" => 1.0,
        "k" | "kb" | "kib" => 1024.0,
        "m" | "mb" | "mib" => 1024.0 * 1024.0,
        "g" | "gb" | "gib" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    Some(whole::<u32>(number)?).map(|number| f64::from(number) * scale).filter(|size| *size > 0.0)
}

/// The note on percentiles that were left out for want of samples.
pub(crate) fn shallow(dropped: usize) -> Option<Finding> {
    (dropped > 0).then(|| {
        Finding::note(
            FindingKind::Adjusted,
            format!("at least {BEYOND} samples beyond each percentile"),
            format!("{} with fewer, left out", counted(dropped, "percentile", "percentiles")),
            "They would rest on a handful of I/Os. Measure longer to have them.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_out_of_bounds_are_not_kept() {
        assert!(!is_figure(f64::NAN) && !is_figure(f64::INFINITY) && !is_figure(-1.0));
        assert_eq!(parse("1e17", 1e9), None);
        assert_eq!(parse("0e300", 1.0), None, "what its last digit counts is out of bounds");
        assert_eq!(parse("1.5", 1000.0).unwrap().value, 1500.0);
        assert_eq!(whole::<u32>("4294967296"), None);
        assert_eq!(whole::<u32>("+4"), None);
    }

    #[test]
    fn a_percentile_needs_a_hundred_samples_beyond_it() {
        assert!(deep_enough(100_000, 99.9));
        assert!(!deep_enough(99_999, 99.9));
        assert!(deep_enough(200, 50.0));
        assert!(!deep_enough(0, 50.0));
    }

    #[test]
    fn sizes_are_binary() {
        assert_eq!(size("4k"), Some(4096.0));
        assert_eq!(size("1M"), Some(1048576.0));
        assert_eq!(size("512"), Some(512.0));
        for text in ["", "k", "4x", "-4k", "4.5k", "0k", "99999999999g"] {
            assert_eq!(size(text), None, "{text}");
        }
    }
}
