//! Virtual machines, as workers of a fleet and for a look at a disk: a kernel, an image of one program or of a shell, and disks.
//!
//! A machine needs no image that is downloaded, and leaves nothing behind: QEMU dies with its keeper, and talks to it by sockets that
//! are in no folder, or until it has booted in one that is removed then (with libvirt).
//!
//! | module | idea |
//! | --- | --- |
//! | [`machine`] | how large a machine is |
//! | [`kernel`], `modules` | what it boots |
//! | `cpio`, [`image`] | its first file system: one program |
//! | [`cache`] | the folder of what is kept, which nobody else writes to |
//! | [`qemu`], [`qmp`] | QEMU as a process, and orders to it |
//! | [`libvirt`], [`libvirt_uri`] | libvirt, which starts it in place of us |
//! | `running`, `words` | what both are to the keeper; what they printed last |
//! | [`hypervisor`] | which of the two starts the machines of a host |
//! | [`disk`] | a disk of a machine, and how QEMU opens it |
//! | [`attach`], `bus` | disks that come and go while the machine runs |
//! | [`control`] | what a machine and its keeper say to each other |
//! | [`keeper`] | a running machine: booted, its worker relayed, its questions answered |
//! | [`session`] | the task of a machine with a shell, a command or a check, and its report |
//! | [`shell`] | a running machine of a session |
//! | [`tools`] | programs of the host for the image of a shell, with their libraries |
//! | [`remote`] | what is done to a machine as a whole: it crashes, stands still |
//! | [`probe`](mod@probe) | whether the processor runs machines, found by booting one |
//! | [`migration`] | a running machine migrated to another QEMU |
//! | [`elsewhere`], [`link`], [`arrival`] | that QEMU on another host: as the machine's keeper sees it, the way there, and as it is there |
//! | `running` | what runs a machine at present, for the threads of its keeper |
//! | [`turns`] | so many machines boot at once as there are processors |
//! | [`room`] | how many machines the host has memory for |

pub mod arrival;
pub mod attach;
mod bus;
pub mod cache;
pub mod control;
mod cpio;
pub mod disk;
pub mod elsewhere;
pub mod error;
pub mod hypervisor;
pub mod image;
pub mod keeper;
pub mod kernel;
pub mod libvirt;
pub mod libvirt_uri;
pub mod link;
pub mod machine;
pub mod migration;
mod modules;
mod monitor;
mod port;
pub mod probe;
pub mod qemu;
pub mod qmp;
pub mod remote;
pub mod room;
mod running;
pub mod session;
mod shared;
pub mod shell;
pub mod tools;
pub mod turns;
mod vhost_server;
mod words;

pub use arrival::{Arrival, ArrivalStreams};
pub use attach::Devices;
pub use disk::{MachineDisk, NbdServer, OpenFile};
pub use elsewhere::{OtherHost, OtherQemu, Wanted};
pub use error::{ErrorKind, GuestError};
pub use hypervisor::Hypervisor;
pub use image::{Contents, Image};
pub use keeper::Keeper;
pub use kernel::Kernel;
pub use libvirt::Libvirt;
pub use libvirt_uri::LibvirtUri;
pub use link::Link;
pub use machine::Machine;
pub use migration::{Migrated, Whither, remove_left_copies};
pub use probe::probe;
pub use qemu::{Acceleration, Qemu};
pub use remote::{MachineOrder, Remote};
pub use running::all_read;
pub use shell::ShellMachine;
pub use tools::Tools;
