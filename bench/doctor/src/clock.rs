//! What the time is read from, and whether it is the same elsewhere.

use nix::libc;

use crate::check::Check;
use crate::root::Root;

const FOLDER: &str = "sys/devices/system/clocksource/clocksource0";
/// Sources that are read without entering the kernel.
const FAST: [&str; 5] =
    ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "riscv_clocksource"];

/// Judges the source of the time, and whether it is held to that of others.
pub(crate) fn check(root: &Root, synchronised: Option<bool>) -> Vec<Check> {
    vec![source(root), synchronisation(synchronised)]
}

fn source(root: &Root) -> Check {
    let name = "clock: source";
    let Some(source) = root.line(format!("{FOLDER}/current_clocksource")) else {
        return Check::ok(name, "the kernel does not tell");
    };
    if FAST.contains(&source.as_str()) {
        return Check::ok(name, source);
    }
    let check = Check::slow(name, &source)
        .expected("tsc (or kvm-clock, or another that is read without a system call)")
        .costs(
            "each reading of the clock takes a microsecond or more, and each I/O needs two: latency is higher, and \
             the generator's CPU is used up sooner",
        );
    let available = root.line(format!("{FOLDER}/available_clocksource")).unwrap_or_default();
    match available.split_whitespace().find(|offered| FAST.contains(offered)) {
        Some(fast) => check
            .mend("choose the fast clock source, until the next start of the host; the kernel log has the reason for the kernel's choice")
            .run(format!("echo {fast} | sudo tee /{FOLDER}/current_clocksource")),
        None => check
            .mend(
                "the kernel offers no other, and its log says why; in a virtual machine, let the hypervisor give it \
                 a tsc",
            )
            .run("sudo dmesg | grep -i -e tsc -e clocksource"),
    }
}

fn synchronisation(synchronised: Option<bool>) -> Check {
    let name = "clock: synchronised";
    match synchronised {
        None => Check::ok(name, "the kernel does not tell"),
        Some(true) => Check::ok(name, "yes"),
        Some(false) => Check::note(name, "no")
            .expected("a time service that keeps the clock in step with other hosts")
            .costs(
                "nothing with one host, and no figure of a fleet, which agrees on a clock of its own; the logs of \
                 several hosts cannot be laid side by side",
            )
            .mend("run a time service, such as chrony")
            .run("sudo apt-get install -y chrony && chronyc tracking"),
    }
}

/// Whether the kernel's time is held to that of others; `None` if the kernel does not report it.
pub(crate) fn is_synchronised() -> Option<bool> {
    // SAFETY: timex is plain data for which zeros are valid; with no mode set the call only fills it.
    let (state, status) = unsafe {
        let mut time: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&mut time), time.status)
    };
    (state >= 0).then_some(state != libc::TIME_ERROR && status & libc::STA_UNSYNC == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Severity;
    use crate::root::fixture;

    fn of(current: &str, available: &str) -> Check {
        let current_name = format!("{FOLDER}/current_clocksource");
        let available_name = format!("{FOLDER}/available_clocksource");
        let (_folder, root) =
            fixture(&[(current_name.as_str(), current), (available_name.as_str(), available)]);
        source(&root)
    }

    #[test]
    fn a_source_that_is_slow_to_read_is_found() {
        assert_eq!(of("tsc\n", "tsc hpet\n").severity, Severity::Ok);
        assert_eq!(of("kvm-clock\n", "kvm-clock tsc acpi_pm\n").severity, Severity::Ok);
        let hpet = of("hpet\n", "tsc hpet acpi_pm\n");
        assert_eq!(hpet.severity, Severity::Slow);
        assert!(hpet.run.unwrap().starts_with("echo tsc | sudo tee /sys/"));
        let none = of("acpi_pm\n", "acpi_pm\n");
        assert!(none.mend.unwrap().contains("offers no other") && none.run.unwrap().contains("dmesg"));
        let (_folder, root) = fixture(&[]);
        assert_eq!(source(&root).severity, Severity::Ok);
    }

    #[test]
    fn time_that_is_not_held_to_others_is_worth_a_note() {
        let of = |synchronised| synchronisation(synchronised).severity;
        assert_eq!([of(Some(true)), of(None), of(Some(false))], [Severity::Ok, Severity::Ok, Severity::Note]);
        // Whatever it is here, the kernel is asked and nothing is set.
        let _ = is_synchronised();
    }
}
