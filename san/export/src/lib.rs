//! How a volume is reached: requests of clients in, their answers out.
//!
//! | module | idea |
//! | --- | --- |
//! | [`asked`] | what a client asks, by whatever way |
//! | [`nbd`] | the network block device: any client that speaks NBD. Bytes come from whoever has the socket |
//! | [`vhost`] | vhost-user-blk: virtual machines and programs on the same host, by memory that both see |

pub mod asked;
pub mod nbd;
pub mod vhost;
