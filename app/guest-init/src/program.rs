//! Programs of a shell's image.

use std::process::Command;

/// Where they are: what comes from the host first, then busybox.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// A program of the image, with the environment that programs of a session have.
pub(crate) fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env_clear().env("PATH", PATH).env("HOME", "/root").env("PS1", "machine:\\w# ");
    command
}
