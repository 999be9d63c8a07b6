//! The specification of a fleet: where its workers come from, and how they reach its controller.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::error::FleetError;
use crate::launcher::{FleetKind, Placement};
use crate::token::check_token;

/// More workers than this are refused: each costs the controller a connection and a process slot.
pub const MOST_WORKERS: usize = 4096;

/// The specification of a fleet.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetSpec {
    /// Where the workers come from.
    pub placement: Placement,
    /// Where the controller listens; port 0: a free one. A kind of fleet whose workers are all on this machine stays on it.
    pub listen: SocketAddr,
    /// What worker and controller prove to each other that they have; 16 to 512 bytes. `None`: a random one. Every connection may
    /// try a guess, so a chosen token must be as hard to guess as a random one.
    pub token: Option<String>,
    /// The `loadline` program, of which local workers are processes.
    pub program: PathBuf,
    /// A folder of this machine for what launched workers print, one file each. It must exist. `None`: only the last lines are kept.
    pub worker_log_dir: Option<PathBuf>,
    /// Whether the fleet starts though some of its workers cannot be started, as long as one can. Its first operation then names
    /// those that are lost.
    pub goes_on_without: bool,
}

impl FleetSpec {
    /// A fleet that listens on this machine only, on a free port, with a random token, and of which local workers
    /// are processes of the running program.
    pub fn new(placement: Placement) -> FleetSpec {
        FleetSpec {
            placement,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            token: None,
            // The link, and not the file's path: it leads to the running program even if that file was replaced.
            program: PathBuf::from("/proc/self/exe"),
            worker_log_dir: None,
            goes_on_without: false,
        }
    }

    /// Checks the rules that need no system. The error is of kind `Usage`.
    pub fn validate(&self) -> Result<(), FleetError> {
        if let Some(token) = &self.token {
            check_token(token)?;
        }
        self.placement.validate()?;
        let workers = self.placement.workers() as usize;
        if workers == 0 || workers > MOST_WORKERS {
            return Err(FleetError::usage(format!("a fleet has 1 to {MOST_WORKERS} workers, not {workers}")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::{JoiningWorkers, LocalProcesses};
    use crate::node::NodeSpec;
    use loadline_base::units::{ByteSize, TimeSpan};

    fn processes(nodes: Vec<NodeSpec>, workers_per_node: u32) -> FleetSpec {
        FleetSpec::new(Placement::Processes(LocalProcesses { nodes, workers_per_node }))
    }

    #[test]
    fn a_fleet_listens_on_this_machine_only_unless_told_otherwise() {
        let spec = processes(vec![NodeSpec::named("a")], 1);
        assert!(spec.listen.ip().is_loopback());
        assert_eq!(spec.validate(), Ok(()));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_name() {
        let node = NodeSpec::named("node-a");
        let bad = [
            (processes(vec![], 1), "1 to 4096 workers"),
            (processes(vec![node.clone()], 5000), "5000"),
            (processes(vec![node.clone(), node.clone()], 1), "two nodes named node-a"),
            (processes(vec![NodeSpec::named("a/b")], 1), "a/b"),
            (processes(vec![NodeSpec { cpus: Some("3-1".into()), ..node.clone() }], 1), "3-1"),
            (processes(vec![NodeSpec { cpu_limit: Some(f64::NAN), ..node.clone() }], 1), "cpu_limit"),
            (
                processes(vec![NodeSpec { memory_limit: Some(ByteSize::MIB), ..node.clone() }], 1),
                "memory_limit",
            ),
            (
                FleetSpec { token: Some("fifteen letters".into()), ..processes(vec![node.clone()], 1) },
                "16 to 512 bytes",
            ),
            (
                FleetSpec::new(Placement::Joined(JoiningWorkers {
                    workers: 1,
                    wait: TimeSpan::seconds(u64::MAX / 2),
                })),
                "is too long",
            ),
        ];
        for (spec, word) in bad {
            let error = spec.validate().unwrap_err();
            assert!(error.message.contains(word), "{error}");
        }
    }
}
