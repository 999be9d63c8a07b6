//! What the fleet completed second by second while things are done to the storage: what a timeline is drawn from.

use std::collections::BTreeMap;

use loadline_base::histogram::{EncodedHistogram, LatencyHistogram};
use loadline_fleet::WorkerId;
use loadline_measure::interval::EncodedInterval;
use loadline_measure::stall::Completions;

/// Histograms of so many seconds lie open; older ones are packed, in which they take a hundredth.
const OPEN: i64 = 8;

#[derive(Debug)]
enum Response {
    Open(Box<LatencyHistogram>),
    Packed(EncodedHistogram),
}

/// What completed in one second.
#[derive(Debug)]
pub(crate) struct Second {
    pub(crate) ios: u64,
    pub(crate) bytes: u64,
    pub(crate) errors: u64,
    response: Response,
}

impl Second {
    /// How long it took.
    pub(crate) fn response(&self) -> LatencyHistogram {
        match &self.response {
            Response::Open(histogram) => (**histogram).clone(),
            // It was packed here.
            Response::Packed(packed) => packed.decode().unwrap_or_default(),
        }
    }
}

/// The seconds of a window, and when each worker completed something.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    pub(crate) seconds: BTreeMap<i64, Second>,
    pub(crate) workers: BTreeMap<WorkerId, Completions>,
}

impl Trace {
    /// Counts a record. What is before the window is not of it.
    pub(crate) fn add(&mut self, worker: &WorkerId, interval: &EncodedInterval) {
        let Ok(interval) = interval.decode() else { return };
        if interval.second < 0 {
            return;
        }
        let second = self.seconds.entry(interval.second).or_insert_with(|| Second {
            ios: 0,
            bytes: 0,
            errors: 0,
            response: Response::Open(Box::default()),
        });
        let mut response = match std::mem::replace(&mut second.response, Response::Open(Box::default())) {
            Response::Open(histogram) => histogram,
            Response::Packed(packed) => Box::new(packed.decode().unwrap_or_default()),
        };
        for operations in [&interval.read, &interval.write] {
            second.ios = second.ios.saturating_add(operations.completed());
            second.bytes = second.bytes.saturating_add(operations.bytes);
            second.errors = second.errors.saturating_add(operations.errors);
            response.merge(&operations.response);
        }
        second.response = Response::Open(response);
        self.workers.entry(worker.clone()).or_default().add(interval.second, &interval.completions);
        for (_, old) in self.seconds.range_mut(..interval.second.saturating_sub(OPEN)).rev().take(2) {
            if let Response::Open(histogram) = &old.response {
                old.response = Response::Packed(histogram.encode());
            }
        }
    }
}
