//! Logical units of iSCSI targets: named by a URI, reached by a session for each thread. The protocol is RFC 7143.
//!
//! | module | idea |
//! | --- | --- |
//! | [`uri`] | how such a disk is named, and the secret of its user |
//! | `connect` | a session, up to the point where requests may follow |
//! | `login` | names, CHAP, and what is agreed on |
//! | `channel` | PDUs before requests follow, with a time limit |
//! | `unit` | what the logical unit reports of itself |

mod channel;
mod connect;
mod login;
mod unit;
pub mod uri;

pub(crate) use channel::{Numbers, broken, command, logout, pong};
pub(crate) use connect::{Connected, Session, connect};
pub(crate) use login::{Parameters, SEGMENT};
#[cfg(test)]
pub(crate) use unit::Unit;
pub(crate) use unit::{ended_by, has_status, rejected, sense};
