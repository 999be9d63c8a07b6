//! A shell on the machine's console, in place of a worker.

use crate::boot;

/// What the image has as the shell's first program.
const PROGRAM: &str = "/bin/begin";

/// Becomes the first program of a shell's image. When that ends, so does the machine.
pub(crate) fn run() -> Result<(), String> {
    let error = boot::exec(PROGRAM, &[c"begin"]);
    Err(format!("{PROGRAM} cannot be started: {error}"))
}
