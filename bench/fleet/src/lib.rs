//! Workers: where they run, how they start, and what they report.
//!
//! A fleet is one controller and many workers. The controller lives inside the program that runs the study (on a
//! thread of its own, so that nothing the study does makes it late); a worker is a process of the same program,
//! launched by the fleet or started by a person on any machine with `loadline worker --join`. Either way it dials out
//! to the controller, the two encrypt the connection and prove to each other over it that they have the token, and it
//! carries out orders until the controller is gone.
//!
//! | module | idea |
//! | --- | --- |
//! | [`spec`] | the specification of a fleet: where workers come from, where the controller listens, which token |
//! | [`launcher`] | the kinds of fleet, behind one contract: processes of this machine, hosts by SSH, machines of Proxmox VE, workers that join |
//! | [`inspect`] | hosts asked about their disks, before a run |
//! | [`identity`], [`node`] | names of workers, nodes |
//! | [`fleet`] | the handle that a study holds: make files, fill, measure, scan, stop |
//! | [`event`] | what a fleet reports while it works |
//! | `copies` | how far the copies of the program to hosts are |
//! | [`outcome`] | what an operation came to, worker by worker |
//! | [`error`] | what can go wrong, and which exit code that is |
//! | [`worker`] | a worker's whole life |
//! | `carried` | the first program of virtual machines, carried to hosts with the program |
//! | `orders` | what is ordered of the keeper of a machine |
//! | `outside`, [`machine`] | a worker in a virtual machine, and its keeper outside |
//! | `started` | a virtual machine that was started for the fleet, as its worker learns of it |
//! | [`mid_step`] | what is done to workers while they measure: killed with their host, started again |
//! | [`network`], [`network_path`] | the network between two workers, measured bare |
//! | [`stop`] | waiting that ends on a request to stop |
//! | [`cpus`] | a list of CPUs, as people write it |
//! | [`wire`] | the messages between the two, and their schema |
//! | [`tls`], [`token`] | how the connection is encrypted, and how each side proves that it has the token |

mod carried;
pub mod clock_offset;
mod connection;
mod controller;
mod copies;
pub mod cpus;
mod elsewhere;
pub mod error;
pub mod event;
mod event_queue;
pub mod fleet;
mod frame;
mod greeting;
mod host_cpu;
mod host_seconds;
pub mod identity;
mod inbound;
pub mod inspect;
mod join;
pub mod launcher;
mod lifecycle;
mod live;
mod load_thread;
pub mod machine;
pub mod mid_step;
pub mod network;
pub mod network_path;
pub mod node;
mod operation;
mod orders;
pub mod outcome;
mod outside;
pub mod process;
pub mod spec;
mod started;
mod step;
mod step_state;
pub mod stop;
mod successors;
pub mod tls;
pub mod token;
mod unauthenticated;
pub mod wire;
pub mod worker;

pub use copies::{ProgramCopies, ProgramCopy};
pub use elsewhere::run_receiver;
pub use error::{ErrorKind, FleetError};
pub use event::{EventSink, FleetEvent, LiveSecond, Loss, LossReason, Operation, WorkerSecond};
pub use fleet::{ExaminedHost, Fleet, MadeFiles, ToExamine};
pub use identity::{WorkerId, WorkerInfo};
pub use inspect::{check_hosts_to_make, inspect_hosts};
pub use join::WorkerOptions;
pub use launcher::{
    CpuShare, DiskQuestion, FleetKind, FleetOptions, FoundDisk, HostAnswer, HostQuestion, JoiningWorkers,
    LocalProcesses, OpenPlaces, Placement, ProxmoxMachines, SshHosts, run_host_agent, ssh_shell,
};
pub use loadline_guest::{LibvirtUri, Machine, Migrated, remove_left_copies};
pub use loadline_proxmox::Proxmox;
pub use machine::run_worker_in_machine;
pub use mid_step::{Manner, MidStepChanges, MidStepOrder, Restart};
pub use network::NetworkPathSpeed;
pub use network_path::NetworkPath;
pub use node::NodeSpec;
pub use orders::{Migration, NotMigrated};
pub use outcome::{HostCpu, PerWorker, StepOutcome, WorkerOutcome};
pub use outside::Inside;
pub use process::TOKEN_VARIABLE;
pub use spec::FleetSpec;
pub use stop::or_stop;
pub use successors::MIGRATION_TRIES;
pub use token::{check_token, random_token};
pub use worker::run_worker;
