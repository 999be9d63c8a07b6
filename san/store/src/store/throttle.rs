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
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// Bytes that writers may append yet at full price.
    credit: i64,
    /// The next append waits for credit, or for room in the log.
    waits: bool,
    /// One has waited since the last tick; and between that and the one before.
    waited: [bool; 2],
}

impl Throttle {
    /// Destaging has done so much more. No more than `most` is saved up.
    pub(crate) fn earn(&mut self, bytes: u64, most: u64) {
        self.credit = (self.credit + bytes as i64).min(most as i64);
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

    /// With this backlog writers get no more than what destaging frees: what is destaged stays in the log too until the
    /// round's end, and there has to be room for both, or writers would wait for that end.
    pub(crate) fn high(&self) -> u64 {
        let ring = self.log.ring();
        (ring / 100 * u64::from(self.settings.high))
            .min((ring - ring / KEPT_FREE).saturating_sub(self.round_bytes()))
    }

    /// Up to this backlog writers are as fast as the log: half of the way from where a round is surely under way to `high`.
    pub(crate) fn slow(&self) -> u64 {
        // Below this no round need be under way, and nothing would earn the bytes back.
        let low = self.log.ring() / 100 * u64::from(self.settings.low) + self.round_bytes();
        low + self.high().saturating_sub(low) / 2
    }

    /// Writers pay for what they append.
    pub(crate) fn is_slowing(&self) -> bool {
        self.backlog() > self.slow()
    }

    /// Takes the price of so many bytes. False if they have to wait.
    pub(crate) fn pay(&mut self, bytes: u64) -> bool {
        let slow = self.slow();
        let above = self.backlog().saturating_sub(slow);
        if above == 0 {
            return true;
        }
        if self.throttle.credit < 0 {
            return false;
        }
        let span = self.high().saturating_sub(slow).max(1);
        let price = u128::from(bytes) * u128::from(above.min(span)) / u128::from(span);
        self.throttle.credit -= price as i64;
        true
    }

    /// Writers may append so much more.
    pub(crate) fn earn(&mut self, bytes: u64) {
        let most = (self.round_bytes() / 16).max(LEAST_SAVED).min(self.round_bytes());
        self.throttle.earn(bytes, most);
    }
}
