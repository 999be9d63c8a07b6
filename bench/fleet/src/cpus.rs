//! A list of CPUs, as people write it (`0-3,6`), and keeping a process to it.

use std::fmt;
use std::str::FromStr;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use thiserror::Error;

/// CPUs by their numbers. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

/// Text that is not a list of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("\"{0}\" is not a list of CPUs: write 0-3,6 (numbers below {most})", most = CpuSet::count())]
pub struct CpuListError(String);

impl CpuList {
    /// Those that the calling thread may run on.
    pub(crate) fn of_this() -> Result<CpuList, nix::Error> {
        let set = sched_getaffinity(Pid::from_raw(0))?;
        Ok(CpuList((0..CpuSet::count()).filter(|cpu| set.is_set(*cpu) == Ok(true)).collect()))
    }
}

impl FromStr for CpuList {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let error = || CpuListError(text.to_string());
        // from_str of the standard library would also take "+3".
        let number = |s: &str| {
            let s = s.trim();
            let digits = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
            digits
                .then(|| s.parse::<usize>().ok())
                .flatten()
                .filter(|n| *n < CpuSet::count())
                .ok_or_else(error)
        };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(error());
            }
            cpus.extend(first..=last);
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(CpuList(cpus))
    }
}

impl fmt::Display for CpuList {
    /// Every CPU by its number: `0,1,2,6`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.pad(&numbers.join(","))
    }
}

impl CpuList {
    /// Keeps the calling thread, and all that it starts, to these CPUs.
    pub fn apply(&self) -> Result<(), nix::Error> {
        let mut set = CpuSet::new();
        self.0.iter().try_for_each(|cpu| set.set(*cpu))?;
        sched_setaffinity(Pid::from_raw(0), &set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_list_is_read_as_people_write_it() {
        for (text, cpus) in [("0", vec![0]), ("0-3,6", vec![0, 1, 2, 3, 6]), (" 5 , 1-2,2 ", vec![1, 2, 5])] {
            let list: CpuList = text.parse().unwrap();
            assert_eq!(list.to_string().parse(), Ok(CpuList(cpus)), "{text}");
        }
        for text in ["", ",", "3-1", "a", "-1", "1-", "0-99999999999", "+3", "1,,2"] {
            assert!(text.parse::<CpuList>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_the_parser(text in ".{0,40}") {
            let _ = text.parse::<CpuList>();
        }
    }
}
