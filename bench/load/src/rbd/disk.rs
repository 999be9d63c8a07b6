//! An image that is open. All threads of a load share it: with the exclusive lock that images have by default, several
//! of one process would take it from each other at every write.

use std::ffi::{CStr, CString, c_int};
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use loadline_base::limits::STACK;
use nix::errno::Errno;

use super::library::{Ceph, Handle, Setting, Watcher, ceph};
use super::uri::RbdUri;
use crate::error::LoadError;

/// How long monitors may take to let a client in, and to answer what opening asks.
const MONITORS: &CStr = c"10";
/// How long all of opening may take: the library itself waits for ever where no OSD serves the image's objects. An OSD that has
/// just lost its power is noticed after some 20 s.
const LIMIT: Duration = Duration::from_secs(30);
/// How long closing is waited for.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// A client that has just closed an image may be listed a moment longer.
const PATIENCE: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(100);
/// The most clients of one image that are read.
const MOST_WATCHERS: usize = 64;
/// The most settings that an image has.
const MOST_SETTINGS: usize = 1024;

/// What is said to the library whatever the configuration says. Nothing keeps writes in memory, so that what was answered
/// is on every OSD that it has to be on; and errors are reported by this program, not by lines of the library. No limit is
/// set for what OSDs do: an outage of some seconds is a stall, not an error. A release that does not know a setting need
/// not.
const SETTINGS: [(&CStr, &CStr); 7] = [
    (c"client_mount_timeout", MONITORS),
    (c"rados_mon_op_timeout", MONITORS),
    (c"rbd_cache", c"false"),
    (c"rbd_persistent_cache_mode", c"disabled"),
    (c"rbd_readahead_max_bytes", c"0"),
    (c"log_to_stderr", c"false"),
    (c"err_to_stderr", c"false"),
];

/// Settings of an image or its pool, which count more than ours, and what they must be.
const MUST_BE: [(&CStr, &CStr); 2] = [(c"rbd_cache", c"false"), (c"rbd_persistent_cache_mode", c"disabled")];

/// An image that is open, until it is dropped.
pub(crate) struct RbdDisk {
    /// Taken at the end.
    handles: Option<Handles>,
    /// The size of the image, in bytes.
    pub(crate) bytes: u64,
}

impl fmt::Debug for RbdDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RbdDisk").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl RbdDisk {
    /// Opens an image that no other client has open: for reading only, unless `write`. Clients that only read do not show.
    pub(crate) fn open(uri: &RbdUri, write: bool) -> Result<RbdDisk, LoadError> {
        if cfg!(target_feature = "crt-static") {
            return Err(LoadError::usage(format!(
                "{uri}: this is the static program, which cannot load Ceph's client library: use the Debian package, or build \
                 from source"
            )));
        }
        let ceph = ceph().map_err(|why| {
            LoadError::usage(format!(
                "{uri}: Ceph's client library is not here ({why}): install librbd1, which the package ceph-common brings \
                 too (librbd1 of the distribution, or of Ceph's own packages)"
            ))
        })?;
        there(uri, "configuration", uri.conf.as_deref())?;
        there(uri, "keyring", uri.keyring.as_deref())?;
        let (sender, receiver) = mpsc::channel();
        let of_thread = uri.clone();
        let opening =
            std::thread::Builder::new().name("rbd-open".into()).stack_size(STACK).spawn(move || {
                let opened = opened(ceph, &of_thread, write, &sender);
                let _ = sender.send(OpenProgress::Done(opened));
            });
        opening.map_err(|e| LoadError::failed(format!("{uri}: no thread to open it: {e}")))?;
        let until = Instant::now() + LIMIT;
        let mut connected = false;
        loop {
            match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(OpenProgress::Connected) => connected = true,
                Ok(OpenProgress::Done(opened)) => return opened,
                Err(RecvTimeoutError::Timeout) => return Err(not_answered(uri, connected)),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(LoadError::failed(format!(
                        "{uri}: the thread that opens it panicked: report it"
                    )));
                }
            }
        }
    }

    /// The library, and the image's handle in it, which is valid as long as this disk.
    pub(crate) fn image(&self) -> (&'static Ceph, Handle) {
        let handles = self.handles.as_ref().expect("they are taken when the disk is not used any more");
        (handles.ceph, handles.image)
    }
}

impl Drop for RbdDisk {
    /// Closes it, by a thread of its own: without the cluster it takes for ever, and goes on beside us then.
    fn drop(&mut self) {
        let Some(handles) = self.handles.take() else { return };
        // Without a thread it stays open: better than to wait for ever here.
        let handles = ManuallyDrop::new(handles);
        let (send, closed) = mpsc::channel();
        let closing =
            std::thread::Builder::new().name("rbd-close".into()).stack_size(STACK).spawn(move || {
                drop(ManuallyDrop::into_inner(handles));
                let _ = send.send(());
            });
        if closing.is_ok() {
            let _ = closed.recv_timeout(CLOSE_LIMIT);
        }
    }
}

/// What the library gave, null as far as it has not; closed in order when dropped, which may take for ever.
struct Handles {
    ceph: &'static Ceph,
    cluster: Handle,
    pool: Handle,
    image: Handle,
}

// SAFETY: librados and librbd are made for several threads (the comments of their headers say so); the handles are theirs to
// look into, and nothing of them belongs to a thread.
unsafe impl Send for Handles {}
// SAFETY: as above.
unsafe impl Sync for Handles {}

impl Drop for Handles {
    fn drop(&mut self) {
        // SAFETY: each handle was given by the library and is closed once, what was made last first. I/Os in flight are no
        // concern: each keeps the disk.
        unsafe {
            if !self.image.is_null() {
                (self.ceph.rbd_close)(self.image);
            }
            if !self.pool.is_null() {
                (self.ceph.rados_ioctx_destroy)(self.pool);
            }
            (self.ceph.rados_shutdown)(self.cluster);
        }
    }
}

/// The progress of the thread that opens an image.
enum OpenProgress {
    Connected,
    Done(Result<RbdDisk, LoadError>),
}

fn not_answered(uri: &RbdUri, connected: bool) -> LoadError {
    let (silent, check) = match connected {
        true => {
            ("the OSDs that have its objects do", "that they run, and that no placement group is inactive")
        }
        false => ("its cluster's monitors do", "that they run, and are reached from here"),
    };
    LoadError::failed(format!(
        "{uri}: {silent} not answer within {} s: check {check} (ceph -s, ceph health detail)",
        if connected { LIMIT.as_secs() } else { 10 }
    ))
}

/// A file that was named has to be there; what is not is said here better than by the library's numbers.
fn there(uri: &RbdUri, what: &str, path: Option<&Path>) -> Result<(), LoadError> {
    let Some(path) = path else { return Ok(()) };
    std::fs::File::open(path).map(drop).map_err(|why| {
        LoadError::usage(format!("{uri}: the {what} {} cannot be read: {why}", path.display()))
    })
}

/// Waits for what the library waits for.
fn opened(
    ceph: &'static Ceph,
    uri: &RbdUri,
    write: bool,
    sender: &Sender<OpenProgress>,
) -> Result<RbdDisk, LoadError> {
    let mut handles = connected(ceph, uri)?;
    let _ = sender.send(OpenProgress::Connected);
    let pool = text(uri, &uri.pool)?;
    // SAFETY: the cluster is connected, the name ends with zero, and the handle is put where it belongs.
    let code = unsafe { (ceph.rados_ioctx_create)(handles.cluster, pool.as_ptr(), &mut handles.pool) };
    check(code, |errno| match errno {
        Errno::ENOENT => {
            LoadError::usage(format!("{uri}: there is no pool \"{}\": see ceph osd pool ls", uri.pool))
        }
        Errno::ETIMEDOUT => not_answered(uri, false),
        _ => refused(uri, write, errno),
    })?;
    let namespace = text(uri, &uri.namespace)?;
    let image = text(uri, &uri.image)?;
    let open = if write { ceph.rbd_open } else { ceph.rbd_open_read_only };
    // SAFETY: the pool is open, and all names end with zero; no snapshot is named.
    let code = unsafe {
        (ceph.rados_ioctx_set_namespace)(handles.pool, namespace.as_ptr());
        open(handles.pool, image.as_ptr(), &mut handles.image, ptr::null())
    };
    if code < 0 {
        // It is the library's own, and not ours to close.
        handles.image = ptr::null_mut();
    }
    check(code, |errno| match errno {
        Errno::ENOENT => {
            let (within, see) = match uri.namespace.as_str() {
                "" => (String::new(), uri.pool.clone()),
                name => (format!(", namespace \"{name}\""), format!("{}/{name}", uri.pool)),
            };
            LoadError::usage(format!(
                "{uri}: there is no image \"{}\" in pool \"{}\"{within}: see rbd ls {see}",
                uri.image, uri.pool
            ))
        }
        Errno::ETIMEDOUT => not_answered(uri, true),
        _ => refused(uri, write, errno),
    })?;
    alone(&handles, uri)?;
    without_cache(&handles, uri)?;
    let mut bytes = 0;
    // SAFETY: the image is open, and the size is put where it belongs.
    let code = unsafe { (ceph.rbd_get_size)(handles.image, &mut bytes) };
    check(code, |errno| LoadError::failed(format!("{uri}: its size is not told: {}", errno.desc())))?;
    Ok(RbdDisk { handles: Some(handles), bytes })
}

fn connected(ceph: &'static Ceph, uri: &RbdUri) -> Result<Handles, LoadError> {
    let user = text(uri, &uri.user)?;
    let mut cluster = ptr::null_mut();
    // SAFETY: the name ends with zero, and the handle is put where it belongs.
    let code = unsafe { (ceph.rados_create)(&mut cluster, user.as_ptr()) };
    check(code, |errno| {
        LoadError::failed(format!("{uri}: Ceph's library cannot be initialized: {}", errno.desc()))
    })?;
    let handles = Handles { ceph, cluster, pool: ptr::null_mut(), image: ptr::null_mut() };
    // SAFETY: the cluster's handle is there, and name and value end with zero.
    let set =
        |name: &CStr, value: &CStr| unsafe { (ceph.rados_conf_set)(cluster, name.as_ptr(), value.as_ptr()) };
    for (name, value) in SETTINGS {
        set(name, value);
    }
    let conf = uri.conf.as_deref().map(|path| path_text(uri, path)).transpose()?;
    // SAFETY: the cluster's handle is there; the path ends with zero, or is null: what the library finds by itself.
    let code = unsafe {
        (ceph.rados_conf_read_file)(cluster, conf.as_ref().map_or(ptr::null(), |path| path.as_ptr()))
    };
    check(code, |errno| {
        let place = uri.conf.as_deref().map_or("the configuration".into(), |path| path.display().to_string());
        LoadError::usage(match (errno, &uri.conf) {
            (Errno::ENOENT, None) => format!(
                "{uri}: no configuration of a Ceph cluster is found (CEPH_CONF, /etc/ceph/ceph.conf): say which by ?conf=PATH"
            ),
            _ => format!("{uri}: {place} is none that Ceph understands: {}", errno.desc()),
        })
    })?;
    if let Some(path) = &uri.keyring {
        set(c"keyring", &path_text(uri, path)?);
    }
    // SAFETY: the cluster's handle is there.
    let code = unsafe { (ceph.rados_connect)(cluster) };
    check(code, |errno| match errno {
        Errno::ETIMEDOUT => not_answered(uri, false),
        Errno::ENOENT => LoadError::usage(format!(
            "{uri}: its configuration names no monitor (mon_host), or there is no key of client.{} in its keyring: name the \
             keyring with ?keyring=PATH, or another user with ?user=NAME",
            uri.user
        )),
        Errno::EACCES | Errno::EPERM | Errno::EOPNOTSUPP => LoadError::usage(format!(
            "{uri}: its cluster refuses client.{} ({}): check that this user exists (ceph auth ls), and that the user's key is \
             in the keyring (?keyring=PATH names the keyring)",
            uri.user,
            errno.desc()
        )),
        _ => LoadError::failed(format!("{uri}: its cluster is not reached: {}", errno.desc())),
    })?;
    Ok(handles)
}

/// No other client has the image open: two writers would overwrite each other. A client that opened it at the same time sees this one, too, so of two
/// none goes on.
fn alone(handles: &Handles, uri: &RbdUri) -> Result<(), LoadError> {
    let ceph = handles.ceph;
    // SAFETY: the cluster is connected.
    let own = unsafe { (ceph.rados_get_instance_id)(handles.cluster) };
    let until = Instant::now() + PATIENCE;
    loop {
        let empty = Watcher { address: ptr::null_mut(), id: 0, cookie: 0 };
        let (mut watchers, mut count) = ([empty; MOST_WATCHERS], MOST_WATCHERS);
        // SAFETY: the image is open, and the list has room for as many as the count states.
        let code = unsafe { (ceph.rbd_watchers_list)(handles.image, watchers.as_mut_ptr(), &mut count) };
        if code == -(Errno::ERANGE as c_int) {
            return Err(in_use(uri, "too many clients have the image open"));
        }
        check(code, |errno| {
            LoadError::failed(format!(
                "{uri}: the cluster does not report which clients have the image open: {}",
                errno.desc()
            ))
        })?;
        let other = watchers[..count].iter().find(|watcher| watcher.id as u64 != own).map(|watcher| {
            // SAFETY: the library has put text there, which stands until the list is given back.
            let address = unsafe { CStr::from_ptr(watcher.address) };
            format!("client.{} at {} has it open", watcher.id, address.to_string_lossy())
        });
        // SAFETY: as many as the library has put into the list.
        unsafe { (ceph.rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), count) };
        match other {
            None => return Ok(()),
            Some(other) if Instant::now() >= until => return Err(in_use(uri, &other)),
            Some(_) => std::thread::sleep(RETRY),
        }
    }
}

fn in_use(uri: &RbdUri, by: &str) -> LoadError {
    LoadError::usage(format!(
        "{uri} is in use: {by}. An image in use is never measured; free it first, or name another (the cluster removes a \
         crashed client after half a minute)"
    ))
}

/// A cache that the image, or its pool, asks for is refused: its figures would be those of memory, and what was answered
/// could yet be lost.
fn without_cache(handles: &Handles, uri: &RbdUri) -> Result<(), LoadError> {
    let ceph = handles.ceph;
    let none = Setting { name: ptr::null_mut(), value: ptr::null_mut(), source: 0 };
    let (mut settings, mut count) = (vec![none; MOST_SETTINGS], MOST_SETTINGS as c_int);
    // SAFETY: the image is open, and the list has room for as many as the count states.
    let code = unsafe { (ceph.rbd_config_image_list)(handles.image, settings.as_mut_ptr(), &mut count) };
    check(code, |errno| LoadError::failed(format!("{uri}: its settings are not told: {}", errno.desc())))?;
    let wrong = settings[..count as usize].iter().find_map(|setting| {
        // SAFETY: the library has put text there, which stands until the list is given back.
        let (name, value) = unsafe { (CStr::from_ptr(setting.name), CStr::from_ptr(setting.value)) };
        let wrong = MUST_BE.iter().any(|(must, be)| *must == name && *be != value);
        wrong.then(|| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
    });
    // SAFETY: as many as the library has put into the list.
    unsafe { (ceph.rbd_config_image_list_cleanup)(settings.as_mut_ptr(), count) };
    match wrong {
        None => Ok(()),
        Some((name, value)) => Err(LoadError::usage(format!(
            "{uri}: the image or its pool sets {name} = {value}, so a cache in this host's memory would acknowledge writes: \
             remove the setting (rbd config image remove {}/{} {name}, or rbd config pool remove {} {name})",
            uri.pool, uri.image, uri.pool
        ))),
    }
}

fn refused(uri: &RbdUri, write: bool, errno: Errno) -> LoadError {
    match errno {
        Errno::EPERM | Errno::EACCES | Errno::EROFS => LoadError::usage(format!(
            "{uri}: client.{} may not open it for {} ({}): see what it may do by ceph auth get client.{}",
            uri.user,
            if write { "writing" } else { "reading" },
            errno.desc(),
            uri.user
        )),
        _ => LoadError::failed(format!("{uri} cannot be opened: {}", errno.desc())),
    }
}

/// What the library answers is negative if it failed.
fn check(code: c_int, error: impl FnOnce(Errno) -> LoadError) -> Result<(), LoadError> {
    if code < 0 { Err(error(Errno::from_raw(-code))) } else { Ok(()) }
}

fn text(uri: &RbdUri, part: &str) -> Result<CString, LoadError> {
    CString::new(part).map_err(|_| LoadError::usage(format!("{uri}: \"{part}\" has a byte of zero")))
}

fn path_text(uri: &RbdUri, path: &Path) -> Result<CString, LoadError> {
    let zero = |_| LoadError::usage(format!("{uri}: {} has a byte of zero", path.display()));
    CString::new(path.as_os_str().as_bytes()).map_err(zero)
}
