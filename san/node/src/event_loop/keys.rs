//! The keys by which the ring knows connections.

/// Gives keys that no connection of the process has had.
#[derive(Debug)]
pub(super) struct Keys(u32);

impl Keys {
    /// The first key that is given is this.
    pub(super) fn from(first: u32) -> Keys {
        Keys(first)
    }

    /// The next key.
    ///
    /// # Panics
    /// After 2^32 connections.
    pub(super) fn take(&mut self) -> u32 {
        let key = self.0;
        self.0 = self.0.checked_add(1).expect("fewer than 2^32 connections in a process's life");
        key
    }
}
