//! What the machine knows of its paths, and what is expected of them.

use std::time::Duration;

use super::guest::{Guest, LIMIT};

/// A path: a disk of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathState {
    /// The address of its portal, without the port.
    pub(crate) portal: String,
    /// The name of the disk, such as `sda`.
    pub(crate) device: String,
    /// In the kernel's multipath device: `active`, `failed` or `undef`; `none` if multipathd does not know the path.
    pub(crate) kernel: String,
    /// What its checker found: `ready`, `ghost` (standby), `faulty`, ...
    pub(crate) checker: String,
    /// By which paths are grouped.
    pub(crate) priority: i32,
    /// `LOGGED_IN`, `FAILED`, ...
    pub(crate) session: String,
}

/// What a path can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// It carries reads and writes.
    Ready,
    /// It is connected, and its target answers that it is standby.
    Standby,
    /// It has failed.
    Failed,
}

impl PathState {
    fn of(line: &str) -> Option<PathState> {
        let mut fields = line.split('|').map(|field| field.trim().to_owned());
        Some(PathState {
            portal: fields.next()?,
            device: fields.next()?,
            kernel: fields.next()?,
            checker: fields.next()?,
            priority: fields.next()?.parse().ok()?,
            session: fields.next()?,
        })
    }

    pub(crate) fn can_be(&self) -> Option<Use> {
        match (self.kernel.as_str(), self.checker.as_str()) {
            ("active", "ready") => Some(Use::Ready),
            ("active", "ghost") => Some(Use::Standby),
            ("failed", "faulty" | "i/o timeout") => Some(Use::Failed),
            // Between two checks.
            _ => None,
        }
    }
}

/// All paths of the machine, by portal and device.
pub(crate) fn paths(guest: &mut Guest) -> Vec<PathState> {
    let mut all: Vec<_> = guest.run("paths").lines().filter_map(PathState::of).collect();
    all.sort_by(|a, b| (&a.portal, &a.device).cmp(&(&b.portal, &b.device)));
    all
}

/// The name of the disk by the portal at this address.
pub(crate) fn disk_at(guest: &mut Guest, portal: &str) -> String {
    let all = paths(guest);
    all.into_iter().find(|path| path.portal == portal).expect("it is there").device
}

/// Logs in to all targets that these portals name.
pub(crate) fn log_in(guest: &mut Guest, portals: &[String]) {
    for portal in portals {
        let found = guest.run(&format!("iscsiadm -m discovery -t sendtargets -p {portal}"));
        assert!(found.contains(portal.as_str()), "the discovery at {portal} names its portal: {found}");
    }
    guest.run("iscsiadm -m node --login");
}

/// Whether the paths at these portals are of this use, and there are no others.
pub(crate) fn are(guest: &mut Guest, expected: &[(&str, Use)]) -> bool {
    let mut expected: Vec<_> = expected.iter().map(|(portal, is)| (*portal, Some(*is))).collect();
    expected.sort_by_key(|(portal, _)| *portal);
    let all = paths(guest);
    let found: Vec<_> = all.iter().map(|path| (path.portal.as_str(), path.can_be())).collect();
    found == expected
}

/// Waits until it is so.
pub(crate) fn wait_for(guest: &mut Guest, expected: &[(&str, Use)], limit: Duration) {
    guest.eventually(&format!("the paths are {expected:?}"), limit, |guest| are(guest, expected));
}

/// Waits until so many paths are there, and each carries I/O or stands by.
pub(crate) fn wait_for_all(guest: &mut Guest, count: usize, limit: Duration) {
    guest.eventually("no path has failed", limit, |guest| {
        let all = paths(guest);
        all.len() == count && all.iter().all(|path| matches!(path.can_be(), Some(Use::Ready | Use::Standby)))
    });
}

/// The device of the only multipath device of the machine.
pub(crate) fn device(guest: &mut Guest) -> String {
    let maps = guest.run("multipathd show maps raw format '%n'");
    let mut names = maps.split_whitespace();
    let (name, others) = (names.next().expect("there is one"), names.count());
    assert_eq!(others, 0, "there is one: {maps}");
    let device = format!("/dev/mapper/{name}");
    // udev makes it.
    guest.eventually("the device is there", LIMIT, |guest| guest.ask(&format!("[ -b {device} ]")).code == 0);
    device
}

/// What a load has done.
#[derive(Debug)]
pub(crate) struct Done {
    /// Writes that were acknowledged.
    pub(crate) writes: u64,
    /// The longest time in which none was.
    pub(crate) stalled: Duration,
}

/// Starts so many workers of a load in a folder of the machine.
pub(crate) fn start_load(guest: &mut Guest, folder: &str, workers: u32) {
    guest.run(&format!("load start {folder} {workers}"));
}

/// Writes of the load that were acknowledged.
pub(crate) fn writes(guest: &mut Guest) -> u64 {
    guest.run("load writes").trim().parse().expect("it is a number")
}

/// Waits until the load has this many more writes acknowledged than now.
pub(crate) fn goes_on(guest: &mut Guest, more: u64, limit: Duration) {
    let before = writes(guest);
    guest.eventually("writes go on", limit, |guest| writes(guest) >= before + more);
}

/// Ends the load, which must have had no error.
pub(crate) fn stop_load(guest: &mut Guest) -> Done {
    let done = guest.run("load stop");
    let mut numbers = done.split_whitespace().map(|word| word.parse().expect("it is a number"));
    let (writes, hundredths) = (numbers.next().expect("it is there"), numbers.next().expect("it is there"));
    Done { writes, stalled: Duration::from_millis(hundredths * 10) }
}

/// Reads what the load has written, past all caches: each place must have what was acknowledged last. `folder` is where `device` is
/// mounted. Returns the number of places.
pub(crate) fn check_load(guest: &mut Guest, device: &str, folder: &str) -> u64 {
    guest.run(&format!("umount {folder} && mount -o ro {device} {folder}"));
    let said = guest.run("load check");
    let checked = said.lines().find_map(|line| line.strip_prefix("checked "));
    checked.expect("it says how many").parse().expect("it is a number")
}
