use super::*;
use crate::scsi::testing::{Random, name};

const PORTS: [u16; 3] = [1, 2, 3];

fn register() -> Request {
    Request::Register { ignores: false, all_ports: false, persists: false }
}

fn preempt(kind: Kind) -> Request {
    Request::Preempt { kind, aborts: false }
}

/// Carries a request out that is not refused.
fn done(of: &Reservations, by: &NexusName, request: Request, keys: (u64, u64)) -> Reservations {
    of.carry_out(by, request, keys, &PORTS).unwrap()
}

/// Two that are registered with the keys 1 and 2.
fn two() -> (NexusName, NexusName, Reservations) {
    let (a, b) = (name(1, 1), name(2, 1));
    let state = done(&Reservations::default(), &a, register(), (0, 1));
    let state = done(&state, &b, register(), (0, 2));
    (a, b, state)
}

#[test]
fn a_nexus_registers_with_no_key_and_changes_it_with_the_one_that_it_has() {
    let (a, _, state) = two();
    assert_eq!((state.key_of(&a), state.generation), (Some(1), 2));
    let wrong = state.carry_out(&a, register(), (0, 5), &PORTS);
    assert_eq!(wrong, Err(Refused::Conflict));
    let changed = done(&state, &a, register(), (1, 5));
    assert_eq!((changed.key_of(&a), changed.registrations.len(), changed.generation), (Some(5), 2, 3));
    let ignores = Request::Register { ignores: true, all_ports: false, persists: true };
    let changed = done(&changed, &a, ignores, (77, 6));
    assert_eq!((changed.key_of(&a), changed.persists), (Some(6), true));
    let gone = done(&changed, &a, register(), (6, 0));
    assert_eq!((gone.key_of(&a), gone.generation), (None, 5));
    assert_eq!(done(&gone, &a, register(), (0, 0)), gone, "it was not registered");
    assert_eq!(done(&gone, &a, ignores, (9, 0)), gone);
}

#[test]
fn one_registration_can_be_made_for_all_ports() {
    let a = name(1, 2);
    let all = Request::Register { ignores: false, all_ports: true, persists: false };
    let state = done(&Reservations::default(), &a, all, (0, 1));
    assert_eq!(state.generation, 1);
    assert!(PORTS.iter().all(|group| state.key_of(&name(1, *group)) == Some(1)));
    assert!(done(&state, &a, all, (1, 0)).registrations.is_empty());
}

#[test]
fn only_one_holds_a_reservation_and_who_holds_it_may_repeat_the_command() {
    let (a, b, state) = two();
    let kind = Kind::WriteExclusive;
    assert_eq!(state.carry_out(&name(9, 1), Request::Reserve(kind), (0, 0), &PORTS), Err(Refused::Conflict));
    assert_eq!(state.carry_out(&a, Request::Reserve(kind), (2, 0), &PORTS), Err(Refused::Conflict));
    let held = done(&state, &a, Request::Reserve(kind), (1, 0));
    assert_eq!((held.generation, held.is_held_by(&a), held.is_held_by(&b)), (2, true, false));
    assert_eq!(done(&held, &a, Request::Reserve(kind), (1, 0)), held);
    let other = Request::Reserve(Kind::ExclusiveAccess);
    assert_eq!(held.carry_out(&a, other, (1, 0), &PORTS), Err(Refused::Conflict));
    assert_eq!(held.carry_out(&b, Request::Reserve(kind), (2, 0), &PORTS), Err(Refused::Conflict));
    assert_eq!(done(&held, &b, Request::Release(kind), (2, 0)), held, "it is not its own");
    let wrong = held.carry_out(&a, Request::Release(Kind::ExclusiveAccess), (1, 0), &PORTS);
    assert_eq!(wrong, Err(Refused::Sense(Sense::new(key::ILLEGAL_REQUEST, 0x26, 0x04))));
    assert_eq!(done(&held, &a, Request::Release(kind), (1, 0)), state);
}

#[test]
fn a_reservation_ends_with_the_registration_of_its_holder_and_one_of_all_with_the_last() {
    let (a, b, state) = two();
    let held = done(&state, &a, Request::Reserve(Kind::WriteExclusiveRegistrantsOnly), (1, 0));
    assert_eq!(done(&held, &a, register(), (1, 0)).reservation, None);
    assert_eq!(done(&held, &b, register(), (2, 0)).reservation, held.reservation);
    let all = done(&state, &a, Request::Reserve(Kind::ExclusiveAccessAllRegistrants), (1, 0));
    assert!(all.is_held_by(&a) && all.is_held_by(&b));
    let left = done(&all, &a, register(), (1, 0));
    assert_eq!(left.reservation, all.reservation);
    assert_eq!(done(&left, &b, register(), (2, 0)).reservation, None);
}

#[test]
fn each_type_prevents_what_the_standard_says() {
    let (a, b, state) = two();
    let stranger = name(9, 1);
    // For each type: whether it prevents reads and writes of one that is registered, and of one that is not.
    for (kind, registered, other) in [
        (Kind::WriteExclusive, (false, true), (false, true)),
        (Kind::ExclusiveAccess, (true, true), (true, true)),
        (Kind::WriteExclusiveRegistrantsOnly, (false, false), (false, true)),
        (Kind::ExclusiveAccessRegistrantsOnly, (false, false), (true, true)),
        (Kind::WriteExclusiveAllRegistrants, (false, false), (false, true)),
        (Kind::ExclusiveAccessAllRegistrants, (false, false), (true, true)),
    ] {
        let held = done(&state, &a, Request::Reserve(kind), (1, 0));
        let prevents = |by| (held.prevent(by, Touches::Reads), held.prevent(by, Touches::Writes));
        assert_eq!(prevents(&a), (false, false), "{kind:?}");
        assert_eq!(prevents(&b), registered, "{kind:?}");
        assert_eq!(prevents(&stranger), other, "{kind:?}");
        assert!(!held.prevent(&stranger, Touches::Nothing) && !held.prevent(&stranger, Touches::Never));
    }
}

#[test]
fn a_preemption_removes_the_registrations_of_a_key_and_takes_over_what_they_held() {
    let (a, b, state) = two();
    let held = done(&state, &a, Request::Reserve(Kind::WriteExclusive), (1, 0));
    let taken = held.carry_out(&b, preempt(Kind::ExclusiveAccess), (2, 1), &PORTS).unwrap();
    assert_eq!((taken.key_of(&a), taken.generation), (None, held.generation + 1));
    let new = Reservation { kind: Kind::ExclusiveAccess, holder: Some(b.clone()) };
    assert_eq!(taken.reservation, Some(new));
    // Who holds nothing only loses its registration.
    let other = held.carry_out(&a, preempt(Kind::ExclusiveAccess), (1, 2), &PORTS).unwrap();
    assert_eq!((other.key_of(&b), &other.reservation), (None, &held.reservation));
    assert_eq!(held.carry_out(&b, preempt(Kind::WriteExclusive), (2, 7), &PORTS), Err(Refused::Conflict));
    let none = held.carry_out(&b, preempt(Kind::WriteExclusive), (2, 0), &PORTS);
    assert_eq!(none, Err(Refused::Sense(Sense::in_parameters(8))));
    // Of a reservation of all registrants, no key stands for everyone else.
    let all = done(&state, &a, Request::Reserve(Kind::WriteExclusiveAllRegistrants), (1, 0));
    let taken = all.carry_out(&b, preempt(Kind::WriteExclusive), (2, 0), &PORTS).unwrap();
    assert_eq!((taken.key_of(&a), taken.is_held_by(&b)), (None, true));
}

#[test]
fn what_is_kept_says_whose_tasks_a_preemption_has_aborted_whatever_else_has_changed_meanwhile() {
    let (a, b, state) = two();
    let c = name(3, 1);
    let kind = Kind::WriteExclusive;
    let aborting = Request::Preempt { kind, aborts: true };
    let taken = done(&state, &a, aborting, (1, 2));
    let aborted = |from: &Reservations, to: &Reservations| [&a, &b, &c].map(|of| aborts(from, to, of));
    assert_eq!(aborted(&state, &taken), [false, true, false]);
    assert_eq!(aborted(&state, &done(&state, &a, preempt(kind), (1, 2))), [false; 3], "it does not abort");
    // It comes again, with the key that it had; all leave; another one is registered.
    let again = done(&taken, &b, register(), (0, 2));
    assert_eq!((aborted(&state, &again), aborted(&taken, &again)), ([false, true, true], [false; 3]));
    let cleared = done(&again, &b, Request::Clear, (2, 0));
    assert_eq!((aborted(&state, &cleared), aborted(&again, &cleared)), ([true, true, true], [false; 3]));
    // One that came and was removed between is one of these: it may have begun tasks before.
    let came = done(&state, &c, register(), (0, 3));
    let gone = done(&came, &a, aborting, (1, 3));
    assert_eq!((aborted(&state, &gone), aborted(&came, &gone)), ([false, false, true], [false, false, true]));
}

#[test]
fn who_loses_something_is_told_what() {
    let (a, b, state) = two();
    let kind = Kind::WriteExclusiveRegistrantsOnly;
    let held = done(&state, &a, Request::Reserve(kind), (1, 0));
    let cleared = done(&held, &a, Request::Clear, (1, 0));
    assert_eq!((cleared.registrations.len(), &cleared.reservation, cleared.generation), (0, &None, 3));
    assert_eq!(told(&held, &cleared, &b), Some(Told::Cleared));
    assert_eq!(told(&held, &done(&held, &a, Request::Release(kind), (1, 0)), &b), Some(Told::Released));
    assert_eq!(told(&held, &done(&held, &a, preempt(kind), (1, 2)), &b), Some(Told::Removed));
    assert_eq!(told(&held, &held, &b), None);
    assert_eq!(told(&held, &cleared, &name(9, 1)), None);
    let alone = done(&state, &a, Request::Reserve(Kind::WriteExclusive), (1, 0));
    assert_eq!(told(&alone, &state, &b), None, "it had nothing by it");
}

#[test]
fn what_is_kept_is_plain_json_and_comes_back_as_it_was() {
    let (a, _, state) = two();
    let held = done(&state, &a, Request::Reserve(Kind::WriteExclusive), (1, 0));
    let text = serde_json::to_string(&held).unwrap();
    assert!(
        text.contains(r#""isid":"800000000001""#) && text.contains(r#""kind":"write_exclusive""#),
        "{text}"
    );
    assert_eq!(serde_json::from_str::<Reservations>(&text).unwrap(), held);
    assert_eq!(serde_json::from_str::<Reservations>("{}").unwrap(), Reservations::default());
    for wrong in [
        r#"{"more":1}"#,
        r#"{"registrations":[{"nexus":{"initiator":"a","isid":"+00000000001","group":1},"key":1}]}"#,
    ] {
        assert!(serde_json::from_str::<Reservations>(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn no_sequence_of_commands_breaks_the_rules() {
    let seed = Random::any_seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut state = Reservations::default();
    let nexuses: Vec<NexusName> = (1..5).flat_map(|of| PORTS.map(|group| name(of, group))).collect();
    for step in 0..20_000 {
        let by = random.any(&nexuses).clone();
        // Mostly its own key.
        let own = if random.below(8) == 0 { random.below(4) } else { state.key_of(&by).unwrap_or(0) };
        let keys = (own, random.below(4));
        let kind = *random.any(&Kind::ALL);
        let request = match random.below(12) {
            0..5 => Request::Register {
                ignores: random.below(4) == 0,
                all_ports: random.below(4) == 0,
                persists: random.below(2) == 0,
            },
            5..8 => Request::Reserve(kind),
            8..10 => Request::Release(state.reservation.as_ref().map_or(kind, |of| of.kind)),
            10 if random.below(4) == 0 => Request::Clear,
            _ => Request::Preempt { kind, aborts: random.below(2) == 0 },
        };
        let was = state.key_of(&by);
        let Ok(to) = state.carry_out(&by, request, keys, &PORTS) else { continue };
        // No one is registered twice, and no key is 0.
        let mut seen = std::collections::BTreeSet::new();
        assert!(
            to.registrations.iter().all(|of| of.key != 0 && seen.insert(&of.nexus)),
            "step {step}: {to:?}"
        );
        if let Some(reservation) = &to.reservation {
            let holders = nexuses.iter().filter(|nexus| to.is_held_by(nexus)).count();
            match &reservation.holder {
                Some(holder) => assert!(holders == 1 && to.key_of(holder).is_some(), "step {step}: {to:?}"),
                None => assert_eq!(holders, to.registrations.len(), "step {step}"),
            }
            assert!(
                holders > 0 && reservation.kind.is_of_all() == reservation.holder.is_none(),
                "step {step}"
            );
        }
        // Only who is registered, with its key, changes anything but its own registration.
        if !matches!(request, Request::Register { .. }) {
            assert_eq!(was, Some(own), "step {step}");
        }
        let others = |of: &Reservations| {
            of.registrations
                .iter()
                .filter(|of| of.nexus.initiator != by.initiator)
                .cloned()
                .collect::<Vec<_>>()
        };
        match request {
            Request::Register { .. } => assert_eq!(others(&state), others(&to), "step {step}"),
            Request::Reserve(_) | Request::Release(_) => {
                assert_eq!((&state.registrations, state.generation), (&to.registrations, to.generation));
            }
            Request::Clear => assert!(to.registrations.is_empty() && to.reservation.is_none()),
            Request::Preempt { aborts: ends, .. } => {
                assert_eq!(to.key_of(&by), Some(own), "step {step}: it stays itself");
                assert!(to.registrations.iter().all(|of| state.registrations.contains(of)), "step {step}");
                assert_eq!(to.generation, state.generation + 1);
                for nexus in &nexuses {
                    let is_removed = state.key_of(nexus).is_some() && to.key_of(nexus).is_none();
                    assert_eq!(aborts(&state, &to, nexus), ends && is_removed, "step {step}");
                }
            }
        }
        // A holder is never prevented, and whom a reservation prevents from reading it prevents from writing.
        for nexus in &nexuses {
            let (reads, writes) = (to.prevent(nexus, Touches::Reads), to.prevent(nexus, Touches::Writes));
            assert!((writes || !reads) && !(writes && to.is_held_by(nexus)), "step {step}");
        }
        state = to;
    }
}
