//! The files beside a run that the console starts: `NAME.toml`, the study, and `NAME.log`, what the process says.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use loadline_study::when::When;

/// How many names are tried, if runs of the same second have the first ones.
const NAMES: usize = 100;
/// What is read of the end of a log, bytes.
const TAIL: u64 = 4000;
/// How the program begins a line that says why it ends.
const ERROR: &str = "loadline: ";

/// The paths of one run.
#[derive(Debug, Clone)]
pub(super) struct Files {
    /// The name of the run's folder.
    pub(super) name: String,
    /// The run's folder. The process makes it.
    pub(super) run: PathBuf,
    /// The study file.
    pub(super) study: PathBuf,
    log: PathBuf,
}

impl Files {
    /// Writes the study and begins the log below a name that nothing has in this folder. The folder is made if it is missing.
    ///
    /// # Errors
    /// A sentence that names the file.
    pub(super) fn make(folder: &Path, study: &str, text: &str, by: &str) -> Result<Files, String> {
        let failed = |path: &Path, e: &io::Error| format!("{} cannot be made: {e}", path.display());
        fs::create_dir_all(folder).map_err(|e| failed(folder, &e))?;
        // The id of a run is made of the path that a scan finds.
        let folder = folder.canonicalize().map_err(|e| failed(folder, &e))?;
        let base = format!("{study}-{}", When::now().compact());
        let numbered = (2..=NAMES).map(|n| format!("{base}-{n}"));
        for name in std::iter::once(base.clone()).chain(numbered) {
            let files = Files {
                run: folder.join(&name),
                study: folder.join(format!("{name}.toml")),
                log: folder.join(format!("{name}.log")),
                name,
            };
            if files.run.symlink_metadata().is_ok() {
                continue;
            }
            let mut study = match new_file(&files.study) {
                Ok(study) => study,
                Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(failed(&files.study, &e)),
            };
            let mut log = match new_file(&files.log) {
                Ok(log) => log,
                Err(e) => {
                    let _ = fs::remove_file(&files.study);
                    match e.kind() {
                        ErrorKind::AlreadyExists => continue,
                        _ => return Err(failed(&files.log, &e)),
                    }
                }
            };
            let begun = writeln!(log, "started at the console by {by}");
            let written = study.write_all(text.as_bytes()).and_then(|()| study.sync_all());
            return match written.and(begun) {
                Ok(()) => Ok(files),
                Err(e) => {
                    files.remove();
                    Err(format!("the study cannot be written to {}: {e}", folder.display()))
                }
            };
        }
        Err(format!("{} has {NAMES} runs of the name {base} already", folder.display()))
    }

    /// The log, to be written at its end.
    pub(super) fn log(&self) -> io::Result<File> {
        OpenOptions::new().append(true).open(&self.log)
    }

    /// Whether the run's folder is one.
    pub(super) fn has_begun(&self) -> bool {
        self.run.join("run.json").exists()
    }

    /// Why the process ended: what it said from its last error on, or its last lines; `None` if it said nothing.
    pub(super) fn said(&self) -> Option<String> {
        let mut file = File::open(&self.log).ok()?;
        let from = file.metadata().ok()?.len().saturating_sub(TAIL);
        file.seek(SeekFrom::Start(from)).ok()?;
        let mut bytes = Vec::new();
        file.take(TAIL).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let (_, said) = text.split_once('\n')?;
        let lines: Vec<&str> = said.lines().collect();
        let error = lines.iter().rposition(|line| line.starts_with(ERROR));
        let from = error.unwrap_or(lines.len().saturating_sub(5));
        let said = lines[from..].join("\n");
        let said = said.strip_prefix(ERROR).unwrap_or(&said).trim();
        (!said.is_empty()).then(|| said.to_owned())
    }

    /// Removes the study and the log of a run that did not begin.
    pub(super) fn remove(&self) {
        let _ = fs::remove_file(&self.study);
        let _ = fs::remove_file(&self.log);
        // The folder only if nothing is in it.
        let _ = fs::remove_dir(&self.run);
    }
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}
