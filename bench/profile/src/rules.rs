//! What makes a profile sound. Every bound that a reader, the generator and its buffers rely on is named here.

use loadline_base::units::{ByteSize, Rate};

use crate::{Data, Extent, Pattern, Profile, ProfileError};

/// The unit of every size and offset: a sector of the smallest kind in use. `O_DIRECT` takes no less.
const SECTOR: ByteSize = ByteSize(512);
const LARGEST_BLOCK: ByteSize = ByteSize(64 << 20);
const LARGEST_ALIGNMENT: ByteSize = ByteSize(1 << 40);
const MOST_THREADS: u32 = 1024;
const MOST_OUTSTANDING: u32 = 65_536;
/// Each outstanding I/O has a buffer of its own; more than this for one disk would only exhaust memory.
const MOST_BUFFERS: ByteSize = ByteSize(64 << 30);
/// As many zones as fio takes.
const MOST_HOT_SPOTS: usize = 256;
/// Beyond this hardly a byte of a block would be left to write.
const LARGEST_RATIO: f64 = 100.0;
/// A thousand times what any storage does, and small enough that no product of rates overflows.
const LARGEST_RATE: f64 = 1e18;

impl Profile {
    /// Checks every value and how the values fit together. The first fault is returned.
    pub fn validate(&self) -> Result<(), ProfileError> {
        self.sizes()?;
        self.counts()?;
        self.hot_spots()?;
        if let Some(offered) = self.rate {
            let (Rate::Iops(value) | Rate::BytesPerSecond(value)) = offered.rate;
            // Written so that a value that is not a number fails too.
            if !(value > 0.0 && value <= LARGEST_RATE) {
                return rule(
                    "rate",
                    format!("{value} is not a rate"),
                    "give one above zero, such as 2000iops",
                );
            }
        }
        match self.data {
            Data::Compressible { ratio } if !(ratio > 1.0 && ratio <= LARGEST_RATIO) => rule(
                "data",
                format!("a compression ratio of {ratio}"),
                format!("give one above 1, up to {LARGEST_RATIO}; 2 means that half is left"),
            ),
            _ => Ok(()),
        }
    }

    fn sizes(&self) -> Result<(), ProfileError> {
        let block = self.block_size;
        if block < SECTOR || block > LARGEST_BLOCK || !in_sectors(block) {
            return rule(
                "block_size",
                format!("{block} is not a block size"),
                "give a multiple of 512 bytes, from 512 to 64MiB",
            );
        }
        if let Some(alignment) = self.alignment
            && (alignment < SECTOR || alignment > LARGEST_ALIGNMENT || !in_sectors(alignment))
        {
            return rule(
                "alignment",
                format!("{alignment} is not an alignment"),
                "give a multiple of 512 bytes, from 512 to 1TiB",
            );
        }
        if !in_sectors(self.base_offset) {
            return rule(
                "base_offset",
                format!("{} does not begin at a sector", self.base_offset),
                "give a multiple of 512 bytes",
            );
        }
        match self.working_set {
            Some(Extent::Percent(percent)) if !(percent > 0.0 && percent <= 100.0) => rule(
                "working_set",
                format!("{percent} % of the disk"),
                "give a percentage above 0 and at most 100",
            ),
            Some(Extent::Bytes(size)) if size < block => rule(
                "working_set",
                format!("{size} holds not one block of {block}"),
                "make it larger, or the blocks smaller",
            ),
            Some(Extent::Bytes(size)) if self.base_offset.bytes().checked_add(size.bytes()).is_none() => {
                rule(
                    "working_set",
                    format!("{size} from {} on ends beyond any disk", self.base_offset),
                    "make it smaller",
                )
            }
            _ => Ok(()),
        }
    }

    fn counts(&self) -> Result<(), ProfileError> {
        if !(1..=MOST_THREADS).contains(&self.threads) {
            return rule(
                "threads",
                format!("{} threads on a disk", self.threads),
                format!("give 1 to {MOST_THREADS}"),
            );
        }
        if !(1..=MOST_OUTSTANDING).contains(&self.outstanding) {
            return rule(
                "outstanding",
                format!("{} I/Os outstanding in a thread", self.outstanding),
                format!("give 1 to {MOST_OUTSTANDING}"),
            );
        }
        // At most 2^26 * 2^10 * 2^16: no overflow.
        let buffers = self.block_size.bytes() * u64::from(self.threads) * u64::from(self.outstanding);
        if buffers > MOST_BUFFERS.bytes() {
            return rule(
                "outstanding",
                format!(
                    "{} threads × {} × {} would need more than {MOST_BUFFERS} of buffers for each disk",
                    self.threads, self.outstanding, self.block_size
                ),
                "give fewer threads, fewer outstanding or smaller blocks",
            );
        }
        if self.write_percent > 100 {
            return rule("write_percent", format!("{} % writes", self.write_percent), "give 0 to 100");
        }
        match self.pattern {
            Pattern::Mixed { random_percent } if !(1..=99).contains(&random_percent) => rule(
                "pattern",
                format!("a mix with {random_percent} % random I/O"),
                "give 1 to 99, or the pattern random or sequential",
            ),
            _ if self.flush_every == Some(0) => rule(
                "flush_every",
                "a flush after every 0 writes",
                "give 1 or more, or leave it out for no flushes",
            ),
            _ => Ok(()),
        }
    }

    fn hot_spots(&self) -> Result<(), ProfileError> {
        let wrong = |problem: String, advice: &str| rule("hot_spots", problem, advice);
        let Some(first) = self.hot_spots.first() else { return Ok(()) };
        if self.hot_spots.len() > MOST_HOT_SPOTS {
            return wrong(format!("{} hot spots", self.hot_spots.len()), "give at most 256");
        }
        if !matches!(self.pattern, Pattern::Random | Pattern::Mixed { .. }) {
            return wrong(
                "sequential I/O has no hot spots".into(),
                "make the pattern random, or leave them out",
            );
        }
        let io: u32 = self.hot_spots.iter().map(|spot| u32::from(spot.io_percent)).sum();
        if !(1..=100).contains(&io) {
            return wrong(format!("together they receive {io} % of the I/O"), "let it be 1 to 100 %");
        }
        let covers_all = match first.extent {
            Extent::Percent(_) => {
                let mut sum = 0.0;
                for spot in &self.hot_spots {
                    match spot.extent {
                        Extent::Percent(percent) if percent > 0.0 && percent <= 100.0 => sum += percent,
                        other => return wrong(format!("an extent of {other}"), ONE_KIND),
                    }
                }
                if sum > 100.0 {
                    return wrong(
                        format!("together they cover {sum} % of the working set"),
                        "let it be at most 100 %",
                    );
                }
                sum == 100.0
            }
            Extent::Bytes(_) => {
                let mut sum = ByteSize(0);
                for spot in &self.hot_spots {
                    match spot.extent {
                        Extent::Bytes(size) if size >= self.block_size => {
                            sum = ByteSize(sum.bytes().saturating_add(size.bytes()));
                        }
                        other => return wrong(format!("an extent of {other}"), ONE_KIND),
                    }
                }
                match self.working_set {
                    Some(Extent::Bytes(all)) if sum > all => {
                        return wrong(
                            format!("together they cover {sum}, and the working set is {all}"),
                            "make them smaller",
                        );
                    }
                    Some(Extent::Bytes(all)) => sum == all,
                    _ => false,
                }
            }
        };
        if covers_all && io < 100 {
            return wrong(
                format!("they cover the whole working set and receive {io} % of the I/O"),
                "leave room for the rest, or let them receive 100 %",
            );
        }
        Ok(())
    }
}

const ONE_KIND: &str = "give all of them as percentages above 0, or all as sizes of at least one block";

fn in_sectors(size: ByteSize) -> bool {
    size.bytes().is_multiple_of(SECTOR.bytes())
}

fn rule(field: &str, problem: impl Into<String>, advice: impl Into<String>) -> Result<(), ProfileError> {
    Err(ProfileError::rule(field, problem, advice))
}
