//! Data that was read is put where the front-end's request says: bytes over several stretches of its memory.

use super::memory::Span;

/// Writes this, from a byte of all spans on, as far as there is room.
pub(super) fn write(spans: &[Span], at: usize, from: &[u8]) {
    let mut done = 0;
    each(spans, at, from.len(), |span| {
        // SAFETY: the spans are of a request that keeps what is mapped.
        unsafe { span.slice() }.copy_from(&from[done..done + span.bytes]);
        done += span.bytes;
    });
}

pub(super) fn zero(spans: &[Span], at: usize, bytes: usize) {
    static ZEROES: [u8; 4096] = [0; 4096];
    each(spans, at, bytes, |span| {
        let mut left = span;
        while left.bytes > 0 {
            let some = left.bytes.min(ZEROES.len());
            // SAFETY: as above; `some` bytes of it are left.
            unsafe {
                left.slice().copy_from(&ZEROES[..some]);
                left = Span { start: left.start.add(some), bytes: left.bytes - some };
            }
        }
    });
}

/// The parts of spans that hold so many bytes, from this one on.
fn each(spans: &[Span], at: usize, bytes: usize, mut part: impl FnMut(Span)) {
    let (mut skip, mut left) = (at, bytes);
    for span in spans {
        if left == 0 {
            return;
        }
        let from = skip.min(span.bytes);
        skip -= from;
        let some = (span.bytes - from).min(left);
        left -= some;
        if some > 0 {
            // SAFETY: `from` is less than the span's length.
            part(Span { start: unsafe { span.start.add(from) }, bytes: some });
        }
    }
}
