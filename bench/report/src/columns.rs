//! Plain text in columns.

/// Columns as wide as their widest cell: the column `text` to the left, numbers to the right.
pub(crate) fn align(rows: &[Vec<String>], text: usize) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(
                |(i, (cell, width))| {
                    if i == text { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                },
            )
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
