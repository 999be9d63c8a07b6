//! How memory is laid out: huge pages, NUMA nodes, swap.

use loadline_base::figures::thousands;

use crate::check::Check;
use crate::root::Root;

/// So much in swap space is left from long ago, and does no harm, KiB.
const SWAPPED: u64 = 16 << 10;

/// Judges it.
pub(crate) fn check(root: &Root) -> Vec<Check> {
    vec![swap(root), nodes(root), transparent(root), reserved(root)]
}

fn swap(root: &Root) -> Check {
    let name = "memory: swap";
    let text = root.text("proc/swaps");
    let used = |line: &str| line.split_whitespace().nth(3)?.parse::<u64>().ok();
    let swaps: Vec<u64> = text.lines().skip(1).filter_map(used).collect();
    let used = swaps.iter().fold(0u64, |sum, kib| sum.saturating_add(*kib));
    if swaps.is_empty() {
        return Check::ok(name, "there is none");
    }
    let found = format!("{} MiB are in use", thousands((used >> 10) as f64));
    if used < SWAPPED {
        return Check::ok(name, found);
    }
    Check::slow(name, found)
        .expected("none in use")
        .costs(
            "a program that needs a swapped page waits until the page is read back, and this is measured as a stall; if the \
             swap space is on the measured disk, its I/O is part of the figures",
        )
        .mend("free memory, and bring back what was swapped")
        .run("sudo swapoff -a && sudo swapon -a")
}

fn nodes(root: &Root) -> Check {
    let name = "memory: NUMA";
    let is_node = |name: &String| name.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok());
    let nodes = root.names("sys/devices/system/node").into_iter().filter(is_node).count();
    if nodes < 2 {
        return Check::ok(name, "one node");
    }
    Check::note(name, format!("{nodes} nodes"))
        .expected("one, or workers that stay on one")
        .costs(
            "I/O from a CPU of one node to a device of another passes the link between them: latency differs with \
             where the kernel puts a thread",
        )
        .mend("keep each worker on the CPUs of the device's node (loadline worker --cpus); this shows them:")
        .run("cat /sys/block/*/device/numa_node; cat /sys/devices/system/node/node*/cpulist")
}

fn transparent(root: &Root) -> Check {
    let name = "memory: transparent huge pages";
    let text = root.text("sys/kernel/mm/transparent_hugepage/enabled");
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(chosen, _)| chosen);
    match chosen {
        None => Check::ok(name, "the kernel reports none"),
        Some("always") => Check::note(name, "always")
            .expected("madvise")
            .costs(
                "the kernel moves memory to make huge pages, and programs stop for moments during this time",
            )
            .mend("allow huge pages only to programs that request them, until the next start of the host")
            .run("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"),
        Some(chosen) => Check::ok(name, chosen),
    }
}

fn reserved(root: &Root) -> Check {
    let number = |word: &str| root.after("proc/meminfo", word)?.parse::<u64>().ok();
    let (total, free) = (number("HugePages_Total:").unwrap_or(0), number("HugePages_Free:").unwrap_or(0));
    let name = "memory: huge pages";
    if total > 0 && free > 0 {
        let size = root.after("proc/meminfo", "Hugepagesize:").unwrap_or_default();
        return Check::note(name, format!("{free} of {total} reserved ones are free, {size} each"))
            .expected("none that are unused")
            .costs("only programs that request this memory can use it, such as virtual machines; Loadline needs none")
            .mend("if no program will use the reserved pages, release them")
            .run("sudo sysctl -w vm.nr_hugepages=0");
    }
    Check::ok(name, if total == 0 { "none reserved, and none needed" } else { "all reserved ones are used" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Severity;
    use crate::root::fixture;

    fn of(which: fn(&Root) -> Check, files: &[(&str, &str)]) -> Severity {
        let (_folder, root) = fixture(files);
        which(&root).severity
    }

    #[test]
    fn swap_that_is_used_is_found() {
        let title = "Filename Type Size Used Priority\n";
        let with = |rest: &str| of(swap, &[("proc/swaps", &format!("{title}{rest}"))]);
        assert_eq!((of(swap, &[]), with("")), (Severity::Ok, Severity::Ok));
        assert_eq!(with("/dev/sda2 partition 4194300 512 -2\n"), Severity::Ok);
        assert_eq!(with("/dev/sda2 partition 4194300 90000 -2\n/swap file 100 0 -3\n"), Severity::Slow);
    }

    #[test]
    fn more_than_one_node_is_worth_a_note() {
        let node =
            |n| (["sys/devices/system/node/node0/cpulist", "sys/devices/system/node/node1/cpulist"][n], "0");
        let folder = ("sys/devices/system/node/online", "0-1");
        assert_eq!((of(nodes, &[]), of(nodes, &[node(0), folder])), (Severity::Ok, Severity::Ok));
        assert_eq!(of(nodes, &[node(0), node(1), folder]), Severity::Note);
    }

    #[test]
    fn huge_pages_are_worth_a_note_where_they_do_harm() {
        let file = "sys/kernel/mm/transparent_hugepage/enabled";
        assert_eq!(of(transparent, &[]), Severity::Ok);
        assert_eq!(of(transparent, &[(file, "always [madvise] never\n")]), Severity::Ok);
        assert_eq!(of(transparent, &[(file, "[always] madvise never\n")]), Severity::Note);
        let file = "proc/meminfo";
        assert_eq!(of(reserved, &[(file, "HugePages_Total:       0\nHugePages_Free: 0\n")]), Severity::Ok);
        assert_eq!(of(reserved, &[(file, "HugePages_Total: 8\nHugePages_Free: 0\n")]), Severity::Ok);
        let idle = "HugePages_Total: 8\nHugePages_Free: 3\nHugepagesize: 2048 kB\n";
        assert_eq!(of(reserved, &[(file, idle)]), Severity::Note);
    }
}
