//! How busy a host's CPUs were in the measured window, from `/proc/stat`.

use loadline_base::clock::Nanos;

use crate::outcome::HostCpu;

/// The counters of all CPUs together, in clock ticks since the host started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    cpus: u32,
    all: u64,
    idle: u64,
    steal: u64,
}

impl Ticks {
    fn parse(stat: &str) -> Option<Ticks> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        // user nice system idle iowait irq softirq steal; guest time is in user time already.
        let fields: Vec<u64> = line.split_ascii_whitespace().take(8).map_while(|f| f.parse().ok()).collect();
        let [_, _, _, idle, iowait, _, _, steal] = fields[..] else { return None };
        let cpus = stat.lines().skip(1).take_while(|l| l.starts_with("cpu")).count() as u32;
        Some(Ticks { cpus, all: fields.iter().sum(), idle: idle + iowait, steal })
    }

    fn now() -> Option<Ticks> {
        Ticks::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    fn since(self, earlier: Ticks) -> Option<HostCpu> {
        // iowait may run backwards, says proc(5).
        let all = self.all.checked_sub(earlier.all).filter(|n| *n > 0)? as f64;
        let idle = self.idle.saturating_sub(earlier.idle) as f64;
        let steal = self.steal.saturating_sub(earlier.steal) as f64;
        let share = |ticks: f64| (ticks / all).clamp(0.0, 1.0);
        Some(HostCpu { cpus: self.cpus, busy: share(all - idle - steal), steal: share(steal) })
    }
}

/// Takes a sample at the beginning and the end of one window.
#[derive(Debug)]
pub(crate) struct HostCpuWatch {
    begin: Nanos,
    end: Nanos,
    first: Option<Ticks>,
    result: Option<HostCpu>,
}

impl HostCpuWatch {
    /// Watches a window, on this host's monotonic clock.
    pub(crate) fn new(begin: Nanos, end: Nanos) -> HostCpuWatch {
        HostCpuWatch { begin, end, first: None, result: None }
    }

    /// When it wants to look next, if at all.
    pub(crate) fn next(&self) -> Option<Nanos> {
        match (self.first, self.result) {
            (None, _) => Some(self.begin),
            (_, None) => Some(self.end),
            _ => None,
        }
    }

    /// Looks, if it is time.
    pub(crate) fn look(&mut self, now: Nanos) {
        if self.first.is_none() && now >= self.begin {
            self.first = Ticks::now();
        }
        if let Some(first) = self.first
            && self.result.is_none()
            && now >= self.end
        {
            self.result = Ticks::now().and_then(|t| t.since(first));
        }
    }

    /// What it saw.
    pub(crate) fn result(&self) -> Option<HostCpu> {
        self.result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_come_from_the_difference_of_two_samples() {
        let first = Ticks::parse("cpu  100 0 50 800 50 0 0 0 9 0\ncpu0 1 1\ncpu1 1 1\nintr 5\n").unwrap();
        let second = Ticks::parse("cpu  150 0 75 880 60 5 10 20 9 0\ncpu0 1 1\ncpu1 1 1\n").unwrap();
        let host = second.since(first).unwrap();
        assert_eq!((host.cpus, host.busy, host.steal), (2, 0.45, 0.1));
        assert_eq!(first.since(second), None);
        assert_eq!(first.since(first), None, "no time has passed");
    }

    #[test]
    fn what_is_not_a_stat_file_is_no_sample() {
        for text in ["", "cpu", "cpu 1 2 3", "cpux 1 2 3 4 5 6 7 8", "cpu a b c d e f g h"] {
            assert_eq!(Ticks::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_watch_looks_at_the_beginning_and_at_the_end() {
        let mut watch = HostCpuWatch::new(Nanos(10), Nanos(20));
        watch.look(Nanos(5));
        assert_eq!((watch.next(), watch.first), (Some(Nanos(10)), None));
        watch.look(Nanos(11));
        assert_eq!(watch.next(), Some(Nanos(20)));
    }
}
