//! Running a program and taking what it cost.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::resource::{UsageWho, getrusage};
use serde_json::Value;

/// What a finished program printed, as JSON, and the CPU time of its whole process.
pub(crate) struct Finished {
    pub(crate) json: Value,
    pub(crate) cpu_s: f64,
}

/// Runs a program that prints JSON. Exit codes 0 and 3 (findings) count as done.
pub(crate) fn run(program: &Path, arguments: &[String]) -> Result<Finished, String> {
    run_with(program, arguments, &[])
}

/// The same, with variables of its environment.
pub(crate) fn run_with(
    program: &Path,
    arguments: &[String],
    environment: &[(&str, PathBuf)],
) -> Result<Finished, String> {
    let name = program.display();
    let before = children_cpu();
    let output = Command::new(program)
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{name} cannot be run: {e} (./dev setup --tests installs the peers)"))?;
    let cpu_s = children_cpu() - before;
    if !matches!(output.status.code(), Some(0 | 3)) {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name} {} ended with {}: {errors}", arguments.join(" "), output.status));
    }
    // fio may print notes before its JSON.
    let text = String::from_utf8_lossy(&output.stdout);
    let begin = text.find('{').ok_or_else(|| format!("{name} printed no JSON"))?;
    let json =
        serde_json::from_str(&text[begin..]).map_err(|e| format!("{name} printed broken JSON: {e}"))?;
    Ok(Finished { json, cpu_s })
}

/// User and system time of all children that have ended, with their kernel workers, seconds.
fn children_cpu() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("a process can ask for its children's usage");
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

/// A number at a path such as `read/iops`.
pub(crate) fn number(json: &Value, path: &str) -> Result<f64, String> {
    let found = json.pointer(&format!("/{path}")).and_then(Value::as_f64);
    found.ok_or_else(|| format!("there is no number at {path} in the JSON"))
}

/// A file of incompressible data that goes when dropped.
pub(crate) fn random_file(folder: &Path, mib: u64) -> Result<tempfile::NamedTempFile, String> {
    let error = |e: std::io::Error| format!("a file of {mib} MiB in {}: {e}", folder.display());
    let mut file = tempfile::Builder::new().prefix("loadline-compare-").tempfile_in(folder).map_err(error)?;
    let mut random = std::io::Read::take(std::fs::File::open("/dev/urandom").map_err(error)?, mib << 20);
    std::io::copy(&mut random, file.as_file_mut()).map_err(error)?;
    file.as_file_mut().flush().and_then(|()| file.as_file().sync_all()).map_err(error)?;
    Ok(file)
}
