//! An initiator of Linux with two paths to a disk: the virtual machine by which iSCSI targets are tested, at targets of
//! others: `tgt`, and that of Linux itself, which has ALUA.

#[path = "iscsi_guest/mod.rs"]
mod iscsi_guest;
#[allow(dead_code, reason = "the fault scripts use the rest")]
#[path = "hosts/netns.rs"]
mod netns;
mod nodes;
#[path = "iscsi_guest/tgt.rs"]
mod tgt;

use std::time::Duration;

use iscsi_guest::guest::{self, Guest};
use iscsi_guest::image::Image;
use iscsi_guest::paths::{self, Use};
use iscsi_guest::reserve;
use netns::{Network, Passage};
use tgt::Target;

/// How long it may take until a path that was cut is known to have failed, or is used again.
const CHANGES: Duration = Duration::from_secs(40);
/// The host of the machine. Those before it have portals.
const GUEST: usize = 2;

/// Whether namespaces can be made here. Removes what earlier runs have left.
fn possible() -> bool {
    let root = nix::unistd::geteuid().is_root();
    match root {
        true => netns::remove_leftovers(),
        false => eprintln!("network namespaces need root: not tested"),
    }
    root
}

/// Cuts both directions between a portal and the machine, or opens them.
fn set(network: &Network, portal: usize, passage: Passage) {
    network.set(portal, GUEST, passage);
    network.set(GUEST, portal, passage);
}

/// tgt has no ALUA: each path has the same priority.
const NO_ALUA: &str = "device {\n vendor \"LOADLINE\"\n product \"VOLUME\"\n prio \"const\"\n}";

#[test]
fn a_file_system_of_a_guest_with_multipath_lives_while_each_path_is_cut_and_both() {
    if !possible() {
        return;
    }
    let (network, folder) = (Network::new(0, 3), netns::folder(0));
    let disk = folder.join("disk");
    std::fs::File::create(&disk).expect("there is room").set_len(96 << 20).expect("there is room");
    let image = Image::build(&folder, NO_ALUA);
    let mut targets = [0, 1].map(|host| Target::start(&network, host, &disk));
    let mut guest = Guest::boot(&image, &network, GUEST, &folder);
    let guest = &mut guest;

    let portals = [0, 1].map(|host| netns::address(host).to_string());
    let [a, b] = [portals[0].as_str(), portals[1].as_str()];
    paths::log_in(guest, &portals);
    paths::wait_for(guest, &[(a, Use::Ready), (b, Use::Ready)], CHANGES);
    let device = paths::device(guest);
    let map = guest.run("multipath -ll");
    assert!(
        map.contains("LOADLINE,VOLUME") && map.contains("queue_if_no_path"),
        "the shipped entry is in use: {map}"
    );
    assert!(map.contains("service-time 0"), "{map}");

    guest.run(&format!("mkfs.ext4 -q {device} && mount {device} /mnt"));
    paths::start_load(guest, "/mnt", 3);
    paths::goes_on(guest, 20, CHANGES);
    for portal in [0, 1] {
        set(&network, portal, Passage::Silent);
        let [cut, open] = [portal, 1 - portal].map(|host| portals[host].as_str());
        paths::wait_for(guest, &[(cut, Use::Failed), (open, Use::Ready)], CHANGES);
        paths::goes_on(guest, 20, CHANGES);
        // What is still on its way to this portal would be carried out late, after newer writes by the other one: tgt keeps a session whose
        // initiator has given it up.
        targets[portal].restart(&network);
        set(&network, portal, Passage::Open);
        paths::wait_for(guest, &[(a, Use::Ready), (b, Use::Ready)], CHANGES);
        paths::goes_on(guest, 20, CHANGES);
    }
    (0..2).for_each(|portal| set(&network, portal, Passage::Silent));
    paths::wait_for(guest, &[(a, Use::Failed), (b, Use::Failed)], CHANGES);
    let stopped_at = paths::writes(guest);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(paths::writes(guest), stopped_at, "no path works, and no write is acknowledged");
    targets.iter_mut().for_each(|target| target.restart(&network));
    (0..2).for_each(|portal| set(&network, portal, Passage::Open));
    paths::wait_for(guest, &[(a, Use::Ready), (b, Use::Ready)], CHANGES);
    paths::goes_on(guest, 20, CHANGES);

    let done = paths::stop_load(guest);
    let checked = paths::check_load(guest, &device, "/mnt");
    println!("{done:?}, {checked} places checked");
    assert!(done.writes >= 120 && checked >= 60, "{done:?}, {checked}");
    assert!(done.stalled >= Duration::from_secs(3), "{done:?}");
    guest.run(&format!("umount /mnt && e2fsck -fn {device}"));
    assert_eq!(guest.errors(), [""; 0]);
    reserves(guest, a);

    guest.run("multipath -F && iscsiadm -m node --logout");
    drop(targets);
    drop(network);
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn a_guest_follows_the_active_path_of_a_target_and_one_path_fences_the_other() {
    if !possible() {
        return;
    }
    let (network, folder) = (Network::new(1, 2), netns::folder(1));
    let image = Image::build(&folder, "");
    let (mut target, mut guest) = std::thread::scope(|scope| {
        let target = scope.spawn(|| Guest::boot(&image, &network, 0, &folder));
        let guest = Guest::boot(&image, &network, 1, &folder);
        (target.join().expect("it boots"), guest)
    });
    let guest = &mut guest;
    let portals = guest::addresses(0);
    let [a, b] = [portals[0].as_str(), portals[1].as_str()];
    target.run(&format!("lio start {a} {b}"));

    paths::log_in(guest, &portals);
    paths::wait_for(guest, &[(a, Use::Ready), (b, Use::Standby)], CHANGES);
    let priorities: Vec<_> = paths::paths(guest).iter().map(|path| path.priority).collect();
    assert_eq!(priorities, [50, 1], "active/optimised, and standby");
    let device = paths::device(guest);
    guest.run(&format!("mkfs.ext4 -q {device} && mount {device} /mnt"));
    paths::start_load(guest, "/mnt", 2);
    paths::goes_on(guest, 10, CHANGES);

    // The target moves.
    target.run("lio state 2 0 && lio state 1 2");
    paths::wait_for(guest, &[(a, Use::Standby), (b, Use::Ready)], CHANGES);
    paths::goes_on(guest, 10, CHANGES);

    // The active portal is lost, and the other one takes over.
    target.run("lio close 2 && sleep 1 && lio state 1 0");
    paths::wait_for(guest, &[(a, Use::Ready), (b, Use::Failed)], CHANGES);
    paths::goes_on(guest, 10, CHANGES);
    target.run("lio state 2 2 && lio open 2");
    paths::wait_for(guest, &[(a, Use::Ready), (b, Use::Standby)], CHANGES);

    let done = paths::stop_load(guest);
    let checked = paths::check_load(guest, &device, "/mnt");
    println!("{done:?}, {checked} places checked");
    guest.run(&format!("umount /mnt && e2fsck -fn {device}"));
    // LIO refuses to write zeros to many blocks by one command, and the kernel writes them one by one.
    let errors: Vec<_> = guest.errors().into_iter().filter(|line| !line.contains("(WRITE_ZEROES)")).collect();
    assert_eq!(errors, [""; 0]);

    target.run("lio state 2 0");
    paths::wait_for(guest, &[(a, Use::Ready), (b, Use::Ready)], CHANGES);
    guest.run("multipath -F");
    fences(guest, [a, b]);
    let _ = std::fs::remove_dir_all(folder);
}

/// A reservation of the disk is made, read and given up by the path of this portal. Two processes of tgt do not know each other's.
fn reserves(guest: &mut Guest, portal: &str) {
    let path = &paths::disk_at(guest, portal);
    reserve::register(guest, path, 0x1d);
    reserve::reserve(guest, path, 0x1d);
    assert_eq!((reserve::keys(guest, path), reserve::holder(guest, path)), (vec![0x1d], Some(0x1d)));
    reserve::release(guest, path, 0x1d);
    reserve::unregister(guest, path, 0x1d);
    assert_eq!((reserve::keys(guest, path), reserve::holder(guest, path)), (vec![], None));
}

/// Two paths are as two members of a failover cluster: one reserves the disk, and the other, once it has a key, takes the reservation from
/// it and fences it.
fn fences(guest: &mut Guest, portals: [&str; 2]) {
    let [a, b] = &portals.map(|portal| paths::disk_at(guest, portal));
    reserve::register(guest, a, 0xa);
    reserve::reserve(guest, a, 0xa);
    assert_eq!(reserve::holder(guest, b), Some(0xa), "the other path sees it");
    assert!(reserve::can_write(guest, a) && !reserve::can_write(guest, b));
    reserve::register(guest, b, 0xb);
    assert!(reserve::can_write(guest, b), "it is registered now");
    reserve::preempt(guest, b, 0xb, 0xa);
    assert_eq!((reserve::keys(guest, a), reserve::holder(guest, a)), (vec![0xb], Some(0xb)));
    assert!(!reserve::can_write(guest, a), "it is fenced");
    reserve::release(guest, b, 0xb);
    reserve::unregister(guest, b, 0xb);
}
