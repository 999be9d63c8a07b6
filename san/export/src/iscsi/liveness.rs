//! How long a session waits: for a sign of its initiator, for the initiator to read, and for what its commands need.
//!
//! - **I1. An initiator of which nothing comes for [`LONGEST`] is gone.** It is pinged before, so one that has nothing to do answers. The
//!   session ends, so that its commands, its place in the unit and its memory are free for others. TCP finds a host that is gone sooner; this
//!   finds a program that hangs on a host that lives.
//! - **I2. An initiator that takes nothing of what it is sent for [`LONGEST`] is gone,** whatever it sends meanwhile.
//! - **I3. A command that has waited for [`LONGEST`] for anything but the initiator ends the session, and is not answered.** Initiators give up
//!   after 15 s. What the volume has begun may still be carried out, so an answer that it has failed could be wrong. It is carried out before
//!   anything that overlaps it and comes later (rules W1 and T4), so never over what is newer; what has not begun never begins (rule T13).
//!   A command of several steps is answered earlier: after [`UNBEGUN`] it begins no further one. A limit that is too low for a
//!   command makes the command fail, and does not end its session.
//!
//! The limits are a second less than the 12 s in which each command is answered or failed: time passes in steps of up to a second.

use std::time::Duration;

use super::error::SessionError;

/// How long nothing comes of an initiator until it is pinged.
pub(super) const QUIET: Duration = Duration::from_secs(5);
/// How long anything is waited for.
pub(super) const LONGEST: Duration = Duration::from_secs(11);
/// How long a command may have waited when the volume begins a step of it. It is refused then, which the session's end cannot say.
pub(super) const UNBEGUN: Duration = Duration::from_secs(9);

/// What is known of an initiator by its connection.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    /// How long nothing has come, while it would have been received.
    silent: Duration,
    /// It was pinged since.
    is_pinged: bool,
    /// How long nothing of what there is to send was taken.
    stalled: Duration,
}

impl Liveness {
    /// Something has come.
    pub(super) fn received(&mut self) {
        (self.silent, self.is_pinged) = (Duration::ZERO, false);
    }

    /// The connection has taken some of what there is to send.
    pub(super) fn sent(&mut self) {
        if !self.stalled.is_zero() {
            // It had no room: the initiator has read.
            self.received();
        }
        self.stalled = Duration::ZERO;
    }

    /// Time passes. `receives`: what the initiator sends is received now. `has_unsent`: there is something to send. Whether a ping is to be
    /// sent.
    pub(super) fn pass(
        &mut self,
        passed: Duration,
        receives: bool,
        has_unsent: bool,
    ) -> Result<bool, SessionError> {
        self.stalled = if has_unsent { self.stalled + passed } else { Duration::ZERO };
        if self.stalled >= LONGEST {
            return Err(SessionError::NotRead(LONGEST.as_secs()));
        }
        if !receives {
            // What it has sent may wait in the socket.
            return Ok(false);
        }
        self.silent += passed;
        if self.silent >= LONGEST {
            return Err(SessionError::Silent(LONGEST.as_secs()));
        }
        let is_due = self.silent >= QUIET && !self.is_pinged;
        self.is_pinged |= is_due;
        Ok(is_due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(500);

    #[test]
    fn one_that_is_silent_is_pinged_once_and_ended_later_unless_something_comes() {
        let mut liveness = Liveness::default();
        let pass = |liveness: &mut Liveness| liveness.pass(STEP, true, false);
        for step in 1..=100 {
            assert_eq!(pass(&mut liveness), Ok(step % 12 == 10), "step {step}");
            if step % 12 == 0 {
                liveness.received();
            }
        }
        liveness.received();
        for step in 1..22 {
            assert_eq!(pass(&mut liveness), Ok(step == 10), "step {step}");
        }
        assert_eq!(pass(&mut liveness), Err(SessionError::Silent(LONGEST.as_secs())));
    }

    #[test]
    fn one_that_sends_and_takes_nothing_is_ended() {
        let mut liveness = Liveness::default();
        for _ in 1..22 {
            liveness.received();
            assert_eq!(liveness.pass(STEP, true, true), Ok(false));
        }
        assert_eq!(liveness.pass(STEP, true, true), Err(SessionError::NotRead(LONGEST.as_secs())));
    }

    #[test]
    fn one_that_takes_much_slowly_is_not_silent() {
        let mut liveness = Liveness::default();
        for _ in 0..100 {
            assert!(liveness.pass(STEP, true, true).is_ok());
            liveness.sent();
        }
    }

    #[test]
    fn while_nothing_is_received_none_is_silent() {
        let mut liveness = Liveness::default();
        for _ in 0..100 {
            assert_eq!(liveness.pass(STEP, false, false), Ok(false));
        }
    }
}
