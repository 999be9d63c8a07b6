//! A profile in a few words, for the row of a table or a chart: `4K random write, 4 outstanding`.

use loadline_base::figures::thousands;
use loadline_base::units::{ByteSize, Rate};

use crate::{Arrival, Data, Extent, Pattern, Profile};

impl Profile {
    /// The profile in a few words: block size, pattern, reads and writes, how much is outstanding or offered, and what differs from
    /// [`Profile::default`] beyond these. Two profiles that differ may have the same words; [`Profile::label`] tells them apart.
    pub fn words(&self) -> String {
        let mut parts = vec![self.family_core(), self.depth_words()];
        parts.extend(self.others());
        parts.join(", ")
    }

    /// What the loads of one sweep have in common, in a few words: the same without what is outstanding or offered.
    pub fn family_words(&self) -> String {
        let mut parts = vec![self.family_core()];
        parts.extend(self.others());
        parts.join(", ")
    }

    /// `8K random 70/30 read/write`.
    fn family_core(&self) -> String {
        let pattern = match self.pattern {
            Pattern::Random => "random".to_string(),
            Pattern::Sequential => "sequential".to_string(),
            Pattern::SequentialInterleaved => "sequential interleaved".to_string(),
            Pattern::Mixed { random_percent } => format!("{random_percent} % random"),
        };
        let mix = match self.write_percent {
            0 => "read".to_string(),
            100 => "write".to_string(),
            writes => format!("{}/{writes} read/write", 100 - writes.min(100)),
        };
        format!("{} {pattern} {mix}", short(self.block_size))
    }

    /// How much is outstanding on each disk, or offered by each worker.
    fn depth_words(&self) -> String {
        match (self.rate, self.threads) {
            (Some(offered), _) => {
                let each = match offered.rate {
                    Rate::Iops(iops) => format!("{} IOPS", thousands(iops)),
                    rate @ Rate::BytesPerSecond(_) => rate.to_string(),
                };
                let arrival = if offered.arrival == Arrival::Poisson { ", Poisson" } else { "" };
                format!("{each} from each worker{arrival}")
            }
            (None, 1) => format!("{} outstanding", self.outstanding),
            (None, threads) => format!("{threads} threads × {} outstanding", self.outstanding),
        }
    }

    fn others(&self) -> Vec<String> {
        let extent = |extent: Extent| match extent {
            Extent::Percent(percent) => format!("{percent} %"),
            Extent::Bytes(size) => size.to_string(),
        };
        let mut parts = Vec::new();
        parts.extend(self.alignment.map(|size| format!("aligned to {}", short(size))));
        parts.extend(self.working_set.map(|set| format!("working set {}", extent(set))));
        if self.base_offset.bytes() > 0 {
            parts.push(format!("from {} on", self.base_offset));
        }
        parts.extend(
            self.hot_spots.iter().map(|spot| format!("{} % to {}", spot.io_percent, extent(spot.extent))),
        );
        match self.data {
            Data::Random => {}
            Data::Compressible { ratio } => parts.push(format!("data compresses {ratio} to 1")),
            Data::Zeros => parts.push("zeros".into()),
            Data::CountingBytes => parts.push("counting bytes".into()),
        }
        if !self.direct {
            parts.push("through the page cache".into());
        }
        if self.write_through {
            parts.push("write-through".into());
        }
        parts.extend(self.flush_every.map(|writes| match writes {
            1 => "flush after each write".to_owned(),
            _ => format!("flush every {writes} writes"),
        }));
        parts
    }
}

/// `4K`, `1M`, `512 B`.
fn short(size: ByteSize) -> String {
    let text = size.to_string();
    match text.strip_suffix("iB") {
        Some(text) => text.to_string(),
        None => format!("{text} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_has_a_name_that_people_use() {
        let words = |name: &str| name.parse::<Profile>().unwrap().words();
        assert_eq!(words("B4-T1-O4-W100-PR"), "4K random write, 4 outstanding");
        assert_eq!(words("B8-T4-O8-W30-PR"), "8K random 70/30 read/write, 4 threads × 8 outstanding");
        assert_eq!(words("B1024-T1-O1-W0-PSI"), "1M sequential interleaved read, 1 outstanding");
        assert_eq!(words("B0.5-T1-O1-W0-PS"), "512 B sequential read, 1 outstanding");
    }

    #[test]
    fn a_rate_stands_in_the_place_of_what_is_outstanding_and_all_else_follows() {
        let profile = Profile {
            rate: Some("2000iops poisson".parse().unwrap()),
            working_set: Some(Extent::Percent(10.0)),
            direct: false,
            flush_every: Some(8),
            ..Profile::default()
        };
        assert_eq!(
            profile.words(),
            "4K random read, 2,000 IOPS from each worker, Poisson, working set 10 %, through the page cache, flush every 8 writes"
        );
        assert_eq!(
            profile.family_words(),
            "4K random read, working set 10 %, through the page cache, flush every 8 writes"
        );
    }
}
