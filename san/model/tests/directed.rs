//! A counterexample that a long search found, walked through again step by step.

use loadline_san_model::protocol::Action::*;
use loadline_san_model::{Action, Bounds, Left, Protocol, Rule};
use stateright::Model;

/// Takes these steps. Returns which one was not possible, or which property was broken at the end.
fn walk(bounds: Bounds, left_out: Option<Rule>, way: &[Action]) -> Result<Vec<&'static str>, Action> {
    let protocol = Protocol { bounds, left_out };
    let mut state = protocol.init_states().remove(0);
    for action in way {
        state = protocol.next_state(&state, *action).ok_or(*action)?;
    }
    let mut properties = protocol.properties();
    properties.retain(|property| property.expectation == stateright::Expectation::Always);
    properties.retain(|property| !(property.condition)(&protocol, &state));
    Ok(properties.into_iter().map(|property| property.name).collect())
}

/// Replica 1 departs, and comes back under another owner. It has acknowledged a write when its node crashes.
/// The first owner, deposed and unaware, opens a session with what it takes for a departed replica: it drops
/// the write, unless it remembers what it promised to the other.
#[test]
fn durable_session() {
    let left = Left { writes: 1, reads: 0, crashes: 1, takeovers: 1, departures: 1, returns: 2 };
    let bounds = Bounds { replicas: 2, owners: 2, blocks: 1, left, depth: None };
    let way = [
        Remove(0, 1),
        Commit(0),
        ReadRecord(0),
        TakeOver(1),
        Commit(0),
        ReadRecord(1),
        Seal(1, 0),
        Seal(1, 0),
        Equalize(1, 0),
        Activate(1, loadline_san_model::state::Set::first(1)),
        Commit(0),
        ReadRecord(1),
        Append(1, 0),
        Acknowledge(1),
        OpenSession(1, 1),
        Add(1),
        Commit(0),
        Write(1, 0),
        Append(1, 0),
        Append(1, 1),
        Acknowledge(1),
        Crash(1),
        OpenSession(0, 1),
    ];
    assert_eq!(walk(bounds, None, &way), Err(OpenSession(0, 1)), "it remembers");
    let broken = walk(bounds, Some(Rule::DurableSession), &way).expect("all steps are possible");
    assert!(broken.contains(&"always: a member has what was acknowledged"), "{broken:?}");
}
