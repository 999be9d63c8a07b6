//! The same thing done for several machines at the same time, within a limit.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is behind a mutex, also after a thread that had it has panicked.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does `one` for each of these, so many at the same time, and returns when all are done.
pub(crate) fn in_parallel<T: Send>(
    at_once: u32,
    orders: impl IntoIterator<Item = T>,
    one: &(dyn Fn(T) + Sync),
) {
    let orders: VecDeque<T> = orders.into_iter().collect();
    let threads = orders.len().min(at_once as usize);
    let orders = Mutex::new(orders);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(order) = locked(&orders).pop_front() else { return };
                    one(order);
                }
            });
        }
    });
}
