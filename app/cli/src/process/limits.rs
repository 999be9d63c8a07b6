//! The process's own limits, before anything else is done: raised as far as they may be, and refused in words where a command
//! would end without any.

use loadline_base::limits::{self, raise};
use loadline_base::units::ByteSize;
use nix::sys::resource::Resource;
use nix::sys::signal::{SigHandler, Signal, signal};

use crate::output::print_error;
use crate::process::exit::Exit;

/// Bytes of the main thread's stack that it is given if it may.
const STACK: u64 = 8 << 20;
/// Bytes of it with which every command works, also in a build with assertions.
const LEAST_STACK: u64 = 512 << 10;
/// Bytes of addresses that a command needs beside those of the program itself.
const LEAST_ADDRESSES: u64 = 32 << 20;

/// Raises what may be raised. An error if what is left is too little for any command.
pub(crate) fn prepare() -> Result<(), Exit> {
    let stack = raise(Resource::RLIMIT_STACK, STACK);
    if stack < LEAST_STACK {
        return Err(print_error(
            Exit::Usage,
            &format!(
                "this process may have {} of stack (RLIMIT_STACK), and needs {}: raise the limit (ulimit -s unlimited), or LimitSTACK= \
                 of a service",
                ByteSize(stack).rounded(),
                ByteSize(LEAST_STACK).rounded()
            ),
        ));
    }
    if let Some(left) = limits::addresses_left().filter(|left| *left < LEAST_ADDRESSES) {
        return Err(print_error(
            Exit::Usage,
            &format!(
                "the limit of address space (RLIMIT_AS) leaves {} to this process, but any command needs {}: raise the limit \
                 (ulimit -v unlimited, or LimitAS= for a service)",
                ByteSize(left).rounded(),
                ByteSize(LEAST_ADDRESSES).rounded()
            ),
        ));
    }
    // Each client, worker, device and disk has one, and the usual soft limit is 1024.
    limits::open_files();
    limits::file_size();
    #[cfg(all(target_feature = "crt-static", target_env = "gnu"))]
    own_name_services();
    // A write beyond RLIMIT_FSIZE then fails with EFBIG, which is reported as any error is.
    // SAFETY: ignoring a signal installs no handler, so no code of ours runs in one.
    let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    Ok(())
}

/// The static program looks hosts up in /etc/hosts and by DNS, which its C library has built in. What else /etc/nsswitch.conf
/// names is a library of this host, made for another version of the C library: loaded into this process, it could crash it.
#[cfg(all(target_feature = "crt-static", target_env = "gnu"))]
fn own_name_services() {
    use std::ffi::{c_char, c_int};
    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
    }
    // SAFETY: glibc's function (nss.h), called before there are other threads, with two texts that end with zero. It copies
    // them, and fails only for a database that it does not know.
    let _ = unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
}
