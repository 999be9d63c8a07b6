//! The answer to a request: its status, the entry in the used ring, and what is noted of both in memory that outlives this process.
//!
//! ```text
//!  data, status ─▶ log of written memory ─▶ in flight: about to be answered ─▶ used ring ─▶ log ─▶ in flight: answered
//! ```
//!
//! The log has the data and the status before the used ring shows the guest that the request is complete (rule H3).

use super::dirty::{Beyond, DirtyLog};
use super::inflight::InFlight;
use super::memory::{Mapped, Span};
use super::queue::{Queue, Unwritten};
use super::request::Place;

/// A request that is answered.
pub(super) struct Answered<'a> {
    /// The number of its queue.
    pub(super) number: u16,
    /// Its head in that queue.
    pub(super) head: u16,
    pub(super) place: &'a Place,
    pub(super) status: u8,
    /// Bytes that the front-end is told to have received.
    pub(super) moved: usize,
    /// What was written of the guest's memory, beside the status. It may be more than `moved`.
    pub(super) written: &'a [Span],
}

/// What is noted of it.
#[derive(Clone, Copy)]
pub(super) struct Notes<'a> {
    pub(super) kept: Option<&'a InFlight>,
    pub(super) log: Option<&'a DirtyLog>,
}

impl Notes<'_> {
    /// Writes the answer where the front-end finds it.
    pub(super) fn answer(
        &self,
        queue: &mut Queue,
        mapped: &Mapped,
        answered: &Answered<'_>,
    ) -> Result<(), Unwritten> {
        let Answered { number, head, place, status, moved, written } = *answered;
        // SAFETY: the byte lies within what is mapped (`Place::read`), which the caller keeps.
        unsafe { place.status.write_volatile(status) };
        if let Some(log) = self.log {
            for span in written {
                log.mark_at(mapped, span.start, span.bytes).map_err(beyond)?;
            }
            log.mark_at(mapped, place.status, 1).map_err(beyond)?;
        }
        if !queue.running {
            return Ok(());
        }
        if let Some(kept) = self.kept {
            kept.answers(number, head);
        }
        let index = queue.add_used(mapped, head, moved as u32 + 1)?;
        if let Some(log) = self.log {
            queue.mark_used(index, log).map_err(beyond)?;
        }
        if let Some(kept) = self.kept {
            kept.answered(number, head, index.wrapping_add(1));
        }
        queue.rings = true;
        Ok(())
    }
}

/// A front-end whose log does not cover its memory would lose what is written there.
fn beyond(_: Beyond) -> Unwritten {
    Unwritten("its log of written memory has no room for all of the memory that it shares")
}
