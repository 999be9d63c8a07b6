//! Takes the console's page that `web/` was built to into this crate, and the published description of its API.

fn main() {
    let page = "../../web/dist/console.html";
    if let Err(e) = loadline_packed::pack(page) {
        println!(
            "cargo::error=the web page is not built: {page} ({e}). Run ./dev build, or in web/: npm ci && npm run build"
        );
    }
    let description = "../../docs/reference/console.openapi.json";
    if let Err(e) = loadline_packed::pack(description) {
        println!("cargo::error={description}: {e}");
    }
}
