//! A step's series by the second: `intervals.hlog` for every HdrHistogram tool, `seconds.jsonl` for what such a log
//! cannot carry, and `host.jsonl` for what the hosts did.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use loadline_base::histogram::EncodedHistogram;
use loadline_fleet::WorkerId;
use loadline_load::host::HostSecond;
use loadline_measure::interval::{EncodedInterval, EncodedOperations, Phase};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::StudyError;
use crate::folder::sealed::sync_folder;

/// The interval log.
pub const INTERVALS: &str = "intervals.hlog";
/// The counts by second.
pub const SECONDS: &str = "seconds.jsonl";
/// What the hosts did by second.
pub const HOST: &str = "host.jsonl";

/// The counts of one kind of I/O.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// I/Os that completed with success.
    pub operations: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// I/Os that failed.
    pub errors: u64,
    /// I/Os whose age is in the histogram as a lower bound; they are not among `operations`.
    pub censored: u64,
    /// Exact sum of the response times, nanoseconds, the censored ones included.
    pub sum_ns: f64,
    /// Smallest response time, nanoseconds; 0 if there was none.
    pub min_ns: u64,
    /// Largest response time, nanoseconds; 0 if there was none.
    pub max_ns: u64,
}

impl Counts {
    fn of(operations: &EncodedOperations) -> Counts {
        let response = operations.response.as_ref();
        let count = response.map_or(0, |r| r.count);
        Counts {
            operations: count.saturating_sub(operations.censored),
            bytes: operations.bytes,
            errors: operations.errors,
            censored: operations.censored,
            sum_ns: response.map_or(0.0, |r| r.sum_ns),
            min_ns: response.map_or(0, |r| r.min_ns),
            max_ns: response.map_or(0, |r| r.max_ns),
        }
    }
}

/// One line of `seconds.jsonl`: what one disk of one worker did in one second, or a part of it. Lines of the same
/// second, disk and phase add up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecondLine {
    /// The worker that measured.
    pub worker: WorkerId,
    /// The second in which the I/Os completed; 0 is the first of the measured window, warm-up is negative.
    pub second: i64,
    /// The phase in which they were intended.
    pub phase: Phase,
    /// The disk's index in its worker.
    pub disk: u32,
    /// The reads; absent if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Counts>,
    /// The writes; absent if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<Counts>,
    /// The milliseconds with completions: 1000 bits, least significant first, in base64.
    pub completions: String,
    /// I/Os that completed with success in each tenth of the second, without the zeros at the end; absent if none did, and in series of
    /// versions that did not count them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenths: Vec<u32>,
    /// The age of the oldest I/O that was outstanding when the second ended, nanoseconds; absent if none was, and in series of versions
    /// that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_ns: Option<u64>,
}

/// One line of `host.jsonl`: what one host did in one second, by everything that ran there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostLine {
    /// The host's name.
    pub host: String,
    /// What it did.
    #[serde(flatten)]
    pub did: HostSecond,
}

/// The series of a step that is being measured.
#[derive(Debug)]
pub struct SeriesWriter {
    folder: PathBuf,
    intervals: BufWriter<File>,
    seconds: BufWriter<File>,
    hosts: BufWriter<File>,
    warm_up_s: i64,
    headed: bool,
}

impl SeriesWriter {
    /// Begins the series in a step's folder. `warm_up_s` is how many seconds lie before second 0.
    pub fn create(folder: &Path, warm_up_s: i64) -> Result<SeriesWriter, StudyError> {
        let open = |name: &str| {
            let path = folder.join(name);
            File::create_new(&path).map(BufWriter::new).map_err(|e| StudyError::io("make", &path, &e))
        };
        Ok(SeriesWriter {
            folder: folder.to_path_buf(),
            intervals: open(INTERVALS)?,
            seconds: open(SECONDS)?,
            hosts: open(HOST)?,
            warm_up_s,
            headed: false,
        })
    }

    /// How many seconds lie before second 0.
    pub fn warm_up_s(&self) -> i64 {
        self.warm_up_s
    }

    /// Says when warm-up begins, in milliseconds since 1970: the moment that the log counts from.
    pub fn begin(&mut self, unix_ms: u64) -> Result<(), StudyError> {
        if std::mem::replace(&mut self.headed, true) {
            return Ok(());
        }
        let (seconds, millis) = (unix_ms / 1000, unix_ms % 1000);
        self.log(&format!(
            "#[Histogram log format version 1.3]\n#[BaseTime: {seconds}.{millis:03} (seconds since epoch)]\n\
             #Tags are WORKER/DISK/OPERATION/PHASE, values nanoseconds. The measured window begins at {}.000.\n\
             \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n",
            self.warm_up_s
        ))
    }

    /// Adds a record of one worker's disk.
    pub fn add(&mut self, worker: &WorkerId, interval: &EncodedInterval) -> Result<(), StudyError> {
        let response =
            |operations: &Option<EncodedOperations>| operations.as_ref().and_then(|o| o.response.clone());
        for (operation, histogram) in [
            ("read", response(&interval.read)),
            ("write", response(&interval.write)),
            ("service", interval.service.clone()),
            ("lateness", interval.lateness.clone()),
        ] {
            if let Some(histogram) = histogram {
                self.histogram(worker, interval, operation, &histogram)?;
            }
        }
        let line = SecondLine {
            worker: worker.clone(),
            second: interval.second,
            phase: interval.phase,
            disk: interval.disk,
            read: interval.read.as_ref().map(Counts::of),
            write: interval.write.as_ref().map(Counts::of),
            completions: interval.completions.clone(),
            tenths: interval.tenths.clone(),
            oldest_ns: (interval.oldest_ns > 0).then_some(interval.oldest_ns),
        };
        let mut text = serde_json::to_string(&line).map_err(|e| self.failed(SECONDS, e.into()))?;
        text.push('\n');
        self.seconds.write_all(text.as_bytes()).map_err(|e| self.failed(SECONDS, e))
    }

    /// Adds what a host did in a second.
    pub fn add_host(&mut self, host: &str, second: &HostSecond) -> Result<(), StudyError> {
        let line = HostLine { host: host.into(), did: second.clone() };
        let mut text = serde_json::to_string(&line).map_err(|e| self.failed(HOST, e.into()))?;
        text.push('\n');
        self.hosts.write_all(text.as_bytes()).map_err(|e| self.failed(HOST, e))
    }

    /// One line of the log: `Tag=node-1/0/0/read/measure,6.000,1.000,0.532,HISTFAAA...`.
    fn histogram(
        &mut self,
        worker: &WorkerId,
        interval: &EncodedInterval,
        operation: &str,
        histogram: &EncodedHistogram,
    ) -> Result<(), StudyError> {
        let phase = match interval.phase {
            Phase::WarmUp => "warm_up",
            Phase::Measure => "measure",
            Phase::CoolDown => "cool_down",
        };
        // Readers know no time before the beginning.
        let start = interval.second.saturating_add(self.warm_up_s).max(0);
        // A tag ends at a comma or a space; a worker's name has neither, but it comes from outside.
        let name = worker.0.replace(|c: char| c == ',' || c.is_whitespace() || c.is_control(), "_");
        self.log(&format!(
            "Tag={name}/{}/{operation}/{phase},{start}.000,1.000,{:.3},{}\n",
            interval.disk,
            histogram.max_ns as f64 / 1e6,
            histogram.hdr_v2
        ))
    }

    /// Hands what was added to the system: it survives the end of this process.
    pub fn flush(&mut self) -> Result<(), StudyError> {
        self.intervals.flush().map_err(|e| self.failed(INTERVALS, e))?;
        self.seconds.flush().map_err(|e| self.failed(SECONDS, e))?;
        self.hosts.flush().map_err(|e| self.failed(HOST, e))
    }

    /// Ends the series, durably, and returns the length of each file, bytes.
    pub fn finish(mut self) -> Result<BTreeMap<String, u64>, StudyError> {
        self.flush()?;
        let mut lengths = BTreeMap::new();
        let files = [
            (INTERVALS, self.intervals.get_ref()),
            (SECONDS, self.seconds.get_ref()),
            (HOST, self.hosts.get_ref()),
        ];
        for (name, file) in files {
            let length =
                file.sync_all().and_then(|()| file.metadata()).map_err(|e| self.failed(name, e))?.len();
            lengths.insert(name.to_string(), length);
        }
        sync_folder(&self.folder)?;
        Ok(lengths)
    }

    fn log(&mut self, text: &str) -> Result<(), StudyError> {
        self.intervals.write_all(text.as_bytes()).map_err(|e| self.failed(INTERVALS, e))
    }

    fn failed(&self, name: &str, error: std::io::Error) -> StudyError {
        StudyError::io("write", &self.folder.join(name), &error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
    use loadline_base::clock::Nanos;
    use loadline_measure::interval::Interval;
    use std::time::Duration;

    fn written() -> (Vec<u8>, String) {
        let folder = tempfile::tempdir().unwrap();
        let mut series = SeriesWriter::create(folder.path(), 2).unwrap();
        series.begin(1_700_000_000_123).unwrap();
        for (second, phase) in
            [(-2, Phase::WarmUp), (-1, Phase::WarmUp), (0, Phase::Measure), (1, Phase::Measure)]
        {
            let mut interval = Interval::new(second, phase, 1);
            for i in 0..100 {
                interval.read.response.record(Nanos(1_000_000 + i));
                interval.read.bytes += 4096;
            }
            interval.read.censored = 1;
            interval.write.errors = 3;
            interval.completions.set(Nanos(5_000_000));
            interval.tenths.add(Nanos(105_000_000));
            series.add(&WorkerId("node-1/0".into()), &interval.encode()).unwrap();
        }
        let lengths = series.finish().unwrap();
        let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
        assert_eq!(lengths[INTERVALS], read(INTERVALS).len() as u64);
        (read(INTERVALS), String::from_utf8(read(SECONDS)).unwrap())
    }

    #[test]
    fn other_tools_read_the_interval_log() {
        let (log, _) = written();
        let (mut base, mut intervals) = (None, Vec::new());
        for entry in IntervalLogIterator::new(&log) {
            match entry.unwrap() {
                LogEntry::BaseTime(time) => base = Some(time),
                LogEntry::Interval(interval) => {
                    use base64_of_log as decode;
                    let bytes = decode(interval.encoded_histogram());
                    let histogram: hdrhistogram::Histogram<u64> =
                        Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
                    let tag = interval.tag().unwrap().as_str().to_string();
                    intervals.push((tag, interval.start_timestamp(), histogram.len()));
                }
                LogEntry::StartTime(_) => panic!("there is none"),
            }
        }
        assert_eq!(base, Some(Duration::from_millis(1_700_000_000_123)));
        assert_eq!(intervals.len(), 4);
        assert_eq!(intervals[2], ("node-1/0/1/read/measure".to_string(), Duration::from_secs(2), 100));
    }

    /// Base64 without a dependency for it: four letters are three bytes.
    fn base64_of_log(text: &str) -> Vec<u8> {
        let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let value = |c: u8| letters.iter().position(|l| *l == c).unwrap_or(0) as u32;
        let mut bytes: Vec<u8> = text
            .as_bytes()
            .chunks(4)
            .flat_map(|four| {
                let word = four.iter().fold(0, |word, c| word << 6 | value(*c));
                [(word >> 16) as u8, (word >> 8) as u8, word as u8]
            })
            .collect();
        bytes.truncate(bytes.len() - text.matches('=').count());
        bytes
    }

    #[test]
    fn what_hosts_did_is_a_line_each() {
        let folder = tempfile::tempdir().unwrap();
        let mut series = SeriesWriter::create(folder.path(), 0).unwrap();
        let mut did = HostSecond { second: 3, ..HostSecond::default() };
        did.cpu.idle = 0.5;
        series.add_host("left", &did).unwrap();
        series.add_host("right", &did).unwrap();
        let lengths = series.finish().unwrap();
        let text = std::fs::read_to_string(folder.path().join(HOST)).unwrap();
        assert_eq!(lengths[HOST], text.len() as u64);
        let lines: Vec<HostLine> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.iter().map(|line| line.host.as_str()).collect::<Vec<_>>(), ["left", "right"]);
        assert!(lines.iter().all(|line| line.did == did));
        assert!(text.starts_with(r#"{"host":"left","second":3,"cpu":{"#), "{text}");
    }

    #[test]
    fn seconds_carry_what_a_histogram_log_cannot() {
        let (_, seconds) = written();
        let lines: Vec<SecondLine> =
            seconds.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.iter().map(|line| line.second).collect::<Vec<_>>(), [-2, -1, 0, 1]);
        let read = lines[2].read.unwrap();
        assert_eq!((read.operations, read.censored, read.bytes), (99, 1, 409_600));
        assert_eq!((read.min_ns, read.max_ns, read.sum_ns), (1_000_000, 1_000_099, 100_004_950.0));
        assert_eq!(lines[2].write.unwrap().errors, 3);
        assert!(!lines[2].completions.is_empty());
        assert_eq!(lines[2].tenths, [0, 1]);
    }
}
