//! A folder of one machine until it has booted: its kernel, its image, and the sockets that its QEMU connects to.
//!
//! The QEMU of `qemu:///system` is another user's. So copies are where that user may read them, and the folder of images (which only
//! its owner may enter) stays closed. The sockets have random names in a
//! folder that only its owner may list. QEMU's command line shows these names to every user, so that whoever connects is checked to be QEMU.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::error::GuestError;
use crate::image::Image;

/// How the folders are called, before the process that made them.
const PREFIX: &str = "loadline-libvirt-";

/// The folder, which is removed when this is dropped.
#[derive(Debug)]
pub(super) struct MachineFolder {
    path: PathBuf,
    pub(super) kernel: PathBuf,
    pub(super) image: PathBuf,
    pub(super) control: PathBuf,
    pub(super) console: PathBuf,
}

impl MachineFolder {
    /// Makes the folder below that of temporary files, with copies of the image, and removes those of processes that were killed.
    /// Returns the listeners for the control port and for the console too.
    pub(super) fn make(image: &Image) -> Result<(MachineFolder, UnixListener, UnixListener), GuestError> {
        let root = std::env::temp_dir();
        let failed = |e: io::Error| {
            GuestError::usage(format!(
                "the folder for a virtual machine of libvirt cannot be made in {}: {e}; TMPDIR names another place",
                root.display()
            ))
        };
        remove_left_over(&root);
        let secret = random().map_err(failed)?;
        let path = root.join(format!("{PREFIX}{}-{}", life_of(std::process::id()), &secret[..8]));
        DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        let file = |name: &str| path.join(name);
        let folder = MachineFolder {
            kernel: file("kernel"),
            image: file("image"),
            control: file(&format!("control-{secret}")),
            console: file(&format!("console-{secret}")),
            path,
        };
        // Whatever the umask says.
        let allow = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
        let fill = || {
            fs::copy(&image.kernel, &folder.kernel)?;
            fs::copy(&image.archive, &folder.image)?;
            let control = UnixListener::bind(&folder.control)?;
            let console = UnixListener::bind(&folder.console)?;
            control.set_nonblocking(true)?;
            console.set_nonblocking(true)?;
            allow(&folder.kernel, 0o644)?;
            allow(&folder.image, 0o644)?;
            allow(&folder.control, 0o666)?;
            allow(&folder.console, 0o666)?;
            allow(&folder.path, 0o711)?;
            Ok((control, console))
        };
        let (control, console) = fill().map_err(failed)?;
        Ok((folder, control, console))
    }
}

impl Drop for MachineFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders of this user whose process is gone: it was killed before its machine had booted.
fn remove_left_over(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        let mut parts = rest.split('-');
        let (Some(process), Some(began)) = (parts.next(), parts.next()) else { continue };
        let Ok(process) = process.parse() else { continue };
        let is_ours = entry
            .metadata()
            .is_ok_and(|found| found.is_dir() && found.uid() == nix::unistd::geteuid().as_raw());
        if is_ours && life_of(process) != format!("{process}-{began}") {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A process and when it began, in ticks since the host has booted: another process may get its number. 0: it is gone.
pub(super) fn life_of(process: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name of the program before may contain anything.
    let began = stat.rsplit_once(") ").and_then(|(_, fields)| fields.split(' ').nth(19));
    format!("{process}-{}", began.unwrap_or("0"))
}

/// 16 random digits: the name of a socket cannot be guessed.
fn random() -> io::Result<String> {
    let mut bytes = [0; 8];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_processes_that_are_gone_are_removed_and_others_stay() {
        let root = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = root.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let ours = life_of(std::process::id());
        assert!(!ours.ends_with("-0"), "{ours}");
        let lives = make(&format!("{PREFIX}{ours}-ab"));
        let earlier = make(&format!("{PREFIX}{}-1-ab", std::process::id()));
        let strange = make("loadline-libvirt-x");
        remove_left_over(root.path());
        assert!(lives.exists() && strange.exists() && !earlier.exists());
    }
}
