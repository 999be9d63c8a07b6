//! Whether this host runs machines by its processor: a device file that opens says little, so a machine is booted once.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

use crate::error::GuestError;
use crate::image::Image;
use crate::keeper::Keeper;
use crate::libvirt::Libvirt;
use crate::machine::Machine;
use crate::qemu::{Acceleration, Qemu};

/// How long a machine may take that the processor runs. One boots in half a second.
const LIMIT: Duration = Duration::from_secs(10);
const KVM: &str = "/dev/kvm";

/// What machines of this host are run by. The first process that asks after the host has booted tries it, and the folder `cache` keeps
/// what it found.
pub fn probe(qemu: &Qemu, image: &Image, cache: &Path) -> Result<Acceleration, GuestError> {
    if File::options().read(true).write(true).open(KVM).is_err() {
        return Ok(Acceleration::Software);
    }
    let key = format!("QEMU {}.{}", qemu.version.0, qemu.version.1);
    let start = || Keeper::start(qemu, &Machine::default(), image, Acceleration::Hardware);
    kept_or_tried(&key, image, &cache.join("acceleration"), start)
}

/// The same of machines that libvirt starts, whose user may open other devices than we may.
pub fn probe_libvirt(libvirt: &Libvirt, image: &Image, cache: &Path) -> Result<Acceleration, GuestError> {
    if !Path::new(KVM).exists() {
        return Ok(Acceleration::Software);
    }
    let key = format!("libvirt {} {} {}", libvirt.uri(), libvirt.version, libvirt.qemu);
    let start = || {
        let worker = format!("probe-{}", std::process::id());
        Keeper::start_by_libvirt(libvirt, &worker, &Machine::default(), image, Acceleration::Hardware)
    };
    kept_or_tried(&key, image, &cache.join("acceleration-libvirt"), start)
}

fn kept_or_tried(
    key: &str,
    image: &Image,
    path: &Path,
    start: impl FnOnce() -> Result<Keeper, GuestError>,
) -> Result<Acceleration, GuestError> {
    let failed = |e: std::io::Error| {
        GuestError::usage(format!("what was found of {KVM} cannot be kept in {}: {e}", path.display()))
    };
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
    let file =
        File::options().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
    let file = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, e)| failed(e.into()))?;
    let kept = fs::read_to_string(path).unwrap_or_default();
    let image_name = image.archive.file_name().unwrap_or_default().to_string_lossy();
    let key = format!("{} {key} {image_name}\n", boot.trim());
    if let Some(found) = kept.strip_prefix(&key) {
        return Ok(if found == "hardware" { Acceleration::Hardware } else { Acceleration::Software });
    }
    let booted = start().and_then(|mut keeper| keeper.booted(LIMIT));
    let (found, word) = match booted {
        Ok(_) => (Acceleration::Hardware, "hardware"),
        Err(_) => (Acceleration::Software, "software"),
    };
    fs::write(path, format!("{key}{word}")).map_err(failed)?;
    drop(file);
    Ok(found)
}
