//! The first file system of a machine: one program and the modules that it loads, in an archive that is kept for the next machine.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use crate::cache;
use crate::cpio::Archive;
use crate::error::GuestError;
use crate::kernel::Kernel;
use crate::modules::{Modules, NEEDED, USEFUL};

/// What is in an image beside its first program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents<'a> {
    /// What a worker needs.
    Worker,
    /// A shell, file systems and other ways to storage: these files of the host, each at its path in the machine, and links.
    Shell {
        /// Path in the machine, without the first slash, and the file of the host.
        files: &'a [(String, PathBuf)],
        /// Path in the machine, and what it leads to.
        links: &'a [(String, String)],
    },
}

/// A kernel and the first file system of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The kernel.
    pub kernel: PathBuf,
    /// The archive.
    pub archive: PathBuf,
    /// Its size, bytes.
    pub bytes: u64,
    /// The part of that which are modules of the kernel, bytes.
    pub module_bytes: u64,
    /// The kernel's version.
    pub version: String,
}

impl Image {
    /// Makes the image of a kernel and a first program, or finds it in the folder `cache`, which is made. The same inputs give the same
    /// bytes. Images of other inputs stay there for thirty days after their last use.
    pub fn build(
        kernel: &Kernel,
        init: &Path,
        contents: Contents<'_>,
        cache: &Path,
    ) -> Result<Image, GuestError> {
        let read = |path: &Path| {
            fs::read(path).map_err(|e| {
                GuestError::usage(format!("{} cannot be read for a virtual machine: {e}", path.display()))
            })
        };
        let mut archive = Archive::default();
        for folder in ["dev", "modules", "proc", "run", "sys", "tmp"] {
            archive.folder(folder);
        }
        archive.file("init", &read(init)?);
        let useful: &[&str] = if contents == Contents::Worker { &[] } else { &USEFUL };
        let mut module_bytes = 0;
        for (number, path) in Modules::read(kernel)?.to_load(&NEEDED, useful)?.iter().enumerate() {
            let module = read(path)?;
            module_bytes += module.len() as u64;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            archive.file(&format!("modules/{number:03}-{name}"), &module);
        }
        if let Contents::Shell { files, links } = contents {
            add_files(&mut archive, files, links, &read)?;
        }
        let bytes = archive.finish();
        let digest = Sha256::digest(&bytes);
        let name: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        let path = cache.join(format!("{}-{name}.cpio", kernel.version));
        cache::make(cache)?;
        // Compared as a whole: what a crash of the host left may have the length alone.
        if fs::read(&path).is_ok_and(|found| found == bytes) {
            touch(&path);
        } else {
            write(&path, &bytes)?;
            remove_old(cache);
        }
        Ok(Image {
            kernel: kernel.image.clone(),
            archive: path,
            bytes: bytes.len() as u64,
            module_bytes,
            version: kernel.version.clone(),
        })
    }
}

fn add_files(
    archive: &mut Archive,
    files: &[(String, PathBuf)],
    links: &[(String, String)],
    read: &dyn Fn(&Path) -> Result<Vec<u8>, GuestError>,
) -> Result<(), GuestError> {
    let paths = files.iter().map(|(path, _)| path).chain(links.iter().map(|(path, _)| path));
    let mut folders: Vec<&str> = Vec::new();
    for path in paths {
        let ends = path.match_indices('/').map(|(end, _)| &path[..end]);
        folders.extend(ends);
    }
    folders.sort_unstable();
    folders.dedup();
    folders.into_iter().for_each(|folder| archive.folder(folder));
    for (path, file) in files {
        archive.file(path, &read(file)?);
    }
    for (path, to) in links {
        archive.link(path, to);
    }
    Ok(())
}

/// Another process or thread may make the same file: the last one puts the same bytes there. If it is killed, a half file stays until it
/// is old.
fn write(path: &Path, bytes: &[u8]) -> Result<(), GuestError> {
    let failed = |e: std::io::Error| {
        GuestError::usage(format!(
            "the image of virtual machines cannot be written to {}: {e}; set XDG_CACHE_HOME to a folder with room",
            path.display()
        ))
    };
    let folder = path.parent().unwrap_or(Path::new("."));
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let half = folder.join(format!("new-{}-{number}.cpio", std::process::id()));
    let written = fs::File::create(&half)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&half, path));
    written.map_err(|e| {
        let _ = fs::remove_file(&half);
        failed(e)
    })
}

/// It was used now.
fn touch(path: &Path) {
    if let Ok(file) = fs::File::open(path) {
        let _ = file.set_modified(std::time::SystemTime::now());
    }
}

fn remove_old(cache: &Path) {
    const OLD: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 3600);
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_image =
            name.ends_with(".cpio") || name.starts_with("guest-init-") || name.starts_with("new-init.");
        let age = entry.metadata().and_then(|found| found.modified()).ok().and_then(|at| at.elapsed().ok());
        if is_image && age.is_some_and(|age| age > OLD) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_inputs_give_the_same_bytes_and_others_another_image() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let modules = at("lib/modules/6.1.0");
        fs::create_dir_all(&modules).unwrap();
        fs::write(modules.join("modules.dep"), "virtio_blk.ko:\n").unwrap();
        fs::write(modules.join("modules.builtin"), "virtio_pci.ko\nvirtio_console.ko\n").unwrap();
        fs::write(modules.join("virtio_blk.ko"), "a module").unwrap();
        fs::write(at("vmlinuz"), "a kernel").unwrap();
        fs::write(at("init"), "a program").unwrap();
        let kernel = Kernel::in_folder(folder.path()).unwrap();
        let build = |cache: &str| Image::build(&kernel, &at("init"), Contents::Worker, &at(cache)).unwrap();
        let (first, again, elsewhere) = (build("cache"), build("cache"), build("other"));
        assert_eq!(first, again);
        assert_eq!(fs::read(&first.archive).unwrap(), fs::read(&elsewhere.archive).unwrap());
        assert_eq!(first.module_bytes, 8);
        fs::write(at("init"), "another").unwrap();
        assert_ne!(build("cache").archive, first.archive);
        // A copy that was cut short is made anew, and what a killed process left is removed in time.
        fs::write(&first.archive, "half").unwrap();
        let [old, new] = ["new-7-0.cpio", "new-8-0.cpio"].map(|name| at("cache").join(name));
        fs::write(&new, "half").unwrap();
        let file = fs::File::create(&old).unwrap();
        file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(31 * 24 * 3600))
            .unwrap();
        fs::write(at("init"), "a program").unwrap();
        assert_eq!(fs::read(build("cache").archive).unwrap(), fs::read(&elsewhere.archive).unwrap());
        assert!(new.exists() && !old.exists());
    }
}
