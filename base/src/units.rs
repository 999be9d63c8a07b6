//! Quantities as people write them: `4KiB`, `1.5s`, `2000iops`, `100MB/s`.
//!
//! Binary and decimal prefixes follow what storage people type: a bare letter is binary (`4K`, `10G`, as in
//! every block-storage tool), `KiB` is binary, `KB` is decimal (as on a drive's label and in network figures).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// Text that is not the quantity it should be. The message says what was read and what is understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("\"{text}\" is not {expected}")]
pub struct UnitError {
    /// What was read.
    pub text: String,
    /// What would have been understood, with examples.
    pub expected: &'static str,
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// 1024 bytes.
    pub const KIB: ByteSize = ByteSize(1 << 10);
    /// 1024 KiB.
    pub const MIB: ByteSize = ByteSize(1 << 20);
    /// 1024 MiB.
    pub const GIB: ByteSize = ByteSize(1 << 30);

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// `n` KiB. Panics on overflow.
    pub const fn kib(n: u64) -> ByteSize {
        ByteSize(n * 1024)
    }
}

const BYTE_SIZE: &str = "a size: write 512, 4K, 4KiB, 64M, 10GiB (binary) or 10GB (decimal)";

impl ByteSize {
    /// The size for people, in the largest unit that it fills, with three digits: `136MiB`, `1.14TiB`, `512`. It is not exact.
    pub fn rounded(self) -> String {
        let units = [(50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let Some((shift, unit)) = units.into_iter().find(|(shift, _)| self.0 >> shift != 0) else {
            return self.0.to_string();
        };
        let value = self.0 as f64 / (1u64 << shift) as f64;
        let digits = if value < 9.995 {
            2
        } else if value < 99.95 {
            1
        } else {
            0
        };
        let text = format!("{value:.digits$}");
        let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        format!("{text}{unit}")
    }
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let error = || UnitError { text: text.to_string(), expected: BYTE_SIZE };
        let (number, unit) = split_number(text).ok_or_else(error)?;
        let scale: u64 = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "p" | "pib" => 1 << 50,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            "pb" => 1_000_000_000_000_000,
            _ => return Err(error()),
        };
        scaled(number, scale).map(ByteSize).ok_or_else(error)
    }
}

impl fmt::Display for ByteSize {
    /// The shortest exact binary form: `4KiB`, `1536KiB`, `512`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return f.pad(&format!("{}{unit}", self.0 >> shift));
            }
        }
        f.pad(&format!("{}", self.0))
    }
}

/// A span of time, to the nanosecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TimeSpan(pub Duration);

impl TimeSpan {
    /// No time at all.
    pub const ZERO: TimeSpan = TimeSpan(Duration::ZERO);

    /// `n` seconds.
    pub const fn seconds(n: u64) -> TimeSpan {
        TimeSpan(Duration::from_secs(n))
    }

    /// The span as the standard library's type.
    pub const fn duration(self) -> Duration {
        self.0
    }
}

const TIME_SPAN: &str = "a span of time: write 500us, 20ms, 5s, 10m, 2h or 1m30s";

impl FromStr for TimeSpan {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let error = || UnitError { text: text.to_string(), expected: TIME_SPAN };
        let mut rest = text.trim();
        let mut total: u64 = 0;
        if rest == "0" {
            return Ok(TimeSpan::default());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(error)?;
            let after = &rest[digits..];
            let unit_len = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
            let scale: u64 = match &after[..unit_len] {
                "ns" => 1,
                "us" => 1_000,
                "ms" => 1_000_000,
                "s" | "sec" => 1_000_000_000,
                "m" | "min" => 60_000_000_000,
                "h" => 3_600_000_000_000,
                "d" => 86_400_000_000_000,
                _ => return Err(error()),
            };
            let part = scaled(&rest[..digits], scale).ok_or_else(error)?;
            total = total.checked_add(part).ok_or_else(error)?;
            rest = after[unit_len..].trim_start();
        }
        if text.trim().is_empty() { Err(error()) } else { Ok(TimeSpan(Duration::from_nanos(total))) }
    }
}

impl fmt::Display for TimeSpan {
    /// `90d`, `1h30m`, `5s`, `1.5s`, `20ms`: exact, and parsed back to the same value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let (secs, sub) = (self.0.as_secs(), self.0.subsec_nanos());
        let text = if nanos == 0 {
            "0s".to_string()
        } else if secs == 0 {
            match sub {
                n if n % 1_000_000 == 0 => format!("{}ms", n / 1_000_000),
                n if n % 1_000 == 0 => format!("{}us", n / 1_000),
                n => format!("{n}ns"),
            }
        } else if sub != 0 {
            let decimals = format!("{sub:09}");
            format!("{secs}.{}s", decimals.trim_end_matches('0'))
        } else {
            let parts =
                [(secs / 86400, "d"), (secs / 3600 % 24, "h"), (secs / 60 % 60, "m"), (secs % 60, "s")];
            parts.iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n}{unit}")).collect()
        };
        f.pad(&text)
    }
}

/// An offered load: I/Os or bytes a second. Always above zero and finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// I/Os a second.
    Iops(f64),
    /// Bytes a second.
    BytesPerSecond(f64),
}

impl Rate {
    /// The rate in I/Os a second, for I/Os of `block` bytes.
    pub fn iops(self, block: ByteSize) -> f64 {
        match self {
            Rate::Iops(n) => n,
            Rate::BytesPerSecond(n) => n / block.0 as f64,
        }
    }

    /// The rate in bytes a second, for I/Os of `block` bytes.
    pub fn bytes_per_second(self, block: ByteSize) -> f64 {
        match self {
            Rate::Iops(n) => n * block.0 as f64,
            Rate::BytesPerSecond(n) => n,
        }
    }

    /// The same kind of rate, `factor` times as much.
    pub fn times(self, factor: f64) -> Rate {
        match self {
            Rate::Iops(n) => Rate::Iops(n * factor),
            Rate::BytesPerSecond(n) => Rate::BytesPerSecond(n * factor),
        }
    }
}

const RATE: &str = "a rate above zero: write 2000iops, 0.2iops, 10kiops, 100MB/s or 64MiB/s";

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let error = || UnitError { text: text.to_string(), expected: RATE };
        let (number, unit) = split_number(text).ok_or_else(error)?;
        let number: f64 = number.parse().map_err(|_| error())?;
        let unit = unit.to_ascii_lowercase();
        let rate = if let Some(prefix) = unit.strip_suffix("iops") {
            let scale = match prefix.trim_end() {
                "" => 1.0,
                "k" => 1e3,
                "m" => 1e6,
                _ => return Err(error()),
            };
            Rate::Iops(number * scale)
        } else if let Some(size) = unit.strip_suffix("/s").filter(|s| !s.is_empty()) {
            let one: ByteSize = format!("1{size}").parse().map_err(|_| error())?;
            Rate::BytesPerSecond(number * one.0 as f64)
        } else {
            return Err(error());
        };
        let (Rate::Iops(value) | Rate::BytesPerSecond(value)) = rate;
        if value.is_finite() && value > 0.0 { Ok(rate) } else { Err(error()) }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Rate::Iops(n) => f.pad(&format!("{n}iops")),
            Rate::BytesPerSecond(n) => {
                for (scale, unit) in [
                    (ByteSize::GIB.0 as f64, "GiB"),
                    (ByteSize::MIB.0 as f64, "MiB"),
                    (ByteSize::KIB.0 as f64, "KiB"),
                    (1e9, "GB"),
                    (1e6, "MB"),
                    (1e3, "KB"),
                ] {
                    if n >= scale && (n / scale).fract() == 0.0 {
                        return f.pad(&format!("{}{unit}/s", n / scale));
                    }
                }
                f.pad(&format!("{n}B/s"))
            }
        }
    }
}

/// `"1.5 GiB"` → `("1.5", "GiB")`. `None` without a leading number.
fn split_number(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (end > 0).then(|| (&text[..end], text[end..].trim_start()))
}

/// `number × scale`, exactly; what lies below one unit is cut off. `None` on overflow.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && decimals.is_empty() {
        return None;
    }
    let mut total = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()?.checked_mul(scale)? };
    let mut below: u128 = 0;
    let mut divisor: u128 = 1;
    // Twelve decimals of a tebibyte are a byte; more digits cannot matter, but must be digits.
    for (i, digit) in decimals.chars().enumerate() {
        let digit = u128::from(digit.to_digit(10)?);
        if i < 18 {
            below = below * 10 + digit;
            divisor *= 10;
        }
    }
    let fraction = u128::from(scale).checked_mul(below)? / divisor;
    total = total.checked_add(u64::try_from(fraction).ok()?)?;
    Some(total)
}

/// serde and JSON Schema for a quantity written as text; a bare integer is also read where `$integer` says how.
macro_rules! written_as_text {
    ($type:ty, $name:literal, $expected:expr, $examples:expr, $integer:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl serde::de::Visitor<'_> for Visitor {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<$type, E> {
                        let read: Option<fn(u64) -> $type> = $integer;
                        read.map(|read| read(number)).ok_or_else(|| {
                            E::invalid_type(serde::de::Unexpected::Unsigned(number), &self)
                        })
                    }
                    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<$type, E> {
                        match u64::try_from(number) {
                            Ok(number) => self.visit_u64(number),
                            Err(_) => Err(E::invalid_value(serde::de::Unexpected::Signed(number), &self)),
                        }
                    }
                }
                deserializer.deserialize_any(Visitor)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                let integer: Option<fn(u64) -> $type> = $integer;
                if integer.is_some() {
                    json_schema!({ "type": ["string", "integer"], "description": $expected, "examples": $examples })
                } else {
                    json_schema!({ "type": "string", "description": $expected, "examples": $examples })
                }
            }
        }
    };
}

written_as_text!(ByteSize, "ByteSize", BYTE_SIZE, ["4KiB", "10GiB"], Some(ByteSize));
written_as_text!(TimeSpan, "TimeSpan", TIME_SPAN, ["5s", "20ms", "1m30s"], None);
written_as_text!(Rate, "Rate", RATE, ["2000iops", "100MB/s"], None);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_as_storage_people_write_them() {
        for (text, bytes) in [
            ("512", 512),
            ("4k", 4096),
            ("4K", 4096),
            ("4KiB", 4096),
            ("4KB", 4000),
            ("1.5M", 1_572_864),
            ("10 GiB", 10 << 30),
            ("1TB", 1_000_000_000_000),
        ] {
            assert_eq!(text.parse::<ByteSize>(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "k", "4Q", "-4k", "99999999999T", "4k4k", "1e3"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_for_people_have_three_digits() {
        for (bytes, text) in [
            (0, "0"),
            (512, "512"),
            (4096, "4KiB"),
            (142_082_048, "136MiB"),
            (1536 << 10, "1.5MiB"),
            (138_752 << 10, "136MiB"),
            (1000 << 20, "1000MiB"),
            (1_250_000_000_000, "1.14TiB"),
            ((10 << 30) - 1, "10GiB"),
        ] {
            assert_eq!(ByteSize(bytes).rounded(), text);
        }
    }

    #[test]
    fn spans_of_time_need_a_unit_and_may_be_compound() {
        for (text, millis) in [
            ("20ms", 20),
            ("5s", 5_000),
            ("1m30s", 90_000),
            ("1.5s", 1_500),
            ("2h", 7_200_000),
            ("90d", 7_776_000_000),
        ] {
            assert_eq!(text.parse::<TimeSpan>(), Ok(TimeSpan(Duration::from_millis(millis))), "{text}");
        }
        for text in ["", "5", "s", "5x", "5s6", "-5s", "99999999999h"] {
            assert!(text.parse::<TimeSpan>().is_err(), "{text}");
        }
    }

    #[test]
    fn rates_are_iops_or_bytes_a_second_and_never_zero() {
        assert_eq!("2000iops".parse::<Rate>(), Ok(Rate::Iops(2000.0)));
        assert_eq!("10k IOPS".parse::<Rate>(), Ok(Rate::Iops(10_000.0)));
        assert_eq!("0.2iops".parse::<Rate>(), Ok(Rate::Iops(0.2)));
        assert_eq!("100MB/s".parse::<Rate>(), Ok(Rate::BytesPerSecond(1e8)));
        assert_eq!("100MB/s".parse::<Rate>().unwrap().iops(ByteSize::kib(4)), 1e8 / 4096.0);
        for text in ["0iops", "5", "5MB", "/s", "iops", "inf iops", "1xB/s"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_error_says_what_was_read_and_what_is_understood() {
        let error = "4Q".parse::<ByteSize>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "\"4Q\" is not a size: write 512, 4K, 4KiB, 64M, 10GiB (binary) or 10GB (decimal)"
        );
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(bytes: u64, nanos in 0..u64::MAX, iops in 1u32.., mb in 1u32..) {
            prop_assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
            let span = TimeSpan(Duration::from_nanos(nanos / 1_000_000 * 1_000_000));
            prop_assert_eq!(span.to_string().parse(), Ok(span));
            for rate in [Rate::Iops(iops.into()), Rate::BytesPerSecond(f64::from(mb) * 1e6)] {
                prop_assert_eq!(rate.to_string().parse(), Ok(rate));
            }
        }
    }
}
