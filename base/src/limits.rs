//! Limits of this process (`getrlimit`): raised as far as it may, and named where they are the cause of an error.

use std::io;

use nix::libc;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// Bytes of the stacks of threads that this program makes, unless they say otherwise: the environment (`RUST_MIN_STACK`) does not
/// change it.
pub const STACK: usize = 2 << 20;

/// Raises a soft limit to this value, or to the hard limit if that is lower. Returns the soft limit that holds then; a soft limit
/// that is higher already stays.
pub fn raise(which: Resource, wanted: u64) -> u64 {
    let Ok((soft, hard)) = getrlimit(which) else { return u64::MAX };
    let next = hard.min(wanted as rlim_t);
    if next <= soft {
        return soft;
    }
    match setrlimit(which, next, hard) {
        Ok(()) => next,
        Err(_) => soft,
    }
}

/// Files that this process may have open: the soft limit, which was raised to the hard one.
pub fn open_files() -> u64 {
    raise(Resource::RLIMIT_NOFILE, u64::MAX)
}

/// Bytes that a regular file may have that this process writes, after the soft limit was raised; `None`: any number.
pub fn file_size() -> Option<u64> {
    Some(raise(Resource::RLIMIT_FSIZE, u64::MAX)).filter(|bytes| *bytes != libc::RLIM_INFINITY)
}

/// Bytes of addresses that this process may use beside those that it uses now, after the soft limit was raised; `None`: as
/// many as there are.
pub fn addresses_left() -> Option<u64> {
    let limit = Some(raise(Resource::RLIMIT_AS, u64::MAX)).filter(|bytes| *bytes != libc::RLIM_INFINITY)?;
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').next().and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    Some(limit.saturating_sub(pages * 4096))
}

/// What to do about an io_uring that this error keeps from being made, in words that follow a colon.
pub fn without_io_uring(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EMFILE) => format!(
            "this process may have {} open files (RLIMIT_NOFILE), which is too few: raise the hard limit, with `ulimit -Hn 65536` as \
             root, in /etc/security/limits.conf, or with LimitNOFILE= for a service",
            open_files()
        ),
        Some(libc::ENFILE) => "the host has no more open files (sysctl fs.file-max): end what has them".into(),
        Some(libc::ENOMEM) => format!(
            "there is too little memory, or the process may use too little of it (RLIMIT_AS leaves {}; before Linux 5.12, \
             RLIMIT_MEMLOCK counts too): raise that limit, or end what uses the memory",
            addresses_left().map_or("no bound".into(), |left| crate::units::ByteSize(left).rounded())
        ),
        _ => "set `sysctl kernel.io_uring_disabled=0`; in a container, allow io_uring_setup, io_uring_enter and \
              io_uring_register in its seccomp profile (docker run --security-opt seccomp=FILE); the kernel must be Linux 5.15 \
              or newer"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_soft_limit_is_raised_to_the_hard_one_and_never_lowered() {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(raise(Resource::RLIMIT_NOFILE, soft.saturating_sub(1)), soft);
        assert_eq!(open_files(), hard);
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
    }

    #[test]
    fn what_keeps_io_uring_from_being_made_is_named() {
        let said = |errno| without_io_uring(&io::Error::from_raw_os_error(errno));
        assert!(said(libc::EMFILE).contains("RLIMIT_NOFILE") && !said(libc::EMFILE).contains("sysctl"));
        assert!(said(libc::ENOMEM).contains("RLIMIT_AS"));
        assert!(
            said(libc::EPERM).contains("seccomp") && said(libc::EPERM).contains("kernel.io_uring_disabled")
        );
    }
}
