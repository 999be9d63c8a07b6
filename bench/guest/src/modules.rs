//! Which modules of a kernel a machine loads, and in which order.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use crate::error::GuestError;
use crate::kernel::Kernel;

/// What a machine cannot be without: PCI, the way to its keeper, disks.
pub(crate) const NEEDED: [&str; 3] = ["virtio_pci", "virtio_console", "virtio_blk"];
/// What a machine with a shell loads too, where the kernel has it: file systems, and other ways to storage.
/// Checksums come first: file systems ask for them without naming them as a dependency.
pub(crate) const USEFUL: [&str; 10] = [
    "crc32c_generic",
    "ext4",
    "xfs",
    "btrfs",
    "virtio_scsi",
    "sd_mod",
    "nbd",
    "iscsi_tcp",
    "dm_multipath",
    "nvme_tcp",
];

/// The modules of a kernel, as `depmod` has written them down.
#[derive(Debug)]
pub(crate) struct Modules {
    folder: PathBuf,
    /// By name: its file below the folder, and the files that it depends on, in the reverse order of loading.
    files: BTreeMap<String, (String, Vec<String>)>,
    builtin: BTreeSet<String>,
}

impl Modules {
    pub(crate) fn read(kernel: &Kernel) -> Result<Modules, GuestError> {
        let read = |name: &str| {
            let path = kernel.modules.join(name);
            fs::read_to_string(&path).map_err(|e| {
                GuestError::usage(format!(
                    "the modules of the kernel {} cannot be read: {}: {e}",
                    kernel.version,
                    path.display()
                ))
            })
        };
        let dependencies = read("modules.dep")?;
        let files = dependencies.lines().filter_map(|line| {
            let (file, needs) = line.split_once(':')?;
            let needs = needs.split_whitespace().map(str::to_string).collect();
            Some((name_of(file), (file.to_string(), needs)))
        });
        let builtin = read("modules.builtin")?.lines().map(name_of).collect();
        Ok(Modules { folder: kernel.modules.clone(), files: files.collect(), builtin })
    }

    /// The files to load, in their order. What is built in is no file. The error names what the kernel lacks of `needed`;
    /// what it lacks of `useful` is left out.
    pub(crate) fn to_load(&self, needed: &[&str], useful: &[&str]) -> Result<Vec<PathBuf>, GuestError> {
        let mut order: Vec<&str> = Vec::new();
        for (name, is_needed) in needed.iter().map(|n| (n, true)).chain(useful.iter().map(|n| (n, false))) {
            let Some((file, needs)) = self.files.get(*name) else {
                if is_needed && !self.builtin.contains(*name) {
                    return Err(GuestError::usage(format!(
                        "the kernel of {} has no {name}, which a virtual machine needs: use another kernel, such as Debian's \
                         linux-image-cloud-amd64",
                        self.folder.display()
                    )));
                }
                continue;
            };
            for file in needs.iter().rev().chain([file]) {
                if !order.contains(&file.as_str()) {
                    order.push(file);
                }
            }
        }
        Ok(order.into_iter().map(|file| self.folder.join(file)).collect())
    }
}

/// `kernel/drivers/block/virtio-blk.ko.xz` is `virtio_blk`.
fn name_of(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split(".ko").next().unwrap_or(name).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules(dependencies: &str, builtin: &str) -> Modules {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("modules.dep"), dependencies).unwrap();
        fs::write(folder.path().join("modules.builtin"), builtin).unwrap();
        let kernel = Kernel { image: "k".into(), modules: folder.path().into(), version: "6".into() };
        Modules { folder: "/m".into(), ..Modules::read(&kernel).unwrap() }
    }

    #[test]
    fn what_a_module_needs_is_loaded_before_it_and_once() {
        let modules = modules(
            "a/virtio.ko:\na/virtio_ring.ko: a/virtio.ko\nb/virtio-blk.ko.xz: a/virtio_ring.ko a/virtio.ko\n\
             c/virtio_pci.ko: a/virtio_ring.ko a/virtio.ko\n",
            "kernel/drivers/char/virtio_console.ko\n",
        );
        let order = modules.to_load(&NEEDED, &["ext4"]).unwrap();
        let names: Vec<_> = order.iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(
            names,
            ["/m/a/virtio.ko", "/m/a/virtio_ring.ko", "/m/c/virtio_pci.ko", "/m/b/virtio-blk.ko.xz"]
        );
    }

    #[test]
    fn a_kernel_without_virtio_is_refused_and_says_what_it_lacks() {
        let error = modules("a/ext4.ko:\n", "kernel/virtio_pci.ko\n").to_load(&NEEDED, &[]).unwrap_err();
        assert!(error.message.contains("no virtio_console"), "{error}");
    }
}
