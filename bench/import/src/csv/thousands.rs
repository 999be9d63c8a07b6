//! Points that may group thousands.

use csv::StringRecord;
use loadline_measure::audit::{Finding, FindingKind};

use super::columns::Column;
use crate::text::{counted, shown};

/// Looks for columns of figures that may all be thousands, in tables separated by semicolons: where those are usual,
/// a point stands between the thousands.
pub(super) struct Grouped {
    columns: Vec<Watched>,
}

struct Watched {
    index: usize,
    /// Figures so far, all of which have exactly three decimals after one to three digits.
    figures: usize,
    first: String,
}

impl Grouped {
    /// Which columns are watched.
    pub(super) fn of(columns: &[Column], separator: u8) -> Grouped {
        let figure = |column: &Column| {
            matches!(
                column,
                Column::Iops
                    | Column::Throughput { .. }
                    | Column::Latency(..)
                    | Column::RateIops
                    | Column::CeilingIops
                    | Column::CeilingThroughput(_)
            )
        };
        let watched = |(index, _)| Watched { index, figures: 0, first: String::new() };
        let columns = columns.iter().enumerate().filter(|(_, column)| separator == b';' && figure(column));
        Grouped { columns: columns.map(watched).collect() }
    }

    /// Looks at a row.
    pub(super) fn take(&mut self, record: &StringRecord) {
        self.columns.retain_mut(|column| {
            let Some(cell) = record.get(column.index).filter(|cell| !cell.is_empty()) else { return true };
            if column.figures == 0 {
                column.first = shown(cell);
            }
            column.figures += 1;
            may_be_thousands(cell)
        });
    }

    /// What is doubtful.
    pub(super) fn findings(self, names: &StringRecord) -> impl Iterator<Item = Finding> {
        self.columns.into_iter().filter(|column| column.figures > 0).map(|column| {
            let name = shown(names.get(column.index).unwrap_or_default());
            let all = counted(column.figures, "figure", "figures, each");
            Finding::doubt(
                FindingKind::Adjusted,
                format!("a point between units and decimals in the column \"{name}\""),
                format!("{all} with exactly three digits after the point, such as {}", column.first),
                "Where semicolons separate cells, a point often groups thousands: 1.000 may be a thousand. They were \
                 read as decimals. If they are thousands, write them without points.",
            )
        })
    }
}

/// `1.000`; neither `0.430`, nor `1234.500`, which is never grouped.
fn may_be_thousands(cell: &str) -> bool {
    let Some((whole, decimals)) = cell.split_once('.') else { return false };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    (1..=3).contains(&whole.len())
        && digits(whole)
        && !whole.starts_with('0')
        && decimals.len() == 3
        && digits(decimals)
}
