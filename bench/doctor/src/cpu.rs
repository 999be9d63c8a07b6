//! How fast the CPUs run, and how deep they sleep.

use loadline_load::host::Inventory;

use crate::check::Check;
use crate::root::Root;

/// A CPU that takes longer than this to wake, in microseconds, is measured with each I/O.
const WAKES_US: u64 = 50;
const CPUS: &str = "sys/devices/system/cpu";

/// Judges frequency and sleep.
pub(crate) fn check(root: &Root, inventory: &Inventory) -> Vec<Check> {
    vec![governor(root, inventory), turbo(root), sleep(root)]
}

fn governor(root: &Root, inventory: &Inventory) -> Check {
    let name = "CPU: governor";
    if inventory.governor.is_none() {
        return Check::ok(name, "none to be set here, as in most virtual machines");
    }
    let is_cpu = |name: &String| name.strip_prefix("cpu").is_some_and(|n| n.parse::<u32>().is_ok());
    let governors: Vec<String> = root
        .names(CPUS)
        .into_iter()
        .filter(is_cpu)
        .filter_map(|cpu| root.line(format!("{CPUS}/{cpu}/cpufreq/scaling_governor")))
        .collect();
    let others: Vec<&String> = governors.iter().filter(|governor| *governor != "performance").collect();
    let Some(other) = others.first() else { return Check::ok(name, "performance") };
    Check::slow(name, format!("{other}, on {} of {} CPUs", others.len(), governors.len()))
        .expected("performance")
        .costs(
            "CPUs run slowly until they are busy, and with few I/Os outstanding they never are: latency is higher, and \
             differs from one run to the next",
        )
        .mend("set it, until the next start of the host")
        .run("echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
}

fn turbo(root: &Root) -> Check {
    let name = "CPU: turbo";
    let is_on = match root.number(format!("{CPUS}/intel_pstate/no_turbo")) {
        Some(off) => Some(off == 0),
        None => root.number(format!("{CPUS}/cpufreq/boost")).map(|on| on == 1),
    };
    match is_on {
        None => Check::ok(name, "the kernel reports none"),
        Some(false) => Check::ok(name, "off"),
        Some(true) => Check::note(name, "on")
            .expected("off, to compare small differences")
            .costs("a CPU is faster while it is cool or few CPUs are busy: a short run can be faster than a long run")
            .mend("warm up long enough, and compare in pairs; nothing else is needed"),
    }
}

fn sleep(root: &Root) -> Check {
    let name = "CPU: sleep";
    let folder = format!("{CPUS}/cpu0/cpuidle");
    let states = root.names(&folder).into_iter().filter(|state| state.starts_with("state"));
    let deepest = states
        .filter(|state| root.number(format!("{folder}/{state}/disable")) != Some(1))
        .filter_map(|state| {
            let name = root.line(format!("{folder}/{state}/name")).unwrap_or(state.clone());
            Some((root.number(format!("{folder}/{state}/latency"))?, name))
        })
        .max();
    match deepest {
        Some((us, state)) if us > WAKES_US => Check::note(name, format!("{state} takes {us} us to wake from"))
            .expected(format!("no state that takes longer than {WAKES_US} us"))
            .costs(format!(
                "with few I/Os outstanding CPUs sleep between them, and up to {us} us of each latency are the CPU's"
            ))
            .mend("for measurements of latency, leave out deep states, until the next start of the host")
            .run(format!("sudo cpupower idle-set -D {WAKES_US}")),
        Some((us, state)) => Check::ok(name, format!("{state} at the deepest, {us} us to wake")),
        None => Check::ok(name, "the kernel tells of no states"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Severity;
    use crate::root::fixture;

    fn checks(files: &[(&str, &str)]) -> Vec<Check> {
        let (_folder, root) = fixture(files);
        check(&root, &Inventory::collect_below(root.folder(), &[]))
    }

    const GOVERNOR: [&str; 2] = [
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
        "sys/devices/system/cpu/cpu10/cpufreq/scaling_governor",
    ];

    #[test]
    fn any_cpu_that_is_not_governed_for_performance_is_found() {
        assert_eq!(checks(&[])[0].severity, Severity::Ok, "a virtual machine");
        assert_eq!(
            checks(&[(GOVERNOR[0], "performance"), (GOVERNOR[1], "performance")])[0].severity,
            Severity::Ok
        );
        let one = &checks(&[(GOVERNOR[0], "performance"), (GOVERNOR[1], "powersave")])[0];
        assert_eq!((one.severity, one.found.as_str()), (Severity::Slow, "powersave, on 1 of 2 CPUs"));
        assert!(one.run.as_deref().unwrap().contains("scaling_governor"));
    }

    #[test]
    fn turbo_is_worth_a_note() {
        let of = |file: &str, text: &str| checks(&[(file, text)])[1].severity;
        assert_eq!(of("sys/devices/system/cpu/intel_pstate/no_turbo", "0"), Severity::Note);
        assert_eq!(of("sys/devices/system/cpu/intel_pstate/no_turbo", "1"), Severity::Ok);
        assert_eq!(of("sys/devices/system/cpu/cpufreq/boost", "1"), Severity::Note);
        assert_eq!(of("sys/devices/system/cpu/cpufreq/boost", "0"), Severity::Ok);
        assert_eq!(checks(&[])[1].severity, Severity::Ok);
    }

    #[test]
    fn deep_sleep_that_is_allowed_is_worth_a_note() {
        let idle = "sys/devices/system/cpu/cpu0/cpuidle";
        let files = |disabled: &'static str| {
            [
                (format!("{idle}/state1/name"), "C1"),
                (format!("{idle}/state1/latency"), "2"),
                (format!("{idle}/state3/name"), "C6"),
                (format!("{idle}/state3/latency"), "133"),
                (format!("{idle}/state3/disable"), disabled),
            ]
        };
        let of = |disabled| {
            let files = files(disabled);
            let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), *text)).collect();
            checks(&files)[2].clone()
        };
        let deep = of("0");
        assert_eq!((deep.severity, deep.found.as_str()), (Severity::Note, "C6 takes 133 us to wake from"));
        assert_eq!(of("1").severity, Severity::Ok);
    }
}
