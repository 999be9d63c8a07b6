//! Writers and the log that they fill: from no limit to the speed of destaging, gradually.
//!
//! ```text
//! backlog   0 ─────────────── slow ──────────────── high
//! writers   as fast as the log │ W = E / price, 0 → 1 │ W = E
//! ```
//!
//! Destaging earns credit for writers: each write that it completes on the capacity device is worth as many bytes of the log, so that
//! a round gives as much as it will free (E bytes a second), spread evenly over its time. A byte that a writer appends costs
//! nothing up to the backlog `slow`, one byte of credit at `high`, and in proportion between. So a backlog that rises makes
//! writers slower until they append what is destaged, and the price is where both are equal. No rate is measured and no clock is
//! read. A writer whose credit is spent waits for the next write of destaging, not for the end of its round.

use crate::io::Data;
use crate::store::Store;
use crate::store::append::KEPT_FREE;
use crate::store::settings::Settings;

/// The least credit that may be saved up.
const LEAST_SAVED: u64 = 64 << 10;

/// What slows writers down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteLimit {
    /// Nothing in the store: they wait for the log's device alone.
    #[default]
    Nothing,
    /// The log fills up: they get the speed of the capacity device.
    Destaging,
}

/// The credit of writers.
#[derive(Debug)]
pub(crate) struct Throttle {
    /// Up to this backlog writers are as fast as the log: half of the way from where a round is surely under way to `high`.
    slow: u64,
    /// With this backlog writers get no more than what destaging frees: what is destaged stays in the log too until the
    /// round's end, and there has to be room for both, or writers would wait for that end.
    high: u64,
    /// The most credit that is saved up.
    most: i64,
    /// Bytes that writers may append yet at full price.
    credit: i64,
    /// The next append waits for credit, or for room in the log.
    waits: bool,
    /// One has waited since the last tick; and between that and the one before.
    waited: [bool; 2],
}

impl Throttle {
    /// Of a log of so many bytes, of which so many are destaged in a round.
    pub(crate) fn new(settings: &Settings, ring: u64, round: u64) -> Throttle {
        let high =
            (ring / 100 * u64::from(settings.high)).min((ring - ring / KEPT_FREE).saturating_sub(round));
        // Below this no round need be under way, and nothing would earn the bytes back.
        let low = ring / 100 * u64::from(settings.low) + round;
        let slow = low + high.saturating_sub(low) / 2;
        let most = (round / 16).max(LEAST_SAVED).min(round) as i64;
        Throttle { slow, high, most, credit: 0, waits: false, waited: [false; 2] }
    }

    /// Destaging has done so much more.
    pub(crate) fn earn(&mut self, bytes: u64) {
        self.credit = (self.credit + bytes as i64).min(self.most);
    }

    /// From this backlog on writers get no more than what destaging frees.
    pub(crate) fn high(&self) -> u64 {
        self.high
    }

    /// Whether the next append has to wait.
    pub(crate) fn wait(&mut self, waits: bool) {
        self.waits = waits;
        self.waited[0] |= waits;
    }

    /// The next append waits for credit, or for room in the log.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self) {
        self.waited = [self.waits, self.waited[0]];
    }

    /// What has slowed writers down lately.
    pub(crate) fn limit(&self) -> WriteLimit {
        if self.waits || self.waited.contains(&true) { WriteLimit::Destaging } else { WriteLimit::Nothing }
    }
}

impl<D: Data> Store<D> {
    /// Bytes of the log that are not destaged. Those of a round stay in the log until its end.
    pub(crate) fn backlog(&self) -> u64 {
        self.log.used().saturating_sub(self.destage.earned())
    }

    /// Writers pay for what they append.
    pub(crate) fn is_slowing(&self) -> bool {
        self.backlog() > self.throttle.slow
    }

    /// Takes the price of so many bytes. False if they have to wait.
    pub(crate) fn pay(&mut self, bytes: u64) -> bool {
        let Throttle { slow, high, .. } = self.throttle;
        let above = self.backlog().saturating_sub(slow);
        if above == 0 {
            return true;
        }
        if self.throttle.credit < 0 {
            return false;
        }
        let span = high.saturating_sub(slow).max(1);
        let price = u128::from(bytes) * u128::from(above.min(span)) / u128::from(span);
        self.throttle.credit -= price as i64;
        true
    }

    /// Writers may append so much more.
    pub(crate) fn earn(&mut self, bytes: u64) {
        self.throttle.earn(bytes);
    }
}
