//! How busy a host's CPUs were in the measured window.

use loadline_base::clock::Nanos;
use loadline_load::host::{CpuShares, HostSampler, Inventory, allowed_cpus};

use crate::outcome::HostCpu;

/// Takes a sample at the beginning and the end of one window.
pub(crate) struct HostCpuWatch {
    begin: Nanos,
    end: Nanos,
    cpus: u32,
    sampler: Option<HostSampler>,
    result: Option<HostCpu>,
}

impl HostCpuWatch {
    /// Watches a window, on this host's monotonic clock.
    pub(crate) fn new(begin: Nanos, end: Nanos) -> HostCpuWatch {
        HostCpuWatch { begin, end, cpus: 0, sampler: None, result: None }
    }

    /// When the next poll is due; `None`: never.
    pub(crate) fn next(&self) -> Option<Nanos> {
        match (&self.sampler, &self.result) {
            (_, Some(_)) => None,
            (None, None) => Some(self.begin),
            (Some(_), None) => Some(self.end),
        }
    }

    /// Looks, if it is time.
    pub(crate) fn poll(&mut self, now: Nanos) {
        match &mut self.sampler {
            None if now >= self.begin => {
                let inventory = Inventory::collect(&[]);
                self.cpus = inventory.cpus;
                self.sampler = Some(HostSampler::new(&inventory));
            }
            Some(sampler) if now >= self.end && self.result.is_none() => {
                self.result = host_cpu(self.cpus, &sampler.sample(0).cpu);
            }
            _ => {}
        }
    }

    /// What it saw of the whole window, if it could.
    pub(crate) fn result(&self) -> Option<HostCpu> {
        self.result
    }
}

/// `None` if the host does not report it: then no time has passed in any state.
fn host_cpu(cpus: u32, shares: &CpuShares) -> Option<HostCpu> {
    let CpuShares { user, system, iowait, steal, idle } = *shares;
    (user + system + iowait + steal + idle > 0.5).then(|| HostCpu {
        cpus,
        allowed: Some(allowed_cpus()),
        busy: (user + system).min(1.0),
        steal,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_looks_at_the_beginning_and_at_the_end() {
        let mut watch = HostCpuWatch::new(Nanos(10), Nanos(20));
        watch.poll(Nanos(5));
        assert_eq!((watch.next(), watch.result()), (Some(Nanos(10)), None));
        watch.poll(Nanos(11));
        assert_eq!(watch.next(), Some(Nanos(20)));
        // The kernel counts in ticks of 10 ms.
        std::thread::sleep(std::time::Duration::from_millis(100));
        watch.poll(Nanos(20));
        let seen = watch.result().unwrap();
        assert!(seen.allowed.is_some_and(|allowed| allowed > 0.0 && allowed <= f64::from(seen.cpus)));
        assert!(seen.cpus > 0 && (0.0..=1.0).contains(&seen.busy), "{seen:?}");
        assert_eq!(watch.next(), None);
    }

    #[test]
    fn a_host_that_does_not_tell_is_not_idle_but_unknown() {
        let nothing = CpuShares { user: 0.0, system: 0.0, iowait: 0.0, steal: 0.0, idle: 0.0 };
        assert_eq!(host_cpu(2, &nothing), None);
    }
}
