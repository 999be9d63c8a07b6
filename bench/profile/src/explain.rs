//! A profile in words, for a person.

use loadline_base::units::{ByteSize, Rate};

use crate::{Arrival, Data, Extent, Pattern, Profile};

impl Profile {
    /// The profile in plain sentences, one a line.
    pub fn explain(&self) -> String {
        let mut lines = vec![self.what(), self.how_many()];
        lines.push(match self.rate {
            None => "Closed loop: the next I/O is issued when one completes, so the storage sets the pace, and by \
                     Little's law IOPS × mean latency is the number outstanding."
                .to_string(),
            Some(offered) => {
                let each = match offered.rate {
                    Rate::Iops(iops) => {
                        format!("{iops} I/Os a second, which is {}/s", short(iops * self.block_size.bytes() as f64))
                    }
                    Rate::BytesPerSecond(bytes) => {
                        let iops = offered.rate.iops(self.block_size);
                        format!("{}/s, which is {iops:.0} I/Os a second", short(bytes))
                    }
                };
                let spread = match offered.arrival {
                    Arrival::Uniform => "evenly spaced",
                    Arrival::Poisson => "at random moments (a Poisson process)",
                };
                format!(
                    "Offered rate: {each}, in total over all threads and disks of a worker, {spread}. Latency counts \
                     from the moment an I/O is due, so a stall is charged to every I/O that it delays."
                )
            }
        });
        lines.push(self.where_on_the_disk());
        lines.extend(self.spots());
        lines.extend(self.written());
        lines.push(self.durability());
        lines.join("\n")
    }

    fn what(&self) -> String {
        let kind = match self.pattern {
            Pattern::Random => "Random I/O".to_string(),
            Pattern::Sequential => "Sequential I/O".to_string(),
            Pattern::SequentialInterleaved => "Sequential I/O, interleaved,".to_string(),
            Pattern::Mixed { random_percent } => {
                format!(
                    "I/O that is {random_percent} % random and {} % sequential,",
                    100 - random_percent.min(100)
                )
            }
        };
        let mix = match self.write_percent {
            0 => "100 % reads".to_string(),
            100 => "100 % writes".to_string(),
            writes => format!("{} % reads, {writes} % writes", 100 - writes.min(100)),
        };
        format!("{kind} of {}: {mix}.", spaced(self.block_size))
    }

    fn how_many(&self) -> String {
        let total = u64::from(self.threads) * u64::from(self.outstanding);
        let keeping = if self.rate.is_some() { "letting at most" } else { "keeping" };
        let each = count(self.outstanding.into(), "I/O", "I/Os");
        match self.threads {
            1 => format!("1 thread on each disk, {keeping} {each} outstanding."),
            threads => format!(
                "{threads} threads on each disk, each {keeping} {each} outstanding: {total} for each disk."
            ),
        }
    }

    fn where_on_the_disk(&self) -> String {
        let extent = match self.working_set {
            None if self.base_offset.bytes() == 0 => "the whole disk".to_string(),
            None => "all the rest of the disk".to_string(),
            Some(Extent::Percent(percent)) => format!("{percent} % of the disk"),
            Some(Extent::Bytes(size)) => spaced(size),
        };
        let from = match self.base_offset.bytes() {
            0 => String::new(),
            _ => format!(" from {} on", spaced(self.base_offset)),
        };
        let step = self.alignment.unwrap_or(self.block_size);
        let step = spaced(step);
        let moves = match self.pattern {
            Pattern::Random => format!("each offset is drawn at random, in steps of {step}"),
            Pattern::Sequential => format!(
                "each thread walks through it by itself in steps of {step}, all from its beginning, over and over"
            ),
            Pattern::SequentialInterleaved => format!(
                "the threads of a disk share one offset and walk through it together in steps of {step}, over and over"
            ),
            Pattern::Mixed { random_percent } => format!(
                "with a chance of {random_percent} % an I/O jumps to a random offset, otherwise it follows the \
                 thread's last one, in steps of {step}"
            ),
        };
        format!("Working set: {extent}{from}; {moves}.")
    }

    fn spots(&self) -> Option<String> {
        if self.hot_spots.is_empty() {
            return None;
        }
        let mut parts = Vec::new();
        let mut left = 100_u32;
        for spot in &self.hot_spots {
            left = left.saturating_sub(spot.io_percent.into());
            let extent = match spot.extent {
                Extent::Percent(percent) => format!("{percent} %"),
                Extent::Bytes(size) => spaced(size),
            };
            parts.push(format!("{} % of the I/O to {extent}", spot.io_percent));
        }
        let rest = match left {
            0 => "none to the rest".to_string(),
            left => format!("{left} % to the rest"),
        };
        let subject = if matches!(self.pattern, Pattern::Mixed { .. }) {
            "Hot spots of the random part"
        } else {
            "Hot spots"
        };
        Some(format!("{subject}, from the working set's beginning: {}, {rest}.", parts.join(", then ")))
    }

    fn written(&self) -> Option<String> {
        if self.write_percent == 0 {
            return None;
        }
        let data = match self.data {
            Data::Random => "random data that neither compresses nor deduplicates".to_string(),
            Data::Compressible { ratio } => format!("data that compresses {ratio} to 1"),
            Data::Zeros => "zeros, which many storages do not store at all".to_string(),
            Data::CountingBytes => {
                "the bytes 0 to 255 over and over, which compress and deduplicate to almost nothing"
                    .to_string()
            }
        };
        Some(format!("Writes carry {data}."))
    }

    fn durability(&self) -> String {
        let cache = if self.direct {
            "The page cache is bypassed."
        } else {
            "I/O goes through the page cache, so memory may answer in place of the storage."
        };
        if self.write_percent == 0 {
            return cache.to_string();
        }
        let through = if self.write_through {
            "A write completes only when it is durable (O_DSYNC)."
        } else {
            "A write may complete in a volatile cache of the device."
        };
        let flush = match self.flush_every {
            None => String::new(),
            Some(1) => " Each write is followed by a flush (fdatasync).".to_string(),
            Some(writes) => format!(" After every {writes} writes a thread flushes (fdatasync)."),
        };
        format!("{cache} {through}{flush}")
    }
}

fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// `4KiB` as a sentence writes it: `4 KiB`; plain bytes with their unit.
fn spaced(size: ByteSize) -> String {
    let text = size.to_string();
    let digits = text.chars().take_while(char::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    format!("{number} {}", if unit.is_empty() { "B" } else { unit })
}

/// Bytes to three digits, in the binary unit that fits.
fn short(bytes: f64) -> String {
    let units = [(ByteSize::GIB, "GiB"), (ByteSize::MIB, "MiB"), (ByteSize::KIB, "KiB")];
    match units.iter().find(|(one, _)| bytes >= one.bytes() as f64) {
        Some((one, unit)) => format!("{:.1} {unit}", bytes / one.bytes() as f64),
        None => format!("{bytes:.0} B"),
    }
}
