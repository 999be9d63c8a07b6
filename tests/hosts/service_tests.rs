//! Tests of the judge of service.
