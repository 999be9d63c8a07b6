//! The kernel's version, and what is missing below which.

use crate::check::Check;

/// The least kernel by which disks of NBD servers can be measured.
const BENCH: (u32, u32) = (5, 11);
/// The least kernel on which nodes of the virtual SAN run.
const SAN: (u32, u32) = (5, 15);
/// The least kernel with which nothing is missing.
const WHOLE: (u32, u32) = (6, 1);

/// Judges a kernel by its release, such as `6.1.0-18-amd64`.
pub(crate) fn check(release: Option<&str>) -> Check {
    let name = "kernel";
    let Some((release, version)) = release.and_then(|release| Some((release, version(release)?))) else {
        return Check::note(name, "the kernel does not report its version")
            .expected("a Linux kernel, 6.1 or newer")
            .costs("what follows is judged without it")
            .mend("see uname -r");
    };
    let mend = |check: Check| {
        check.expected("6.1 or newer").mend(
            "install a newer kernel, from the distribution's upgrade or backports, and restart the host",
        )
    };
    if version < BENCH {
        let costs = "below 5.11 io_uring has no waits with a limit: loads are issued by threads, disks of NBD \
                     servers cannot be measured, and nodes of the virtual SAN do not start";
        return mend(Check::bad(name, release).costs(costs));
    }
    if version < SAN {
        let costs = "below 5.15 nodes of the virtual SAN do not start, and a file in memory occupies more threads of \
                     the kernel than its load can use";
        return mend(Check::slow(name, release).costs(costs));
    }
    if version < WHOLE {
        let costs = "below 6.1 each completion interrupts the thread that submits (no deferred completions), and the \
                     kernel does not tell what direct I/O on a file must be aligned to";
        return mend(Check::slow(name, release).costs(costs));
    }
    Check::ok(name, release)
}

/// The first two numbers of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Severity;

    #[test]
    fn what_is_missing_follows_from_the_version() {
        let of = |release: &str| check(Some(release)).severity;
        assert_eq!(of("4.18.0-553.el8.x86_64"), Severity::Bad);
        assert_eq!(of("5.10.0-28-amd64"), Severity::Bad);
        assert_eq!(of("5.11.0"), Severity::Slow);
        assert_eq!(of("5.14.0-427.el9.x86_64"), Severity::Slow);
        assert!(check(Some("5.14.0")).costs.unwrap().contains("SAN"));
        assert!(check(Some("5.15.0-101-generic")).costs.unwrap().contains("deferred"));
        assert_eq!((of("6.1.0"), of("6.10"), of("7.0-rc1")), (Severity::Ok, Severity::Ok, Severity::Ok));
        assert_eq!((of("unknown"), check(None).severity), (Severity::Note, Severity::Note));
    }
}
