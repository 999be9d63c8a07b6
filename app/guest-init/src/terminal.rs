//! A pseudo-terminal in the machine, for a shell whose user sits at a terminal of the host.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use loadline_guest::session::Size;
use nix::libc;
use nix::mount::{MsFlags, mount};

nix::ioctl_write_ptr!(lock_terminal, b'T', 0x31, libc::c_int);
nix::ioctl_read!(terminal_number, b'T', 0x30, libc::c_uint);
nix::ioctl_write_ptr_bad!(set_size, libc::TIOCSWINSZ, libc::winsize);
nix::ioctl_write_int_bad!(become_controlling, libc::TIOCSCTTY);

/// The machine's side of a terminal: what is written to it is typed, and what is read from it is shown.
#[derive(Debug)]
pub(crate) struct Terminal {
    master: File,
    slave: File,
}

impl Terminal {
    /// A new terminal of this size. The error is for people.
    pub(crate) fn open(size: Size) -> Result<Terminal, String> {
        let failed = |e: &dyn std::fmt::Display| format!("there is no terminal in the machine: {e}");
        fs::create_dir_all("/dev/pts").map_err(|e| failed(&e))?;
        mount(Some("devpts"), "/dev/pts", Some("devpts"), MsFlags::empty(), None::<&str>)
            .map_err(|e| failed(&e))?;
        let open = |path: &str| File::options().read(true).write(true).open(path);
        let master = open("/dev/ptmx").map_err(|e| failed(&e))?;
        let (unlock, mut number) = (0, 0);
        // SAFETY: both calls get the descriptor of an open terminal and the address of an integer that outlives them.
        unsafe {
            lock_terminal(master.as_raw_fd(), &unlock).map_err(|e| failed(&e))?;
            terminal_number(master.as_raw_fd(), &mut number).map_err(|e| failed(&e))?;
        }
        let slave = open(&format!("/dev/pts/{number}")).map_err(|e| failed(&e))?;
        resize(&master, size);
        Ok(Terminal { master, slave })
    }

    /// Makes it the terminal of a program that is started, which leads a session of processes of its own.
    pub(crate) fn give_to(&self, command: &mut Command) -> std::io::Result<()> {
        let slave = || self.slave.try_clone().map(Stdio::from);
        command.stdin(slave()?).stdout(slave()?).stderr(slave()?);
        // SAFETY: between fork and exec it calls setsid and ioctl only, which take no locks and allocate nothing. Descriptor 0 is the
        // terminal by then.
        unsafe {
            command.pre_exec(|| {
                nix::unistd::setsid()?;
                become_controlling(0, 0)?;
                Ok(())
            });
        }
        Ok(())
    }

    /// The machine's side alone: reading from it ends when no program has the other side any more.
    pub(crate) fn into_master(self) -> File {
        self.master
    }
}

/// The terminal of this master has this size now. A terminal that is gone has none.
pub(crate) fn resize(master: &File, size: Size) {
    let size = libc::winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open, and the address is that of a size which outlives the call.
    let _ = unsafe { set_size(master.as_raw_fd(), &size) };
}
