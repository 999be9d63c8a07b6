//! The queues that limit what nodes send and receive, made and read by the commands `ip` and `tc`.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use loadline_base::units::ByteSize;

use super::Traffic;
use super::namespace::Namespace;
use crate::error::TargetError;

/// The device on which what nodes receive is queued.
const RECEIVES: &str = "receives";
/// The addresses that nodes may have: 1 to 32 are within.
const NODES_PREFIX: u8 = 26;
/// What may pass at once, so that a timer that fires late costs no bandwidth: at least two of the largest packets, or 2 ms of it.
const LEAST_BURST: u64 = 128 << 10;
const BURSTS_A_SECOND: u64 = 500;
/// What may wait for a node to be received, before packets are dropped and TCP slows down, as in a switch: 20 ms of the bandwidth, or at
/// least so much. With a quarter of that, many connections to one node lost packets without end.
const LEAST_QUEUE: u64 = 1 << 20;
const QUEUES_A_SECOND: u64 = 50;
/// `tc` says so, and which line.
const FAILED_LINE: &str = "Command failed -:";

/// Limits what each of so many nodes sends and receives. The error is of kind `Usage`, and says what the machine lacks.
pub(super) fn set_up(
    namespace: &Namespace,
    per_second: ByteSize,
    network: Ipv4Addr,
    nodes: u32,
) -> Result<(), TargetError> {
    let devices = format!("link set lo up\nlink add {RECEIVES} type ifb\nlink set {RECEIVES} up\n");
    batch(namespace, "ip", &devices)?;
    batch(namespace, "tc", &queues(per_second, network, nodes))
}

/// The lines for `tc`.
fn queues(per_second: ByteSize, network: Ipv4Addr, nodes: u32) -> String {
    let rate = per_second.0;
    let burst = LEAST_BURST.max(rate / BURSTS_A_SECOND);
    let queue = LEAST_QUEUE.max(rate / QUEUES_A_SECOND);
    let to_nodes = format!("match ip dst {network}/{NODES_PREFIX}");
    let mut lines = String::from("qdisc add dev lo root handle 1: htb\nqdisc add dev lo clsact\n");
    let mut add = |line: String| _ = writeln!(lines, "{line}");
    add(format!("qdisc add dev {RECEIVES} root handle 1: htb"));
    for number in 1..=nodes {
        let address = Ipv4Addr::from_bits(network.to_bits() + number);
        let limit = format!("htb rate {rate}bps burst {burst}b cburst {burst}b quantum 65536");
        for device in ["lo", RECEIVES] {
            add(format!("class add dev {device} parent 1: classid 1:{number:x} {limit}"));
        }
        add(format!("qdisc add dev {RECEIVES} parent 1:{number:x} bfifo limit {queue}"));
        // What a node sends to itself passes.
        let same = format!("match ip src {address} match ip dst {address}");
        add(format!("filter add dev lo parent 1: protocol ip prio 1 u32 {same} flowid 1:0"));
        add(format!("filter add dev lo ingress protocol ip prio 1 u32 {same} flowid :1"));
        let (from, to) = (format!("match ip src {address}"), format!("match ip dst {address}"));
        add(format!(
            "filter add dev lo parent 1: protocol ip prio 2 u32 {from} {to_nodes} flowid 1:{number:x}"
        ));
        add(format!("filter add dev {RECEIVES} parent 1: protocol ip prio 1 u32 {to} flowid 1:{number:x}"));
    }
    add(format!(
        "filter add dev lo ingress protocol ip prio 2 u32 match ip src {network}/{NODES_PREFIX} {to_nodes} flowid :1 action mirred egress redirect dev {RECEIVES}"
    ));
    lines
}

/// What each of so many nodes has sent and received.
pub(super) fn traffic(namespace: &Namespace, nodes: u32) -> Result<Vec<Traffic>, TargetError> {
    let read = |device: &str| {
        let text = run(namespace, "tc", &["-s", "class", "show", "dev", device], "")?;
        counts(&text, nodes).ok_or_else(|| {
            TargetError::failed(format!(
                "tc -s class show dev {device} does not name the bytes of each node: {text}"
            ))
        })
    };
    let (sent, received) = (read("lo")?, read(RECEIVES)?);
    Ok(sent.into_iter().zip(received).map(|(sent, received)| Traffic { sent, received }).collect())
}

/// The bytes of the classes of so many nodes, in the text that `tc -s class` prints: a line `class htb 1:a ...`, and then
/// ` Sent 123 bytes ...`. `None` if one is missing.
fn counts(text: &str, nodes: u32) -> Option<Vec<u64>> {
    let of = |number: u32| {
        let head = format!("class htb 1:{number:x} ");
        let mut lines = text.lines().skip_while(|line| !line.starts_with(&head)).skip(1);
        let count = lines.next()?.trim().strip_prefix("Sent ")?.split_once(" bytes")?.0;
        count.parse().ok()
    };
    (1..=nodes).map(of).collect()
}

/// Has a command carry out these lines. The error is of kind `Usage`, and has the line that failed.
fn batch(namespace: &Namespace, program: &str, lines: &str) -> Result<(), TargetError> {
    run(namespace, program, &["-batch", "-"], lines).map(drop)
}

/// Runs a command in the namespace.
fn run(namespace: &Namespace, program: &str, arguments: &[&str], input: &str) -> Result<String, TargetError> {
    // An empty part of it would be the current folder.
    let path = std::env::var("PATH").ok().filter(|path| !path.is_empty());
    let path = path.unwrap_or_else(|| "/usr/bin:/bin".into());
    let mut command = Command::new(program);
    // They are there, and not every root has them in its path.
    command.args(arguments).env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = |e: std::io::Error| match e.kind() {
        ErrorKind::NotFound => TargetError::usage(format!(
            "the command {program} is missing, which nodes with a network of their own need: install iproute2, or leave the bandwidth of \
             the network out"
        )),
        _ => TargetError::failed(format!("the command {program} cannot be run: {e}")),
    };
    let mut child = namespace.within(|| command.spawn())?.map_err(failed)?;
    if let Some(mut to) = child.stdin.take() {
        // A command that ends before it has read everything says why.
        let _ = to.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(TargetError::usage(refusal(program, input, String::from_utf8_lossy(&output.stderr).trim())))
}

/// What a command has refused, and what to do.
fn refusal(program: &str, input: &str, said: &str) -> String {
    let number = said.lines().find_map(|line| line.strip_prefix(FAILED_LINE)?.trim().parse::<usize>().ok());
    let line = number.and_then(|number| input.lines().nth(number.checked_sub(1)?)).unwrap_or_default();
    let why: Vec<&str> = said.lines().filter(|line| !line.starts_with(FAILED_LINE)).collect();
    format!(
        "the nodes' network cannot be limited: '{program} {line}' failed: {}. The kernel must have htb, bfifo, clsact, u32, mirred and ifb (on \
         Ubuntu some are in the package linux-modules-extra), and root the capability CAP_NET_ADMIN. Without them leave the bandwidth of the \
         network out",
        why.join("; ").trim_end_matches('.')
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_a_class_for_each_direction_and_a_queue_of_some_time() {
        let lines = queues(ByteSize(125_000_000), Ipv4Addr::new(127, 1, 2, 0), 11);
        for line in [
            "class add dev lo parent 1: classid 1:b htb rate 125000000bps burst 250000b cburst 250000b quantum 65536",
            "qdisc add dev receives parent 1:b bfifo limit 2500000",
            "filter add dev lo parent 1: protocol ip prio 2 u32 match ip src 127.1.2.11 match ip dst 127.1.2.0/26 flowid 1:b",
            "filter add dev receives parent 1: protocol ip prio 1 u32 match ip dst 127.1.2.11 flowid 1:b",
        ] {
            assert!(lines.lines().any(|one| one == line), "{line}\n{lines}");
        }
        assert!(!lines.contains("1:c "));
        let slow = queues(ByteSize(1 << 20), Ipv4Addr::new(127, 1, 2, 0), 1);
        assert!(slow.contains("burst 131072b") && slow.contains("bfifo limit 1048576"), "{slow}");
    }

    #[test]
    fn bytes_are_read_of_every_node_or_not_at_all() {
        let text = "class htb 1:10 root prio 0 rate 8Mbit ceil 8Mbit burst 128Kb cburst 128Kb \n Sent 77 bytes 1 pkt (dropped 0)\n\n\
                    class htb 1:1 root leaf 8005: prio 0 rate 8Mbit\n Sent 123456789012 bytes 9 pkt (dropped 3)\n backlog 0b 0p\n\
                    class htb 1:2 root prio 0\n Sent 5 bytes 1 pkt\n";
        assert_eq!(counts(text, 2), Some(vec![123_456_789_012, 5]));
        assert_eq!(counts(text, 3), None);
        assert_eq!(counts(&text.replace("Sent 5 bytes", "Sent x bytes"), 2), None);
    }

    #[test]
    fn what_the_machine_lacks_is_said_with_the_line_that_failed() {
        let input = "qdisc add dev lo root handle 1: htb\nqdisc add dev lo clsact\n";
        let said = refusal("tc", input, "Error: Specified qdisc kind is unknown.\nCommand failed -:2");
        let part = "'tc qdisc add dev lo clsact' failed: Error: Specified qdisc kind is unknown. The kernel must have htb";
        assert!(said.contains(part), "{said}");
    }

    #[test]
    fn a_missing_command_is_said_with_its_package() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let namespace = Namespace::new().unwrap();
        let error = run(&namespace, "loadline-no-such-command", &[], "").unwrap_err();
        assert!(error.message.contains("install iproute2"), "{error}");
    }
}
