//! Takes the published schema of a study file into this crate.

fn main() -> std::io::Result<()> {
    loadline_packed::pack("../../docs/reference/study.schema.json")
}
