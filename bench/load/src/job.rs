//! What one worker is asked to do. It travels to the worker as it is.

use std::path::PathBuf;

use loadline_base::units::TimeSpan;
use loadline_profile::Profile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::LoadError;
use crate::stop_condition::StopIf;
use crate::target::{Disk, Target};

/// The engine that hands I/Os to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// io_uring; where it is refused, threads, and a finding that says so.
    #[default]
    Auto,
    /// io_uring, or an error.
    IoUring,
    /// A pool of threads, one for each outstanding I/O, with `pread` and `pwrite`.
    Threads,
}

/// Blocks that name their writer, and a journal of what was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Verify {
    /// One journal for each disk. A journal that exists is continued: what it says was acknowledged must be there.
    pub journals: Vec<PathBuf>,
}

/// One measurement of one worker (or of one `loadline bench`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The disks; each gets the profile's threads.
    pub disks: Vec<Disk>,
    /// The load. A rate in it is the total over all disks and threads of this job.
    pub profile: Profile,
    /// Load before the measured window. Whole seconds.
    pub warm_up: TimeSpan,
    /// The measured window. Whole seconds, at least one.
    pub measure: TimeSpan,
    /// Load after the measured window. Whole seconds.
    pub cool_down: TimeSpan,
    /// The longest time to wait for I/Os that were intended and have not completed, before they are counted
    /// with their age.
    pub drain: TimeSpan,
    /// The seed of the random numbers. Two workers of one step get different seeds.
    pub seed: u64,
    /// The engine that hands I/Os to the kernel.
    pub engine: Engine,
    /// Spin on the completion queue instead of sleeping: the lowest latency, at the cost of a whole core for each thread.
    pub poll: bool,
    /// Load threads of the other jobs of the same step on its host, whatever CPUs they are bound to. Polling for
    /// completions before sleeping only pays where there are CPUs for it.
    #[serde(default)]
    pub neighbours: u32,
    /// Limits that end the load before it hurts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop_if: Vec<StopIf>,
    /// Check every block read, and keep what was acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verify>,
}

impl Job {
    /// A job with the usual defaults: warm up 5 s, measure 30 s, wait up to 30 s.
    pub fn new(disks: Vec<Disk>, profile: Profile) -> Job {
        Job {
            disks,
            profile,
            warm_up: TimeSpan::seconds(5),
            measure: TimeSpan::seconds(30),
            cool_down: TimeSpan::seconds(0),
            drain: TimeSpan::seconds(30),
            seed: 1,
            engine: Engine::Auto,
            poll: false,
            neighbours: 0,
            stop_if: Vec::new(),
            verify: None,
        }
    }

    /// Whether it writes to its disks.
    pub fn writes(&self) -> bool {
        self.profile.write_percent > 0
    }

    /// The threads that put the load on the disks.
    pub fn load_threads(&self) -> u32 {
        let disks = u32::try_from(self.disks.len()).unwrap_or(u32::MAX);
        disks.saturating_mul(self.profile.threads)
    }

    /// How many CPUs the load can use at the most, its helpers in the kernel included. `engine`: which ran, in words.
    pub fn most_cpus(&self, engine: &str) -> u64 {
        let of_thread = |target: &Target| match target {
            // The thread itself exchanges messages with the server.
            Target::Nbd(_) | Target::Vhost(_) | Target::Iscsi(_) => 1,
            Target::Path(_) if engine == "threads" => u64::from(self.profile.outstanding),
            // With a worker of io_uring in the kernel, or threads of librbd.
            Target::Path(_) | Target::Rbd(_) | Target::Null(_) => 2,
        };
        u64::from(self.profile.threads) * self.disks.iter().map(|disk| of_thread(&disk.target)).sum::<u64>()
    }

    /// I/Os outstanding on all disks together.
    pub fn outstanding(&self) -> u64 {
        u64::from(self.load_threads()) * u64::from(self.profile.outstanding)
    }

    /// The rules that need no disk to be checked.
    pub fn validate(&self) -> Result<(), LoadError> {
        self.profile.validate().map_err(|e| LoadError::usage(e.to_string()))?;
        if self.disks.is_empty() {
            return Err(LoadError::usage("there is no disk to measure: name at least one target"));
        }
        for (name, span, least) in
            [("warm-up", self.warm_up, 0), ("window", self.measure, 1), ("cool-down", self.cool_down, 0)]
        {
            if span.0.subsec_nanos() != 0 || span.0.as_secs() < least || span.0.as_secs() > 100 * 86_400 {
                return Err(LoadError::usage(format!(
                    "a {name} of {span} cannot be measured: series are kept by the second, so give whole seconds, \
                     at least {least}"
                )));
            }
        }
        if let Some(verify) = &self.verify
            && verify.journals.len() != self.disks.len()
        {
            return Err(LoadError::usage("verifying needs one journal for each disk"));
        }
        if self.outstanding() > 1 << 20 {
            return Err(LoadError::usage(format!(
                "{} I/Os outstanding in one process is more than the {} that one carries: use more workers",
                self.outstanding(),
                1 << 20
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::WritePermission;

    #[test]
    fn a_thread_that_talks_to_a_server_has_no_helper_in_the_kernel() {
        let job = |targets: &[&str]| {
            let disk =
                |target: &&str| Disk { target: target.parse().unwrap(), writes: WritePermission::Refused };
            let profile = Profile { threads: 2, outstanding: 8, ..Profile::default() };
            Job::new(targets.iter().map(disk).collect(), profile)
        };
        assert_eq!(job(&["nbd+unix:///a?socket=/s", "vhost-user:/v"]).most_cpus("io_uring"), 4);
        assert_eq!(job(&["disk.img"]).most_cpus("io_uring"), 4, "a worker of io_uring each");
        assert_eq!(job(&["disk.img"]).most_cpus("threads"), 16, "a thread for each outstanding");
        assert_eq!(job(&["disk.img", "nbd://host/a"]).most_cpus("io_uring"), 6);
    }
}
