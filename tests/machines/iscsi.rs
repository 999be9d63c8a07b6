//! Disks of an iSCSI target, which QEMU's initiator reaches, and ours.

#[path = "../peers/tgt.rs"]
mod tgt;

use crate::{Place, checked, study};
use tgt::Tgt;

#[test]
fn a_disk_of_an_iscsi_target_is_that_of_a_machine_or_of_a_process() {
    let place = Place::new();
    let disk = place.path("disk");
    std::fs::File::create(&disk).unwrap().set_len(16 << 20).unwrap();
    let target = Tgt::start(&disk);
    let of = |fleet: &str| study(&format!("[fleet]\n{fleet}\n[target]\ndevices = [{:?}]", target.uri()));
    for fleet in ["machine = {}", ""] {
        let said = place.run(&of(fleet), &["--destroy-data"], &[]);
        assert!(matches!(said.code, Some(0 | 3)), "{:?}\n{}\n{}", said.code, said.out, said.err);
        let (blocks, bad) = checked(&place.report());
        assert!(blocks > 500 && bad == 0, "{fleet}: {blocks} checked, {bad} bad");
        std::fs::remove_dir_all(place.path("run")).unwrap();
    }
    place.run(&of("machine = {}"), &[], &[]).refused(2, &["--destroy-data"]);
    let _ = std::fs::remove_dir_all(place.path("run"));
    let gone = of("machine = {}");
    drop(target);
    place.run(&gone, &["--destroy-data"], &[]).refused(2, &["cannot be reached"]);
}
