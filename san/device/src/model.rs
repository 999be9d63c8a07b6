//! A device that behaves as a [`DeviceModel`] says, whatever the file behind it does: the I/O is carried out at once, and its
//! completion is held back until the moment that the model gives.
//!
//! The model is one server: an I/O begins when those before it have left the device, occupies it for its cost, and completes its
//! latency later. Writes that a cache takes complete sooner, and occupy the device afterwards, when it is idle or the cache is full.
//! So a model limits I/Os and bytes a second as a token bucket of one I/O would, and delays what arrives too fast instead of
//! refusing it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use loadline_base::device_model::{DeviceModel, Speed};
use loadline_san_core::lease::Moment;
use loadline_san_protocol::device::DeviceId;
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// The 99th percentile of the normal distribution, in standard deviations.
const Z99: f64 = 2.326_347_874;

/// What is to be done by a modelled device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Bytes are read.
    Read(u64),
    /// Bytes are written. `durable`: they are to survive a power failure when it completes.
    Write {
        /// How many.
        bytes: u64,
        /// Whether a flush is part of it.
        durable: bool,
    },
    /// All that was written before is to survive a power failure.
    Flush,
}

/// How often and how much the machine was slower than the model, since the device was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lateness {
    /// I/Os that were completed.
    pub ios: u64,
    /// How long they take by the model together, nanoseconds.
    pub modelled_ns: u64,
    /// How much later they completed together, nanoseconds.
    pub late_ns: u64,
}

/// A device with a model. All threads that use the device share one.
#[derive(Debug)]
pub struct ModelledDevice {
    model: DeviceModel,
    queue: Mutex<Queue>,
    ios: AtomicU64,
    modelled_ns: AtomicU64,
    late_ns: AtomicU64,
}

#[derive(Debug)]
struct Queue {
    /// When the device is through with what it does now.
    free: Moment,
    /// What its cache holds, as of `free`: bytes, and how long the device needs to write them.
    cached: u64,
    cached_ns: u64,
    random: Xoshiro256PlusPlus,
}

impl ModelledDevice {
    /// A device that is idle. Its latencies are drawn from a sequence that follows from its id.
    pub fn new(model: DeviceModel, id: DeviceId) -> ModelledDevice {
        let random = Xoshiro256PlusPlus::seed_from_u64(id.0);
        ModelledDevice {
            model,
            queue: Mutex::new(Queue { free: Moment(0), cached: 0, cached_ns: 0, random }),
            ios: AtomicU64::new(0),
            modelled_ns: AtomicU64::new(0),
            late_ns: AtomicU64::new(0),
        }
    }

    /// Its model.
    pub fn model(&self) -> &DeviceModel {
        &self.model
    }

    /// The device gets this to do now. When it completes.
    ///
    /// Panics if another thread has panicked with it.
    pub fn begin(&self, now: Moment, work: Work) -> Moment {
        self.queue.lock().expect("no thread panics with it").begin(&self.model, now, work)
    }

    /// What began at `began` was to complete at `due`, and completed now.
    pub fn completed(&self, began: Moment, due: Moment, now: Moment) {
        self.ios.fetch_add(1, Ordering::Relaxed);
        self.modelled_ns.fetch_add(due.since(began), Ordering::Relaxed);
        self.late_ns.fetch_add(now.since(due), Ordering::Relaxed);
    }

    /// How much slower than the model the machine was.
    pub fn lateness(&self) -> Lateness {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Lateness { ios: of(&self.ios), modelled_ns: of(&self.modelled_ns), late_ns: of(&self.late_ns) }
    }
}

impl Queue {
    fn begin(&mut self, model: &DeviceModel, now: Moment, work: Work) -> Moment {
        // The device empties its cache while it is idle.
        self.written_out(now.since(self.free));
        self.free = self.free.max(now);
        let cache = model.cache;
        match work {
            Work::Read(bytes) => {
                self.free = self.free.after(ns(model.read.cost(bytes)));
                self.free.after(self.latency(model.read))
            }
            Work::Write { bytes, durable } => {
                let cost = ns(model.write.cost(bytes));
                let needs_flush = durable && cache.is_none_or(|cache| cache.volatile);
                let Some(cache) = cache else {
                    self.free = self.free.after(cost);
                    let flush = if needs_flush { ns(model.flush.0) } else { 0 };
                    return self.free.after(self.latency(model.write)).after(flush);
                };
                (self.cached, self.cached_ns) = (self.cached + bytes, self.cached_ns + cost);
                let excess = self.cached.saturating_sub(cache.size.0);
                let excess_ns =
                    u128::from(self.cached_ns) * u128::from(excess) / u128::from(self.cached.max(1));
                self.write_out(excess_ns as u64);
                if needs_flush {
                    self.write_out(self.cached_ns);
                    return self.free.after(ns(cache.latency.0) + ns(model.flush.0));
                }
                // What goes into the cache waits for room there, and not for the device.
                let begins = if excess == 0 { now } else { self.free };
                begins.after(ns(cache.latency.0))
            }
            Work::Flush => {
                if cache.is_some_and(|cache| cache.volatile) {
                    self.write_out(self.cached_ns);
                    return self.free.after(ns(model.flush.0));
                }
                match cache {
                    Some(_) => now.after(ns(model.flush.0)),
                    None => self.free.after(ns(model.flush.0)),
                }
            }
        }
    }

    /// The device is occupied with writing out what its cache holds, for so long.
    fn write_out(&mut self, ns: u64) {
        self.written_out(ns);
        self.free = self.free.after(ns);
    }

    /// The device has written out what its cache held, for so long or until the cache was empty.
    fn written_out(&mut self, ns: u64) {
        if ns >= self.cached_ns {
            (self.cached, self.cached_ns) = (0, 0);
        } else {
            let bytes = u128::from(self.cached) * u128::from(ns) / u128::from(self.cached_ns);
            self.cached -= bytes as u64;
            self.cached_ns -= ns;
        }
    }

    /// A latency, drawn: log-normal by its median and its 99th percentile.
    fn latency(&mut self, of: Speed) -> u64 {
        let median = ns(of.latency.0);
        let Some(p99) = of.p99.map(|p99| ns(p99.0)).filter(|p99| *p99 > median && median > 0) else {
            return median;
        };
        let sigma = (p99 as f64 / median as f64).ln() / Z99;
        // Without a bound, one draw of many would be longer than any wait for it.
        ((median as f64 * (sigma * self.normal()).exp()) as u64).min(10 * p99)
    }

    /// A number of the standard normal distribution, by the method of Box and Muller.
    fn normal(&mut self) -> f64 {
        let mut unit = || ((self.random.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let (first, second) = (unit(), unit());
        (-2.0 * first.ln()).sqrt() * (std::f64::consts::TAU * second).cos()
    }
}

fn ns(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
