//! What is counted of I/O: how often, how much, how long it took.

use super::latencies::Latencies;

/// Upper bounds of the classes of a histogram of latencies, nanoseconds. What takes longer is in one more class.
pub const BOUNDS_NS: [u64; 16] = [
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
];

/// I/Os of one kind, since the volume or replica was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Those that succeeded.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that failed. They are in nothing else.
    pub errors: u64,
    /// How long they took together, nanoseconds.
    pub sum_ns: u64,
    /// How many took no longer than each of [`BOUNDS_NS`] and longer than the one before; and those beyond the last.
    pub classes: [u64; BOUNDS_NS.len() + 1],
}

impl Count {
    /// One has ended.
    #[inline]
    pub(crate) fn add(&mut self, bytes: u64, took_ns: u64, succeeded: bool) {
        if !succeeded {
            self.errors += 1;
            return;
        }
        self.ios += 1;
        self.bytes += bytes;
        self.sum_ns += took_ns;
        let class = BOUNDS_NS.iter().position(|bound| took_ns <= *bound).unwrap_or(BOUNDS_NS.len());
        self.classes[class] += 1;
    }
}

/// What clients have asked of a volume at this node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FrontEnd {
    /// Reads of data.
    pub read: Count,
    /// Block statuses. Their bytes are those that were asked about.
    pub map: Count,
    /// Writes of data.
    pub write: Count,
    /// Requests that write zeroes.
    pub zero: Count,
    /// Requests that trim blocks.
    pub trim: Count,
    /// Requests that flush. They have no bytes.
    pub flush: Count,
    /// Bytes that were asked of the copy on this node, for clients and for whatever else reads.
    pub read_here: u64,
    /// Bytes that were asked of copies on other nodes.
    pub read_elsewhere: u64,
    /// How long reads of data took that succeeded.
    pub read_latencies: Latencies,
    /// The same of writes of data.
    pub write_latencies: Latencies,
}

/// What a replica has asked of one of its areas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BackEnd {
    /// Reads of the area.
    pub read: Count,
    /// Writes to the area.
    pub write: Count,
    /// What makes durable.
    pub sync: Count,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_io_is_in_the_class_of_its_latency() {
        let mut count = Count::default();
        for took in [1, 25_000, 25_001, 2_500_000_001] {
            count.add(4096, took, true);
        }
        count.add(4096, 5, false);
        assert_eq!((count.ios, count.bytes, count.errors), (4, 4 * 4096, 1));
        assert_eq!((count.classes[0], count.classes[1], count.classes[16]), (2, 1, 1));
        assert_eq!(count.classes.iter().sum::<u64>(), 4);
    }
}
