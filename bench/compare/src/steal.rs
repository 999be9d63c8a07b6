//! How much of the CPU other virtual machines took: what makes figures of a shared host doubtful.

/// The CPUs' time so far, in the kernel's ticks (`/proc/stat`, see proc_stat(5)).
#[derive(Clone, Copy)]
pub(crate) struct CpuTicks {
    steal: u64,
    total: u64,
}

impl CpuTicks {
    /// `None` if the kernel does not report it.
    pub(crate) fn now() -> Option<CpuTicks> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        // user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in user already.
        let ticks: Vec<u64> = line.split_whitespace().take(8).filter_map(|t| t.parse().ok()).collect();
        Some(CpuTicks { steal: *ticks.get(7)?, total: ticks.iter().sum() })
    }

    /// Percent of all CPUs' time since then.
    pub(crate) fn steal_since(self, before: CpuTicks) -> f64 {
        let total = self.total.saturating_sub(before.total).max(1);
        self.steal.saturating_sub(before.steal) as f64 * 100.0 / total as f64
    }
}
