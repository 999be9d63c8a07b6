//! Takes the published schemas into the program.

fn main() -> std::io::Result<()> {
    for name in [
        "analysis",
        "bench-result",
        "comparison",
        "doctor",
        "gate",
        "kept",
        "report",
        "report-page",
        "run",
        "second",
        "step",
    ] {
        loadline_packed::pack(&format!("../../docs/reference/{name}.schema.json"))?;
    }
    Ok(())
}
