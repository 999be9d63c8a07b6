//! A network with a bandwidth between the nodes of a cluster on this machine: each node sends at most so much a second, and receives at
//! most so much.
//!
//! All nodes are in one network namespace of their own, in which only the loopback device is: each has an address there, from which it
//! connects to the others. A queue of the kernel for each node (`htb`) lets through what the node sends, and another one what it
//! receives; the second is on an `ifb` device, because the kernel only queues what leaves a device. What a node sends to itself, and what
//! comes from outside (`forward`), is neither limited nor counted.
//!
//! One namespace for all of them, and not one for each with a virtual cable between: so the addresses stay those of loopback, where
//! nodes need not prove their identity to each other, and nothing has to be removed. The namespace is known by a descriptor of this
//! process alone, so the kernel removes it, with its devices, when the last process in it has ended, also if this process is killed.
//!
//! Bytes are counted as the kernel queues them: with the headers of TCP, of which there is one set for up to 64 KiB.

mod forward;
mod namespace;
mod shaping;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;

use loadline_base::units::ByteSize;

use crate::error::TargetError;
use forward::Forward;
use namespace::Namespace;

/// What the network of each node can carry a second, bytes.
const PER_SECOND: std::ops::RangeInclusive<u64> = 1 << 20..=100 << 30;
/// The number of the address, within the network of the cluster, from which connections from outside come. Nodes have 1 to 32.
const OUTSIDE: u32 = 254;

/// What the network of a node has carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes that the node has sent to other nodes.
    pub sent: u64,
    /// Bytes that it has received from other nodes.
    pub received: u64,
}

impl Traffic {
    /// What was carried since `before`.
    pub fn since(self, before: Traffic) -> Traffic {
        Traffic {
            sent: self.sent.saturating_sub(before.sent),
            received: self.received.saturating_sub(before.received),
        }
    }
}

/// That the network of a node can have this bandwidth. The error is of kind `Usage`, and a sentence without the name of the option.
pub fn check(per_second: ByteSize) -> Result<(), TargetError> {
    match PER_SECOND.contains(&per_second.0) {
        true => Ok(()),
        false => Err(TargetError::usage(format!(
            "a network of {per_second} a second is not possible: give {} to {}",
            ByteSize(*PER_SECOND.start()),
            ByteSize(*PER_SECOND.end())
        ))),
    }
}

/// The network of a cluster's nodes. It exists until this is dropped and every process that was started in it has ended.
#[derive(Debug)]
pub struct NodeNetwork {
    namespace: Arc<Namespace>,
    nodes: u32,
    /// Has the namespace too, until its thread has ended.
    _forward: Forward,
}

impl NodeNetwork {
    /// Makes the network for nodes that have the addresses 1 to `nodes` (32 at the most) of this network within 127.0.0.0/8. Connections
    /// that reach one of `ports` at these addresses from outside of it are forwarded to the same address and port within. An error of
    /// kind `Usage` says what this machine lacks (root, the commands `ip` and `tc`, parts of the kernel) and what to do; nothing is left
    /// then.
    pub fn make(
        per_second: ByteSize,
        network: Ipv4Addr,
        nodes: u32,
        ports: &[u16],
    ) -> Result<NodeNetwork, TargetError> {
        check(per_second)?;
        if !nix::unistd::geteuid().is_root() {
            return Err(TargetError::usage(
                "nodes with a network of their own need root, which makes the network namespace: run it as root (sudo), or leave the \
                 bandwidth of the network out",
            ));
        }
        let namespace = Arc::new(Namespace::new()?);
        shaping::set_up(&namespace, per_second, network, nodes)?;
        let address = |number| Ipv4Addr::from_bits(network.to_bits() + number);
        let at = |number| ports.iter().map(move |port| SocketAddr::from((address(number), *port)));
        let forwarded = (1..=nodes).flat_map(at).collect();
        let forward = Forward::start(namespace.clone(), forwarded, address(OUTSIDE))?;
        Ok(NodeNetwork { namespace, nodes, _forward: forward })
    }

    /// Starts a process in the network. Its parent is the thread that calls this.
    pub fn spawn(&self, command: &mut Command) -> Result<Child, TargetError> {
        let program = PathBuf::from(command.get_program());
        let spawned = self.namespace.within(|| command.spawn())?;
        spawned.map_err(|e| TargetError::io("start", &program, &e))
    }

    /// The file by which another process of root enters the network (`nsenter --net=FILE`), while this process runs.
    pub fn file(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespace.as_raw_fd()).into()
    }

    /// What the network of each node has carried since it was made, in the order of the nodes.
    pub fn traffic(&self) -> Result<Vec<Traffic>, TargetError> {
        shaping::traffic(&self.namespace, self.nodes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;

    const MIB: u64 = 1 << 20;
    const NETWORK: Ipv4Addr = Ipv4Addr::new(127, 9, 77, 0);

    /// Connects within the network, from the address of one node to that of another.
    fn connect(network: &NodeNetwork, from: u8, to: SocketAddr) -> TcpStream {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
        let made = network.namespace.within(|| {
            let made = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
            bind(made.as_raw_fd(), &SockaddrIn::new(127, 9, 77, from, 0)).unwrap();
            let SocketAddr::V4(to) = to else { unreachable!("all of them are of this family") };
            connect(made.as_raw_fd(), &SockaddrIn::from(to)).unwrap();
            made
        });
        made.unwrap().into()
    }

    /// Sends so many bytes from one node to another. How long it took until they were received.
    fn send(network: &NodeNetwork, from: u8, to: u8, bytes: u64) -> Duration {
        let at = Ipv4Addr::new(127, 9, 77, to);
        let listener = network.namespace.within(|| TcpListener::bind((at, 0)).unwrap()).unwrap();
        let mut sender = connect(network, from, listener.local_addr().unwrap());
        let (mut receiver, _) = listener.accept().unwrap();
        let begun = Instant::now();
        let sends = std::thread::spawn(move || {
            let chunk = vec![7; MIB as usize];
            (0..bytes / MIB).for_each(|_| sender.write_all(&chunk).unwrap());
        });
        assert_eq!(std::io::copy(&mut receiver, &mut std::io::sink()).unwrap(), bytes);
        sends.join().unwrap();
        begun.elapsed()
    }

    #[test]
    fn a_bandwidth_that_no_network_has_is_refused() {
        for fits in [MIB, 125_000_000, 100 << 30] {
            assert_eq!(check(ByteSize(fits)), Ok(()));
        }
        for wrong in [0, MIB - 1, (100 << 30) + 1] {
            let error = check(ByteSize(wrong)).unwrap_err();
            assert!(error.message.contains("give 1MiB to 100GiB"), "{error}");
        }
    }

    #[test]
    fn nodes_send_and_receive_at_the_bandwidth_and_others_do_not_wait_for_it() {
        if !nix::unistd::geteuid().is_root() {
            let error = NodeNetwork::make(ByteSize(20 * MIB), NETWORK, 3, &[]).unwrap_err();
            assert!(error.message.contains("need root"), "{error}");
            return;
        }
        let network = NodeNetwork::make(ByteSize(20 * MIB), NETWORK, 3, &[7400]).unwrap();
        let took = send(&network, 1, 2, 20 * MIB).as_secs_f64();
        // A busy machine makes it longer. What may be sent at once, and is under way at the end, makes it shorter.
        assert!((0.8..5.0).contains(&took), "20 MiB took {took} s");
        let traffic = network.traffic().unwrap();
        let carried = |bytes: u64| (20 * MIB..22 * MIB).contains(&bytes);
        assert!(carried(traffic[0].sent) && carried(traffic[1].received), "{traffic:?}");
        assert!(traffic[0].received < MIB && traffic[1].sent < MIB, "they were confirmed: {traffic:?}");
        assert_eq!(traffic[2], Traffic::default());

        // Two nodes send to a third, which receives no more than one of them could send.
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for from in [1, 2] {
                let network = &network;
                scope.spawn(move || send(network, from, 3, 15 * MIB));
            }
        });
        let took = begun.elapsed().as_secs_f64();
        assert!((1.2..8.0).contains(&took), "30 MiB took {took} s");

        let took = send(&network, 3, 3, 100 * MIB).as_secs_f64();
        assert!(took < 3.0, "100 MiB of a node to itself took {took} s");
        let (before, after) = (traffic, network.traffic().unwrap());
        assert!(
            after[2].since(before[2]).received < 40 * MIB,
            "what stays in a node is not counted: {after:?}"
        );
    }

    #[test]
    fn a_port_is_reached_from_outside_while_the_network_is_there() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let (other, port) = (Ipv4Addr::new(127, 9, 78, 0), 7400);
        let at = SocketAddr::from((Ipv4Addr::new(127, 9, 78, 2), port));
        let network = NodeNetwork::make(ByteSize(MIB), other, 2, &[port]).unwrap();
        let mut refused = TcpStream::connect(at).unwrap();
        assert!(refused.read(&mut [0]).is_ok_and(|count| count == 0), "nothing listens there");
        let listener = network.namespace.within(|| TcpListener::bind(at).unwrap()).unwrap();
        let answers = std::thread::spawn(move || {
            let (mut stream, from) = listener.accept().unwrap();
            let mut asked = String::new();
            stream.read_to_string(&mut asked).unwrap();
            stream.write_all(asked.to_uppercase().as_bytes()).unwrap();
            from
        });
        let mut client = TcpStream::connect(at).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.write_all(b"how is it?").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "HOW IS IT?");
        assert_eq!(answers.join().unwrap().ip(), Ipv4Addr::new(127, 9, 78, 254));
        assert_eq!(network.traffic().unwrap(), [Traffic::default(); 2], "it is not the nodes' traffic");
        drop(network);
        assert!(TcpStream::connect(at).is_err(), "the port is free again");
        TcpListener::bind(at).expect("the port is free again");
    }
}
