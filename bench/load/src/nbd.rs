//! Disks that an NBD server has: named by a URI, reached by a connection for each thread.
//!
//! | module | idea |
//! | --- | --- |
//! | [`uri`] | how such a disk is named |
//! | [`connect`] | a connection, up to the point where requests may follow |

pub mod connect;
pub mod uri;
