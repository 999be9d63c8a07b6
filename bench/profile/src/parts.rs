//! What a profile is made of: pattern, extents, hot spots, offered rate, data.

use std::fmt;
use std::str::FromStr;

use loadline_base::units::{ByteSize, Rate};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ProfileError;

/// Where on the disk one I/O goes after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Each I/O goes to an offset drawn at random, a multiple of the alignment.
    Random,
    /// Each thread walks through the working set by itself, and all of them start at its beginning; at the end
    /// it starts over.
    Sequential,
    /// The threads of one disk share one offset: together they walk through the working set once.
    SequentialInterleaved,
    /// Each thread walks, and jumps to a random offset before some of its I/Os.
    Mixed {
        /// The chance, 1 to 99 percent, that an I/O goes to a random offset rather than after the last one.
        random_percent: u8,
    },
}

/// A share of the disk or of the working set, written `10%`, or a size, written `4GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("examples" = ["10%", "4GiB"]))]
pub enum Extent {
    /// A percentage, above 0 and at most 100.
    Percent(f64),
    /// A number of bytes.
    Bytes(ByteSize),
}

/// How much of the disk is used, from the base offset on.
pub type WorkingSet = Extent;

impl FromStr for Extent {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, ProfileError> {
        let problem = || {
            ProfileError::syntax(
                "extent",
                format!("\"{}\" is neither a percentage nor a size", text.escape_debug()),
                "write 10% or 4GiB",
            )
        };
        match text.trim().strip_suffix('%') {
            Some(number) => {
                let percent: f64 = number.trim().parse().map_err(|_| problem())?;
                if percent.is_finite() { Ok(Extent::Percent(percent)) } else { Err(problem()) }
            }
            None => text.parse().map(Extent::Bytes).map_err(|_| problem()),
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Extent::Percent(percent) => f.pad(&format!("{percent}%")),
            Extent::Bytes(size) => size.fmt(f),
        }
    }
}

impl TryFrom<String> for Extent {
    type Error = ProfileError;

    fn try_from(text: String) -> Result<Self, ProfileError> {
        text.parse()
    }
}

impl From<Extent> for String {
    fn from(extent: Extent) -> String {
        extent.to_string()
    }
}

/// A part of the working set that receives its own share of the I/O.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HotSpot {
    /// The share of all I/O, in percent (0 to 100), that goes here.
    pub io_percent: u8,
    /// How much of the working set this is, beginning where the hot spot before it ends.
    pub extent: Extent,
}

/// How the moments at which I/Os are due are spread over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Arrival {
    /// Evenly: the same time between any two.
    #[default]
    Uniform,
    /// At random and independently of each other, as from many users who do not know of one another.
    Poisson,
}

/// A load that is offered at a rate, whatever the disk makes of it. Written `2000iops` or `100MB/s poisson`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("examples" = ["2000iops", "100MB/s poisson"]))]
pub struct OfferedRate {
    /// The total over all threads and disks of one worker, or of one `loadline bench` command.
    pub rate: Rate,
    /// How the I/Os are spread over each second.
    pub arrival: Arrival,
}

impl FromStr for OfferedRate {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, ProfileError> {
        let text = text.trim();
        let (rate, arrival) = if let Some(rate) = text.strip_suffix(" poisson") {
            (rate, Arrival::Poisson)
        } else {
            (text.strip_suffix(" uniform").unwrap_or(text), Arrival::Uniform)
        };
        let rate = rate.parse().map_err(|_| {
            ProfileError::syntax(
                "rate",
                format!("\"{}\" is not an offered rate", text.escape_debug()),
                "write 2000iops, 100MB/s or 64MiB/s, and \" poisson\" after it for random arrivals",
            )
        })?;
        Ok(OfferedRate { rate, arrival })
    }
}

impl fmt::Display for OfferedRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.arrival {
            Arrival::Uniform => self.rate.fmt(f),
            Arrival::Poisson => write!(f, "{} poisson", self.rate),
        }
    }
}

impl TryFrom<String> for OfferedRate {
    type Error = ProfileError;

    fn try_from(text: String) -> Result<Self, ProfileError> {
        text.parse()
    }
}

impl From<OfferedRate> for String {
    fn from(rate: OfferedRate) -> String {
        rate.to_string()
    }
}

/// The content of written blocks. It matters to storage that compresses, deduplicates or finds zeros.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Data {
    /// Random bytes, different in every block, which neither compress nor deduplicate.
    #[default]
    Random,
    /// Random bytes and runs of zeros in a proportion that compresses to the ratio.
    Compressible {
        /// Size before over size after, above 1: 2 means that half is left.
        ratio: f64,
    },
    /// Zeros only.
    Zeros,
    /// The bytes 0, 1, 2 ... 255 over and over: what DISKSPD writes unless told otherwise. Every block is the
    /// same, so it compresses and deduplicates to almost nothing.
    CountingBytes,
}
