//! What becomes of a load's threads when one of them cannot begin. In a process of its own: it lowers a limit.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use loadline_base::clock::Nanos;
use loadline_base::units::ByteSize;
use loadline_load::target::make_file;
use loadline_load::{Disk, Engine, Job, Target, WritePermission, prepare};
use loadline_profile::Profile;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Threads of the load that there are now.
fn load_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("load-")).count()
}

#[test]
fn a_thread_that_cannot_begin_ends_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    make_file(&path, ByteSize::MIB).unwrap();
    let disk = Disk { target: Target::Path(path), writes: WritePermission::Refused };
    let profile = Profile { threads: 8, outstanding: 1, ..Profile::default() };
    let mut job = Job::new(vec![disk], profile);
    job.engine = Engine::IoUring;
    let Ok(prepared) = prepare(&job) else {
        eprintln!("io_uring is refused here: not tested");
        return;
    };
    // Each ring is a descriptor: there are enough for some of the threads.
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, open + 3, hard).unwrap();
    let result = prepared.run(Nanos::now(), &AtomicBool::new(false), &mut |_, _| {});
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let error = result.unwrap_err();
    assert!(error.message.contains("could not begin"), "{error}");
    let limit = Instant::now() + Duration::from_secs(3);
    while load_threads() > 0 {
        assert!(Instant::now() < limit, "{} threads go on with the load", load_threads());
        std::thread::sleep(Duration::from_millis(20));
    }
}
