//! The `loadline` program for a host, by the host's architecture, and its checksum.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::carried::joined;
use crate::copies::ProgramCopies;
use crate::error::FleetError;
use crate::machine::{cache_folder, first_program};

/// The environment variable that names a folder with programs for other architectures.
pub const PROGRAMS_VARIABLE: &str = "LOADLINE_PROGRAMS";

/// A program, whole in memory: the file may be replaced while it is copied.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) bytes: Vec<u8>,
    /// SHA-256 of the bytes, in hexadecimal digits.
    pub(crate) checksum: String,
}

/// The programs of all architectures that were asked for, each read once.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    /// The program of this machine.
    own: PathBuf,
    /// Where their copies to hosts are reported.
    pub(crate) copies: watch::Sender<ProgramCopies>,
    read: Arc<Mutex<BTreeMap<String, Arc<Program>>>>,
    /// Whether each carries the first program of virtual machines too.
    with_first: bool,
}

impl Programs {
    pub(crate) fn new(own: PathBuf, copies: watch::Sender<ProgramCopies>) -> Programs {
        Programs { own, copies, read: Arc::default(), with_first: false }
    }

    /// For hosts on which virtual machines are started: the programs carry what these begin with.
    pub(crate) fn with_first(self, with_first: bool) -> Programs {
        Programs { with_first, ..self }
    }

    /// The program for an architecture (`uname -m`). The error is of kind `Usage`, and says where the program is looked for.
    pub(crate) fn of(&self, architecture: &str) -> Result<Arc<Program>, FleetError> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = read.get(architecture) {
            return Ok(program.clone());
        }
        let path = self.path(architecture)?;
        let read_file = |path: &Path| {
            fs::read(path).map_err(|e| {
                FleetError::failed(format!("the program {} cannot be read: {e}", path.display()))
            })
        };
        let mut bytes = read_file(&path)?;
        if self.with_first {
            bytes = joined(bytes, &read_file(&first_of(architecture, &path)?)?);
        }
        let checksum = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let program = Arc::new(Program { bytes, checksum });
        read.insert(architecture.into(), program.clone());
        Ok(program)
    }

    /// The folder that a user names comes first, then this program for its own architecture, then the folder that it lies in.
    fn path(&self, architecture: &str) -> Result<PathBuf, FleetError> {
        let name = format!("loadline-{architecture}");
        let is_plain = architecture.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let in_folder = |folder: &PathBuf| Some(folder.join(&name)).filter(|path| is_plain && path.is_file());
        let named = std::env::var_os(PROGRAMS_VARIABLE).map(PathBuf::from);
        if let Some(path) = named.as_ref().and_then(in_folder) {
            return Ok(path);
        }
        if architecture == std::env::consts::ARCH {
            return Ok(self.own.clone());
        }
        let own = fs::canonicalize(&self.own).ok();
        let beside = own.as_deref().and_then(Path::parent).map(Path::to_path_buf);
        beside.as_ref().and_then(in_folder).ok_or_else(|| {
            let listed: Vec<String> =
                named.iter().chain(&beside).map(|folder| folder.display().to_string()).collect();
            FleetError::usage(format!(
                "its architecture is {}, and this program is for {}. Put a program of the same version for {0} into one of \
                 these folders, as {}: {}; or set {PROGRAMS_VARIABLE} to the folder that has it",
                architecture.escape_default(),
                std::env::consts::ARCH,
                name.escape_default(),
                listed.join(", ")
            ))
        })
    }
}

/// The first program of virtual machines for an architecture, of which this is the program: beside it, as `guest-init-ARCHITECTURE`, or
/// that of this machine.
fn first_of(architecture: &str, program: &Path) -> Result<PathBuf, FleetError> {
    let beside = program.with_file_name(format!("guest-init-{architecture}"));
    if architecture != std::env::consts::ARCH {
        return match beside.is_file() {
            true => Ok(beside),
            false => Err(FleetError::usage(format!(
                "its architecture is {}, and the first program of virtual machines for it is not there: put it into {}",
                architecture.escape_default(),
                beside.display()
            ))),
        };
    }
    first_program(&cache_folder()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_this_architecture_is_our_own_and_another_must_lie_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("loadline");
        fs::write(&own, "abc").unwrap();
        let programs = Programs::new(own, watch::Sender::default());
        let program = programs.of(std::env::consts::ARCH).unwrap();
        assert_eq!(program.checksum, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let missing = programs.of("sparc64").unwrap_err().message;
        assert!(missing.contains("loadline-sparc64") && missing.contains(PROGRAMS_VARIABLE), "{missing}");
        fs::write(folder.path().join("loadline-sparc64"), "other").unwrap();
        assert_eq!(programs.of("sparc64").unwrap().bytes, b"other");
        assert!(programs.of("../x").is_err());
    }
}
