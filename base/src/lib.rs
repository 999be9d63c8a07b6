//! What both wings of Loadline stand on, and nothing more.
//!
//! | module | idea |
//! | --- | --- |
//! | [`units`] | bytes, spans of time and rates, as people write them |
//! | [`clock`] | the monotonic clock, as a type |
//! | [`figures`] | figures as people read them |
//! | [`histogram`] | the one latency histogram |
//! | [`buffer`] | page-aligned memory for direct I/O |
//! | [`crc`] | the one checksum of data |
//! | [`ring`] | the one io_uring wrapper |
//! | [`spin`] | looking for what completes before sleeping |
//! | [`limits`] | limits of the process, raised and named |
//! | [`nbd`] | what the NBD protocol calls its parts |
//! | [`iscsi`] | what iSCSI calls its parts |
//! | [`chap`] | how a login by CHAP is answered |
//! | [`scsi`] | what SCSI calls its parts |
//! | [`network`] | addresses of hosts |
//! | [`in_use`] | what uses a device or a file |
//! | [`device_model`] | a drive's data sheet, as figures by which a simulated device behaves |
//! | [`nearest`] | the word that was probably meant |

pub mod buffer;
pub mod chap;
pub mod clock;
pub mod crc;
pub mod device_model;
pub mod figures;
pub mod histogram;
pub mod in_use;
pub mod iscsi;
pub mod limits;
pub mod nbd;
pub mod nearest;
pub mod network;
pub mod ring;
pub mod scsi;
pub mod spin;
pub mod units;
