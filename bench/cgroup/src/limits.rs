//! What a control group limits.

use loadline_base::units::ByteSize;

use crate::error::GroupError;

/// The period over which a CPU quota counts, microseconds: the kernel's own default.
const PERIOD_US: u64 = 100_000;
/// The cores that can be set: the kernel takes no quota below 1 ms in a period of 100 ms.
const CORES: std::ops::RangeInclusive<f64> = 0.01..=4096.0;

/// What the processes of a node may use together. Without a value there is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Limits {
    /// CPU time, in cores: 0.01 to 4096.
    pub cores: Option<f64>,
    /// Memory.
    pub memory: Option<ByteSize>,
}

/// One limit, as files to be written in a group, for both versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) controller: &'static str,
    pub(crate) v1: Vec<(&'static str, String)>,
    pub(crate) v2: Vec<(&'static str, String)>,
}

impl Limits {
    /// That so many cores can be set. The error is of kind `Usage`, and a sentence about `cpu_limit`.
    pub fn check_cores(cores: f64) -> Result<(), GroupError> {
        match CORES.contains(&cores) {
            true => Ok(()),
            false => Err(GroupError::Usage(format!(
                "a cpu_limit of {cores} cores cannot be set: give {} to {}",
                CORES.start(),
                CORES.end()
            ))),
        }
    }

    /// Each limit that is set.
    pub(crate) fn each(&self) -> Vec<Limit> {
        let cpu = self.cores.map(|cores| {
            let quota = (cores * PERIOD_US as f64).round() as u64;
            Limit {
                controller: "cpu",
                v1: vec![
                    ("cpu.cfs_period_us", PERIOD_US.to_string()),
                    ("cpu.cfs_quota_us", quota.to_string()),
                ],
                v2: vec![("cpu.max", format!("{quota} {PERIOD_US}"))],
            }
        });
        let memory = self.memory.map(|limit| Limit {
            controller: "memory",
            v1: vec![("memory.limit_in_bytes", limit.bytes().to_string())],
            v2: vec![("memory.max", limit.bytes().to_string())],
        });
        cpu.into_iter().chain(memory).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_as_the_kernel_takes_them() {
        let limits = Limits { cores: Some(1.5), memory: Some(ByteSize(64 << 20)) }.each();
        assert_eq!(limits[0].v2, [("cpu.max", "150000 100000".to_string())]);
        assert_eq!(limits[0].v1[1], ("cpu.cfs_quota_us", "150000".to_string()));
        assert_eq!(limits[1].v1, [("memory.limit_in_bytes", "67108864".to_string())]);
        assert_eq!(Limits::default().each(), []);
    }

    #[test]
    fn cores_that_the_kernel_does_not_take_are_refused() {
        for cores in [0.01, 0.5, 4096.0] {
            assert_eq!(Limits::check_cores(cores), Ok(()));
        }
        for cores in [0.0, -1.0, 0.001, 4097.0, f64::NAN, f64::INFINITY] {
            let error = Limits::check_cores(cores).unwrap_err();
            assert!(error.to_string().contains("give 0.01 to 4096"), "{error}");
        }
    }
}
