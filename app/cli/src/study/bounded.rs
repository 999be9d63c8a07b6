//! Reading a result file that a user names: never without a bound, and never from what has no end.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

/// How long a pipe may be silent.
const SILENCE: Duration = Duration::from_secs(60);
/// Bytes that are read at once from a pipe.
const PIECE: usize = 1 << 16;

/// Reads a file, or a pipe to its end, of at most `most` bytes. The error states what is wrong with it, and what to do.
pub(crate) fn read(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let name = path.display();
    let unreadable = |e: io::Error| format!("{name} cannot be read: {e}: give a result file or a run folder");
    let metadata = fs::metadata(path).map_err(unreadable)?;
    let kind = metadata.file_type();
    let what = match () {
        () if kind.is_dir() => Some("a directory"),
        () if kind.is_block_device() => Some("a block device"),
        // A terminal among them.
        () if kind.is_char_device() => Some("a character device, which may have no end"),
        () if kind.is_socket() => Some("a socket"),
        () => None,
    };
    if let Some(what) = what {
        return Err(format!("{name} is {what}: give a result file or a run folder"));
    }
    let too_large = |size: String| {
        format!(
            "{name}: {size} more than the {} MiB ({most} bytes) that are read: give the result alone, without logs, or split it",
            most >> 20
        )
    };
    if metadata.len() > most {
        return Err(too_large(format!("{} bytes are", metadata.len())));
    }
    let bytes = if kind.is_file() {
        let mut bytes = Vec::new();
        // It may grow, and files of /proc state no length.
        File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
        bytes
    } else {
        pipe(path, most).map_err(|e| match e.kind() {
            io::ErrorKind::TimedOut => format!(
                "{name} is a pipe through which nothing came for {} s: give a result file",
                SILENCE.as_secs()
            ),
            _ => unreadable(e),
        })?
    };
    if bytes.len() as u64 > most {
        return Err(too_large("it has".into()));
    }
    Ok(bytes)
}

/// Reads a pipe, to its end or until there is more than `most`. To open it waits for a writer, so that this is done by a
/// thread that ends with the process.
fn pipe(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let (sender, receiver) = sync_channel::<io::Result<Vec<u8>>>(1);
    let path = path.to_path_buf();
    thread::spawn(move || {
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) => return drop(sender.send(Err(error))),
        };
        loop {
            let mut piece = vec![0; PIECE];
            let sent = match file.read(&mut piece) {
                Ok(0) => return,
                Ok(count) => {
                    piece.truncate(count);
                    sender.send(Ok(piece))
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return drop(sender.send(Err(error))),
            };
            if sent.is_err() {
                return;
            }
        }
    });
    let mut bytes = Vec::new();
    while bytes.len() as u64 <= most {
        match receiver.recv_timeout(SILENCE) {
            Ok(piece) => bytes.extend(piece?),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;

    #[test]
    fn a_file_is_read_up_to_the_limit_and_the_message_states_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        fs::write(&path, vec![7; 3 << 20]).unwrap();
        assert_eq!(read(&path, 3 << 20).unwrap().len(), 3 << 20);
        let error = read(&path, (3 << 20) - 1).unwrap_err();
        assert!(error.contains("3145728 bytes are more than the 2 MiB (3145727 bytes)"), "{error}");
    }

    #[test]
    fn what_has_no_end_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        for (path, what) in [
            (Path::new("/dev/zero"), "character device"),
            (Path::new("/dev/null"), "character device"),
            (folder.path(), "a directory"),
            (Path::new("/nowhere/at/all"), "cannot be read"),
        ] {
            let error = read(path, 100).unwrap_err();
            assert!(error.contains(what) && error.contains("give a result file"), "{error}");
        }
    }

    #[test]
    fn a_pipe_is_read_to_its_end_and_no_further_than_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        let writer = |bytes: usize| {
            let path = path.clone();
            // The reader goes when it has had enough.
            thread::spawn(move || drop(fs::write(path, vec![7; bytes])))
        };
        let ended = writer(200_000);
        assert_eq!(read(&path, 1 << 20).unwrap().len(), 200_000);
        ended.join().unwrap();
        writer(8 << 20);
        assert!(read(&path, 1 << 20).unwrap_err().contains("more than the 1 MiB"));
    }
}
