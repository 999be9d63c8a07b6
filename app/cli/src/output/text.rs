//! Numbers as people read them, and paths as a shell does.

pub(crate) use loadline_base::figures::{are, counted};
pub(crate) use loadline_study::resume::quoted;

/// `1234567` → `1,234,567`; small ones keep a decimal.
pub(crate) fn count(value: f64) -> String {
    if value < 100.0 && value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Microseconds in the unit that suits: `85.2 us`, `1.25 ms`, `2.1 s`; `-` where there is no figure.
pub(crate) fn latency(micros: Option<f64>) -> String {
    match micros {
        None => "-".into(),
        Some(us) if us < 1_000.0 => format!("{us:.1} us"),
        Some(us) if us < 1_000_000.0 => format!("{:.2} ms", us / 1e3),
        Some(us) => format!("{:.2} s", us / 1e6),
    }
}

/// Bytes a second in decimal megabytes, as drives and networks are rated.
pub(crate) fn megabytes(bytes_per_s: f64) -> String {
    format!("{} MB/s", count(bytes_per_s / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(count(1_234_567.4), "1,234,567");
        assert_eq!((count(999.0), count(0.2), count(0.0)), ("999".into(), "0.2".into(), "0".into()));
        assert_eq!(latency(Some(1_250.0)), "1.25 ms");
        assert_eq!((latency(Some(2_100_000.0)), latency(None)), ("2.10 s".into(), "-".into()));
        assert_eq!(megabytes(1.5e9), "1,500 MB/s");
    }
}
