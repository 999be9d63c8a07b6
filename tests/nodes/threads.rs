//! Stops a single thread of another process, as if it had no processor for a while.

use std::fs;

use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// A thread that is stopped. It goes on when this is dropped, which only the thread may do that has stopped it.
pub(crate) struct Stopped(Pid);

impl Stopped {
    /// Stops the thread of this name.
    pub(crate) fn stop(process: u32, name: &str) -> Stopped {
        let threads = fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
        let is_it = |thread: &fs::DirEntry| {
            fs::read_to_string(thread.path().join("comm")).is_ok_and(|of| of.trim_end() == name)
        };
        let thread = threads.map_while(Result::ok).find(is_it).expect("it has such a thread");
        let thread = thread.file_name().to_str().and_then(|number| number.parse().ok()).expect("a number");
        let stopped = Stopped(Pid::from_raw(thread));
        ptrace::seize(stopped.0, Options::empty()).expect("it is ours");
        ptrace::interrupt(stopped.0).expect("it is ours");
        waitpid(stopped.0, Some(WaitPidFlag::__WALL)).expect("it stops");
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        ptrace::detach(self.0, None).expect("it is stopped");
    }
}
