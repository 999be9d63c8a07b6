//! The command that continues a run: a terminal and the page of the run show the same one.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a run is continued, besides its folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Resume {
    /// The options of `loadline run --resume`, as a shell reads them, each after a space.
    pub options: String,
    /// The folder in which the command was typed: relative paths of the options are relative to it.
    pub current_folder: PathBuf,
}

/// What a person types to continue the run in this folder with these options, each of which is after a space.
pub fn command(run: &Path, options: &str) -> String {
    format!("loadline run --resume {}{options}", quoted(run))
}

/// A path as a shell reads it.
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_printed_so_that_a_shell_reads_it() {
        assert_eq!(quoted(Path::new("runs/a-1")), "runs/a-1");
        assert_eq!(quoted(Path::new("my runs/it's")), "'my runs/it'\\''s'");
        let line = command(Path::new("/my runs/a"), " --baseline slower");
        assert_eq!(line, "loadline run --resume '/my runs/a' --baseline slower");
    }
}
