//! The values of fio's options: numbers, sizes, times, switches, zones.

use std::time::Duration;

use loadline_base::units::{ByteSize, TimeSpan};

use super::syntax::{Entry, shortened};
use crate::{Extent, HotSpot, ProfileError};

/// What a `k` stands for (`kb_base`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum KbBase {
    /// `k` is 1024, and `ki` is 1000: fio's default.
    #[default]
    Binary,
    /// `k` is 1000 and `ki` is 1024, as in the standards.
    Decimal,
}

impl Entry {
    pub(super) fn syntax(&self, problem: impl Into<String>, advice: impl Into<String>) -> ProfileError {
        ProfileError::syntax(self.place.clone(), problem, advice)
    }

    pub(super) fn unsupported(&self, problem: impl Into<String>, advice: impl Into<String>) -> ProfileError {
        ProfileError::unsupported(self.place.clone(), problem, advice)
    }

    /// The option as it was written, short enough to quote.
    pub(super) fn shown(&self) -> String {
        match &self.value {
            Some(value) => format!("{}={}", shortened(&self.key), shortened(value)),
            None => shortened(&self.key),
        }
    }

    pub(super) fn text(&self) -> Result<&str, ProfileError> {
        match self.value.as_deref() {
            Some(value) if !value.is_empty() => Ok(value),
            _ => Err(self.syntax(format!("{} has no value", shortened(&self.key)), "write option=value")),
        }
    }

    fn not(&self, what: &str, advice: &str) -> ProfileError {
        self.syntax(format!("{} is not {what}", self.shown()), advice)
    }

    /// A switch that may stand without a value.
    pub(super) fn switch(&self) -> Result<bool, ProfileError> {
        match self.value.as_deref() {
            None | Some("1") => Ok(true),
            Some("0") => Ok(false),
            Some(_) => Err(self.not("a switch", "write 0 or 1")),
        }
    }

    pub(super) fn number(&self) -> Result<u32, ProfileError> {
        let text = self.text()?;
        whole(text)
            .and_then(|number| u32::try_from(number).ok())
            .ok_or_else(|| self.not("a whole number", "write digits only"))
    }

    pub(super) fn seed(&self) -> Result<u64, ProfileError> {
        whole(self.text()?).ok_or_else(|| self.not("a whole number", "write digits only"))
    }

    pub(super) fn percent(&self) -> Result<u8, ProfileError> {
        let text = self.text()?;
        let percent =
            whole(text).filter(|percent| *percent <= 100).and_then(|percent| u8::try_from(percent).ok());
        percent.ok_or_else(|| self.not("a percentage", "write a whole number, 0 to 100"))
    }

    pub(super) fn size(&self, base: KbBase) -> Result<ByteSize, ProfileError> {
        let text = self.text()?;
        size(text, base)
            .map(ByteSize)
            .ok_or_else(|| self.not("a size", "write a whole number and k, m, g or t, such as 64k"))
    }

    pub(super) fn extent(&self, base: KbBase) -> Result<Extent, ProfileError> {
        match self.text()?.strip_suffix('%') {
            None => self.size(base).map(Extent::Bytes),
            Some(percent) => {
                let percent = whole(percent).filter(|percent| (1..=100).contains(percent));
                let percent = percent.and_then(|percent| u8::try_from(percent).ok());
                let percent = percent.ok_or_else(|| self.not("a size", "write a size, or 1% to 100%"))?;
                Ok(Extent::Percent(percent.into()))
            }
        }
    }

    /// Seconds, unless a unit says otherwise.
    pub(super) fn time(&self) -> Result<TimeSpan, ProfileError> {
        let text = self.text()?;
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let micros = match unit.trim().to_ascii_lowercase().as_str() {
            "us" | "usec" => Some(1),
            "ms" | "msec" => Some(1_000),
            "" | "s" => Some(1_000_000),
            "m" => Some(60_000_000),
            "h" => Some(3_600_000_000),
            "d" => Some(86_400_000_000),
            _ => None,
        };
        let span = whole(number).zip(micros).and_then(|(number, micros)| number.checked_mul(micros));
        span.map(|micros| TimeSpan(Duration::from_micros(micros))).ok_or_else(|| {
            self.not("a time", "write a whole number and us, ms, s (or nothing), m, h or d, such as 60s")
        })
    }

    /// One value for each direction: `100` is for both, `70,30` for reads and writes, `,30` for writes only.
    pub(super) fn reads_and_writes(&self, base: KbBase) -> Result<[Option<u64>; 2], ProfileError> {
        let text = self.text()?;
        let one = |text: &str| match text.trim() {
            "" => Ok(None),
            text => size(text, base).map(|value| Some(value).filter(|value| *value > 0)).ok_or(()),
        };
        let mut parts = text.split(',');
        let reads = one(parts.next().unwrap_or_default());
        let writes = parts.next().map_or(reads, one);
        // A third part is for trims, of which there are none.
        match (reads, writes) {
            (Ok(reads), Ok(writes)) => Ok([reads, writes]),
            _ => {
                Err(self
                    .not("a rate", "write a whole number with k, m or g, or two for reads and writes: 70,30"))
            }
        }
    }

    /// `60/10:30/20:10/70`: percent of the I/O / percent of the region, or its size.
    pub(super) fn zones(
        &self,
        zones: &str,
        absolute: bool,
        base: KbBase,
    ) -> Result<Vec<HotSpot>, ProfileError> {
        let advice = "write zoned:60/10:30/20:10/70 (percent of I/O / percent of the region) or zoned_abs:90/1g:10/9g (/ size)";
        if zones.contains(',') {
            return Err(
                self.unsupported("different zones for reads and writes", "give the same zones to both")
            );
        }
        let percent = |text: &str| {
            whole(text).filter(|percent| *percent <= 100).and_then(|percent| u8::try_from(percent).ok())
        };
        // The extent is `None` where no size is said.
        let mut read: Vec<(u8, Option<Extent>)> = Vec::new();
        for zone in zones.split(':') {
            let bad = || self.syntax(format!("the zone \"{}\" cannot be read", shortened(zone)), advice);
            let (io, extent) = match zone.split_once('/') {
                Some((io, extent)) => (io, extent),
                None if absolute => return Err(bad()),
                None => (zone, ""),
            };
            let io_percent = percent(io).filter(|_| !io.is_empty()).ok_or_else(bad)?;
            let extent = if absolute {
                Some(Extent::Bytes(size(extent, base).map(ByteSize).ok_or_else(bad)?))
            } else if extent.is_empty() || extent == "0" {
                None
            } else {
                Some(Extent::Percent(percent(extent).ok_or_else(bad)?.into()))
            };
            read.push((io_percent, extent));
        }
        let spots = self.with_sizes(&read, advice)?;
        let sum: u32 = spots.iter().map(|spot| u32::from(spot.io_percent)).sum();
        if sum != 100 {
            let problem = format!("the zones receive {sum} % of the I/O; fio wants 100");
            return Err(self.syntax(problem, "add a zone for the rest, such as zoned:90/10:10/90"));
        }
        Ok(spots)
    }
}

impl Entry {
    /// Zones whose size is not said share equally, in whole percents, what the others leave: as fio has it.
    fn with_sizes(&self, zones: &[(u8, Option<Extent>)], advice: &str) -> Result<Vec<HotSpot>, ProfileError> {
        let said = zones.iter().filter_map(|(_, extent)| match extent {
            Some(Extent::Percent(percent)) => Some(*percent),
            _ => None,
        });
        let left = 100.0 - said.sum::<f64>();
        let missing = zones.iter().filter(|(_, extent)| extent.is_none()).count();
        let each = (left / missing.max(1) as f64).floor();
        if missing > 0 && (each < 1.0 || zones.len() == 1) {
            let problem = format!("{} leaves nothing for a zone without a size", self.shown());
            return Err(self.syntax(problem, advice));
        }
        let spot = |(io_percent, extent): &(u8, Option<Extent>)| HotSpot {
            io_percent: *io_percent,
            extent: extent.unwrap_or(Extent::Percent(each)),
        };
        Ok(zones.iter().map(spot).collect())
    }
}

fn whole(text: &str) -> Option<u64> {
    text.bytes().all(|c| c.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn size(text: &str, base: KbBase) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let (prefix, has_i) = match unit.strip_suffix('i') {
        Some(prefix) if !prefix.is_empty() => (prefix, true),
        _ => (unit, false),
    };
    let power = match prefix {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return None,
    };
    let thousand: u64 = if (base == KbBase::Binary) != has_i { 1024 } else { 1000 };
    whole(number)?.checked_mul(thousand.pow(power))
}
