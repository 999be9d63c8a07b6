//! The end of a load before its time: whether it was ordered, and when.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use loadline_base::clock::Nanos;

/// Shared by the threads of a load. A thread that finds that the load is to end sets it here, and all threads end soon.
#[derive(Debug, Default)]
pub(crate) struct Halt {
    is_told: AtomicBool,
    at: AtomicU64,
}

impl Halt {
    /// Orders the load to end now. Only the first order sets the moment.
    pub(crate) fn tell(&self) {
        let _ = self.at.compare_exchange(0, Nanos::now().0, Ordering::Relaxed, Ordering::Relaxed);
        self.is_told.store(true, Ordering::Release);
    }

    /// Whether the end was ordered.
    #[inline]
    pub(crate) fn is_told(&self) -> bool {
        self.is_told.load(Ordering::Acquire)
    }

    /// When the end was ordered, if it was.
    pub(crate) fn at(&self) -> Option<Nanos> {
        self.is_told().then(|| Nanos(self.at.load(Ordering::Relaxed)))
    }
}
