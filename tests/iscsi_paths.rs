//! A host with open-iscsi and multipath-tools, a virtual machine, has a session with each node of a cluster: its file system lives through
//! the death of the owner, through moves, and through cuts of its paths.

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
use iscsi_guest::guest::Guest;
use iscsi_guest::image::Image;
use iscsi_guest::paths::{self, Use};
use netns::{Network, Passage};

/// How long it may take until the paths are known to be others.
const CHANGES: Duration = Duration::from_secs(40);
/// How long I/O may stop when the owner dies.
const STALL: Duration = Duration::from_secs(5);
/// How long I/O may stop when the path to an owner is cut that runs: it is found out there, and then the volume moves.
const CUT_STALL: Duration = Duration::from_secs(25);
/// Nodes, and the host of the machine behind them.
const NODES: usize = 3;
/// The name of the machine as an initiator.
const INITIATOR: &str = "iqn.2026-01.org.example:guest-3";

/// Cuts both directions between a portal and the machine, or opens them.
fn set(network: &Network, portal: usize, passage: Passage) {
    network.set(portal, NODES, passage);
    network.set(NODES, portal, passage);
}

/// The node by which the machine reaches its disk; `None` if that is not one alone.
fn owner(guest: &mut Guest, portals: &[String]) -> Option<usize> {
    let ready = paths::paths(guest).into_iter().filter(|path| path.can_be() == Some(Use::Ready));
    let ready: Vec<String> = ready.map(|path| path.portal).collect();
    portals.iter().position(|portal| ready == [portal.as_str()])
}

/// Waits until the machine reaches its disk by one node, and that is not this one.
fn other_owner(guest: &mut Guest, portals: &[String], former: Option<usize>) -> usize {
    guest.eventually("it reaches its disk by one node", CHANGES, |guest| {
        owner(guest, portals).is_some_and(|owner| Some(owner) != former)
    });
    owner(guest, portals).expect("it was so")
}

#[test]
fn a_file_system_lives_while_the_owner_of_its_disk_dies_the_disk_moves_and_paths_are_cut() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("network namespaces need root: not tested");
        return;
    }
    netns::remove_leftovers();
    let (network, folder) = (Network::new(0, NODES + 1), netns::folder(0));
    let image = Image::build(&folder, "");
    let mut san = San::start(&network, NODES, &folder);
    san.at(0, &["volume", "create", "disk", "--size", "96MiB", "--copies", "3"]);
    san.at(0, &["volume", "attach", "disk", "--node", "node-0"]);
    let mut guest = Guest::boot(&image, &network, NODES, &folder);
    let guest = &mut guest;
    let portals: Vec<String> = san.addresses().iter().map(ToString::to_string).collect();
    let [a, b, c] = [0, 1, 2].map(|host| portals[host].as_str());

    // It is a stranger until it is named.
    let refused =
        guest.ask(&format!("iscsiadm -m discovery -t sendtargets -p {a} && iscsiadm -m node --login"));
    assert_ne!(refused.code, 0, "{}", refused.text);
    san.at(0, &["volume", "access", "disk", "--initiator", INITIATOR]);
    paths::log_in(guest, &portals[..1]);
    paths::wait_for(guest, &[(a, Use::Ready), (b, Use::Standby), (c, Use::Standby)], CHANGES);
    let device = paths::device(guest);
    guest.run(&format!("mkfs.ext4 -q {device} && mount {device} /mnt"));
    paths::start_load(guest, "/mnt", 2);
    paths::goes_on(guest, 20, CHANGES);

    // The volume moves.
    san.at(0, &["volume", "attach", "disk", "--node", "node-1"]);
    paths::wait_for(guest, &[(a, Use::Standby), (b, Use::Ready), (c, Use::Standby)], CHANGES);
    paths::goes_on(guest, 20, CHANGES);
    // Its owner dies.
    san.kill(1);
    paths::goes_on(guest, 20, CHANGES);
    let done = paths::stop_load(guest);
    println!("{done:?} with a move and a death of the owner");
    assert!(done.stalled < STALL, "{done:?}");
    paths::start_load(guest, "/mnt", 2);
    san.start_node(1);
    san.await_healthy(1, "disk");
    paths::goes_on(guest, 20, CHANGES);
    paths::wait_for_all(guest, NODES, CHANGES);

    // The path to the owner is cut, which runs: the volume goes where the machine still has a path.
    let cut = other_owner(guest, &portals, None);
    set(&network, cut, Passage::Silent);
    let heir = other_owner(guest, &portals, Some(cut));
    paths::goes_on(guest, 20, CHANGES);
    set(&network, cut, Passage::Open);
    paths::wait_for_all(guest, NODES, CHANGES);
    assert_eq!(owner(guest, &portals), Some(heir), "it stays there when the path is back");
    // A path is cut that stands by.
    set(&network, cut, Passage::Silent);
    let portal = portals[cut].clone();
    guest.eventually("the path has failed", CHANGES, |guest| {
        let paths = paths::paths(guest);
        paths.iter().any(|path| path.portal == portal && path.can_be() == Some(Use::Failed))
    });
    paths::goes_on(guest, 20, CHANGES);
    assert_eq!(owner(guest, &portals), Some(heir));
    // All are cut: what is written waits.
    (0..NODES).for_each(|node| set(&network, node, Passage::Silent));
    paths::wait_for(guest, &[(a, Use::Failed), (b, Use::Failed), (c, Use::Failed)], CHANGES);
    let stopped_at = paths::writes(guest);
    (0..NODES).for_each(|node| set(&network, node, Passage::Open));
    paths::wait_for_all(guest, NODES, CHANGES);
    paths::goes_on(guest, 20, CHANGES);
    assert!(paths::writes(guest) >= stopped_at + 20);
    let done = paths::stop_load(guest);
    let checked = paths::check_load(guest, &device, "/mnt");
    println!("{done:?}, {checked} places checked");
    assert!(done.writes >= 20 && checked >= 20, "{done:?}, {checked}");
    assert!(done.stalled < CUT_STALL, "{done:?}");
    guest.run(&format!("umount /mnt && e2fsck -fn {device}"));
    assert_eq!(guest.errors(), [""; 0]);
    guest.run("multipath -F");
    // The initiator is let in no more: its sessions end, and it begins no other.
    let shown = |san: &San| -> serde_json::Value {
        serde_json::from_str(&san.at(0, &["volume", "show", "disk", "--json"])).expect("it is JSON")
    };
    assert_eq!(shown(&san)["paths"]["initiators"][0]["initiator"], INITIATOR);
    san.at(0, &["volume", "access", "disk", "--remove", INITIATOR]);
    guest.eventually("its sessions have ended", CHANGES, |_| {
        shown(&san)["paths"]["initiators"].as_array().is_some_and(Vec::is_empty)
    });
    drop(san);
    drop(network);
    let _ = std::fs::remove_dir_all(folder);
}
