//! The experiment: plan, steps, order, resume.
//!
//! | module | idea |
//! | --- | --- |
//! | [`mod@file`] | the study file, as it is written |
//! | [`read`] | its text, read with messages that say line, column and what was probably meant |
//! | [`mod@fleet`] | its fleet, resolved from the options of the file |
//! | `libvirt_hosts` | nodes whose machines the libvirt of another host starts |
//! | [`profiles`], [`axes`] | its loads as they are written: tables, and the values that they are measured with |
//! | [`point`], [`points`] | which loads it measures |
//! | [`goals`], [`criterion`], [`success`] | what it is to find out: load line, capacity, ceilings, decisions |
//! | [`mod@published`] | published figures that a study states, next to which its own are shown |
//! | [`searches`] | which step a search measures next, and what it found |
//! | [`settle`] | warming up until the load is steady |
//! | [`limit`] | stated limits, and how a step did against them |
//! | [`resolve`] | the study, validated once and its options resolved. Pure |
//! | [`plan`], [`planned_step`] | every step in its order, its length, the space it needs. Pure |
//! | [`disks`] | how loads lie on disks |
//! | [`own_cluster`] | the cluster in which a run makes volumes: what it cannot be, how large the devices of one are that it starts |
//! | [`volume_limit`], `limited_volumes` | a limit of what the clients of a volume do a second; which are in force, and what a step may reach then |
//! | [`node_network`] | the network of each node of such a cluster |
//! | `node_cores` | how much CPU each node of a cluster has that the run starts |
//! | [`migrations`], [`orders`] | machines that are migrated in a window, and orders for that |
//! | `modelled` | what of the storage behaves as a model says, and whether the machine keeps up |
//! | `predicted_step`, `predicted` | what a step on modelled nodes is predicted to do, and how far the measured figure is from it |
//! | `running_cluster`, [`cluster_check`] | a cluster that ran before: what a study says of it, the plan against it |
//! | [`ceilings`], [`network`] | what is below the fleet, measured before it: devices, and the network between nodes |
//! | [`check`] | the plan against what is there: space, devices, folders |
//! | [`folder`] | a run's folder: complete after every step, readable in ten years |
//! | [`mod@resume`] | the command that continues a run |
//! | [`run`] | a study, run or resumed: files, fill, steps, scans |
//! | [`progress`], [`left`], [`live`] | what is to be seen while it runs, how long it still takes, and a file that says so each second |
//! | [`schema`], [`json_schema`] | JSON Schemas of what is written and read |
//! | [`name`], [`when`], [`error`] | names, wall-clock time, what can go wrong |

pub mod axes;
mod bounds;
pub mod ceilings;
pub mod check;
pub mod cluster_check;
mod condition_entry;
mod conditioning;
pub mod conditions;
pub mod criterion;
pub mod disks;
pub mod error;
pub mod faults;
pub mod file;
pub mod fleet;
pub mod folder;
#[cfg(test)]
mod goal_tests;
pub mod goals;
mod harness;
pub mod host_check;
pub mod inventory;
mod jobs;
pub mod json_schema;
pub mod left;
mod libvirt_hosts;
pub mod limit;
mod limited_volumes;
mod links;
pub mod live;
pub mod migrations;
mod modelled;
mod monitored_step;
pub mod name;
pub mod network;
mod node_cores;
mod node_disks;
pub mod node_network;
pub mod orders;
pub mod own_cluster;
pub mod plan;
pub mod planned_step;
pub mod point;
pub mod points;
mod predicted;
mod predicted_step;
pub mod profiles;
pub mod progress;
pub mod published;
pub mod read;
mod record;
pub mod resolve;
pub mod resume;
pub mod run;
mod runner;
#[cfg(test)]
mod runner_tests;
mod running_cluster;
pub mod schema;
pub mod searches;
pub mod settle;
#[cfg(test)]
mod stand_in;
mod step;
pub mod storage_counts;
pub mod success;
pub mod timeline;
mod trace;
pub mod volume_limit;
mod volumes;
pub mod when;
mod window_monitor;
mod worker_order;
mod workers;

pub use error::StudyError;
pub use file::Study;
pub use folder::RunFolder;
pub use plan::Plan;
