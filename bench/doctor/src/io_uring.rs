//! Whether io_uring can be used, and what refuses it if not.

use std::io;

use crate::check::Check;
use crate::root::Root;

/// Judges what came of trying it.
pub(crate) fn check(attempt: &io::Result<()>, root: &Root) -> Check {
    let refused = match attempt {
        Ok(()) => return Check::ok("io_uring", "works"),
        Err(refused) => refused,
    };
    let check = |by: &str| {
        Check::bad("io_uring", format!("refused ({refused}){by}"))
            .expected("a ring that can be made, registered with, and waited on")
            .costs(
                "threads issue the I/Os, and each I/O costs much more CPU, so the host and not the storage may limit the \
                 figures; disks of NBD servers cannot be measured; nodes of the virtual SAN do not start",
            )
    };
    match root.number("proc/sys/kernel/io_uring_disabled") {
        Some(2) => check(": the kernel is set to refuse it to all users")
            .mend("allow it, and in /etc/sysctl.d to keep it so")
            .run("sudo sysctl -w kernel.io_uring_disabled=0"),
        Some(1) => check(": the kernel is set to allow it only to root and to one group")
            .mend("allow it for all users; or add the user to the group that kernel.io_uring_group names")
            .run("sudo sysctl -w kernel.io_uring_disabled=0"),
        _ if root.after("proc/self/status", "Seccomp:").as_deref() == Some("2") => {
            check(": a system-call filter (seccomp) applies to this process, as in containers")
                .mend(
                    "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile, and \
                     start it with that profile",
                )
                .run("docker run --security-opt seccomp=PROFILE.json IMAGE")
        }
        _ => check(": the kernel is too old, or was built without it")
            .mend("use a kernel of 6.1 or newer with CONFIG_IO_URING"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Severity;
    use crate::root::fixture;

    fn refused(files: &[(&str, &str)]) -> Check {
        let (_folder, root) = fixture(files);
        check(&Err(io::Error::from_raw_os_error(1)), &root)
    }

    #[test]
    fn what_refuses_it_is_named_with_what_to_do() {
        let (_folder, root) = fixture(&[("proc/sys/kernel/io_uring_disabled", "2\n")]);
        assert_eq!(check(&Ok(()), &root).severity, Severity::Ok, "it works for this process");
        let disabled = refused(&[("proc/sys/kernel/io_uring_disabled", "2\n")]);
        assert_eq!(disabled.severity, Severity::Bad);
        assert_eq!(disabled.run.as_deref(), Some("sudo sysctl -w kernel.io_uring_disabled=0"));
        assert!(disabled.found.contains("not permitted"), "{}", disabled.found);
        let group = refused(&[("proc/sys/kernel/io_uring_disabled", "1\n")]);
        assert!(group.mend.unwrap().contains("io_uring_group"));
        let files =
            [("proc/sys/kernel/io_uring_disabled", "0\n"), ("proc/self/status", "Name: x\nSeccomp:\t2\n")];
        let contained = refused(&files);
        assert!(contained.run.unwrap().contains("--security-opt seccomp="));
        let files = [("proc/self/status", "Name: x\nSeccomp:\t0\nSeccomp_filters:\t0\n")];
        assert!(refused(&files).found.contains("too old"));
    }
}
