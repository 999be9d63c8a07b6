//! Takes the published description of the API into this crate.

fn main() -> std::io::Result<()> {
    loadline_packed::pack("../../docs/reference/api.openapi.json")
}
