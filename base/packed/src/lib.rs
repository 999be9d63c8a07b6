//! Published files that the program carries: the page of a report, JSON Schemas, the description of the API. A build script packs
//! them, so that they take a tenth of their size in the program.
//!
//! Schemas are published files and not made at run time: the code that makes them is ten times as large as what it makes. A test of
//! each keeps it to the types that it describes.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;

/// If it is set, [`is_current`] writes what is out of date.
const UPDATE: &str = "LOADLINE_UPDATE_PUBLISHED";

/// For build scripts: packs a file, named from the package's folder, into the folder of the build's output, under its own name. Cargo
/// runs the script again when the file changes.
///
/// The error is that the file cannot be read, or the packed one not written.
pub fn pack(from: &str) -> io::Result<()> {
    let folder = |name: &str| env::var_os(name).map(PathBuf::from).ok_or(io::ErrorKind::NotFound);
    let from = folder("CARGO_MANIFEST_DIR")?.join(from);
    println!("cargo::rerun-if-changed={}", from.display());
    let name = from.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    pack_file(&from, &folder("OUT_DIR")?.join(name))
}

fn pack_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut packed = ZlibEncoder::new(File::create(to)?, Compression::best());
    packed.write_all(&fs::read(from)?)?;
    packed.finish().map(drop)
}

/// The text of a packed file.
///
/// Panics if `packed` is not what [`pack`] has made of a text: it is part of the program.
pub fn unpack(packed: &[u8]) -> String {
    let mut text = String::new();
    ZlibDecoder::new(packed).read_to_string(&mut text).expect("the build script packed a text");
    text
}

/// For tests: whether a published file, named from the package's folder, is what the code says now. With
/// `LOADLINE_UPDATE_PUBLISHED=1` in the environment a file that is not is written anew.
///
/// The error names the file and says how to write it.
pub fn is_current(package: &str, file: &str, current: &str) -> Result<(), String> {
    let path = Path::new(package).join(file);
    if fs::read_to_string(&path).is_ok_and(|published| published == current) {
        return Ok(());
    }
    if env::var_os(UPDATE).is_some() {
        return fs::write(&path, current).map_err(|e| format!("{}: {e}", path.display()));
    }
    Err(format!("{} is out of date: run {UPDATE}=1 ./dev test published", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked_and_smaller() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let text = "{\"type\": \"object\"}\n".repeat(1_000);
        fs::write(&from, &text).unwrap();
        pack_file(&from, &to).unwrap();
        let packed = fs::read(&to).unwrap();
        assert!(packed.len() < text.len() / 10);
        assert_eq!(unpack(&packed), text);
    }

    #[test]
    fn a_file_that_differs_from_the_code_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let package = folder.path().to_str().unwrap();
        fs::write(folder.path().join("x.json"), "old").unwrap();
        assert_eq!(is_current(package, "x.json", "old"), Ok(()));
        assert!(is_current(package, "x.json", "new").unwrap_err().contains("x.json is out of date"));
    }
}
