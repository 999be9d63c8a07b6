//! A volume that another node hands over to this one: its clients wait until it is claimed.

mod serving;

use loadline_san_core::ids::Epoch;
use loadline_san_core::lease::Moment;
use loadline_san_core::message::{Promise, ToOwner, ToReplica};
use loadline_san_core::volume::{Action, Event, Times, Volume};
use serving::*;

const LATER: Moment = Moment(NOW.0 + 1);

#[test]
fn a_volume_is_claimed_when_its_members_have_answered_and_not_at_the_next_tick() {
    let (mut volume, mut out) =
        (Volume::<u8>::new(owner(1), VOLUME, Times::of_lease(LEASE_NS), 1, NOW), Vec::new());
    volume.step(NOW, Event::Fence, &mut out);
    volume.step(NOW, Event::Seen(record(), Epoch(0)), &mut out);
    let asks = |action: &Action<u8>| matches!(action, Action::Send { message: ToReplica::Probe, .. });
    assert!(out.iter().any(asks), "{out:?}");
    out.clear();
    let promise = Promise { epoch: Epoch(9), owner: owner(2) };
    volume.step(LATER, Event::Message(said(0), ToOwner::Probed { promise, quiet_ns: 0 }), &mut out);
    assert!(out.iter().any(|action| matches!(action, Action::Propose { .. })), "{out:?}");
}
