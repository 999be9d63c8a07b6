//! What distinguishes rows of one load that their points do not keep.

use std::collections::{HashMap, HashSet};

use csv::StringRecord;
use loadline_base::figures::listed;
use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::point::{LatencyOf, Point};

use super::columns::{Apart, Column};
use crate::families::of_names;
use crate::text::shown;

/// Between the cells of a row.
const BETWEEN: char = '\x1f';
/// At most this many columns in which rows differ are compared one by one, and the others as one.
const MOST_COLUMNS: usize = 16;
/// So many columns are named in the finding.
const MOST_NAMED: usize = 4;

/// The cells of columns that distinguish rows.
pub(super) struct Cells {
    /// Which columns, those first that count always.
    columns: Vec<(Apart, usize, String)>,
    /// Each row's cells, in the order of the columns.
    rows: Vec<String>,
    /// Whether rows differ in a column.
    varies: Vec<bool>,
}

/// Rows of one load, each with its number in the table and its cells in the columns that vary.
type Rows<'a> = Vec<(usize, Vec<&'a str>)>;

impl Cells {
    /// Which columns are kept.
    pub(super) fn of(columns: &[Column], names: &StringRecord) -> Cells {
        let known = |(index, column): (usize, &Column)| {
            Some((column.apart()?, index, shown(names.get(index).unwrap_or_default())))
        };
        let mut columns: Vec<_> = columns.iter().enumerate().filter_map(known).collect();
        columns.sort_by_key(|(apart, ..)| *apart);
        let varies = vec![false; columns.len()];
        Cells { columns, rows: Vec::new(), varies }
    }

    /// Keeps a row's cells.
    pub(super) fn take(&mut self, record: &StringRecord) {
        let mut row = String::new();
        for (_, index, _) in &self.columns {
            row.extend(record.get(*index).unwrap_or_default().chars().filter(|c| *c != BETWEEN));
            row.push(BETWEEN);
        }
        if let Some(first) = self.rows.first().filter(|first| **first != row) {
            let cells = first.split(BETWEEN).zip(row.split(BETWEEN));
            for (varies, (first, cell)) in self.varies.iter_mut().zip(cells) {
                *varies |= first != cell;
            }
        }
        self.rows.push(row);
    }

    /// Gives points a family where other rows of the same load are not of the same thing.
    pub(super) fn tell_apart(&self, points: &mut [Point]) -> Option<Finding> {
        let varying: Vec<usize> =
            (0..self.columns.len()).filter(|at| self.varies.get(*at) == Some(&true)).collect();
        let (single, others) = varying.split_at(varying.len().min(MOST_COLUMNS));
        let mut columns: Vec<(Apart, &str)> = Vec::new();
        for at in single {
            columns.extend(self.columns.get(*at).map(|(apart, _, name)| (*apart, name.as_str())));
        }
        if !others.is_empty() {
            columns.push((Apart::Unknown, "other columns"));
        }
        let bases = of_names(points);
        let mut loads: HashMap<&str, Rows> = HashMap::new();
        for (row, (point, cells)) in points.iter().zip(&self.rows).enumerate() {
            let base = bases.get(row).and_then(Option::as_deref).unwrap_or(&point.profile);
            let cells = picked(cells, single, others.first().copied());
            loads.entry(base).or_default().push((row, cells));
        }
        let mut unknown = HashSet::new();
        let mut families: Vec<(usize, String)> = Vec::new();
        for (base, rows) in loads.iter().filter(|(_, rows)| rows.len() > 1) {
            let mut load = Load { points, rows, labels: vec![Vec::new(); rows.len()] };
            load.always(&columns);
            unknown.extend(load.alike(&columns));
            for ((row, _), labels) in rows.iter().zip(load.labels).filter(|(_, labels)| !labels.is_empty()) {
                let base = Some(base.to_string()).filter(|base| !base.is_empty());
                families.push((*row, base.into_iter().chain(labels).collect::<Vec<_>>().join(", ")));
            }
        }
        for (row, family) in families {
            if let Some(point) = points.get_mut(row) {
                point.family = Some(family);
            }
        }
        let mut unknown: Vec<String> = unknown.into_iter().map(|name| format!("\"{name}\"")).collect();
        unknown.sort_unstable();
        (!unknown.is_empty()).then(|| {
            Finding::note(
                FindingKind::Adjusted,
                "rows of one load to differ in columns that are known, or in a column `repeat`",
                format!("rows that are alike but for {}", listed(&unknown, MOST_NAMED)),
                "Each value there is taken for a load of its own. If it is a result and the rows are repeats, number \
                 them in a column `repeat`.",
            )
        })
    }
}

/// The cells of a row in some columns, and all from another column on as one.
fn picked<'a>(row: &'a str, single: &[usize], others: Option<usize>) -> Vec<&'a str> {
    let mut picked = Vec::new();
    let (Some(last), mut wanted) = (others.or(single.last().copied()), single.iter().peekable()) else {
        return picked;
    };
    let mut rest = row;
    for at in 0..=last {
        if Some(at) == others {
            picked.push(rest);
            break;
        }
        let (cell, after) = rest.split_once(BETWEEN).unwrap_or((rest, ""));
        if wanted.next_if(|next| **next == at).is_some() {
            picked.push(cell);
        }
        rest = after;
    }
    picked
}

/// The rows of one load.
struct Load<'a> {
    points: &'a [Point],
    rows: &'a Rows<'a>,
    /// What distinguishes each.
    labels: Vec<Vec<String>>,
}

impl Load<'_> {
    /// Labels rows by a property if they differ in it.
    fn label<K: std::hash::Hash + Eq>(&mut self, of: impl Fn(&Point) -> K, name: impl Fn(&Point) -> String) {
        let points: Vec<&Point> = self.rows.iter().filter_map(|(row, _)| self.points.get(*row)).collect();
        let differ = points.windows(2).any(|pair| matches!(pair, [a, b] if of(a) != of(b)));
        if differ {
            self.labels.iter_mut().zip(points).for_each(|(labels, point)| labels.push(name(point)));
        }
    }

    /// What makes rows different loads in any case.
    fn always(&mut self, columns: &[(Apart, &str)]) {
        let bits = |value: Option<f64>| value.map(f64::to_bits);
        self.label(
            |point| bits(point.block_bytes),
            |point| match point.block_bytes {
                Some(bytes) => format!("{} KiB", bytes / 1024.0),
                None => "block size not stated".into(),
            },
        );
        self.label(
            |point| bits(point.write_percent),
            |point| match point.write_percent {
                Some(percent) => format!("{percent} % writes"),
                None => "share of writes not stated".into(),
            },
        );
        self.label(
            |point| point.latency_of as u8,
            |point| match point.latency_of {
                LatencyOf::All => "latencies of all".into(),
                LatencyOf::Read => "latencies of reads".into(),
                LatencyOf::Write => "latencies of writes".into(),
            },
        );
        for (at, (_, name)) in columns.iter().enumerate().filter(|(_, (apart, _))| *apart == Apart::Always) {
            if self.differ(at, 0..self.rows.len()) {
                self.cells(at, name);
            }
        }
    }

    /// What makes rows different that else are in the same place of the same load. Returns the columns of which
    /// it is not known what they state.
    fn alike(&mut self, columns: &[(Apart, &str)]) -> Vec<String> {
        let bits = |value: Option<f64>| value.map(f64::to_bits);
        let mut places: HashMap<_, Vec<usize>> = HashMap::new();
        for (at, ((row, _), labels)) in self.rows.iter().zip(&self.labels).enumerate() {
            let Some(point) = self.points.get(*row) else { continue };
            let place = (point.workers, bits(point.outstanding), bits(point.rate_iops), point.repeat);
            places.entry((&point.condition, place, labels)).or_default().push(at);
        }
        let mut places: Vec<Vec<usize>> = places.into_values().collect();
        let mut unknown = Vec::new();
        for (at, (apart, name)) in
            columns.iter().enumerate().filter(|(_, (apart, _))| *apart != Apart::Always)
        {
            places.retain(|rows| rows.len() > 1);
            if !places.iter().any(|rows| self.differ(at, rows.iter().copied())) {
                continue;
            }
            self.cells(at, name);
            unknown.extend(Some((*name).to_string()).filter(|_| *apart == Apart::Unknown));
            let split = |rows: Vec<usize>| {
                let mut by_cell: HashMap<&str, Vec<usize>> = HashMap::new();
                rows.into_iter().for_each(|row| by_cell.entry(self.cell(row, at)).or_default().push(row));
                by_cell.into_values()
            };
            places = places.into_iter().flat_map(split).collect();
        }
        unknown
    }

    fn cell(&self, row: usize, column: usize) -> &str {
        self.rows.get(row).and_then(|(_, cells)| cells.get(column)).copied().unwrap_or_default()
    }

    fn differ(&self, column: usize, rows: impl IntoIterator<Item = usize>) -> bool {
        let mut cells = rows.into_iter().map(|row| self.cell(row, column));
        cells.next().is_some_and(|first| cells.any(|cell| cell != first))
    }

    /// Labels all rows by a column.
    fn cells(&mut self, column: usize, name: &str) {
        // What is shown of long or unprintable cells may be the same.
        let (mut named, mut used) = (HashMap::new(), HashSet::new());
        for row in 0..self.rows.len() {
            let cell = self.cell(row, column).to_string();
            if named.contains_key(&cell) {
                continue;
            }
            let mut label = match cell.is_empty() {
                true => format!("{name} not stated"),
                false => format!("{name} {}", shown(&cell.replace(BETWEEN, " "))),
            };
            if !used.insert(label.clone()) {
                label.push_str(&format!(" (value {})", named.len() + 1));
                used.insert(label.clone());
            }
            named.insert(cell, label);
        }
        let labels: Vec<Option<String>> =
            (0..self.rows.len()).map(|row| named.get(self.cell(row, column)).cloned()).collect();
        self.labels.iter_mut().zip(labels).for_each(|(all, label)| all.extend(label));
    }
}
