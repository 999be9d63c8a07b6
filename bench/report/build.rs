//! Takes the page that `web/` was built to into this crate.

use std::env;
use std::fs;
use std::path::PathBuf;

fn main() {
    let from = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where this is"))
        .join("../../web/dist/report.html");
    let to = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where to write")).join("report.html");
    println!("cargo::rerun-if-changed={}", from.display());
    if let Err(e) = fs::copy(&from, &to) {
        println!(
            "cargo::error=the web page is not built: {} ({e}). Run ./dev build, or in web/: npm ci && npm run build",
            from.display()
        );
    }
}
