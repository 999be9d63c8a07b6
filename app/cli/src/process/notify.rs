//! What a daemon reports to the service manager that started it (`sd_notify`): that it is ready, what it does, that it stops, and, if
//! the manager waits for it, that it does not hang. Without a manager nothing is sent.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager, if one waits for reports.
#[derive(Debug)]
pub(crate) struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Manager {
    /// The manager that this process's environment names.
    pub(crate) fn of_environment() -> Manager {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|path| {
            let address = match path.as_bytes().strip_prefix(b"@") {
                Some(name) => SocketAddr::from_abstract_name(name),
                None => SocketAddr::from_pathname(&path),
            };
            let socket = UnixDatagram::unbound().ok()?;
            // A manager that does not read keeps nothing from being done.
            socket.set_nonblocking(true).ok()?;
            Some((socket, address.ok()?))
        });
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let is_ours = number("WATCHDOG_PID").is_none_or(|process| process == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|us| *us > 0 && is_ours).map(Duration::from_micros);
        Manager { watchdog: watchdog.filter(|_| socket.is_some()), socket }
    }

    /// How long this process may be silent before the manager ends it, if the manager waits for it.
    pub(crate) fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// It starts, and may take this long from now on.
    pub(crate) fn starting(&self, status: &str, at_most: Duration) {
        self.send(&format!("{}\nEXTEND_TIMEOUT_USEC={}", line(status), at_most.as_micros()));
    }

    /// It does what it was started for.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\n{}", line(status)));
    }

    /// It does not hang.
    pub(crate) fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// What it does now, for people.
    pub(crate) fn status(&self, status: &str) {
        self.send(&line(status));
    }

    /// It ends.
    pub(crate) fn stopping(&self, status: &str) {
        self.send(&format!("STOPPING=1\n{}", line(status)));
    }

    fn send(&self, text: &str) {
        if let Some((socket, address)) = &self.socket {
            // A failure here can be reported nowhere: the manager finds that the report is missing.
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }
}

/// A status is one line, whatever is in it.
fn line(status: &str) -> String {
    format!("STATUS={}", status.replace(char::is_control, " "))
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn a_status_cannot_say_anything_else_to_the_manager() {
        assert_eq!(line("waits: no\nREADY=1"), "STATUS=waits: no READY=1");
    }
}
