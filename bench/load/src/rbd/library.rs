//! Ceph's client library, found when it is first wanted: Loadline is built, and runs, where Ceph is not installed.
//!
//! It is opened by `dlopen` of the C library, which the project has already, and never closed: a crate for it would
//! bring a second way to say the same two calls, and the lifetimes of libraries that may go away. librbd brings
//! librados along, so functions of librados are found through librbd too.
//!
//! Only functions are bound that all releases since Ceph 14 have, with types that are the same in all of them
//! (`rados/librados.h` and `rbd/librbd.h`).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::sync::OnceLock;

use nix::libc;

/// The name that stands for the stable interface.
const LIBRBD: &CStr = c"librbd.so.1";

/// `rados_t`, `rados_ioctx_t`, `rbd_image_t` and `rbd_completion_t`: what the library alone looks into.
pub(crate) type Handle = *mut c_void;
/// Called once for each I/O, by a thread of the library, with what it was given.
pub(crate) type Callback = unsafe extern "C" fn(Handle, *mut c_void);

/// `rbd_image_watcher_t`: a client that has an image open.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watcher {
    pub(crate) address: *mut c_char,
    pub(crate) id: i64,
    pub(crate) cookie: u64,
}

/// `rbd_config_option_t`: a setting as it is in force for an image.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) name: *mut c_char,
    pub(crate) value: *mut c_char,
    pub(crate) source: c_int,
}

/// Makes the struct of functions, and the way to find them by the names of its fields.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the library that are used here.
        pub(crate) struct Ceph {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Ceph {
            fn bind(library: *mut c_void) -> Result<Ceph, String> {
                Ok(Ceph {$(
                    $name: {
                        let found = symbol(library, concat!(stringify!($name), "\0"))?;
                        // SAFETY: the symbol is the function of this name, and its type is that of the headers, which is
                        // the same in all releases that the name of the library stands for.
                        unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(found) }
                    },
                )*})
            }
        }
    };
}

functions! {
    rados_create: fn(*mut Handle, *const c_char) -> c_int;
    rados_conf_read_file: fn(Handle, *const c_char) -> c_int;
    rados_conf_set: fn(Handle, *const c_char, *const c_char) -> c_int;
    rados_connect: fn(Handle) -> c_int;
    rados_shutdown: fn(Handle);
    rados_get_instance_id: fn(Handle) -> u64;
    rados_ioctx_create: fn(Handle, *const c_char, *mut Handle) -> c_int;
    rados_ioctx_set_namespace: fn(Handle, *const c_char);
    rados_ioctx_destroy: fn(Handle);
    rbd_open: fn(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd_open_read_only: fn(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd_close: fn(Handle) -> c_int;
    rbd_get_size: fn(Handle, *mut u64) -> c_int;
    rbd_watchers_list: fn(Handle, *mut Watcher, *mut usize) -> c_int;
    rbd_watchers_list_cleanup: fn(*mut Watcher, usize);
    rbd_config_image_list: fn(Handle, *mut Setting, *mut c_int) -> c_int;
    rbd_config_image_list_cleanup: fn(*mut Setting, c_int);
    rbd_aio_create_completion: fn(*mut c_void, Callback, *mut Handle) -> c_int;
    rbd_aio_get_return_value: fn(Handle) -> isize;
    rbd_aio_release: fn(Handle);
    rbd_aio_read: fn(Handle, u64, usize, *mut c_char, Handle) -> c_int;
    rbd_aio_write: fn(Handle, u64, usize, *const c_char, Handle) -> c_int;
    rbd_aio_flush: fn(Handle, Handle) -> c_int;
}

/// The library, or why there is none.
pub(crate) fn ceph() -> Result<&'static Ceph, String> {
    static CEPH: OnceLock<Result<Ceph, String>> = OnceLock::new();
    let loaded = CEPH.get_or_init(|| {
        // SAFETY: a name that ends with zero. What the library does when it is loaded is its own business, as of any
        // library that a program is linked with.
        let library = unsafe { libc::dlopen(LIBRBD.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(trouble());
        }
        Ceph::bind(library)
    });
    loaded.as_ref().map_err(Clone::clone)
}

fn symbol(library: *mut c_void, name: &str) -> Result<*mut c_void, String> {
    // SAFETY: the library is open and never closed, and the name ends with zero.
    let found = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
    if found.is_null() { Err(trouble()) } else { Ok(found) }
}

/// What dlopen or dlsym last said.
fn trouble() -> String {
    // SAFETY: it takes nothing, and returns null or text that stands until this thread's next call of its kind.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "it cannot be loaded".into();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
