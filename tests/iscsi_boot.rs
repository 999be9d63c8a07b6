//! A virtual machine whose only disk is a volume, which QEMU's initiator reaches: its firmware boots from it.

#[path = "iscsi_boot/disk.rs"]
mod disk;
mod nodes;

use std::process::Command;
use std::time::Duration;

use nodes::machine::{Image, Machine};
use nodes::{Cluster, run};

/// Makes a file system in the first partition, and writes to it until the power fails. When the machine boots again, checks that
/// everything that was flushed is there.
const SCRIPT: &str = r#"
echo BOOTED
if mount -t ext4 /dev/vda1 /mnt 2>/dev/null; then
    md5sum -c /mnt/kept > /dev/null && echo WHOLE
    umount /mnt
    /host/e2fsck -f -n /dev/vda1 && echo CLEAN
else
    /host/mke2fs -q -t ext4 /dev/vda1 && mount -t ext4 /dev/vda1 /mnt || exit 1
    write() { dd if=/dev/urandom of=/mnt/$1 bs=4k count=$(($1 % 50 + 1)) 2>/dev/null; }
    for n in $(seq 30); do write $n; md5sum /mnt/$n >> /mnt/kept; done
    sync
    echo READY
    for n in $(seq 100 100000); do write $n; [ $((n % 5)) != 0 ] || sync; done
fi
"#;

#[test]
fn a_virtual_machine_boots_from_a_volume_by_its_firmware_and_writes_to_it() {
    let size = 128 << 20;
    let cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "128MiB"]);
    let attached = cluster.loadline(&["volume", "attach", "disk", "--node", "node-1", "--json"]);
    let attached: serde_json::Value = serde_json::from_str(&attached).expect("it is JSON");
    let uri = attached["ways"]["iscsi"]["network"].as_str().expect("initiators reach it");
    let folder = tempfile::tempdir().expect("there is room");
    let image = Image::new(folder.path(), SCRIPT, &["mke2fs", "e2fsck"]);
    let disk = folder.path().join("disk").display().to_string();
    disk::write(&image, folder.path(), disk.as_ref(), size);
    run(Command::new("qemu-img").args(["convert", "-n", "-f", "raw", "-O", "raw", &disk, uri]));
    let start = |accelerator: &str| {
        let mut command = Command::new("qemu-system-x86_64");
        command.args(["-M", "q35", "-accel", accelerator, "-m", "256M"]);
        command.arg("-drive").arg(format!("file={uri},format=raw,if=virtio,cache=none,discard=unmap"));
        Machine::start(command)
    };
    let mut machine = Machine::boot(start);
    machine.wait_for("READY");
    // In the middle of writing.
    std::thread::sleep(Duration::from_millis(700));
    machine.kill();
    let mut machine = Machine::boot(start);
    machine.wait_for("CLEAN");
    assert!(machine.said.contains("WHOLE"), "{}", machine.said);
    assert!(!machine.said.contains("I/O error"), "{}", machine.said);
}
