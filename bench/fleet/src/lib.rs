//! Workers: where they run, how they start, what they report.
