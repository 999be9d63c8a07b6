//! Images of a Ceph cluster (RBD): named by pool and image, reached through Ceph's own client library.
//!
//! | module | idea |
//! | --- | --- |
//! | [`uri`] | how such an image is named |
//! | `library` | the functions of librados and librbd, found when they are first wanted |
//! | `disk` | an image that is open, up to the point where requests may follow |

pub(crate) mod disk;
pub(crate) mod library;
pub mod uri;
