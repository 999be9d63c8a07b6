//! Takes the page that `web/` was built to into this crate.

fn main() {
    let page = "../../web/dist/report.html";
    if let Err(e) = loadline_packed::pack(page) {
        println!(
            "cargo::error=the web page is not built: {page} ({e}). Run ./dev build, or in web/: npm ci && npm run build"
        );
    }
}
