//! What a kernel expects of its first process: file systems, modules, a source of random bytes.

use std::convert::Infallible;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use loadline_guest::control::PORT;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};

/// How long the port to the keeper may take to appear, once its driver is loaded.
const PORT_LIMIT: Duration = Duration::from_secs(60);
/// `finit_module` unpacks the module itself (include/uapi/linux/module.h).
const COMPRESSED: u32 = 4;

/// Mounts what programs expect, and loads the modules of the image. A module of a shell's machine that cannot be loaded is reported on the
/// console only: another may do.
pub(crate) fn prepare() -> Result<(), String> {
    for (kind, folder) in
        [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/run"), ("tmpfs", "/tmp")]
    {
        let _ = fs::create_dir(folder);
        mount(Some(kind), folder, Some(kind), MsFlags::empty(), None::<&str>)
            .map_err(|e| format!("{folder} cannot be mounted: {e}"))?;
    }
    let entries = fs::read_dir("/modules").map_err(|e| format!("the modules cannot be read: {e}"))?;
    let mut modules: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    modules.sort();
    let is_shell = wants_shell();
    for module in modules {
        let name = module.display();
        let file = File::open(&module).map_err(|e| format!("{name}: {e}"))?;
        let is_packed = module.extension().is_some_and(|ending| ending != "ko");
        let flags = ModuleInitFlags::from_bits_retain(if is_packed { COMPRESSED } else { 0 });
        match finit_module(&file, c"", flags) {
            Ok(()) | Err(nix::errno::Errno::EEXIST) => {}
            Err(e) if is_shell => eprintln!("guest-init: the module {name} cannot be loaded: {e}"),
            Err(e) => return Err(format!("the module {name} cannot be loaded: {e}")),
        }
    }
    Ok(())
}

/// Whether the machine was started for a shell.
pub(crate) fn wants_shell() -> bool {
    let words = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    words.split_whitespace().any(|word| word == "loadline.shell")
}

/// Opens the port to the keeper, once it is there.
pub(crate) fn port() -> Result<File, String> {
    let limit = Instant::now() + PORT_LIMIT;
    loop {
        let found = fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten().find(|entry| {
            fs::read_to_string(entry.path().join("name")).is_ok_and(|name| name.trim() == PORT)
        });
        if let Some(entry) = found {
            let device = PathBuf::from("/dev").join(entry.file_name());
            if let Ok(file) = File::options().read(true).write(true).open(&device) {
                return Ok(file);
            }
        }
        if Instant::now() > limit {
            return Err(format!("the port to the keeper was not there after {PORT_LIMIT:?}"));
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Gives the kernel these random bytes, and has it take them for as good as any.
pub(crate) fn seed(bytes: &[u8]) -> Result<(), String> {
    nix::ioctl_write_ptr!(add_entropy, b'R', 3, [i32; 2]);
    let length = bytes.len().min(256);
    // What the ioctl reads: the bits of entropy, the length, and then the bytes (random(4)).
    let mut request = vec![length as i32 * 8, length as i32];
    for word in bytes[..length].chunks(4) {
        let mut padded = [0; 4];
        padded[..word.len()].copy_from_slice(word);
        request.push(i32::from_ne_bytes(padded));
    }
    let random = File::open("/dev/random").map_err(|e| format!("/dev/random: {e}"))?;
    // SAFETY: the request begins with the two numbers, and `length` bytes follow in the same allocation.
    unsafe { add_entropy(random.as_raw_fd(), request.as_ptr().cast()) }
        .map(drop)
        .map_err(|e| format!("random bytes cannot be given to the kernel: {e}"))
}

/// How far the clock of [`clock_ahead`] is ahead, seconds.
const AHEAD: u64 = 100_000_000;

/// Gives the processes that are started from now on a monotonic clock that is ahead. A step may have begun before this machine was
/// started, and no clock has moments before its beginning. Returns by how much it is ahead, nanoseconds: nothing, if the kernel has no
/// namespaces of time. Then a machine cannot take the place of one that was gone in the middle of a step.
pub(crate) fn clock_ahead() -> u64 {
    const CLONE_NEWTIME: i32 = 0x80;
    let own = nix::sched::unshare(nix::sched::CloneFlags::from_bits_retain(CLONE_NEWTIME));
    let set = || fs::write("/proc/self/timens_offsets", format!("monotonic {AHEAD} 0\n"));
    if own.is_ok() && set().is_ok() { AHEAD * 1_000_000_000 } else { 0 }
}

/// Gives the machine its name, as far as a name of a host may have it.
pub(crate) fn name(name: &str) {
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(63).collect();
    // Without a name it works too.
    let _ = nix::unistd::sethostname(name);
}

/// Turns the machine off. Returns only if the kernel does not let it.
pub(crate) fn power_off() -> ExitCode {
    nix::unistd::sync();
    let refused: Result<Infallible, _> = reboot(RebootMode::RB_POWER_OFF);
    eprintln!("guest-init: the machine cannot be turned off: {refused:?}");
    ExitCode::FAILURE
}
