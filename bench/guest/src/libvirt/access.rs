//! Access for the user of libvirt's QEMU to what is ours: libvirt gives it files and devices that are disks, and neither sockets of
//! servers nor files that are memory.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use nix::fcntl::OFlag;
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
        give(self.qemu, path, Kind::File).map(drop)
    }

    /// Gives access to a socket until [`Access::take_back`], also if its server makes it anew meanwhile.
    pub(super) fn give_socket(&mut self, path: &Path) -> io::Result<()> {
        let Some(before) = give(self.qemu, path, Kind::Socket)? else { return Ok(()) };
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
            // A server that is gone has taken its socket along, and what is there in its place was given to nobody.
            if let Ok(own) = Own::open(path, Kind::Socket)
                && own.is_ours()
            {
                let _ = own.change(group, mode);
            }
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
            let _ = give(qemu, path, Kind::Socket);
        }
    }
}

/// What is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Socket,
}

/// A file or a socket, itself and not by its name: what is done is done to what was looked at, also if the name leads elsewhere meanwhile.
struct Own {
    handle: File,
    found: Metadata,
}

impl Own {
    /// A symbolic link is refused, since it may lead to any file of ours, and so is what is of another kind.
    fn open(path: &Path, kind: Kind) -> io::Result<Own> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
        let handle = File::options().read(true).custom_flags(flags.bits()).open(path)?;
        let found = handle.metadata()?;
        let is = found.file_type();
        let wrong = match kind {
            _ if is.is_symlink() => "it is a symbolic link: name what it leads to",
            Kind::File if !is.is_file() => "it is no file",
            Kind::Socket if !is.is_socket() => "it is no socket",
            _ => return Ok(Own { handle, found }),
        };
        Err(io::Error::other(wrong))
    }

    fn is_ours(&self) -> bool {
        self.found.uid() == nix::unistd::geteuid().as_raw()
    }

    fn change(&self, group: u32, mode: u32) -> io::Result<()> {
        // By this name the kernel takes the descriptor, whatever is at the path by now.
        let itself = format!("/proc/self/fd/{}", self.handle.as_raw_fd());
        chown(&itself, None, Some(group))?;
        fs::set_permissions(&itself, Permissions::from_mode(mode))
    }
}

/// Lets a QEMU read and write what is ours. Returns its group and mode before; `None`: nothing was needed, or it is not ours, and
/// QEMU says itself whether it may open it.
fn give(qemu: UnixCredentials, path: &Path, kind: Kind) -> io::Result<Option<(u32, u32)>> {
    if [0, nix::unistd::geteuid().as_raw()].contains(&qemu.uid()) {
        return Ok(None);
    }
    let own = Own::open(path, kind)?;
    let (group, mode) = (own.found.gid(), own.found.mode() & 0o7777);
    let has = |bits: u32| mode & bits == bits;
    let may = own.found.uid() == qemu.uid() || group == qemu.gid() && has(0o060) || has(0o006);
    if may || !own.is_ours() {
        return Ok(None);
    }
    own.change(qemu.gid(), mode | 0o060).map_err(|e| {
        io::Error::other(format!(
            "{e}: only root and members of the group {} can give it to that group. Run as root, or use qemu:///session",
            qemu.gid()
        ))
    })?;
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

    #[test]
    fn what_a_symbolic_link_leads_to_is_not_given() {
        let folder = tempfile::tempdir().unwrap();
        let [secret, link, socket, file] =
            ["secret", "link", "socket", "file"].map(|name| folder.path().join(name));
        fs::write(&secret, "ours").unwrap();
        fs::write(&file, "a journal").unwrap();
        for path in [&secret, &file] {
            fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
        }
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        let mut access = Access::of(other());
        let refused = access.give(&link).unwrap_err().to_string();
        assert!(refused.contains("symbolic link"), "{refused}");
        assert!(access.give_socket(&link).unwrap_err().to_string().contains("symbolic link"));
        // A file that is no socket stays closed, too.
        assert!(access.give_socket(&secret).unwrap_err().to_string().contains("no socket"));
        assert_eq!(mode(&secret), 0o600);
        access.give(&file).unwrap();
        assert_eq!(mode(&file), 0o660);
        // A link in place of a socket that was given; the other socket, which is made anew, shows that the thread has seen both.
        let sockets = [socket, folder.path().join("socket-2")];
        let make = |path: &PathBuf| {
            let _ = fs::remove_file(path);
            drop(UnixListener::bind(path).unwrap());
            fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
        };
        for path in &sockets {
            make(path);
            access.give_socket(path).unwrap();
        }
        fs::remove_file(&sockets[0]).unwrap();
        std::os::unix::fs::symlink(&secret, &sockets[0]).unwrap();
        make(&sockets[1]);
        let limit = Instant::now() + Duration::from_secs(10);
        while mode(&sockets[1]) & 0o060 != 0o060 {
            assert!(Instant::now() < limit, "{:o}", mode(&sockets[1]));
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(mode(&secret), 0o600, "while sockets are given again");
        drop(access);
        assert_eq!(mode(&secret), 0o600, "when they are taken back");
    }
}
