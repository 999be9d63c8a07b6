//! Block devices: loop devices of the test's own. These need root, as every block device does.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{folder, number, precious_file, run};

/// A loop device over a file, taken down when dropped. `None` without root.
struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path) -> Option<Loop> {
        Loop::with_blocks(file, "512")
    }

    fn with_blocks(file: &Path, bytes: &str) -> Option<Loop> {
        let id = Command::new("id").arg("-u").output().expect("id runs");
        if id.stdout != b"0\n" {
            eprintln!("block devices need root: not tested");
            return None;
        }
        let words = ["--find", "--show", "--sector-size", bytes];
        let output = Command::new("losetup").args(words).arg(file).output().expect("losetup runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(Loop(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())))
    }

    fn text(&self) -> &str {
        self.0.to_str().expect("a plain path")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn a_device_is_read_and_written_only_when_given_up() {
    let folder = folder();
    let Some(device) = Loop::over(&precious_file(folder.path(), 16)) else { return };
    let quick = ["--warm-up", "0s", "--for", "1s", "--json", "-"];
    let said = run(["bench", device.text(), "-p", "B4-T1-O4-W0-PR"].iter().chain(&quick));
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
    assert!(number(&said.json(), "read/iops") > 0.0);
    let write = ["bench", device.text(), "-p", "B4-T1-O4-W100-PR"];
    run(write.iter().chain(&quick)).refused(2, &["block device", "--destroy-data"]);
    let said = run(write.iter().chain(&quick).chain(&["--destroy-data"]));
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
    assert!(number(&said.json(), "write/iops") > 0.0);
    let small = ["bench", device.text(), "-p", "B0.5-T1-O4-W0-PR"];
    assert!(matches!(run(small.iter().chain(&quick)).code, Some(0 | 3)), "its blocks have 512 bytes");
}

#[test]
fn a_device_in_use_is_refused_even_when_given_up() {
    let folder = folder();
    let Some(device) = Loop::over(&precious_file(folder.path(), 64)) else { return };
    let made =
        Command::new("mkfs.ext4").args(["-q", "-F"]).arg(device.text()).status().expect("mkfs.ext4 runs");
    assert!(made.success());
    let place = folder.path().join("mounted");
    std::fs::create_dir(&place).unwrap();
    assert!(Command::new("mount").arg(device.text()).arg(&place).status().expect("mount runs").success());
    let said = run(["bench", device.text(), "--destroy-data", "-p", "B4-T1-O4-W100-PR", "--for", "1s"]);
    let reading = run(["bench", device.text(), "-p", "B4-T1-O4-W0-PR", "--for", "1s"]);
    assert!(Command::new("umount").arg(&place).status().expect("umount runs").success());
    said.refused(2, &["in use", "mounted"]);
    reading.refused(2, &["in use", "mounted"]);
}

#[test]
fn a_device_that_another_program_holds_exclusively_is_refused() {
    use std::os::unix::fs::OpenOptionsExt;
    let folder = folder();
    let Some(device) = Loop::over(&precious_file(folder.path(), 8)) else { return };
    // O_EXCL of open(2), as md, LVM, ZFS and Ceph hold their devices.
    let held = std::fs::OpenOptions::new().read(true).custom_flags(0o200).open(&device.0).unwrap();
    run(["bench", device.text(), "--destroy-data", "-p", "B4-T1-O1-W100-PR", "--for", "1s"])
        .refused(2, &["in use", "exclusively"]);
    drop(held);
}

#[test]
fn the_file_behind_a_loop_device_is_refused() {
    let folder = folder();
    let file = precious_file(folder.path(), 8);
    let Some(_device) = Loop::over(&file) else { return };
    run(["bench", file.to_str().unwrap(), "--for", "1s"]).refused(2, &["in use", "/dev/loop"]);
}

#[test]
fn another_name_of_the_file_behind_a_loop_device_is_refused() {
    let folder = folder();
    let file = precious_file(folder.path(), 8);
    let other = folder.path().join("other.img");
    std::fs::hard_link(&file, &other).unwrap();
    let Some(_device) = Loop::over(&file) else { return };
    let refused =
        || run(["bench", other.to_str().unwrap(), "--for", "1s"]).refused(2, &["in use", "/dev/loop"]);
    refused();
    std::fs::remove_file(&file).unwrap();
    refused();
}

#[test]
fn a_device_behind_a_loop_device_is_refused() {
    let folder = folder();
    let Some(below) = Loop::over(&precious_file(folder.path(), 8)) else { return };
    let Some(above) = Loop::over(&below.0) else { return };
    let write = ["--destroy-data", "-p", "B4-T1-O1-W100-PR", "--for", "1s"];
    run(["bench", below.text()].iter().chain(&write)).refused(2, &["in use", above.text()]);
    run(["bench", below.text(), "-p", "B4-T1-O1-W0-PR", "--for", "1s"]).refused(2, &["in use", above.text()]);
}

/// A file system mounted in a folder, until dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(words: &[&str], place: PathBuf) -> Mounted {
        std::fs::create_dir(&place).unwrap();
        assert!(Command::new("mount").args(words).arg(&place).status().expect("mount runs").success());
        Mounted(place)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A process that has ended may hold its files a moment longer.
        let unmounted =
            || Command::new("umount").arg(&self.0).output().is_ok_and(|said| said.status.success());
        for _ in 0..100 {
            if unmounted() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        eprintln!("{} stays mounted", self.0.display());
    }
}

#[test]
fn a_file_system_that_takes_the_flag_and_does_no_direct_io_is_found_out() {
    let folder = folder();
    let Some(device) = Loop::over(&precious_file(folder.path(), 64)) else { return };
    let made =
        Command::new("mkfs.ext4").args(["-q", "-F"]).arg(device.text()).status().expect("mkfs.ext4 runs");
    assert!(made.success());
    let words = ["-o", "data=journal", device.text()];
    let mounted = Mounted::new(&words, folder.path().join("mounted"));
    let file = precious_file(&mounted.0, 4);
    let words = ["bench", file.to_str().unwrap(), "-p", "B4-T1-O1-W0-PR", "--warm-up", "0s", "--for", "1s"];
    let said = run(words.iter().chain(&["--json", "-"]));
    let json = said.json();
    let kinds: Vec<&str> =
        json["findings"].as_array().unwrap().iter().filter_map(|f| f["kind"].as_str()).collect();
    assert!(kinds.contains(&"not-direct"), "{kinds:?}");
    assert_eq!(said.code, Some(3), "{}", said.err);
}

#[test]
fn files_that_do_not_fit_together_are_not_begun() {
    let folder = folder();
    if Loop::over(&precious_file(folder.path(), 1)).is_none() {
        return;
    }
    let mounted = Mounted::new(&["-t", "tmpfs", "-o", "size=16m", "none"], folder.path().join("small"));
    let [one, two] = ["1", "2"].map(|name| mounted.0.join(name).to_str().unwrap().to_string());
    let said = run(["bench", &one, &two, "--create", "10MiB", "-p", "B4-T1-O1-W0-PR", "--for", "1s"]);
    said.refused(2, &["2 files", "20 MiB", "16 MiB free"]);
    assert_eq!(std::fs::read_dir(&mounted.0).unwrap().count(), 0);
}

#[test]
fn a_block_size_that_does_not_fit_the_device_is_refused() {
    let folder = folder();
    let file = precious_file(folder.path(), 8);
    let Some(device) = Loop::with_blocks(&file, "4096") else { return };
    run(["bench", device.text(), "-p", "B0.5-T1-O1-W0-PR", "--for", "1s"]).refused(2, &["512", "4KiB"]);
}
