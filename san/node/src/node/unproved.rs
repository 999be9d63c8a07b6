//! Connections whose other side has not proved its identity yet: a bounded number from each address, so that a stranger cannot keep
//! others out.
//!
//! A node of the cluster may open many at once, since it forwards its clients when their volumes move. A stranger has no reason to.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The most from an address at which the configuration has no node.
const MOST_OF_A_STRANGER: u32 = 32;

/// How many there are from each address.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unproved(Arc<Mutex<HashMap<IpAddr, u32>>>);

/// One of them. It is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    all: Unproved,
    address: IpAddr,
}

impl Unproved {
    fn with<T>(&self, then: impl FnOnce(&mut HashMap<IpAddr, u32>) -> T) -> T {
        then(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Another one comes from this address. `None` if there are too many.
    pub(crate) fn enter(&self, address: IpAddr, is_node: bool) -> Option<Entered> {
        let fits = self.with(|counts| {
            let count = counts.entry(address).or_insert(0);
            let fits = is_node || *count < MOST_OF_A_STRANGER;
            *count += u32::from(fits);
            fits
        });
        fits.then(|| Entered { all: self.clone(), address })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.all.with(|counts| {
            let Some(count) = counts.get_mut(&self.address) else { return };
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_has_a_bounded_number_and_keeps_no_other_out() {
        let (stranger, other): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let all = Unproved::default();
        let mut held: Vec<Entered> = (0..100).filter_map(|_| all.enter(stranger, false)).collect();
        assert_eq!(held.len(), MOST_OF_A_STRANGER as usize);
        assert!(all.enter(other, false).is_some());
        assert!(all.enter(stranger, true).is_some(), "a node at that address is let in");
        held.pop();
        assert!(all.enter(stranger, false).is_some(), "one has left");
        drop(held);
        assert!(all.with(|counts| counts.is_empty()), "nothing is kept of those that have left");
    }
}
