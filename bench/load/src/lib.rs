//! The load generator: profile and disk in, measurements out.
