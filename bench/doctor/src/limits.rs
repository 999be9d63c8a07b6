//! What this process may use: open files, locked memory, memory, CPU time.

use loadline_base::figures::{counted, thousands};
use loadline_base::units::ByteSize;
use loadline_load::host::{Inventory, allowed_cpus, bound_cpus};
use loadline_load::memory;
use nix::sys::resource::{Resource, getrlimit};

use crate::check::Check;
use crate::root::Root;

/// Open files that a fleet, or a node with many clients, should be able to have.
const OPEN_FILES: u64 = 4096;
/// Locked memory for the buffers of a deep load, bytes: 1024 I/Os of 64 KiB.
const LOCKED: u64 = 64 << 20;
/// Stack of the main thread, and addresses of a process, bytes.
const STACK: u64 = 8 << 20;
const ADDRESSES: u64 = 4 << 30;
/// Memory for a load or a node, bytes.
const MEMORY: u64 = 1 << 30;
/// With less than this, bytes, something is likely to be killed.
const LEAST_MEMORY: u64 = 256 << 20;
/// The bit of `CAP_IPC_LOCK` in a set of capabilities: a process with it may lock all memory.
const IPC_LOCK: u32 = 14;

/// What this process may use.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Limits {
    /// Open files, the hard limit: programs raise theirs to it.
    pub(crate) open_files: u64,
    /// Locked memory, the soft limit, bytes.
    pub(crate) locked: u64,
    /// Whether that limit does not count (`CAP_IPC_LOCK`).
    pub(crate) may_lock_all: bool,
    /// The stack of the main thread, the hard limit, bytes.
    pub(crate) stack: u64,
    /// Addresses of the process, the hard limit, bytes.
    pub(crate) addresses: u64,
    /// Bytes of a file that it writes, the hard limit.
    pub(crate) file_size: u64,
    /// Memory that can be had, bytes.
    pub(crate) memory: u64,
    /// What sets that limit.
    pub(crate) memory_where: &'static str,
    /// CPUs that are online.
    pub(crate) cpus: u32,
    /// CPUs that this process is bound to.
    pub(crate) bound: f64,
    /// CPUs' time that it may use of those.
    pub(crate) allowed: f64,
}

impl Limits {
    /// What they are now.
    pub(crate) fn now(root: &Root, inventory: &Inventory) -> Limits {
        let limit = |which| getrlimit(which).unwrap_or((u64::MAX, u64::MAX));
        let (memory, memory_where) = memory::available_in(&root.path("proc"), &root.path("sys/fs/cgroup"));
        let capabilities = root.after("proc/self/status", "CapEff:");
        let capabilities = capabilities.and_then(|set| u64::from_str_radix(&set, 16).ok()).unwrap_or(0);
        Limits {
            open_files: limit(Resource::RLIMIT_NOFILE).1,
            locked: limit(Resource::RLIMIT_MEMLOCK).0,
            may_lock_all: (capabilities >> IPC_LOCK) & 1 == 1,
            stack: limit(Resource::RLIMIT_STACK).1,
            addresses: limit(Resource::RLIMIT_AS).1,
            file_size: limit(Resource::RLIMIT_FSIZE).1,
            memory,
            memory_where,
            cpus: inventory.cpus,
            bound: bound_cpus().map_or(f64::from(inventory.cpus), f64::from),
            allowed: allowed_cpus(),
        }
    }

    /// Judges them.
    pub(crate) fn check(&self) -> Vec<Check> {
        vec![self.open_files(), self.locked(), self.sizes(), self.memory(), self.cpu_time()]
    }

    fn open_files(&self) -> Check {
        let name = "limit: open files";
        let found = match self.open_files {
            u64::MAX => "none".into(),
            files => thousands(files as f64),
        };
        if self.open_files >= OPEN_FILES {
            return Check::ok(name, found);
        }
        Check::slow(name, found)
            .expected(format!("{} or more (the hard limit)", thousands(OPEN_FILES as f64)))
            .costs("a fleet's controller and a node need one for each worker and client: further connections are refused")
            .mend(
                "raise it for the user in /etc/security/limits.conf, or for a service with LimitNOFILE=; now, for one \
                 shell:",
            )
            .run("sudo prlimit --pid $$ --nofile=65536:65536")
    }

    fn locked(&self) -> Check {
        let name = "limit: locked memory";
        if self.may_lock_all {
            return Check::ok(name, "none (this process has CAP_IPC_LOCK)");
        }
        let found = match self.locked {
            u64::MAX => "none".into(),
            bytes => format!("{} KiB", thousands((bytes >> 10) as f64)),
        };
        if self.locked >= LOCKED {
            return Check::ok(name, found);
        }
        Check::slow(name, found)
            .expected("64 MiB or more: the buffers of 1,024 I/Os of 64 KiB")
            .costs("buffers beyond it are not registered with io_uring: each I/O costs some more CPU")
            .mend(
                "raise it for the user in /etc/security/limits.conf (memlock), or for a service with \
                 LimitMEMLOCK=infinity; now, for one shell:",
            )
            .run("sudo prlimit --pid $$ --memlock=unlimited:unlimited")
    }

    /// Stack, addresses and file size: usually without a limit, and one that is too low ends a command.
    fn sizes(&self) -> Check {
        let name = "limit: sizes";
        let size = |bytes| match bytes {
            u64::MAX => "any".into(),
            bytes => ByteSize(bytes).rounded(),
        };
        let found = format!(
            "stack {}, addresses {}, files {}",
            size(self.stack),
            size(self.addresses),
            size(self.file_size)
        );
        if self.stack < STACK || self.addresses < ADDRESSES {
            return Check::bad(name, found)
                .expected("8 MiB of stack and 4 GiB of addresses or more (the hard limits)")
                .costs("commands, nodes and deep loads are refused")
                .mend("raise them for the user in /etc/security/limits.conf (stack, as), or for a service with LimitSTACK= and LimitAS=; now, for one shell:")
                .run("sudo prlimit --pid $$ --stack=unlimited:unlimited --as=unlimited:unlimited");
        }
        if self.file_size != u64::MAX {
            return Check::note(name, found)
                .expected("files of any size")
                .costs("a test file or a device of a node that is a longer file is refused")
                .mend("raise it for the user in /etc/security/limits.conf (fsize), or for a service with LimitFSIZE=infinity; now, for one shell:")
                .run("sudo prlimit --pid $$ --fsize=unlimited:unlimited");
        }
        Check::ok(name, found)
    }

    fn memory(&self) -> Check {
        let name = "memory: free";
        if self.memory == u64::MAX {
            return Check::note(name, "the kernel does not tell");
        }
        let found = format!("{} MiB {}", thousands((self.memory >> 20) as f64), self.memory_where);
        if self.memory >= MEMORY {
            return Check::ok(name, found);
        }
        let check = match self.memory < LEAST_MEMORY {
            true => Check::bad(name, found),
            false => Check::slow(name, found),
        };
        check
            .expected("1,024 MiB or more")
            .costs(
                "loads with much outstanding are refused; and where memory runs out, the kernel swaps or kills, which \
                 is measured as a stall of the storage",
            )
            .mend("stop the program that uses the memory, or raise the container's limit (docker update --memory); this shows the largest:")
            .run("ps -eo rss,pid,comm --sort=-rss | head")
    }

    fn cpu_time(&self) -> Check {
        let name = "limit: CPU";
        let all = f64::from(self.cpus);
        if self.allowed + 1e-9 < self.bound {
            return Check::bad(name, format!("a quota of {:.2} CPUs of {}", self.allowed, self.cpus))
                .expected("no quota of CPU time")
                .costs(
                    "a process that has used up the quota stops until the next period, for up to 100 ms: the pause is measured \
                     as latency of the storage, and a node's leases can expire",
                )
                .mend("give the container or service all of its CPUs' time (CPUQuota= of systemd)")
                .run("docker update --cpus=0 CONTAINER");
        }
        if self.bound < all {
            let found = format!("{} of {} may be used", self.bound, counted(self.cpus.into(), "CPU"));
            return Check::note(name, found)
                .expected("all of them")
                .costs("none, if the limit is intended; a load that needs more CPU is limited by the generator, and its report states this")
                .mend("start it without taskset or a cpuset");
        }
        Check::ok(name, if self.cpus == 1 { "1 CPU".into() } else { format!("all {} CPUs", self.cpus) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Severity::{self, Bad, Note, Ok, Slow};
    use crate::root::fixture;

    const FINE: Limits = Limits {
        open_files: 524_288,
        locked: 64 << 20,
        may_lock_all: false,
        stack: u64::MAX,
        addresses: u64::MAX,
        file_size: u64::MAX,
        memory: 8 << 30,
        memory_where: "on this host",
        cpus: 4,
        bound: 4.0,
        allowed: 4.0,
    };

    fn severities(limits: &Limits) -> Vec<Severity> {
        limits.check().iter().map(|check| check.severity).collect()
    }

    #[test]
    fn what_is_enough_is_fine() {
        assert_eq!(severities(&FINE), [Ok; 5]);
        let unlimited = Limits { open_files: u64::MAX, locked: u64::MAX, ..FINE };
        assert_eq!(severities(&unlimited), [Ok; 5]);
    }

    #[test]
    fn each_limit_that_is_too_low_is_said() {
        assert_eq!(severities(&Limits { open_files: 1024, ..FINE }), [Slow, Ok, Ok, Ok, Ok]);
        assert_eq!(severities(&Limits { locked: 8 << 20, ..FINE }), [Ok, Slow, Ok, Ok, Ok]);
        assert_eq!(severities(&Limits { locked: 8 << 20, may_lock_all: true, ..FINE }), [Ok; 5]);
        assert_eq!(severities(&Limits { memory: 700 << 20, ..FINE }), [Ok, Ok, Ok, Slow, Ok]);
        assert_eq!(severities(&Limits { memory: 100 << 20, ..FINE }), [Ok, Ok, Ok, Bad, Ok]);
        assert_eq!(severities(&Limits { memory: u64::MAX, ..FINE }), [Ok, Ok, Ok, Note, Ok]);
        assert_eq!(severities(&Limits { allowed: 1.5, ..FINE }), [Ok, Ok, Ok, Ok, Bad]);
        assert_eq!(severities(&Limits { allowed: 2.0, bound: 2.0, ..FINE }), [Ok, Ok, Ok, Ok, Note]);
        assert_eq!(severities(&Limits { stack: 1 << 20, ..FINE }), [Ok, Ok, Bad, Ok, Ok]);
        assert_eq!(severities(&Limits { addresses: 1 << 30, ..FINE }), [Ok, Ok, Bad, Ok, Ok]);
        assert_eq!(severities(&Limits { file_size: 1 << 40, ..FINE }), [Ok, Ok, Note, Ok, Ok]);
        let quota = Limits { allowed: 1.5, ..FINE }.cpu_time();
        assert!(quota.found.contains("1.50") && quota.run.is_some(), "{quota:?}");
    }

    #[test]
    fn limits_are_read_from_this_process_and_its_control_group() {
        let files = [
            ("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\n"),
            ("proc/self/cgroup", "0::/x\n"),
            ("sys/fs/cgroup/x/memory.max", "1000000\n"),
            ("proc/self/status", "CapEff:\t0000000000004000\n"),
        ];
        let (_folder, root) = fixture(&files);
        let limits = Limits::now(&root, &Inventory { cpus: 64, ..Inventory::default() });
        assert_eq!((limits.memory, limits.may_lock_all), (1_000_000, true));
        assert!(limits.memory_where.contains("control group") && limits.open_files > 0 && limits.bound > 0.0);
    }
}
