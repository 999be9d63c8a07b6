//! Access for the user of libvirt's QEMU to what is ours: libvirt gives it files and devices that are disks, and neither sockets of
//! servers nor files that are memory.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use nix::sys::socket::UnixCredentials;

/// How often it is looked whether a socket was made anew, by a server that was started again: QEMU tries it each second.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Sockets that are given access to, with the group and the mode that each had before.
type Sockets = Mutex<BTreeMap<PathBuf, (u32, u32)>>;

/// Who gets access, and to which sockets.
#[derive(Debug)]
pub(super) struct Access {
    qemu: UnixCredentials,
    sockets: Arc<Sockets>,
}

impl Access {
    pub(super) fn of(qemu: UnixCredentials) -> Access {
        Access { qemu, sockets: Arc::default() }
    }

    /// The user of the QEMU.
    pub(super) fn user(&self) -> u32 {
        self.qemu.uid()
    }

    /// Whether the QEMU runs as another user than we do.
    pub(super) fn is_other(&self) -> bool {
        self.qemu.uid() != nix::unistd::geteuid().as_raw()
    }

    /// Gives access to a file for good.
    pub(super) fn give(&self, path: &Path) -> io::Result<()> {
        give(self.qemu, path).map(drop)
    }

    /// Gives access to a socket until [`Access::take_back`], also if its server makes it anew meanwhile.
    pub(super) fn give_socket(&mut self, path: &Path) -> io::Result<()> {
        let Some(before) = give(self.qemu, path)? else { return Ok(()) };
        let mut sockets = locked(&self.sockets);
        let is_first = sockets.is_empty();
        sockets.insert(path.into(), before);
        drop(sockets);
        if is_first {
            let (kept, qemu) = (Arc::downgrade(&self.sockets), self.qemu);
            thread::Builder::new().name("sockets".into()).spawn(move || give_again(&kept, qemu))?;
        }
        Ok(())
    }

    /// Ends what [`Access::give_socket`] began.
    pub(super) fn take_back(&mut self, path: &Path) {
        if let Some((group, mode)) = locked(&self.sockets).remove(path) {
            // A server that is gone has taken its socket along.
            let _ = fs::set_permissions(path, Permissions::from_mode(mode));
            let _ = chown(path, None, Some(group));
        }
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        let paths: Vec<PathBuf> = locked(&self.sockets).keys().cloned().collect();
        paths.iter().for_each(|path| self.take_back(path));
    }
}

fn locked(sockets: &Sockets) -> std::sync::MutexGuard<'_, BTreeMap<PathBuf, (u32, u32)>> {
    sockets.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives access until there are no sockets any more.
fn give_again(sockets: &Weak<Sockets>, qemu: UnixCredentials) {
    loop {
        thread::sleep(LOOK_EVERY);
        let Some(sockets) = sockets.upgrade() else { return };
        let sockets = locked(&sockets);
        if sockets.is_empty() {
            return;
        }
        for path in sockets.keys() {
            // It is not there while its server starts.
            let _ = give(qemu, path);
        }
    }
}

/// Lets a QEMU read and write a file of ours. Returns its group and mode before; `None`: nothing was needed, or the file is not ours, and
/// QEMU says itself whether it may open the file.
fn give(qemu: UnixCredentials, path: &Path) -> io::Result<Option<(u32, u32)>> {
    let found = fs::metadata(path)?;
    let (group, mode) = (found.gid(), found.mode() & 0o7777);
    let has = |bits: u32| mode & bits == bits;
    let may = [0, found.uid()].contains(&qemu.uid()) || group == qemu.gid() && has(0o060) || has(0o006);
    if may || found.uid() != nix::unistd::geteuid().as_raw() {
        return Ok(None);
    }
    chown(path, None, Some(qemu.gid())).map_err(|e| {
        io::Error::other(format!(
            "{e}: only root and members of the group {} can give it to that group. Run as root, or use qemu:///session",
            qemu.gid()
        ))
    })?;
    fs::set_permissions(path, Permissions::from_mode(mode | 0o060))?;
    Ok(Some((group, mode)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::time::Instant;

    use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

    use super::*;

    /// Another user, of our group.
    fn other() -> UnixCredentials {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let us = getsockopt(&ours, PeerCredentials).unwrap();
        let raw = nix::libc::ucred { pid: us.pid(), uid: us.uid() + 64055, gid: us.gid() };
        UnixCredentials::from(raw)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).map(|found| found.mode() & 0o777).unwrap_or_default()
    }

    #[test]
    fn a_socket_is_given_again_if_it_is_made_anew_and_taken_back_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let make = || {
            let _ = fs::remove_file(&path);
            let listener = UnixListener::bind(&path).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
            listener
        };
        let first = make();
        let mut access = Access::of(other());
        assert!(access.is_other());
        access.give_socket(&path).unwrap();
        assert!(mode(&path) & 0o060 == 0o060, "{:o}", mode(&path));
        drop(first);
        let _second = make();
        let limit = Instant::now() + Duration::from_secs(10);
        while mode(&path) & 0o060 != 0o060 {
            assert!(Instant::now() < limit, "{:o}", mode(&path));
            thread::sleep(Duration::from_millis(5));
        }
        drop(access);
        assert_eq!(mode(&path), 0o700);
    }
}
