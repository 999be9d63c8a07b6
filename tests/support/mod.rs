//! What the end-to-end tests share: the real program, run as a user would.

#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod server;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The program under test.
pub(crate) fn loadline() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loadline"));
    command.stdin(Stdio::null());
    command
}

/// What a finished command said.
pub(crate) struct Said {
    /// Its exit code; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

impl Said {
    fn of(output: Output) -> Said {
        Said {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Its standard output, as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|e| panic!("{e} in:\n{}\nstandard error:\n{}", self.out, self.err))
    }

    /// The command ended with this code and said this on standard error, in one line that is no panic.
    pub(crate) fn refused(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        for word in words {
            assert!(self.err.contains(word), "no \"{word}\" in: {}", self.err);
        }
    }
}

/// Runs `loadline` with these words.
pub(crate) fn run<I: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = I>) -> Said {
    Said::of(loadline().args(words).output().expect("the program runs"))
}

/// Starts `loadline` with these words, its output taken.
pub(crate) fn start<I: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = I>) -> Child {
    loadline().args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

/// Waits for a started command, at most this long.
pub(crate) fn finish(mut child: Child, limit: Duration) -> Said {
    let begin = Instant::now();
    // Drained meanwhile: a full pipe would stop the child.
    let mut readers = [None, None];
    let pipes: [Option<Box<dyn std::io::Read + Send>>; 2] =
        [child.stdout.take().map(|p| Box::new(p) as _), child.stderr.take().map(|p| Box::new(p) as _)];
    for (reader, pipe) in readers.iter_mut().zip(pipes) {
        *reader = pipe.map(|mut pipe| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = pipe.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        });
    }
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            break status;
        }
        if begin.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            panic!("it did not end within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let [out, err] = readers.map(|r| r.map(|r| r.join().expect("reading a pipe")).unwrap_or_default());
    Said { code: status.code(), out, err }
}

/// The blocks that were checked in all steps of a run, by its report, and those that were not what was written.
pub(crate) fn checked(report: &Value) -> (u64, u64) {
    let steps = report["steps"].as_array().unwrap();
    let of = |step: &Value, name: &str| step["verify"][name].as_u64().unwrap();
    let sum = |name: &str| steps.iter().map(|step| of(step, name)).sum::<u64>();
    (sum("checked"), ["lost", "corrupt", "foreign", "unreadable"].map(sum).iter().sum())
}

/// Sends a signal by its name.
pub(crate) fn signal(process: u32, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(process.to_string()).status();
    assert!(status.expect("kill runs").success());
}

/// Waits until something is so, at most this long.
pub(crate) fn eventually(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Processes of nodes whose configuration is in this folder.
pub(crate) fn nodes_in(folder: &Path) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let of = |line: &Vec<u8>| {
        let line = String::from_utf8_lossy(line);
        line.contains("serve") && line.contains(folder.to_str().unwrap())
    };
    lines.filter(of).count()
}

/// A folder for one test, gone afterwards.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// A file of random bytes, as a stranger's data would be.
pub(crate) fn precious_file(folder: &Path, mib: u64) -> PathBuf {
    let path = folder.join("precious.img");
    let mut random = std::io::Read::take(std::fs::File::open("/dev/urandom").expect("random"), mib << 20);
    let mut file = std::fs::File::create(&path).expect("a file");
    std::io::copy(&mut random, &mut file).expect("its content");
    file.sync_all().expect("on the disk");
    path
}

/// A number at a path such as `total/iops`.
pub(crate) fn number(json: &Value, path: &str) -> f64 {
    json.pointer(&format!("/{path}")).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number at {path}"))
}

/// Lets a ring be made, and nothing be registered with it (`EPERM`), as a container's seccomp filter may.
pub(crate) fn refuse_registering() -> std::io::Result<()> {
    use nix::libc::{self, sock_filter, sock_fprog};
    let code = |code: u32| code as u16;
    let mut filter = [
        sock_filter { code: code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), jt: 0, jf: 0, k: 0 },
        sock_filter {
            code: code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K),
            jt: 0,
            jf: 1,
            k: libc::SYS_io_uring_register as u32,
        },
        sock_filter {
            code: code(libc::BPF_RET | libc::BPF_K),
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        },
        sock_filter { code: code(libc::BPF_RET | libc::BPF_K), jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ];
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program lives until the call returns, which copies it.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program)
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
