//! The judge of data: whether all that clients read of a block can be explained by one order of its writes that agrees with real
//! time. It is a pure function of what the clients have logged.
//!
//! Every write has a value of its own. All operations of one value span a *zone*: the value must have been the block's content from
//! the first end among them to the last begin, if that end comes first (a forward zone), and at some moment between the last begin
//! and the first end otherwise (a backward zone). An order exists if and only if no two forward zones overlap and no backward zone
//! lies within a forward zone (Gibbons and Korach, *Testing shared memories*, 1997).
//!
//! A write that has no answer may be carried out, or never be. It ends [`GRACE`] after its client closed the connection, or with the
//! next attachment of the volume that began after the client had connected: it must not be carried out later. Of a client that was
//! connected to the node of another host only the attachment is asked for: its own host may hold what it sent for any time, and
//! nothing shows the node that the client has gone.

use std::collections::BTreeMap;

use super::clients::{Action, Micros, Op, Outcome, TORN};

/// How long a write that has no answer may still be carried out after its client closed the connection.
pub(crate) const GRACE: Micros = 2_000_000;

/// An attachment of a volume that succeeded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fence {
    pub(crate) volume: usize,
    pub(crate) begun: Micros,
    pub(crate) done: Micros,
}

/// What is wrong with what was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wrong {
    /// A value that no client has written to this block, or parts of several.
    Foreign,
    /// A value from before its write began.
    Early,
    /// A write that was carried out after its time was over.
    Ghost,
    /// An acknowledged write that no read has ever seen, where an older value is read after it.
    Lost,
    /// A value that is older than a write that was acknowledged before; later reads see that write.
    Stale,
    /// An older value after a newer one was read.
    Back,
}

/// A violation of one block.
#[derive(Debug, Clone)]
pub(crate) struct Violation {
    pub(crate) wrong: Wrong,
    pub(crate) volume: usize,
    pub(crate) block: u64,
    /// When it was read.
    pub(crate) at: Micros,
    pub(crate) text: String,
}

/// All operations of one value of a block.
#[derive(Debug, Clone)]
struct Zone {
    value: u64,
    invoked: Micros,
    /// The end of the write: when it was acknowledged, or the last moment when it may be carried out.
    until: Micros,
    acknowledged: bool,
    /// The read that ended first.
    first_read: Option<Op>,
    /// The read that began last.
    last_read: Option<Op>,
    first_end: Micros,
    last_begin: Micros,
}

impl Zone {
    fn forward(&self) -> bool {
        self.first_end < self.last_begin
    }

    /// It has no answer, and no read saw it in its time.
    fn late(&self) -> bool {
        !self.acknowledged && self.first_read.is_none_or(|read| read.ended > self.until)
    }

    fn low(&self) -> Micros {
        self.first_end.min(self.last_begin)
    }

    fn high(&self) -> Micros {
        self.first_end.max(self.last_begin)
    }
}

/// All violations: the first of each block.
pub(crate) fn judge(ops: &[Op], fences: &[Fence]) -> Vec<Violation> {
    let mut blocks: BTreeMap<(usize, u64), Vec<Op>> = BTreeMap::new();
    for op in ops {
        blocks.entry((op.volume, op.block)).or_default().push(*op);
    }
    let mut found: Vec<Violation> = blocks.values().filter_map(|ops| block(ops, fences)).collect();
    found.sort_by_key(|violation| violation.at);
    found
}

/// The end of a write in the sense of the module.
fn until(op: &Op, fences: &[Fence]) -> Micros {
    if op.outcome == Outcome::Done {
        return op.ended;
    }
    let after = |fence: &&Fence| fence.volume == op.volume && fence.begun > op.connected;
    let fenced = fences.iter().filter(after).map(|fence| fence.done.max(op.invoked)).min();
    let grace = if op.node == op.host { op.ended + GRACE } else { Micros::MAX };
    fenced.unwrap_or(Micros::MAX).min(grace)
}

fn block(ops: &[Op], fences: &[Fence]) -> Option<Violation> {
    let mut zones = BTreeMap::new();
    zones.insert(0, zone(0, 0, 0, true));
    for op in ops {
        if let Action::Write(value) = op.action {
            zones.insert(value, zone(value, op.invoked, until(op, fences), op.outcome == Outcome::Done));
        }
    }
    let mut wrong = Vec::new();
    let mut report = |wrong_is, op: &Op, text: String| {
        wrong.push(Violation { wrong: wrong_is, volume: op.volume, block: op.block, at: op.invoked, text });
    };
    for op in ops {
        let (Action::Read(value), Outcome::Done) = (op.action, op.outcome) else { continue };
        let Some(zone) = zones.get_mut(&value).filter(|_| value != TORN) else {
            report(Wrong::Foreign, op, format!("{} was read", name(value)));
            continue;
        };
        if op.ended < zone.invoked {
            report(Wrong::Early, op, format!("{} was read before it was written", name(value)));
            continue;
        }
        if zone.first_read.is_none_or(|first| first.ended > op.ended) {
            zone.first_read = Some(*op);
        }
        zone.first_end = zone.first_end.min(op.ended);
        zone.last_begin = zone.last_begin.max(op.invoked);
        if zone.last_read.is_none_or(|last| last.invoked < op.invoked) {
            zone.last_read = Some(*op);
        }
    }
    // A write that has no answer, and that no read has seen, need not have happened.
    let all: Vec<Zone> =
        zones.into_values().filter(|zone| zone.acknowledged || zone.first_read.is_some()).collect();
    let mut forward: Vec<&Zone> = all.iter().filter(|zone| zone.forward()).collect();
    forward.sort_by_key(|zone| zone.low());
    let mut conflict: Option<(&Zone, &Zone)> = None;
    for pair in forward.windows(2) {
        if pair[1].low() < pair[0].high() && conflict.is_none_or(|(_, new)| pair[1].low() < new.low()) {
            conflict = Some((pair[0], pair[1]));
        }
    }
    for back in all.iter().filter(|zone| !zone.forward()) {
        let index = forward.partition_point(|zone| zone.low() < back.low());
        let Some(old) = index.checked_sub(1).map(|index| forward[index]) else { continue };
        if back.high() < old.high() && conflict.is_none_or(|(_, new)| back.low() < new.low()) {
            conflict = Some((old, back));
        }
    }
    if let Some((old, new)) = conflict {
        // The read that should have been another, and what it should have been.
        let (is, should, read) = match new.late() && !old.late() {
            true => (new, old, new.first_read),
            false if old.late() => (old, new, old.first_read),
            false => (old, new, old.last_read),
        };
        let read = read.unwrap_or(ops[0]);
        let (wrong, why) = classify(is, should, &read);
        let text = format!(
            "client {} on host {} read {} ({}) at {}, beside {} ({}): {why}",
            read.client,
            read.host,
            name(is.value),
            said(is),
            seconds(read.invoked),
            name(should.value),
            said(should),
        );
        report(wrong, &read, text);
    }
    wrong.into_iter().min_by_key(|violation| violation.at)
}

fn zone(value: u64, invoked: Micros, until: Micros, acknowledged: bool) -> Zone {
    Zone {
        value,
        invoked,
        until,
        acknowledged,
        first_read: None,
        last_read: None,
        first_end: until,
        last_begin: invoked,
    }
}

/// Which kind it is that `is` was read where `should` had to be the content.
fn classify(is: &Zone, should: &Zone, read: &Op) -> (Wrong, &'static str) {
    if is.late() {
        return (Wrong::Ghost, "its time was over, and it was carried out");
    }
    match (should.first_read, should.last_read) {
        (Some(first), _) if first.ended < read.invoked => {
            (Wrong::Back, "the newer value had been read before")
        }
        (_, Some(later)) if later.ended > read.ended => (Wrong::Stale, "the newer one is read later"),
        (None, _) => (Wrong::Lost, "no read has seen the newer one"),
        _ => (Wrong::Stale, "the newer one was acknowledged or read"),
    }
}

fn said(zone: &Zone) -> String {
    let end = if zone.acknowledged { "acknowledged" } else { "without an answer, its time over" };
    match zone.value {
        0 => "from the beginning".into(),
        _ if zone.until == Micros::MAX => format!("written at {}, without an answer", seconds(zone.invoked)),
        _ => format!("written at {}, {end} at {}", seconds(zone.invoked), seconds(zone.until)),
    }
}

/// A value for people: its client, and the number of its write.
pub(crate) fn name(value: u64) -> String {
    match value {
        0 => "nothing".into(),
        TORN => "a mixture".into(),
        value => format!("w{}.{}", (value >> 32).saturating_sub(1), value & u64::from(u32::MAX)),
    }
}

/// A moment for people.
pub(crate) fn seconds(at: Micros) -> String {
    format!("{}.{:06} s", at / 1_000_000, at % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Micros = 1_000_000;

    fn op(action: Action, invoked: Micros, ended: Micros, outcome: Outcome) -> Op {
        Op { client: 0, host: 0, node: 0, volume: 0, block: 3, action, connected: 0, invoked, ended, outcome }
    }

    fn write(value: u64, invoked: Micros, ended: Micros) -> Op {
        op(Action::Write(1 << 32 | value), invoked, ended, Outcome::Done)
    }

    fn unknown(value: u64, invoked: Micros, closed: Micros) -> Op {
        op(Action::Write(1 << 32 | value), invoked, closed, Outcome::Left)
    }

    fn read(value: u64, invoked: Micros, ended: Micros) -> Op {
        op(Action::Read(if value == 0 { 0 } else { 1 << 32 | value }), invoked, ended, Outcome::Done)
    }

    fn found(ops: &[Op]) -> Option<Wrong> {
        found_with(ops, &[])
    }

    fn found_with(ops: &[Op], fences: &[Fence]) -> Option<Wrong> {
        judge(ops, fences).first().map(|violation| violation.wrong)
    }

    #[test]
    fn what_one_order_explains_is_legal() {
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[read(0, 1, 2), write(1, 3, 4), read(1, 5, 6), read(1, 7, 8)]), None);
        // Reads beside a write see either value, and then the new one.
        let ops = [write(1, 1, 2), write(2, 10, 20), read(1, 11, 12), read(2, 13, 14), read(2, 15, 22)];
        assert_eq!(found(&ops), None);
        // Two writes beside each other, in either order.
        assert_eq!(found(&[write(1, 1, 10), write(2, 2, 9), read(1, 11, 12), read(1, 13, 14)]), None);
        assert_eq!(found(&[write(1, 1, 10), write(2, 2, 9), read(2, 11, 12), read(2, 13, 14)]), None);
        // One without an answer is carried out, or not, within its time.
        let ops = [write(1, 1, 2), unknown(2, 3, S), read(1, S + 1, S + 2), read(2, 2 * S, 2 * S + 1)];
        assert_eq!(found(&ops), None);
        assert_eq!(found(&[write(1, 1, 2), unknown(2, 3, S), read(1, 9 * S, 9 * S + 1)]), None);
        // It is first seen late, but nothing was written since.
        assert_eq!(found(&[unknown(2, 3, S), read(2, 9 * S, 9 * S + 1)]), None);
        // It is seen after a later write that was acknowledged within its time.
        assert_eq!(found(&[unknown(1, 3, S), write(2, 2 * S, 2 * S + 9), read(1, 9 * S, 9 * S + 1)]), None);
    }

    #[test]
    fn a_stale_read_is_found() {
        let ops = [write(1, 1, 2), write(2, 3, 4), read(1, 5, 6), read(2, 7, 8)];
        assert_eq!(found(&ops), Some(Wrong::Stale));
        assert_eq!(found(&[write(1, 1, 2), read(0, 3, 4), read(1, 5, 6)]), Some(Wrong::Stale));
    }

    #[test]
    fn a_lost_write_is_found() {
        assert_eq!(found(&[write(1, 1, 2), write(2, 3, 4), read(1, 5, 6)]), Some(Wrong::Lost));
        assert_eq!(found(&[write(1, 1, 2), read(0, 3, 4), read(0, 5, 6)]), Some(Wrong::Lost));
    }

    #[test]
    fn a_value_that_goes_back_is_found() {
        let ops = [write(1, 1, 2), write(2, 3, 4), read(2, 5, 6), read(1, 7, 8)];
        assert_eq!(found(&ops), Some(Wrong::Back));
        // The newer one has no answer, and was seen.
        let ops = [write(1, 1, 2), unknown(2, 3, 4), read(2, 5, 6), read(1, 7, 8)];
        assert_eq!(found(&ops), Some(Wrong::Back));
        // Beside a write, the new value and then the old one.
        let ops = [write(1, 1, 2), write(2, 10, 20), read(2, 11, 12), read(1, 13, 14)];
        assert_eq!(found(&ops), Some(Wrong::Back));
    }

    #[test]
    fn a_ghost_is_found() {
        let ops = [unknown(1, 1, S), write(2, 4 * S, 4 * S + 9), read(2, 5 * S, 5 * S + 1)];
        assert_eq!(found(&ops), None);
        let ops = [&ops[..], &[read(1, 6 * S, 6 * S + 1)]].concat();
        assert_eq!(found(&ops), Some(Wrong::Ghost));
        // The same, and the acknowledged write was never read.
        let ops = [unknown(1, 1, S), write(2, 4 * S, 4 * S + 9), read(1, 6 * S, 6 * S + 1)];
        assert_eq!(found(&ops), Some(Wrong::Ghost));
        // Something older is read when its time is over, and then it.
        let ops = [write(1, 1, 2), unknown(2, 3, S), read(1, 4 * S, 4 * S + 1), read(2, 6 * S, 6 * S + 1)];
        assert_eq!(found(&ops), Some(Wrong::Ghost));
    }

    #[test]
    fn what_a_remote_client_sent_may_come_late_until_the_next_attachment() {
        let remote = Op { node: 1, ..unknown(1, 1, S) };
        let ops = [remote, write(2, 4 * S, 4 * S + 9), read(2, 5 * S, 5 * S + 1), read(1, 6 * S, 6 * S + 1)];
        assert_eq!(found(&ops), None);
        let fence = Fence { volume: 0, begun: 2 * S, done: 3 * S };
        assert_eq!(found_with(&ops, &[fence]), Some(Wrong::Ghost));
        // It may come once.
        assert_eq!(found(&[&ops[..], &[read(2, 7 * S, 7 * S + 1)]].concat()), Some(Wrong::Back));
    }

    #[test]
    fn an_attachment_ends_what_was_before() {
        let ops = [unknown(1, 1, S), write(2, S + 300, S + 400), read(1, S + 500, S + 600)];
        assert_eq!(found(&ops), None);
        let fence = |begun, done| Fence { volume: 0, begun, done };
        assert_eq!(found_with(&ops, &[fence(S + 100, S + 200)]), Some(Wrong::Ghost));
        // Another volume's; one that ended later; one that began before the client connected.
        assert_eq!(found_with(&ops, &[Fence { volume: 1, begun: S + 100, done: S + 200 }]), None);
        assert_eq!(found_with(&ops, &[fence(S + 100, S + 450)]), None);
        let later = |op: &Op| Op { connected: 1, ..*op };
        assert_eq!(found_with(&ops.each_ref().map(later), &[fence(0, S + 200)]), None);
    }

    #[test]
    fn what_was_never_written_is_found() {
        assert_eq!(found(&[write(1, 1, 2), read(7, 3, 4)]), Some(Wrong::Foreign));
        assert_eq!(found(&[op(Action::Read(TORN), 3, 4, Outcome::Done)]), Some(Wrong::Foreign));
        assert_eq!(found(&[read(1, 3, 4), write(1, 5, 6)]), Some(Wrong::Early));
        // Of another block.
        let elsewhere = Op { block: 4, ..write(1, 1, 2) };
        assert_eq!(found(&[elsewhere, read(1, 3, 4)]), Some(Wrong::Foreign));
        // What had no answer read nothing.
        assert_eq!(found(&[write(1, 1, 2), op(Action::Read(0), 3, 4, Outcome::Lost)]), None);
    }
}
