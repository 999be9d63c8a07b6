use super::*;
use crate::scsi::reservations::{Kind, Registration, Reservation};
use crate::scsi::testing::{about, name};

fn unit() -> Unit {
    Unit::new(about(), Reservations::default())
}

fn told_to(unit: &mut Unit, nexus: NexusId) -> Vec<(u8, u8)> {
    std::iter::from_fn(|| unit.take_attention(nexus)).map(|sense| sense.code).collect()
}

#[test]
fn each_session_is_told_what_others_have_changed_and_not_what_it_has_changed_itself() {
    let mut unit = unit();
    let (a, b) = (unit.enter_now(name(1, 1)), unit.enter_now(name(2, 1)));
    assert_eq!((told_to(&mut unit, a), told_to(&mut unit, b)), (vec![(0x29, 0)], vec![(0x29, 0)]));
    unit.change(About { bytes: 1 << 20, ..about() });
    assert_eq!((told_to(&mut unit, a), told_to(&mut unit, b)), (vec![(0x2a, 9)], vec![(0x2a, 9)]));
    unit.select(Modes { descriptors: true, is_protected: false }, a);
    assert_eq!((told_to(&mut unit, a), told_to(&mut unit, b)), (vec![], vec![(0x2a, 1)]));
    assert!(unit.sends_descriptors());
    unit.reset();
    assert_eq!((told_to(&mut unit, a), told_to(&mut unit, b)), (vec![(0x29, 3)], vec![(0x29, 3)]));
    assert!(!unit.sends_descriptors());
}

/// A session that has sent a command.
fn enter(unit: &mut Unit, number: u8) -> NexusId {
    let nexus = unit.enter_now(name(number, 1));
    let task = unit.begin_task(nexus, 0).unwrap();
    unit.end_task(task, None);
    told_to(unit, nexus);
    nexus
}

fn states(unit: &Unit) -> Vec<AccessState> {
    unit.about().ports.iter().map(|port| port.state).collect()
}

#[test]
fn a_session_is_on_standby_until_it_is_activated_and_those_who_may_know_it_otherwise_are_told() {
    use AccessState::{ActiveOptimized, Standby, Unavailable};
    let mut unit = unit();
    let a = enter(&mut unit, 1);
    let b = enter(&mut unit, 2);
    assert_eq!((states(&unit), unit.is_active(a)), (vec![Standby, Standby, Unavailable], false));
    unit.activate(a);
    assert_eq!(states(&unit), [ActiveOptimized, Standby, Unavailable]);
    assert_eq!((unit.is_active(a), unit.is_active(b)), (true, false));
    // The other one is told that there is an active port, and once more that it is active itself.
    assert_eq!((told_to(&mut unit, a), told_to(&mut unit, b)), (vec![(0x2a, 6)], vec![(0x2a, 6)]));
    unit.activate(b);
    unit.activate(b);
    assert_eq!((told_to(&mut unit, a), told_to(&mut unit, b)), (vec![], vec![(0x2a, 6)]));
    let new = unit.enter_now(name(3, 1));
    unit.activate(new);
    assert_eq!(told_to(&mut unit, new), [(0x29, 0)], "it knows nothing yet");
    // What another node was is old.
    let mut moved = about();
    moved.ports[2].state = ActiveOptimized;
    unit.change(moved.clone());
    assert_eq!(states(&unit), [ActiveOptimized, Standby, Standby]);
    told_to(&mut unit, a);
    unit.deactivate_all();
    assert_eq!(states(&unit), [Standby, Standby, ActiveOptimized], "it was right");
    unit.change(moved);
    assert_eq!((states(&unit), unit.is_active(a)), (vec![Standby, Standby, ActiveOptimized], false));
    assert_eq!(told_to(&mut unit, a), [(0x2a, 6)]);
}

#[test]
fn who_changes_the_reservations_is_not_told_even_if_the_configuration_is_faster_than_the_answer() {
    let mut unit = unit();
    let (a, b) = (unit.enter_now(name(1, 1)), unit.enter_now(name(2, 1)));
    let registered = |number| Registration { nexus: name(number, 1), key: number.into(), since: 1 };
    let two = Reservations { registrations: vec![registered(1), registered(2)], ..Reservations::default() };
    unit.learn(two.clone());
    told_to(&mut unit, a);
    told_to(&mut unit, b);
    let (task, waiting) = (unit.begin_task(a, 0).unwrap(), unit.begin_task(a, 1).unwrap());
    for learns_first in [true, false] {
        let cleared = Reservations { generation: 1, ..Reservations::default() };
        let held = unit.lock_reservations(task).0;
        unit.is_changing(task, cleared.clone());
        // Another command of the session waits for it, and ends.
        let (waits, is_held) = unit.lock_reservations(waiting);
        assert!(!is_held);
        unit.let_go(waiting, waits);
        if learns_first {
            unit.learn(cleared.clone());
        }
        unit.has_changed(task, &two, true);
        unit.let_go(task, held);
        unit.learn(cleared.clone());
        assert_eq!(unit.reservations(), &cleared);
        assert_eq!((told_to(&mut unit, a), told_to(&mut unit, b)), (vec![], vec![(0x2a, 3)]));
        unit.learn(two.clone());
    }
    // What another node has changed is told to both.
    let reservation = Reservation { kind: Kind::WriteExclusive, holder: Some(name(2, 1)) };
    unit.learn(Reservations { registrations: vec![registered(2)], reservation: Some(reservation), ..two });
    assert_eq!((told_to(&mut unit, a), told_to(&mut unit, b)), (vec![(0x2a, 5)], vec![]));
}

#[test]
fn a_change_that_was_not_made_is_forgotten_and_one_that_came_too_late_changes_nothing() {
    let mut unit = unit();
    let (a, b) = (unit.enter_now(name(1, 1)), unit.enter_now(name(2, 1)));
    let number = |generation| Reservations { generation, ..Reservations::default() };
    let (task, of_b) = (unit.begin_task(a, 0).unwrap(), unit.begin_task(b, 0).unwrap());
    unit.is_changing(task, number(1));
    unit.has_changed(task, &number(0), false);
    assert_eq!(unit.reservations(), &number(0));
    unit.is_changing(task, number(1));
    unit.has_changed(of_b, &number(0), true);
    assert_eq!(unit.reservations(), &number(0), "it is not the change of this session");
    unit.learn(number(2));
    unit.has_changed(task, &number(0), true);
    assert_eq!(unit.reservations(), &number(2));
}

#[test]
fn a_session_that_leaves_takes_its_reservation_its_locks_and_its_tasks_with_it() {
    let mut unit = unit();
    let (a, b) = (unit.enter_now(name(1, 1)), unit.enter_now(name(2, 1)));
    unit.set_reserved(Some(a));
    assert!(unit.prevent(b, Touches::Nothing) && !unit.prevent(a, Touches::Writes));
    let (one, two) = (unit.begin_task(a, 1).unwrap(), unit.begin_task(b, 7).unwrap());
    assert!(unit.lock(one, 0..8, Sharing::Alone).1);
    assert!(!unit.lock(two, 0..8, Sharing::Shared).1);
    assert!(unit.lock_reservations(one).1);
    unit.leave(a, false);
    assert!(unit.take_woken() && !unit.take_woken());
    assert_eq!((unit.take_resumed(b), unit.take_resumed(b)), (Some(7), None));
    assert!(!unit.prevent(b, Touches::Writes) && unit.is_ended(one));
    assert!(unit.lock_reservations(two).1);
    // It never hears of its task.
    unit.end_task(one, None);
    assert_eq!(unit.begin_task(a, 2), None);
}

/// Another node has carried out a PREEMPT AND ABORT of this nexus.
fn abort(unit: &mut Unit, nexus: NexusName) {
    let generation = unit.reservations().generation + 1;
    let registrations = vec![Registration { nexus, key: 1, since: generation }];
    unit.learn(Reservations { generation, registrations, ..unit.reservations().clone() });
    let (generation, aborted_at) = (generation + 1, Some(generation + 1));
    unit.learn(Reservations { generation, aborted_at, ..Reservations::default() });
}

#[test]
fn tasks_that_were_ended_are_counted_until_the_last_is_gone() {
    let mut unit = unit();
    let (a, b) = (unit.enter_now(name(1, 1)), unit.enter_now(name(2, 1)));
    let (one, two) = (unit.begin_task(b, 1).unwrap(), unit.begin_task(b, 2).unwrap());
    let waiting = unit.begin_task(a, 3).unwrap();
    abort(&mut unit, name(2, 1));
    assert!(unit.is_ending() && unit.is_ended(one) && !unit.is_ended(waiting));
    assert!(unit.take_ended(b) && !unit.take_ended(b) && !unit.take_ended(a));
    let held = unit.await_end(waiting);
    // One that begins now is not ended.
    let three = unit.begin_task(b, 4).unwrap();
    unit.end_task(one, None);
    unit.end_task(three, None);
    assert!(unit.is_ending() && unit.take_resumed(a).is_none());
    unit.take_woken();
    unit.end_task(two, None);
    assert!(!unit.is_ending() && unit.take_woken());
    assert_eq!(unit.take_resumed(a), Some(3));
    unit.end_task(waiting, Some(held));
    assert!(unit.is_idle());
    // Nothing of a session without tasks is ended.
    unit.reset();
    assert!(!unit.take_ended(a) && !unit.take_ended(b) && !unit.is_ending());
}

#[test]
fn tasks_that_were_ended_are_gone_with_their_session_and_who_waits_for_them_may_leave_too() {
    let mut unit = unit();
    let (a, b) = (unit.enter_now(name(1, 1)), unit.enter_now(name(2, 1)));
    for waiter_leaves_first in [false, true] {
        let c = unit.enter_now(name(3, 1));
        unit.begin_task(c, 1).unwrap();
        let waiting = unit.begin_task(a, 3).unwrap();
        abort(&mut unit, name(3, 1));
        let held = unit.await_end(waiting);
        if waiter_leaves_first {
            unit.leave(a, false);
            assert!(unit.awaiting_end.is_empty());
        }
        unit.leave(c, false);
        assert!(!unit.is_ending());
        assert_eq!(unit.take_resumed(a), (!waiter_leaves_first).then_some(3));
        unit.end_task(waiting, Some(held));
        assert!(unit.is_idle() && unit.take_resumed(b).is_none());
    }
}

#[test]
fn a_task_that_has_ended_is_not_resumed_although_it_was_to_be() {
    let mut unit = unit();
    let a = unit.enter_now(name(1, 1));
    let (one, two) = (unit.begin_task(a, 1).unwrap(), unit.begin_task(a, 2).unwrap());
    let (first, _) = unit.lock(one, 0..8, Sharing::Alone);
    let (second, is_held) = unit.lock(two, 0..8, Sharing::Alone);
    assert!(!is_held);
    unit.end_task(one, Some(first));
    unit.end_task(two, Some(second));
    assert_eq!(unit.take_resumed(a), None);
    assert!(unit.is_idle());
}

#[test]
fn a_session_is_displaced_by_a_later_one_of_the_same_name_once() {
    let mut unit = unit();
    let a = unit.enter_now(name(1, 1));
    let (b, c) = (unit.arrive(), unit.arrive());
    assert_eq!((unit.place(b, &name(1, 2)), unit.is_displaced(a)), (Place::Free, false));
    unit.take_woken();
    assert_eq!(unit.place(b, &name(1, 1)), Place::Taken);
    assert!(unit.is_displaced(a) && unit.take_woken());
    assert_eq!((unit.place(c, &name(1, 1)), unit.take_woken()), (Place::Taken, false));
    unit.leave(a, false);
    // The later one is faster.
    assert_eq!(unit.place(c, &name(1, 1)), Place::Free);
    unit.enter(c, name(1, 1));
    assert_eq!((unit.place(b, &name(1, 1)), unit.is_displaced(c)), (Place::Lost, false));
}

#[test]
fn an_initiator_is_unserved_when_its_session_ends_when_it_stands_by_and_when_another_node_owns_the_volume() {
    let mut unit = unit();
    let (a, b, c) = (enter(&mut unit, 1), enter(&mut unit, 2), enter(&mut unit, 3));
    unit.activate(a);
    unit.activate(b);
    let reported = |unit: &mut Unit| -> Vec<(u8, bool)> {
        let number = |of: &Unserved| of.initiator.bytes().last().unwrap() - b'0';
        unit.take_unserved().iter().map(|of| (number(of), of.is_lost)).collect()
    };
    unit.leave(a, true);
    unit.leave(b, false);
    assert_eq!(reported(&mut unit), [(1, true), (2, false)]);
    unit.stands_by(&name(3, 1));
    assert_eq!(reported(&mut unit), [(3, false)]);
    let owned_by = |group: u16| {
        let ports = about().ports.into_iter().map(|port| match port.group == group {
            true => Port { state: AccessState::ActiveOptimized, ..port },
            false => Port { state: AccessState::Standby, ..port },
        });
        About { ports: ports.collect(), ..about() }
    };
    for (group, is_unserved) in [(2, true), (2, false), (3, true), (1, false), (3, true)] {
        unit.change(owned_by(group));
        assert_eq!(reported(&mut unit), vec![(3, false); usize::from(is_unserved)], "owned by {group}");
        unit.report_standing_by();
        assert_eq!(reported(&mut unit).len(), usize::from(group != 1), "once more");
    }
    unit.leave(c, true);
    assert_eq!(reported(&mut unit), [], "it stood by");
}

#[test]
fn the_version_that_all_commands_obey_is_that_of_the_oldest_which_is_under_way() {
    let mut unit = unit();
    let (a, b) = (unit.enter_now(name(1, 1)), unit.enter_now(name(2, 1)));
    let old = [unit.begin_task(a, 1).unwrap(), unit.begin_task(a, 2).unwrap()];
    unit.knows_version(3);
    let middle = unit.begin_task(b, 1).unwrap();
    unit.knows_version(5);
    assert_eq!(unit.obeyed_version(), 0);
    unit.end_task(old[0], None);
    assert_eq!(unit.obeyed_version(), 0, "another of that version is under way");
    // Tasks that were aborted are under way until they have ended.
    unit.clear_tasks(b);
    unit.end_task(old[1], None);
    assert_eq!(unit.obeyed_version(), 3);
    unit.leave(b, false);
    assert_eq!(unit.obeyed_version(), 5);
    unit.end_task(middle, None);
    assert_eq!(unit.obeyed_version(), 5);
}
