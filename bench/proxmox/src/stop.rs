//! A request to stop, which ends waits.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A request to stop; its clones are the same request.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<(Mutex<bool>, Condvar)>);

impl Stop {
    /// Asks to stop, and ends all waits.
    pub fn request(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    /// Whether it was asked for.
    pub fn is_requested(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits so long, or until it is asked for; returns whether it was.
    pub fn wait(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut is_requested = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_requested {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            is_requested =
                self.0.1.wait_timeout(is_requested, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}
