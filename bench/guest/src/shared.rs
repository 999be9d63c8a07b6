//! What runs a machine at present, for the threads of its keeper.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::attach::Devices;
use crate::qemu::Origin;
use crate::running::Running;

/// Our end of the machine's serial port, for several threads.
pub(crate) type Out = Arc<Mutex<UnixStream>>;

/// What runs the machine at present: once the machine was migrated, that is another QEMU.
#[derive(Debug)]
pub(crate) struct Shared {
    /// What QEMU was started from, if it is a process of ours.
    pub(crate) origin: Option<Origin>,
    pub(crate) running: Mutex<Box<dyn Running>>,
    pub(crate) devices: Mutex<Devices>,
    /// Why the machine was ended, if its QEMU did not answer any more.
    pub(crate) stuck: Mutex<Option<String>>,
    pub(crate) out: Out,
    /// What the machine says after the present QEMU has ended.
    pub(crate) continues: Mutex<Option<UnixStream>>,
}

/// What a thread that panicked has left is as whole as what an error leaves.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the machine says, whichever QEMU runs it.
pub(crate) struct Said {
    pub(crate) stream: UnixStream,
    pub(crate) shared: Arc<Shared>,
}

impl Read for Said {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.stream.read(bytes)?;
            let next = if read == 0 { locked(&self.shared.continues).take() } else { None };
            match next {
                Some(next) => self.stream = next,
                None => return Ok(read),
            }
        }
    }
}
