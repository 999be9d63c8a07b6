//! Two hosts use one disk as members of a failover cluster do: one has the disk, the other one takes it and fences the first. Both are
//! virtual machines with open-iscsi and multipath-tools, and have a session with each node of a cluster.

#[path = "iscsi_guest/cluster.rs"]
mod cluster;
#[path = "iscsi_guest/mod.rs"]
mod iscsi_guest;
#[allow(dead_code, reason = "the fault scripts use the rest")]
#[path = "hosts/netns.rs"]
mod netns;
mod nodes;

use std::time::Duration;

use cluster::San;
use iscsi_guest::guest::{Guest, LIMIT};
use iscsi_guest::image::Image;
use iscsi_guest::paths::{self, Use};
use iscsi_guest::reserve::{self, Written};
use netns::Network;

/// How long it may take until the paths are known to be others.
const CHANGES: Duration = Duration::from_secs(40);
/// How long I/O may stop when the owner dies.
const STALL: Duration = Duration::from_secs(5);
/// Nodes. The hosts behind them are those of the machines.
const NODES: usize = 3;
/// The keys of the machines.
const FIRST: u64 = 0xa;
const SECOND: u64 = 0xb;
/// A sector behind the file system, which has so many bytes.
const BEHIND: u32 = 88 << 11;
const FILE_SYSTEM: &str = "80M";

/// A member of the cluster of hosts.
struct Member {
    guest: Guest,
    portals: Vec<String>,
    /// The name of the disk by each path.
    disks: Vec<String>,
    /// The device of the disk by all paths.
    device: String,
}

impl Member {
    fn log_in(&mut self) {
        paths::log_in(&mut self.guest, &self.portals[..1]);
        self.wait_for_owner(0, None);
        self.disks = self.portals.iter().map(|portal| paths::disk_at(&mut self.guest, portal)).collect();
        self.device = paths::device(&mut self.guest);
    }

    /// Waits until the path to this node is the active one, and the others stand by, but for that to a node which is dead.
    fn wait_for_owner(&mut self, owner: usize, dead: Option<usize>) {
        let all: Vec<_> = self.portals.iter().map(String::as_str).enumerate().collect();
        let of = |node| match node == owner {
            true => Use::Ready,
            false if Some(node) == dead => Use::Failed,
            false => Use::Standby,
        };
        let expected: Vec<_> = all.into_iter().map(|(node, portal)| (portal, of(node))).collect();
        paths::wait_for(&mut self.guest, &expected, CHANGES);
    }

    /// Registers a key at each path, by multipath-tools.
    fn register(&mut self, key: u64) {
        self.guest.run(&format!("mpathpersist --out --register-ignore --param-sark={key:x} {}", self.device));
    }

    /// The keys that are registered, and that of the reservation.
    fn reservations(&mut self, node: usize) -> (Vec<u64>, Option<u64>) {
        let disk = &self.disks[node];
        (reserve::keys(&mut self.guest, disk), reserve::holder(&mut self.guest, disk))
    }

    /// What becomes of a write by the path to each of these nodes.
    fn writes<const N: usize>(&mut self, nodes: [usize; N]) -> [Written; N] {
        nodes.map(|node| reserve::write(&mut self.guest, &self.disks[node], BEHIND))
    }
}

/// Has each member do something, at the same time.
fn together<const N: usize>(members: [&mut Member; N], does: impl Fn(&mut Member) + Sync) {
    std::thread::scope(|scope| {
        for member in members {
            scope.spawn(|| does(member));
        }
    });
}

#[test]
fn a_fenced_host_writes_by_no_path_though_the_owner_dies_and_the_disk_moves() {
    use Written::{Reserved, StandsBy, Yes};
    if !nix::unistd::geteuid().is_root() {
        eprintln!("network namespaces need root: not tested");
        return;
    }
    netns::remove_leftovers();
    let (network, folder) = (Network::new(0, NODES + 2), netns::folder(0));
    let image = Image::build(&folder, "");
    let (mut san, guests) = std::thread::scope(|scope| {
        let boot = |host| Guest::boot(&image, &network, host, &folder);
        let guests = [NODES, NODES + 1].map(|host| scope.spawn(move || boot(host)));
        let san = San::start(&network, NODES, &folder);
        (san, guests.map(|guest| guest.join().expect("it boots")))
    });
    san.at(0, &["volume", "create", "disk", "--size", "96MiB", "--copies", "3"]);
    san.at(0, &["volume", "attach", "disk", "--node", "node-0"]);
    for host in [NODES, NODES + 1] {
        let initiator = format!("iqn.2026-01.org.example:guest-{host}");
        san.at(0, &["volume", "access", "disk", "--initiator", &initiator]);
    }
    let portals: Vec<String> = san.addresses().iter().map(ToString::to_string).collect();
    let [mut first, mut second] =
        guests.map(|guest| Member { guest, portals: portals.clone(), disks: vec![], device: String::new() });
    together([&mut first, &mut second], Member::log_in);

    // A machine without a key cannot write to a reserved disk. One with a key can: the reservation is for all registrants.
    first.register(FIRST);
    assert_eq!(second.writes([0]), [Yes], "nothing is reserved");
    first
        .guest
        .run(&format!("mpathpersist --out --reserve --param-rk={FIRST:x} --prout-type=5 {}", first.device));
    assert_eq!(second.writes([0, 1, 2]), [Reserved, StandsBy, StandsBy]);
    assert_eq!(first.writes([0]), [Yes]);
    second.register(SECOND);
    assert_eq!(second.writes([0]), [Yes]);
    let both = vec![FIRST, FIRST, FIRST, SECOND, SECOND, SECOND];
    assert_eq!(first.reservations(1), (both.clone(), Some(FIRST)));

    // The first machine works on the disk. The second one removes its key, and works on the disk itself.
    first.guest.run(&format!("mkfs.ext4 -q {0} {FILE_SYSTEM} && mount {0} /mnt", first.device));
    paths::start_load(&mut first.guest, "/mnt", 1);
    paths::goes_on(&mut first.guest, 10, CHANGES);
    // By a path that stands by: the owner obeys it when it is answered.
    reserve::preempt(&mut second.guest, &second.disks[1], SECOND, FIRST);
    let alone = (vec![SECOND; NODES], Some(SECOND));
    assert_eq!(second.reservations(0), alone);
    assert_eq!(first.writes([0, 1, 2]), [Reserved, StandsBy, StandsBy]);
    // A write that was under way has no answer. Linux gives it up after 30 s, and sends it again.
    let stopped = first.guest.ask_within("load stop", 3 * LIMIT);
    assert!(stopped.code == 1 && stopped.text.contains("failed"), "it is fenced: {stopped:?}");
    first.guest.run("umount /mnt");
    second.guest.run(&format!("e2fsck -p {0} && mount {0} /mnt", second.device));
    paths::start_load(&mut second.guest, "/mnt", 1);
    paths::goes_on(&mut second.guest, 10, CHANGES);

    // The owner dies. The next owner has the reservation and the registrations.
    san.kill(0);
    paths::goes_on(&mut second.guest, 10, CHANGES);
    let next = san.owner(1, "disk");
    first.wait_for_owner(next, Some(0));
    let other = NODES - next;
    assert_eq!(first.writes([next, other]), [Reserved, StandsBy]);
    assert_eq!(second.reservations(next), alone);
    san.start_node(0);
    san.await_healthy(1, "disk");
    // The disk moves to each of the others.
    for owner in [other, 0] {
        let before = if owner == 0 { other } else { next };
        together([&mut first, &mut second], |of| of.wait_for_owner(before, None));
        san.at(1, &["volume", "attach", "disk", "--node", &format!("node-{owner}")]);
        together([&mut first, &mut second], |of| of.wait_for_owner(owner, None));
        let expected = [0, 1, 2].map(|node| if node == owner { Reserved } else { StandsBy });
        assert_eq!(first.writes([0, 1, 2]), expected);
        assert_eq!(second.reservations(owner), alone);
        paths::goes_on(&mut second.guest, 10, CHANGES);
    }

    let done = paths::stop_load(&mut second.guest);
    let checked = paths::check_load(&mut second.guest, &second.device, "/mnt");
    println!("{done:?}, {checked} places checked");
    assert!(done.writes >= 40 && checked >= 20 && done.stalled < STALL, "{done:?}, {checked}");
    second.guest.run(&format!("umount /mnt && e2fsck -fn {}", second.device));
    assert_eq!(second.guest.errors(), [""; 0]);
    // Of the writes behind the file system, the last one that was acknowledged is of the second machine.
    let found =
        second.guest.run(&format!("dd if={} bs=1M skip=88 count=1 2>/dev/null | head -n 1", second.device));
    assert_eq!(found, format!("guest-{}\n", NODES + 1));

    // The fenced machine registers anew.
    first.register(FIRST);
    assert_eq!(first.reservations(0), (both, Some(SECOND)));
    assert_eq!(first.writes([0, 1, 2]), [Yes, StandsBy, StandsBy]);
    first
        .guest
        .run(&format!("e2fsck -fn {0} && mount {0} /mnt && ls /mnt/load.1 && umount /mnt", first.device));
    for member in [&mut first, &mut second] {
        member.guest.run("multipath -F && iscsiadm -m node --logout");
    }
    drop(san);
    drop(network);
    let _ = std::fs::remove_dir_all(folder);
}
