//! The server's side of vhost-user-blk: a virtual machine, or a program, on the same host shares its memory, and asks by queues
//! in it.
//!
//! ```text
//!  socket ─▶ messages (the vhost crate) ─▶ backend: memory, queues, what was in flight
//!                                                │
//!  guest's memory ─▶ queue ─▶ request ─▶ session ─▶ requests of the volume
//!        ▲                                  ▲
//!        └────────── data, status ──────────┴────── answers
//! ```
//!
//! Sources: the vhost-user protocol, <https://qemu-project.gitlab.io/qemu/interop/vhost-user.html>, and virtio 1.2,
//! <https://docs.oasis-open.org/virtio/virtio/v1.2/virtio-v1.2.html> (2.7: split queues; 5.2: block devices).
//!
//! Nothing that a front-end sends or has in its memory is trusted: it fails its own requests, or loses its connection. Nothing
//! here waits: a message is taken when all of it is there.
//!
//! | module | idea |
//! | --- | --- |
//! | [`session`] | a front-end's connection, from which requests are taken, and to which they are answered |
//! | `socket` | whether all of a message is there |
//! | `backend` | what its messages have set: features, memory, queues |
//! | `memory` | its memory |
//! | `guard` | memory that goes away under us costs the front-end its connection, not us our life |
//! | `queue` | one of its queues |
//! | `dirty` | what this process writes of a guest's memory, while the guest is migrated |
//! | [`inflight`] | what was begun and not answered, in memory that outlives us |
//! | `request` | the request in a chain of descriptors |
//! | `answer` | the answer to it, and what is noted of it |
//! | `spans` | where what is read is put |

mod answer;
mod backend;
mod dirty;
mod guard;
pub mod inflight;
mod memory;
mod queue;
mod request;
pub mod session;
mod socket;
mod spans;
