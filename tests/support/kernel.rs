//! Modules of the kernels that `./dev setup --tests` has unpacked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The modules to load for these, in the order of loading, each once. `folder` has the kernel's `lib/modules`. Panics if there is none.
pub(crate) fn modules(folder: &Path, names: &[&str]) -> Vec<PathBuf> {
    let versions = fs::read_dir(folder.join("lib/modules")).expect("./dev setup --tests makes it");
    let version = versions.flatten().next().expect("it has modules").path();
    let dependencies = fs::read_to_string(version.join("modules.dep")).expect("./dev setup --tests makes it");
    let mut all = Vec::new();
    for name in names {
        for module in with_dependencies(&dependencies, name) {
            let module = version.join(module);
            if !all.contains(&module) {
                all.push(module);
            }
        }
    }
    all
}

/// The modules that this one needs, and it, in the order of loading. What is part of the kernel itself needs no module.
fn with_dependencies<'a>(dependencies: &'a str, name: &str) -> Vec<&'a str> {
    let stem = |path: &str| {
        let file = path.rsplit('/').next().expect("a path has a name");
        file.split(".ko").next().expect("there is a part").replace('-', "_")
    };
    let lines = dependencies.lines().filter_map(|line| line.split_once(':'));
    let Some((path, needed)) = lines.clone().find(|(path, _)| stem(path) == name) else { return Vec::new() };
    needed.split_whitespace().rev().chain([path]).collect()
}

/// A file, as it is without compression.
pub(crate) fn plain(path: &Path) -> Vec<u8> {
    let program = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(path).expect("it is there"),
    };
    Command::new(program).arg("-dc").arg(path).output().expect("it is there").stdout
}
