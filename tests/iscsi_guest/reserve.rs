//! Persistent reservations, as a failover cluster uses them: each member registers a key at each of its paths, one reserves the disk, and
//! a member is fenced by the removal of its key.

use super::guest::{Answer, Guest};

/// Registers a key at a path, or replaces the key that is registered there.
pub(crate) fn register(guest: &mut Guest, device: &str, key: u64) {
    out(guest, device, &format!("--register-ignore --param-sark={key:#x}"));
}

/// Removes the key of a path.
pub(crate) fn unregister(guest: &mut Guest, device: &str, key: u64) {
    out(guest, device, &format!("--register --param-rk={key:#x} --param-sark=0"));
}

/// Reserves the disk by a path with this key: registrants only may write.
pub(crate) fn reserve(guest: &mut Guest, device: &str, key: u64) {
    out(guest, device, &format!("--reserve --param-rk={key:#x} --prout-type=5"));
}

/// Gives the reservation up.
pub(crate) fn release(guest: &mut Guest, device: &str, key: u64) {
    out(guest, device, &format!("--release --param-rk={key:#x} --prout-type=5"));
}

/// Removes all registrations of a key by a path with another one, which gets the reservation if it was that of the removed key.
pub(crate) fn preempt(guest: &mut Guest, device: &str, key: u64, removed: u64) {
    out(
        guest,
        device,
        &format!("--preempt-abort --param-rk={key:#x} --param-sark={removed:#x} --prout-type=5"),
    );
}

/// The keys that are registered, in rising order, each as often as it is.
pub(crate) fn keys(guest: &mut Guest, device: &str) -> Vec<u64> {
    let text = done(guest, &format!("sg_persist --in --read-keys /dev/{device}"));
    let mut keys: Vec<_> = text.lines().filter_map(|line| hexadecimal(line.trim())).collect();
    keys.sort_unstable();
    keys
}

/// The key of the reservation.
pub(crate) fn holder(guest: &mut Guest, device: &str) -> Option<u64> {
    let text = done(guest, &format!("sg_persist --in --read-reservation /dev/{device}"));
    let key = text.lines().find_map(|line| hexadecimal(line.trim().strip_prefix("Key=")?));
    assert_eq!(key.is_some(), text.contains("Write Exclusive, registrants only"), "{text}");
    key
}

/// Whether the first block of the disk can be overwritten by this path with what is there. Panics on any refusal but that of a reservation.
pub(crate) fn can_write(guest: &mut Guest, device: &str) -> bool {
    guest.run(&format!("dd if=/dev/{device} of=/run/block bs=4k count=1 2>/dev/null"));
    let write = format!("sg_raw --send=4096 --infile=/run/block /dev/{device} 2a 00 00 00 00 00 00 00 08 00");
    let Answer { code, text } = answered(guest, &write);
    assert!(code == 0 || code == RESERVATION_CONFLICT, "{code}: {text}");
    code == 0
}

/// What becomes of a write by a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// It is acknowledged.
    Yes,
    /// A reservation prevents it.
    Reserved,
    /// The path stands by.
    StandsBy,
}

/// Writes the name of the machine to 4 KiB of the disk from this sector on, by the path. Panics on any refusal that is not named above.
pub(crate) fn write(guest: &mut Guest, device: &str, sector: u32) -> Written {
    let at: Vec<String> = sector.to_be_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let (block, at) = ("yes $(hostname) | head -c 4096 >/run/block", at.join(" "));
    let write =
        format!("{block}; sg_raw --send=4096 --infile=/run/block /dev/{device} 2a 00 {at} 00 00 08 00");
    let Answer { code, text } = answered(guest, &write);
    match code {
        0 => Written::Yes,
        RESERVATION_CONFLICT => Written::Reserved,
        NOT_READY if text.contains("standby") => Written::StandsBy,
        _ => panic!("{code}: {text}"),
    }
}

/// Exit codes by which programs of sg3-utils report the status of a command.
const NOT_READY: i32 = 2;
const UNIT_ATTENTION: i32 = 6;
const RESERVATION_CONFLICT: i32 = 24;
/// How many unit attentions may be pending at a path.
const PENDING: usize = 4;

/// Sends a command to a disk. The kernel does not repeat those of programs after a unit attention: that is done here.
fn answered(guest: &mut Guest, command: &str) -> Answer {
    let mut answer = guest.ask(command);
    for _ in 0..PENDING {
        if answer.code == UNIT_ATTENTION {
            answer = guest.ask(command);
        }
    }
    answer
}

/// The same, and the command must succeed. Returns what it printed.
fn done(guest: &mut Guest, command: &str) -> String {
    let Answer { code, text } = answered(guest, command);
    if code != 0 {
        panic!("in the machine, {command} ends with {code}: {text}\n{}", guest.state());
    }
    text
}

fn out(guest: &mut Guest, device: &str, words: &str) {
    done(guest, &format!("sg_persist --out {words} /dev/{device}"));
}

/// The number that a text begins with, as `0x1d` does.
fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    u64::from_str_radix(&digits[..end], 16).ok()
}
