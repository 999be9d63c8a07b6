//! What load: one type, and every notation that people already have for it.
