//! Pure mathematics over measurements: summaries, depth gate, audit. No I/O, no clock.
