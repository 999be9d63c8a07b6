//! Virtual machines of a Proxmox VE cluster, made for a run by the cluster's API and deleted when the run ends. It knows no fleet.
//!
//! All calls block; a fleet makes them on threads of its own.
//!
//! | module | idea |
//! | --- | --- |
//! | `options` | the `[fleet.proxmox]` table of a study |
//! | `token`, `tls`, `http` | who we are to the API, how we know the API, one request and its answer |
//! | `api`, `task` | calls and what their answers mean; what takes longer than a call |
//! | `site`, `placement` | what a cluster has; on which nodes machines are made |
//! | `making`, `removal` | the steps by which one machine is made, and its end |
//! | `ledger`, `provision` | what a run has made so far; all machines of a run, in parallel |
//! | `ownership` | how a machine says that a run made it: nothing else is ever deleted |
//! | `record`, `clean` | what this machine knows of a run, and what is deleted after a run that was killed |
//! | `parallel` | the same thing done for several machines at the same time |
//! | `present` | which machines a process that is ended at once leaves |
//! | `stop` | a request to stop, which ends waits |

mod api;
mod clean;
mod error;
mod http;
mod ledger;
mod making;
mod options;
mod ownership;
mod parallel;
mod placement;
mod present;
mod provision;
mod record;
mod removal;
mod site;
mod stop;
mod task;
mod tls;
mod token;

pub use api::Api;
pub use clean::{Cleaned, clean};
pub use error::{ErrorKind, ProxmoxError};
pub use making::{ReachedMachine, ReadyMachine};
pub use options::{DataDisk, Proxmox};
pub use ownership::is_run_id;
pub use present::machines_present;
pub use provision::{MachinePlan, Provisioner, REMOVAL_LIMIT};
pub use record::{Record, records_folder};
pub use stop::Stop;
pub use token::{TOKEN_VARIABLE, Token, take_variable, taken_variable};
