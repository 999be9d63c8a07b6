//! How a volume is reached: requests of clients in, their answers out. No I/O: bytes come from whoever has the socket.
//!
//! | module | idea |
//! | --- | --- |
//! | [`nbd`] | the network block device: any client that speaks NBD |

pub mod nbd;
