//! Block devices: a loop device over a file. It needs the superuser's rights, and is left out without.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::*;
use loadline_san_device::file::{DeviceError, DeviceFile, Devices};
use loadline_san_store::io::{Area, IoRequest, Piece, Reading};

const SHORT: Duration = Duration::from_millis(60);
const BYTES: u64 = 2 << 20;

/// A loop device, taken apart at the end.
struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path, words: &[&str]) -> Option<Loop> {
        std::fs::write(file, vec![0; BYTES as usize]).unwrap();
        Loop::over_present(file, words)
    }

    /// Over a file or a device that is there.
    fn over_present(file: &Path, words: &[&str]) -> Option<Loop> {
        let made = Command::new("losetup").args(["--find", "--show"]).args(words).arg(file).output();
        match made {
            Ok(output) if output.status.success() => {
                Some(Loop(PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())))
            }
            other => {
                eprintln!("not tested, there are no loop devices: {other:?}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn a_block_device_is_used_alone() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = Loop::over(&folder.path().join("file"), &[]) else { return };
    // Programs of the system examine a new device, and lock it while they do.
    let log = DeviceFile::open(&device.0, Duration::from_secs(10)).unwrap();
    assert!((log.bytes(), log.is_in_memory()) == (BYTES, false) && log.is_blank().unwrap());
    let error = DeviceFile::open(&device.0, SHORT).unwrap_err();
    assert!(matches!(error, DeviceError::InUse { .. }), "{error}");
    let opener = format!("process {} (", std::process::id());
    assert!(error.to_string().contains(&opener), "{error}");
    let pool = pool();
    let Some(mut driver) = Driver::uring(Devices { log, capacity: None }, &pool, 4) else { return };
    let (mut chance, mut bytes) = (chance(6), vec![0; BYTES as usize]);
    for _ in 0..40 {
        let writing = some_write(&mut chance, &pool, Area::Log, (0, BYTES), None);
        apply(&writing, &mut bytes);
        driver.all(vec![IoRequest::Write(writing), IoRequest::Sync(Area::Capacity)]);
    }
    let whole = Piece { area: Area::Log, at: 0, first: 0, blocks: 512 };
    check_read(driver.one(IoRequest::Read(Reading { blocks: 512, pieces: vec![whole] })), &bytes, &bytes);
}

#[test]
fn a_mounted_device_is_refused_with_where_it_is_mounted() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = Loop::over(&folder.path().join("file"), &[]) else { return };
    let place = folder.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let done = |program: &str, args: &[&Path]| {
        Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
    };
    if !done("mkfs.ext4", &[Path::new("-q"), &device.0]) || !done("mount", &[&device.0, &place]) {
        eprintln!("not tested: a file system cannot be made or mounted");
        return;
    }
    let error = DeviceFile::open(&device.0, SHORT).unwrap_err();
    assert!(done("umount", &[&place]));
    let said = error.to_string();
    assert!(matches!(error, DeviceError::Held { .. }), "{said}");
    assert!(
        said.contains(&format!("is mounted on {}", place.display())) && said.contains("umount"),
        "{said}"
    );
}

/// Two devices of one cluster on the same bytes would each destroy what the other has.
#[test]
fn a_file_and_the_loop_device_over_it_are_one_device() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let Some(device) = Loop::over(&file, &[]) else { return };
    let error = DeviceFile::open(&file, SHORT).unwrap_err();
    let by = format!("it is behind {}", device.0.display());
    assert!(matches!(error, DeviceError::Held { .. }) && error.to_string().contains(&by), "{error}");
    drop(device);
    let open = DeviceFile::open(&file, Duration::from_secs(10)).unwrap();
    let Some(device) = Loop::over_present(&file, &[]) else { return };
    let error = DeviceFile::open(&device.0, SHORT).unwrap_err();
    let by = format!("{}, which is behind it, is locked", file.display());
    assert!(matches!(error, DeviceError::Held { .. }) && error.to_string().contains(&by), "{error}");
    drop(open);
    DeviceFile::open(&device.0, Duration::from_secs(10)).unwrap();
    // A loop device over a device that is in use, and one that uses a device.
    let Some(above) = Loop::over_present(&device.0, &[]) else { return };
    let error = DeviceFile::open(&device.0, SHORT).unwrap_err();
    assert!(error.to_string().contains(&format!("is behind {}", above.0.display())), "{error}");
    drop(above);
    let _open = DeviceFile::open(&device.0, Duration::from_secs(10)).unwrap();
    let Some(above) = Loop::over_present(&device.0, &[]) else { return };
    let error = DeviceFile::open(&above.0, SHORT).unwrap_err();
    assert!(error.to_string().contains(&format!("{}, which is behind it", device.0.display())), "{error}");
}

#[test]
fn a_device_with_large_sectors_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = Loop::over(&folder.path().join("file"), &["--sector-size", "4096"]) else { return };
    let error = DeviceFile::open(&device.0, Duration::from_secs(10)).unwrap_err();
    assert!(matches!(error, DeviceError::SectorSize { sector: 4096, .. }), "{error}");
    assert!(error.to_string().contains("512-byte sectors"), "{error}");
}

#[test]
fn a_device_for_reading_only_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = Loop::over(&folder.path().join("file"), &["--read-only"]) else { return };
    let error = DeviceFile::open(&device.0, Duration::from_secs(10)).unwrap_err();
    assert!(matches!(error, DeviceError::ReadOnly { .. }), "{error}");
}
