//! A network namespace, known by a descriptor of this process alone.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use loadline_base::limits::STACK;
use nix::sched::{CloneFlags, setns, unshare};

use crate::error::TargetError;

/// The network namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace. The kernel removes it when this is dropped and the last process in it has ended.
#[derive(Debug)]
pub(super) struct Namespace(File);

impl AsRawFd for Namespace {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A thread in a namespace, until this is dropped.
struct Within {
    back: File,
}

impl Drop for Within {
    fn drop(&mut self) {
        // A thread that stayed would do all that it does from here on in the wrong network.
        setns(&self.back, CloneFlags::CLONE_NEWNET).expect("a thread can return to its network namespace");
    }
}

impl Namespace {
    /// Makes a new one, in which nothing is but a loopback device that is down. An error of kind `Usage` if this process may not.
    pub(super) fn new() -> Result<Namespace, TargetError> {
        let make = || -> io::Result<Namespace> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open(OWN).map(Namespace)
        };
        // Only the thread that makes it is in it then, and that ends.
        let thread = std::thread::Builder::new().name("namespace".into()).stack_size(STACK).spawn(make);
        let made =
            thread.and_then(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("it panicked"))));
        made.map_err(|e| {
            TargetError::usage(format!(
                "a network namespace for the nodes cannot be made: {e}. Root needs the capability CAP_SYS_ADMIN for it, which containers \
                 often lack: run it on a host or in a virtual machine, or leave the bandwidth of the network out"
            ))
        })
    }

    /// Does something in the namespace: sockets that are made and processes that are started then belong to it. It should not wait for
    /// anything. The calling thread is in its own namespace again afterwards.
    pub(super) fn within<T>(&self, work: impl FnOnce() -> T) -> Result<T, TargetError> {
        let failed = |e: io::Error| {
            TargetError::failed(format!("the nodes' network namespace cannot be entered: {e}"))
        };
        let back = File::open(OWN).map_err(failed)?;
        setns(&self.0, CloneFlags::CLONE_NEWNET).map_err(|e| failed(e.into()))?;
        let _within = Within { back };
        Ok(work())
    }
}
