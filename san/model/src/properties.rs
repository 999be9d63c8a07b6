//! What must never happen, and what should be reached.

use stateright::Property;

use crate::protocol::Protocol;
use crate::state::{BLOCKS, Flaw, Phase, State};

/// A takeover is complete.
pub const TAKEN_OVER: &str = "reached: a takeover is complete";

/// A write that was acknowledged without the departed replica.
pub const LEFT_BEHIND: &str = "reached: a write acknowledged without the departed replica";

/// The returned replica is the only survivor.
pub const SURVIVOR_RETURNED: &str = "reached: the returned replica is the only survivor";

/// A takeover within a takeover.
pub const NESTED: &str = "reached: a takeover within a takeover";

/// A swap that committed, and whose owner does not know.
pub const UNKNOWN: &str = "reached: a swap that committed, and whose owner does not know";

/// At rest, with all that was written.
pub const AT_REST: &str = "reached: at rest, with all that was written";

/// All properties. Those that begin with "never" or "always" hold in every state; those that begin with
/// "reached" are to be found in some state, or the model is too small to show anything.
pub fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always("always: a member has what was acknowledged", |_, s: &State| kept(s, &s.acked)),
        Property::always("always: a member has what was read", |_, s: &State| kept(s, &s.seen)),
        Property::always("never: a stale read", |_, s: &State| s.flaw != Some(Flaw::StaleRead)),
        Property::always("never: a write from below the promise", |_, s: &State| {
            s.flaw != Some(Flaw::PromiseBroken)
        }),
        Property::always("never: two owners active in one epoch", |_, s: &State| one_owner(s)),
        Property::always("never: members that differ at rest", |_, s: &State| !at_rest(s) || equal(s)),
        Property::always("never: a member taken for damaged", |_, s: &State| {
            s.flaw != Some(Flaw::TakenForDamaged)
        }),
        Property::sometimes(TAKEN_OVER, |_, s: &State| taken_over(s)),
        Property::sometimes(LEFT_BEHIND, |_, s: &State| left_behind(s)),
        Property::sometimes(SURVIVOR_RETURNED, |_, s: &State| survivor_returned(s)),
        Property::sometimes(NESTED, |_, s: &State| nested(s)),
        Property::sometimes(UNKNOWN, |_, s: &State| unknown(s)),
        Property::sometimes(AT_REST, |_, s: &State| at_rest(s) && s.left.writes == 0),
    ]
}

/// Values rise in the order in which the writes of a block are issued, and the order on the replicas is the
/// same; so a member that has a higher one has had this one too.
fn kept(state: &State, values: &[u8; BLOCKS]) -> bool {
    state
        .record
        .in_sync
        .iter()
        .all(|member| (0..BLOCKS).all(|block| state.replicas[member].content(block) >= values[block]))
}

fn one_owner(state: &State) -> bool {
    let active = |node: usize| state.owners[node].phase == Phase::Active;
    let epoch = |node: usize| state.owners[node].known.epoch;
    let pairs = [(0, 1), (0, 2), (1, 2)];
    !pairs.into_iter().any(|(a, b)| active(a) && active(b) && epoch(a) == epoch(b))
}

/// Nothing is in flight, and the owner that the record names serves.
fn at_rest(state: &State) -> bool {
    let owner = &state.owners[state.record.owner];
    owner.known == state.record
        && owner.serves()
        && owner.undecided.is_none()
        && owner.pipeline.is_empty()
        && owner.session.is_none()
        && state.queue.is_empty()
}

fn equal(state: &State) -> bool {
    let mut members = state.record.in_sync.iter().map(|member| &state.replicas[member]);
    let Some(first) = members.next() else { return true };
    members.all(|other| (0..BLOCKS).all(|block| other.content(block) == first.content(block)))
}

fn taken_over(state: &State) -> bool {
    state.owners.iter().any(|owner| owner.serves() && owner.ownership > 1)
}

fn left_behind(state: &State) -> bool {
    let departed = (0..state.replicas.len()).filter(|replica| state.record.departed[*replica] > 0);
    departed
        .into_iter()
        .any(|replica| (0..BLOCKS).any(|block| state.replicas[replica].content(block) < state.acked[block]))
}

fn survivor_returned(state: &State) -> bool {
    let record = state.record;
    let mut members = record.in_sync.iter().map(|member| &state.replicas[member]);
    record.in_sync.len() == 1
        && members.all(|survivor| survivor.returned && survivor.ownership > 1)
        && state.owners.iter().any(|owner| owner.known == record && owner.serves())
}

fn nested(state: &State) -> bool {
    let takes = |owner: &&crate::state::Owner| owner.phase == Phase::TakingOver && owner.undecided.is_none();
    state
        .owners
        .iter()
        .filter(takes)
        .any(|owner| owner.known.epoch < state.record.epoch && !state.record.active)
}

fn unknown(state: &State) -> bool {
    state.owners.iter().any(|owner| owner.undecided == Some(state.record))
}
