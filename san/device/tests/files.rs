//! A device is opened for exclusive use, or the error states why not.

mod common;

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{folder_in, places};
use loadline_san_device::file::{DeviceError, DeviceFile};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;

const SHORT: Duration = Duration::from_millis(60);

/// A file that can be a device, or `None` where none can.
fn made(path: &Path) -> Option<()> {
    match DeviceFile::create(path, 1 << 20) {
        Ok(_) => Some(()),
        Err(error) => {
            eprintln!("not tested: {error}");
            None
        }
    }
}

#[test]
fn a_new_file_is_as_long_as_asked_and_blank() {
    for place in places() {
        let folder = folder_in(&place);
        let path = folder.path().join("device");
        let device = match DeviceFile::create(&path, 3 << 20) {
            Ok(device) => device,
            Err(error) => {
                eprintln!("not tested: {error}");
                continue;
            }
        };
        assert_eq!((device.bytes(), device.path()), (3 << 20, path.as_path()));
        assert!(device.is_blank().unwrap());
        assert_eq!(device.is_in_memory(), place == Path::new("/dev/shm"));
        let flags = OFlag::from_bits_retain(fcntl(&device, FcntlArg::F_GETFL).unwrap());
        assert_eq!(flags.contains(OFlag::O_DIRECT), !device.is_in_memory());
        assert!(!flags.contains(OFlag::O_NONBLOCK), "io_uring would give I/Os back");
        let kept = fcntl(&device, FcntlArg::F_GETFD).unwrap();
        assert!(kept & libc::FD_CLOEXEC != 0, "no program that is started has it");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let again = DeviceFile::create(&path, 1 << 20).unwrap_err();
        assert!(matches!(again, DeviceError::Exists { .. }), "{again}");
    }
}

#[test]
fn what_could_not_be_made_leaves_nothing() {
    for place in places() {
        let folder = folder_in(&place);
        let path = folder.path().join("device");
        for bytes in [u64::MAX, 1 << 62] {
            let error = DeviceFile::create(&path, bytes).unwrap_err();
            assert!(error.to_string().contains("given its full size"), "{error}");
            assert!(!path.exists());
        }
        assert!(DeviceFile::create(&folder.path().join("no/such/folder"), 512).is_err());
    }
}

#[test]
fn two_do_not_share_it_and_the_lock_is_waited_for() {
    for place in places() {
        let folder = folder_in(&place);
        let path = folder.path().join("device");
        let Some(()) = made(&path) else { continue };
        let first = DeviceFile::open(&path, SHORT).unwrap();
        let begin = Instant::now();
        let error = DeviceFile::open(&path, SHORT).unwrap_err();
        assert!(begin.elapsed() >= SHORT);
        assert!(error.to_string().contains("in use by another process"), "{error}");
        let end = std::thread::spawn(move || {
            std::thread::sleep(4 * SHORT);
            drop(first);
        });
        let begin = Instant::now();
        DeviceFile::open(&path, Duration::from_secs(30)).unwrap();
        assert!(begin.elapsed() >= SHORT, "it is waited for");
        end.join().unwrap();
    }
}

#[test]
fn a_process_that_was_killed_lets_go() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    let Some(()) = made(&path) else { return };
    let mut flock = Command::new("flock");
    // It becomes the program itself.
    flock.arg("--no-fork").arg(&path).args(["sh", "-c", "echo locked; exec sleep 60"]);
    let Ok(mut child) = flock.stdout(Stdio::piped()).spawn() else {
        eprintln!("not tested: there is no flock program");
        return;
    };
    let mut line = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    assert!(DeviceFile::open(&path, SHORT).is_err());
    child.kill().unwrap();
    child.wait().unwrap();
    DeviceFile::open(&path, Duration::from_secs(30)).unwrap();
}

#[test]
fn the_image_of_a_virtual_machine_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    let Some(()) = made(&path) else { return };
    let qemu = File::open(&path).unwrap();
    let lock = libc::flock {
        l_type: libc::F_RDLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 100,
        l_len: 2,
        l_pid: 0,
    };
    fcntl(&qemu, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
    let error = DeviceFile::open(&path, SHORT).unwrap_err();
    assert!(error.to_string().contains("virtual machines"), "{error}");
    drop(qemu);
    DeviceFile::open(&path, SHORT).unwrap();
}

#[test]
fn what_is_no_device_is_said_to_be_none() {
    let open = |path: &Path| DeviceFile::open(path, SHORT).unwrap_err();
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(open(folder.path()), DeviceError::Kind { kind: "a directory", .. }));
    assert!(matches!(open(Path::new("/dev/null")), DeviceError::Kind { .. }));
    assert!(matches!(open(Path::new("/nowhere/at/all")), DeviceError::Missing { .. }));
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(matches!(open(&pipe), DeviceError::Kind { .. }), "and does not hang");
    let path = folder.path().join("device");
    File::create(&path).unwrap().write_all(&[0; 4096]).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
    assert!(matches!(open(&path), DeviceError::ReadOnly { .. }), "even for the superuser");
    // A file system that has neither direct I/O nor memory of its own.
    if Path::new("/proc/self/comm").exists() {
        let error = open(Path::new("/proc/self/comm"));
        assert!(matches!(error, DeviceError::NotDirect { .. }), "{error}");
    }
}

#[test]
fn what_took_its_place_while_it_was_waited_for_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    let Some(()) = made(&path) else { return };
    let first = DeviceFile::open(&path, SHORT).unwrap();
    let end = std::thread::spawn({
        let path = path.clone();
        move || {
            std::thread::sleep(2 * SHORT);
            fs::rename(&path, path.with_extension("old")).unwrap();
            fs::write(&path, [0; 4096]).unwrap();
            drop(first);
        }
    });
    let error = DeviceFile::open(&path, Duration::from_secs(30)).unwrap_err();
    assert!(matches!(error, DeviceError::Replaced { .. }), "{error}");
    end.join().unwrap();
}
