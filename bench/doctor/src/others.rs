//! What others use of this host at the moment, the hypervisor's other guests included.

use loadline_base::figures::counted;
use loadline_load::host::HostSecond;

use crate::check::Check;

/// Share of CPU time that is stolen from which on figures are wrong.
const STEAL_WRONG: f64 = 0.10;
/// The same, from which on they are worse.
const STEAL: f64 = 0.02;
/// Share of CPU time that others use from which on figures are wrong.
const BUSY_WRONG: f64 = 0.50;
/// The same, from which on they are worse.
const BUSY: f64 = 0.15;
/// Share of time in which a task waits for memory from which on figures are worse.
const MEMORY_WAITS: f64 = 0.02;

/// Judges a second in which nothing was asked of the host.
pub(crate) fn check(second: &HostSecond, cpus: u32) -> Vec<Check> {
    let mut checks = vec![steal(second.cpu.steal), busy(second, cpus)];
    if let Some(pressure) = second.pressure {
        checks.push(memory_waits(pressure.memory_some));
    }
    checks
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn steal(share: f64) -> Check {
    let name = "CPU: steal";
    if share < STEAL {
        return Check::ok(name, format!("{} of a second", percent(share)));
    }
    let found = format!("the hypervisor gave {} of the CPU time to others, for a second", percent(share));
    let check = if share < STEAL_WRONG { Check::slow(name, found) } else { Check::bad(name, found) };
    check
        .expected(format!("less than {}", percent(STEAL)))
        .costs("the whole host stops during this time, and the pause is measured as latency of the storage")
        .mend(
            "use a host, or a kind of virtual machine, whose CPUs are its own; on a shared one compare in pairs \
             (loadline compare)",
        )
}

fn busy(second: &HostSecond, cpus: u32) -> Check {
    let name = "CPU: others";
    let share = second.cpu.user + second.cpu.system;
    let cpus = counted(cpus.into(), "CPU");
    let found = format!("{} of {cpus} in use, with no load of ours, for a second", percent(share));
    if share < BUSY {
        return Check::ok(name, format!("{} of {cpus}", percent(share)));
    }
    let check = if share < BUSY_WRONG { Check::slow(name, found) } else { Check::bad(name, found) };
    check
        .expected(format!("less than {}", percent(BUSY)))
        .costs("generator and storage wait for a CPU, and the wait is measured as latency of the storage")
        .mend("stop the program, or measure when it has ended; this shows the program:")
        .run("ps -eo pcpu,pid,comm --sort=-pcpu | head")
}

fn memory_waits(share: f64) -> Check {
    let name = "memory: waits";
    if share < MEMORY_WAITS {
        return Check::ok(name, format!("{} of a second", percent(share)));
    }
    let found = format!("in {} of a second some task waited for memory", percent(share));
    Check::slow(name, found)
        .expected(format!("less than {}", percent(MEMORY_WAITS)))
        .costs("the kernel writes and drops pages to free memory, and programs stop during this time")
        .mend("stop the program that uses the memory; this shows the largest:")
        .run("ps -eo rss,pid,comm --sort=-rss | head")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Severity::{self, Bad, Ok, Slow};
    use loadline_load::host::{CpuShares, Pressure};

    fn severities(user: f64, steal: f64, memory: Option<f64>) -> Vec<Severity> {
        let cpu = CpuShares { user, steal, idle: 1.0 - user - steal, ..CpuShares::default() };
        let waits = |memory_some| Pressure { cpu_some: 0.0, io_some: 0.0, io_full: 0.0, memory_some };
        let second = HostSecond { cpu, pressure: memory.map(waits), ..HostSecond::default() };
        check(&second, 4).iter().map(|check| check.severity).collect()
    }

    #[test]
    fn a_quiet_host_is_fine_and_one_that_is_not_is_said_to_be() {
        assert_eq!(severities(0.01, 0.0, Some(0.0)), [Ok, Ok, Ok]);
        assert_eq!(severities(0.01, 0.05, None), [Slow, Ok]);
        assert_eq!(severities(0.01, 0.30, None), [Bad, Ok]);
        assert_eq!(severities(0.30, 0.0, None), [Ok, Slow]);
        assert_eq!(severities(0.80, 0.0, Some(0.1)), [Ok, Bad, Slow]);
    }
}
