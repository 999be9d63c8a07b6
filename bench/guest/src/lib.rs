//! Virtual machines, as workers of a fleet and for a look at a disk: a kernel, an image of one program or of a shell, and disks.
//!
//! A machine needs no image that is downloaded, and leaves nothing behind: QEMU dies with its keeper, and talks to it by sockets that
//! are in no folder.
//!
//! | module | idea |
//! | --- | --- |
//! | [`machine`] | how large a machine is |
//! | [`kernel`], `modules` | what it boots |
//! | `cpio`, [`image`] | its first file system: one program |
//! | [`cache`] | the folder of what is kept, which nobody else writes to |
//! | [`qemu`], [`qmp`] | QEMU as a process, and orders to it |
//! | [`attach`] | disks that come and go while the machine runs |
//! | [`control`] | what a machine and its keeper say to each other |
//! | [`keeper`] | a running machine: booted, its worker relayed, its questions answered |
//! | [`session`] | what a machine with a shell, a command or a check is told, and what it reports |
//! | [`shell`] | a running machine of a session |
//! | [`tools`] | programs of the host for the image of a shell, with their libraries |
//! | [`remote`] | what is done to a machine as a whole: it crashes, stands still |
//! | [`probe`](mod@probe) | whether the processor runs machines, found by booting one |
//! | [`turns`] | so many machines boot at once as there are processors |
//! | [`room`] | how many machines the host has memory for |

pub mod attach;
pub mod cache;
pub mod control;
mod cpio;
pub mod error;
pub mod image;
pub mod keeper;
pub mod kernel;
pub mod machine;
mod modules;
pub mod probe;
pub mod qemu;
pub mod qmp;
pub mod remote;
pub mod room;
pub mod session;
pub mod shell;
pub mod tools;
pub mod turns;

pub use attach::{Devices, MachineDisk, NbdServer};
pub use error::{ErrorKind, GuestError};
pub use image::{Contents, Image};
pub use keeper::Keeper;
pub use kernel::Kernel;
pub use machine::Machine;
pub use probe::probe;
pub use qemu::{Acceleration, Qemu};
pub use remote::{MachineOrder, Remote};
pub use shell::ShellMachine;
pub use tools::Tools;
