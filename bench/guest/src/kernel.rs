//! Which kernel a machine boots.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::GuestError;

/// The environment variable that names a folder with a kernel: `vmlinuz` and `lib/modules/VERSION`.
pub const KERNEL_VARIABLE: &str = "LOADLINE_GUEST_KERNEL";

/// A kernel and its modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The kernel itself.
    pub image: PathBuf,
    /// The folder of its modules, `lib/modules/VERSION`.
    pub modules: PathBuf,
    /// Its version, as its modules' folder is called.
    pub version: String,
}

impl Kernel {
    /// The kernel for the machines of this host: that of [`KERNEL_VARIABLE`], else Debian's cloud kernel, else the newest one
    /// in `/boot` that can be read and has modules.
    pub fn find() -> Result<Kernel, GuestError> {
        match env::var_os(KERNEL_VARIABLE) {
            Some(folder) => Kernel::in_folder(Path::new(&folder)),
            None => Kernel::of_host(Path::new("/")),
        }
    }

    /// The kernel in a folder that has `vmlinuz` and `lib/modules/VERSION`.
    pub fn in_folder(folder: &Path) -> Result<Kernel, GuestError> {
        let image = folder.join("vmlinuz");
        let modules = folder.join("lib/modules");
        let missing = |what: &Path| {
            GuestError::usage(format!(
                "no kernel for virtual machines in {}: {} is not there; put a kernel there as vmlinuz, with its modules as \
                 lib/modules/VERSION",
                folder.display(),
                what.display()
            ))
        };
        if fs::File::open(&image).is_err() {
            return Err(missing(&image));
        }
        let version =
            versions(&modules).pop().ok_or_else(|| missing(&modules.join("VERSION/modules.dep")))?;
        Ok(Kernel { image, modules: modules.join(&version), version })
    }

    /// The kernel of the host whose root is this folder.
    pub fn of_host(root: &Path) -> Result<Kernel, GuestError> {
        let modules = root.join("lib/modules");
        let mut unreadable = None;
        let mut found = Vec::new();
        for version in versions(&modules) {
            let image = root.join("boot").join(format!("vmlinuz-{version}"));
            match fs::File::open(&image) {
                Ok(_) => found.push(Kernel { image, modules: modules.join(&version), version }),
                Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => unreadable = Some(image),
                Err(_) => {}
            }
        }
        // The list is sorted: the newest of the cloud kernels comes last, and else the newest of all.
        let best = found.iter().rposition(|kernel| kernel.version.contains("cloud"));
        match (best.map(|index| found.swap_remove(index)).or_else(|| found.pop()), unreadable) {
            (Some(kernel), _) => Ok(kernel),
            (None, Some(image)) => Err(GuestError::usage(format!(
                "the kernel {} may not be read: make it readable (chmod a+r), or name another one by {KERNEL_VARIABLE}",
                image.display()
            ))),
            (None, None) => Err(GuestError::usage(format!(
                "no kernel for virtual machines: {} has no vmlinuz-VERSION whose modules are in {}. Install one (apt install \
                 linux-image-cloud-amd64), or name a folder with vmlinuz and lib/modules/VERSION by {KERNEL_VARIABLE}",
                root.join("boot").display(),
                modules.display()
            ))),
        }
    }
}

/// The versions whose modules are in a folder, the newest last.
fn versions(modules: &Path) -> Vec<String> {
    let entries = fs::read_dir(modules).into_iter().flatten().flatten();
    let mut versions: Vec<String> = entries
        .filter(|entry| entry.path().join("modules.dep").is_file())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    versions.sort_by_key(|version| (numbers(version), version.clone()));
    versions
}

/// The numbers in a version, so that 6.10 is newer than 6.9.
fn numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(versions: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("boot")).unwrap();
        for version in versions {
            let modules = root.path().join("lib/modules").join(version);
            fs::create_dir_all(&modules).unwrap();
            fs::write(modules.join("modules.dep"), "").unwrap();
            fs::write(root.path().join(format!("boot/vmlinuz-{version}")), "kernel").unwrap();
        }
        root
    }

    #[test]
    fn a_cloud_kernel_is_taken_before_a_newer_one_and_else_the_newest() {
        let root = host(&["6.9.1-amd64", "6.10.0-amd64", "6.1.0-9-cloud-amd64", "6.1.0-10-cloud-amd64"]);
        assert_eq!(Kernel::of_host(root.path()).unwrap().version, "6.1.0-10-cloud-amd64");
        let root = host(&["6.9.1-amd64", "6.10.0-amd64"]);
        assert_eq!(Kernel::of_host(root.path()).unwrap().version, "6.10.0-amd64");
    }

    #[test]
    fn a_host_without_a_kernel_is_told_how_to_get_one() {
        let root = host(&[]);
        let error = Kernel::of_host(root.path()).unwrap_err().message;
        assert!(error.contains("apt install") && error.contains(KERNEL_VARIABLE), "{error}");
        let error = Kernel::in_folder(root.path()).unwrap_err().message;
        assert!(error.contains("vmlinuz is not there"), "{error}");
        fs::write(root.path().join("vmlinuz"), "kernel").unwrap();
        let error = Kernel::in_folder(root.path()).unwrap_err().message;
        assert!(error.contains("modules.dep is not there"), "{error}");
    }
}
