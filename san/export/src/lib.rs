//! How clients reach a volume: requests in, answers out.
//!
//! ```text
//!   connection ─▶ login: which volume? ─▶ session ─▶ block requests ─▶ the data path
//!                                            ▲                              │
//!                                            └────────── completions ◀──────┘
//! ```
//!
//! | module | idea |
//! | --- | --- |
//! | [`block`] | a request of a client, whatever its protocol |
//! | [`login`] | the contract of a client that has not chosen a volume yet |
//! | [`session`] | the contract of a client that was let in |
//! | [`ways`] | how clients reach a volume, in words for people |
//! | [`front_ends`] | all protocols: the one place that names each |
//! | [`nbd`] | the network block device: any client that speaks NBD |
//! | [`iscsi`] | iSCSI: any hypervisor, by several paths |
//! | [`scsi`] | the SCSI disk that a volume is, without a transport |
//! | [`vhost`] | vhost-user-blk: virtual machines and programs on the same host, by memory that both see |
//!
//! A protocol is a folder with a [`Session`](session::Session), a [`Login`](login::Login) unless each volume has a socket of its own,
//! and its lines in [`front_ends`].

pub mod block;
pub mod front_ends;
pub mod iscsi;
pub mod login;
pub mod nbd;
pub mod scsi;
pub mod session;
pub mod vhost;
pub mod ways;
