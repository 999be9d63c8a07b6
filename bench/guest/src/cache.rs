//! The folder in which images and what was found of the host are kept. Machines run what lies there, and may have any file of the host that
//! their keeper may have: so nobody else writes to it.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use crate::error::GuestError;

/// Makes the folder where there is none, and refuses one that others may write to.
pub fn make(folder: &Path) -> Result<(), GuestError> {
    let failed = |e: std::io::Error| {
        GuestError::usage(format!(
            "the folder of virtual machines {} cannot be made: {e}; set XDG_CACHE_HOME to a folder of yours with room",
            folder.display()
        ))
    };
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    let found = fs::symlink_metadata(folder).map_err(failed)?;
    if !found.is_dir() || found.uid() != nix::unistd::geteuid().as_raw() || found.mode() & 0o022 != 0 {
        return Err(GuestError::usage(format!(
            "others may write to the folder of virtual machines {}: remove it, or set XDG_CACHE_HOME to a folder of yours",
            folder.display()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_folder_that_others_may_write_to_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a/b");
        make(&folder).unwrap();
        make(&folder).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(make(&folder).unwrap_err().message.contains("others may write"));
        std::os::unix::fs::symlink("/tmp", root.path().join("link")).unwrap();
        assert!(make(&root.path().join("link")).is_err());
    }
}
