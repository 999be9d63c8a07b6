//! Opens files of a run's folder, which may be of another user: nothing waits for what is no file, and nothing is written through a link.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

/// Opens a regular file to be read. A pipe would wait for its other end: it is an error, as everything else that is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no regular file")),
    }
}

/// Makes an empty file in place of what has this name. A link of this name is replaced, and what it leads to stays as it is.
pub fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    File::create_new(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn a_pipe_is_an_error_at_once_and_a_file_is_opened_also_by_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let [pipe, file, link] = ["pipe", "file", "link"].map(|name| folder.path().join(name));
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        assert!(open(&pipe).unwrap_err().to_string().contains("no regular file"));
        assert!(open(folder.path()).is_err());
        assert_eq!(open(&file).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&file, "x").unwrap();
        symlink(&file, &link).unwrap();
        assert!(open(&link).is_ok());
    }

    #[test]
    fn what_a_link_leads_to_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        fs::write(&file, "mine").unwrap();
        symlink(&file, &link).unwrap();
        create(&link).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
        assert!(fs::symlink_metadata(&link).unwrap().is_file());
    }
}
