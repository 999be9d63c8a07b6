//! The published figures of `known.toml`: drives, clusters, and what one machine of a kind needs or is given.

use std::sync::LazyLock;

use loadline_base::units::ByteSize;
use loadline_profile::{Data, Pattern, Profile};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The file, as it is in the repository.
pub const TEXT: &str = include_str!("known.toml");

/// The least block of a load whose throughput is compared with sequential figures of data sheets, bytes.
const LEAST_SEQUENTIAL: u64 = 64 << 10;
/// Two mixes of reads and writes are alike if their shares of writes differ by no more percentage points.
const LIKE_MIX: u8 = 5;

/// Why a load that has the order of no published figure is not compared.
const NEITHER: &str = "published figures are of evenly random or of sequential loads, and it is neither";

/// Where a figure is published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The title of the document.
    pub title: String,
    /// Where it is: a URL, the publisher's number of the document, or a page of this documentation.
    pub address: String,
}

/// Everything that is known, in the order of the file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// Drives, by their data sheets.
    pub drive: Vec<Drive>,
    /// Clusters, by studies of them.
    pub cluster: Vec<Cluster>,
    /// Kinds of machines.
    pub machine: Vec<Machine>,
}

/// A drive.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drive {
    /// Manufacturer and model.
    pub name: String,
    /// What its data sheet says of the conditions.
    pub conditions: String,
    /// Where the figures are published.
    pub sources: Vec<Source>,
    /// What it states.
    pub load: Vec<Figure>,
}

/// A cluster.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// What the study measured.
    pub name: String,
    /// How many nodes its figures are of, together.
    pub nodes: u32,
    /// What the study says of the conditions.
    pub conditions: String,
    /// Where the figures are published.
    pub sources: Vec<Source>,
    /// What all nodes did together.
    pub load: Vec<Figure>,
}

/// A kind of machine.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// What it is.
    pub name: String,
    /// What its source says of the conditions.
    pub conditions: String,
    /// Where the figures are published.
    pub sources: Vec<Source>,
    /// What one of them needs, as a load; or else `given`.
    pub needs: Option<Figure>,
    /// What the disk of one of them does at the most, whatever the load.
    pub given: Option<Limits>,
}

/// A published figure of one load. Either `iops` or `mb_per_s` is there.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The size of one I/O; `None` of a sequential load whose source does not state it.
    pub block: Option<ByteSize>,
    /// Percent of the I/Os that are writes.
    pub write_percent: u8,
    /// Random or sequential.
    pub pattern: AccessPattern,
    /// I/Os a second.
    pub iops: Option<f64>,
    /// 10^6 bytes a second.
    pub mb_per_s: Option<f64>,
    /// The mean response time at that load, milliseconds, if it is published.
    pub mean_ms: Option<f64>,
    /// The latency within which a machine needs it, milliseconds, if there is such a limit.
    pub within_ms: Option<f64>,
}

/// The limits that a cloud sets to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// I/Os a second.
    pub iops: f64,
    /// 10^6 bytes a second.
    pub mb_per_s: f64,
}

/// The order of the offsets of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessPattern {
    /// Each I/O goes to an offset drawn at random.
    Random,
    /// Each I/O goes to the offset behind the last one.
    Sequential,
}

/// What a load is compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The size of one I/O, bytes.
    pub block: u64,
    /// Percent of the I/Os that are writes.
    pub write_percent: u8,
    /// Random or sequential.
    pub order: AccessPattern,
}

impl Shape {
    /// The shape of a load. The error is why no published figure is of a load like it: it is partly random, has hot spots or another
    /// alignment than its block, or its writes are cheaper or dearer than those of a data sheet.
    pub fn of(profile: &Profile) -> Result<Shape, &'static str> {
        let order = match profile.pattern {
            Pattern::Random => AccessPattern::Random,
            Pattern::Sequential | Pattern::SequentialInterleaved => AccessPattern::Sequential,
            Pattern::Mixed { .. } => return Err(NEITHER),
        };
        if !profile.hot_spots.is_empty() || profile.alignment.is_some_and(|by| by != profile.block_size) {
            return Err(NEITHER);
        }
        if profile.write_percent > 0 {
            match profile.data {
                Data::Random => {}
                Data::Compressible { .. } => {
                    return Err("it writes compressible data; published figures are of random data");
                }
                Data::Zeros => return Err("it writes zeros; published figures are of random data"),
                Data::CountingBytes => {
                    return Err(
                        "it writes the same bytes to every block; published figures are of random data",
                    );
                }
            }
            if profile.write_through || profile.flush_every.is_some() {
                return Err(
                    "each of its writes, or every few of them, is made durable (write_through, flush_every); data sheets count \
                     writes that the cache of the drive acknowledges",
                );
            }
        }
        Ok(Shape { block: profile.block_size.0, write_percent: profile.write_percent, order })
    }

    /// Whether it is compared by throughput, as large sequential I/Os are, and not by IOPS.
    pub fn in_bytes(self) -> bool {
        self.order == AccessPattern::Sequential
    }

    /// Whether a published figure is of a load like this one: random with the same block, or sequential with large blocks; only
    /// reads, only writes, or a mix of about the same share.
    pub fn is_like(self, figure: &Figure) -> bool {
        let mixed = |percent: u8| (1..100).contains(&percent);
        let mix = if mixed(self.write_percent) && mixed(figure.write_percent) {
            self.write_percent.abs_diff(figure.write_percent) <= LIKE_MIX
        } else {
            self.write_percent == figure.write_percent
        };
        let size = match self.order {
            AccessPattern::Random => figure.block.is_some_and(|block| block.0 == self.block),
            AccessPattern::Sequential => self.block >= LEAST_SEQUENTIAL,
        };
        mix && size && self.order == figure.pattern
    }
}

impl Figure {
    /// In the unit by which a load of this order is compared: I/Os a second of a random one, bytes a second of a sequential
    /// one; `None` if it is not published in that unit.
    pub fn value(&self) -> Option<f64> {
        match self.pattern {
            AccessPattern::Random => self.iops,
            AccessPattern::Sequential => self.mb_per_s.map(|mb| mb * 1e6),
        }
    }
}

/// What the file says. It is part of the program, and a test reads it, so that reading it cannot fail.
pub fn known() -> &'static Known {
    static KNOWN: LazyLock<Known> =
        LazyLock::new(|| toml::from_str(TEXT).expect("known.toml is read by a test of this crate"));
    &KNOWN
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn all(known: &Known) -> Vec<(&str, &str, &[Source], Vec<&Figure>)> {
        let drives =
            known.drive.iter().map(|d| (&*d.name, &*d.conditions, &*d.sources, d.load.iter().collect()));
        let clusters =
            known.cluster.iter().map(|c| (&*c.name, &*c.conditions, &*c.sources, c.load.iter().collect()));
        let machines =
            known.machine.iter().map(|m| (&*m.name, &*m.conditions, &*m.sources, m.needs.iter().collect()));
        drives.chain(clusters).chain(machines).collect()
    }

    #[test]
    fn every_entry_has_a_name_of_its_own_and_a_source() {
        let known: Known = toml::from_str(TEXT).unwrap();
        let all = all(&known);
        assert!(known.drive.len() >= 6 && known.cluster.len() >= 4 && known.machine.len() >= 4);
        assert_eq!(all.iter().map(|entry| entry.0).collect::<BTreeSet<_>>().len(), all.len(), "names");
        for (name, conditions, sources, _) in &all {
            assert!(!name.is_empty() && !conditions.is_empty() && !sources.is_empty(), "{name}");
            for source in *sources {
                let kind = ["https://", "docs/", "Dell document "];
                assert!(source.title.len() > 10, "{name}");
                assert!(
                    kind.iter().any(|begin| source.address.starts_with(begin)),
                    "{name}: {}",
                    source.address
                );
                if source.address.starts_with("docs/") {
                    let page = format!("{}/../../{}", env!("CARGO_MANIFEST_DIR"), source.address);
                    assert!(std::path::Path::new(&page).exists(), "{page}");
                }
            }
        }
    }

    #[test]
    fn figures_are_plausible_and_in_one_unit() {
        let known = known();
        for (name, _, _, figures) in all(known) {
            for figure in figures {
                assert!(figure.write_percent <= 100, "{name}");
                assert!(figure.iops.is_some() != figure.mb_per_s.is_some(), "{name}: {figure:?}");
                assert!(figure.value().is_some(), "{name}: random in IOPS, sequential in MB/s: {figure:?}");
                assert!(figure.pattern == AccessPattern::Sequential || figure.block.is_some(), "{name}");
                assert!(figure.iops.is_none_or(|iops| (1.0..1e8).contains(&iops)), "{name}");
                assert!(figure.mb_per_s.is_none_or(|mb| (50.0..1e6).contains(&mb)), "{name}");
                assert!(figure.mean_ms.is_none_or(|ms| (0.01..100.0).contains(&ms)), "{name}");
            }
        }
        for figure in known.drive.iter().flat_map(|drive| &drive.load) {
            assert!(figure.iops.is_none_or(|iops| iops < 4e6), "one drive: {figure:?}");
            assert!(figure.mb_per_s.is_none_or(|mb| mb < 20_000.0), "one drive: {figure:?}");
        }
        for cluster in &known.cluster {
            assert!((2..=64).contains(&cluster.nodes), "{}", cluster.name);
        }
        for machine in &known.machine {
            assert!(machine.needs.is_some() != machine.given.is_some(), "{}", machine.name);
            assert!(machine.given.is_none_or(|given| given.iops >= 100.0 && given.mb_per_s >= 10.0));
        }
    }

    #[test]
    fn only_like_loads_are_alike() {
        let shape = |name: &str| Shape::of(&name.parse().unwrap());
        let figure = |block: Option<u64>, write_percent, pattern| Figure {
            block: block.map(ByteSize::kib),
            write_percent,
            pattern,
            iops: Some(1.0),
            mb_per_s: None,
            mean_ms: None,
            within_ms: None,
        };
        let like = |name: &str, figure: &Figure| shape(name).unwrap().is_like(figure);
        let read = figure(Some(4), 0, AccessPattern::Random);
        assert!(like("B4-T1-O1-W0-PR", &read));
        for other in ["B8-T1-O1-W0-PR", "B4-T1-O1-W1-PR", "B4-T1-O1-W100-PR", "B4-T1-O1-W0-PS"] {
            assert!(!like(other, &read), "{other}");
        }
        let mixed = figure(Some(4), 30, AccessPattern::Random);
        assert!(like("B4-T1-O1-W30-PR", &mixed) && like("B4-T1-O1-W33-PR", &mixed));
        for other in ["B4-T1-O1-W0-PR", "B4-T1-O1-W50-PR", "B4-T1-O1-W100-PR"] {
            assert!(!like(other, &mixed), "{other}");
        }
        let streamed = figure(None, 100, AccessPattern::Sequential);
        assert!(like("B512-T1-O1-W100-PS", &streamed) && like("B64-T1-O1-W100-PSI", &streamed));
        for other in ["B4-T1-O1-W100-PS", "B512-T1-O1-W0-PS", "B512-T1-O1-W100-PR"] {
            assert!(!like(other, &streamed), "{other}");
        }
        let partly = Profile { pattern: Pattern::Mixed { random_percent: 90 }, ..Profile::default() };
        assert_eq!(Shape::of(&partly), Err(NEITHER));
    }

    #[test]
    fn writes_that_cost_less_or_more_than_those_of_a_data_sheet_have_no_shape() {
        let of = |profile: &Profile| Shape::of(profile).err().unwrap_or("compared");
        let plain = Profile::default();
        let changed = [
            (Profile { data: Data::Zeros, ..plain.clone() }, "it writes zeros"),
            (Profile { data: Data::CountingBytes, ..plain.clone() }, "the same bytes"),
            (Profile { data: Data::Compressible { ratio: 2.0 }, ..plain.clone() }, "compressible"),
            (Profile { write_through: true, ..plain.clone() }, "made durable"),
            (Profile { flush_every: Some(1), ..plain.clone() }, "made durable"),
        ];
        for (profile, why) in changed {
            for write_percent in [30, 100] {
                assert!(of(&Profile { write_percent, ..profile.clone() }).contains(why), "{why}");
            }
            assert_eq!(of(&profile), "compared", "without writes it makes no difference: {why}");
        }
        assert_eq!(of(&Profile { write_percent: 100, ..plain }), "compared");
    }
}
