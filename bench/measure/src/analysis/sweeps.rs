//! Which points make a sweep: those in which one thing varies and all else is the same.

use std::collections::BTreeMap;

use loadline_base::figures::thousands;

use super::Axis;
use crate::point::Point;

/// Points of one load in which one thing varies, or nothing does.
pub(super) struct Sweep<'a> {
    /// What is the same in all of them, in words; `None` where the load has no other sweep.
    pub(super) at: Option<String>,
    pub(super) axis: Option<Axis>,
    pub(super) points: Vec<&'a Point>,
    /// Each place on the axis, ascending: the load, and the points there by their place in `points`.
    pub(super) places: Vec<(f64, Vec<usize>)>,
}

/// A number as a key of a map: equal but for its last digits.
fn key(value: f64) -> String {
    format!("{value:.6e}")
}

/// What is outstanding or offered of each worker, where workers are known.
fn depth(point: &Point) -> Option<f64> {
    let all = point.rate_iops.or(point.outstanding)?;
    Some(all / point.workers.map_or(1.0, |workers| f64::from(workers.max(1))))
}

/// The sweeps of one load in one condition, closed loops and rates apart; points that are in none come as a group of
/// their own.
pub(super) fn sweeps<'a>(points: &[&'a Point]) -> Vec<Sweep<'a>> {
    let (paced, closed): (Vec<&Point>, Vec<&Point>) =
        points.iter().copied().partition(|p| p.rate_iops.is_some());
    let mut sweeps: Vec<Sweep<'a>> = Vec::new();
    for points in [closed, paced] {
        let mut taken = vec![false; points.len()];
        // Growth by workers: the same depth of each.
        let mut by_depth: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        let mut by_workers: BTreeMap<Option<u32>, Vec<usize>> = BTreeMap::new();
        for (index, point) in points.iter().enumerate() {
            by_depth.entry(depth(point).map(key).unwrap_or_default()).or_default().push(index);
            by_workers.entry(point.workers).or_default().push(index);
        }
        let growth = by_depth.into_values().map(|of| (Axis::Workers, of));
        let deeper = by_workers.into_values().map(|of| {
            let axis = if points[of[0]].rate_iops.is_some() { Axis::Rate } else { Axis::Outstanding };
            (axis, of)
        });
        for (axis, of) in growth.chain(deeper) {
            // A point that does not say where it is on the axis is in no sweep over it.
            let of: Vec<usize> =
                of.into_iter().filter(|index| load(axis, points[*index]).is_some()).collect();
            let chosen: Vec<&Point> = of.iter().map(|index| points[*index]).collect();
            let Some(places) = places(axis, &chosen) else { continue };
            of.iter().for_each(|index| taken[*index] = true);
            let at = same(axis, chosen[0]);
            sweeps.push(Sweep { at, axis: Some(axis), points: chosen, places });
        }
        // What is left is of no sweep: only points of the same place are repeats of each other.
        let mut left: BTreeMap<(Option<u32>, String), Vec<&Point>> = BTreeMap::new();
        for (point, _) in points.iter().zip(&taken).filter(|(_, taken)| !**taken) {
            let place = (point.workers, depth(point).map(key).unwrap_or_default());
            left.entry(place).or_default().push(point);
        }
        for points in left.into_values() {
            let at = alone(points[0]);
            let places = vec![(0.0, (0..points.len()).collect())];
            sweeps.push(Sweep { at, axis: None, points, places });
        }
    }
    if let [only] = sweeps.as_mut_slice() {
        only.at = None;
    }
    sweeps
}

/// Where a point is on an axis.
fn load(axis: Axis, point: &Point) -> Option<f64> {
    match axis {
        Axis::Workers => point.workers.map(f64::from),
        Axis::Rate => point.rate_iops,
        Axis::Outstanding => point.outstanding,
    }
}

/// The places on an axis; `None` unless there are several.
fn places(axis: Axis, points: &[&Point]) -> Option<Vec<(f64, Vec<usize>)>> {
    let mut places: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (index, point) in points.iter().enumerate() {
        // Loads are not negative, so their bits order as they do.
        places.entry(load(axis, point)?.max(0.0).to_bits()).or_default().push(index);
    }
    (places.len() > 1).then(|| places.into_iter().map(|(bits, of)| (f64::from_bits(bits), of)).collect())
}

/// What is the same in a sweep, in words.
fn same(axis: Axis, point: &Point) -> Option<String> {
    match axis {
        Axis::Workers => {
            let each = thousands(depth(point)?);
            Some(if point.rate_iops.is_some() {
                format!("{each} IOPS each")
            } else {
                format!("{each} outstanding each")
            })
        }
        Axis::Rate => Some(format!("rates{}", by(point))),
        Axis::Outstanding => Some(format!("depths{}", by(point))),
    }
}

/// What distinguishes a point that is in no sweep.
fn alone(point: &Point) -> Option<String> {
    let each = match (point.rate_iops, point.outstanding) {
        (Some(rate), _) => Some(format!("{} IOPS", thousands(rate))),
        (None, Some(outstanding)) => Some(format!("{} outstanding", thousands(outstanding))),
        (None, None) => None,
    };
    let parts: Vec<String> =
        each.into_iter().chain(point.workers.map(|_| by(point).trim_start().to_string())).collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}

fn by(point: &Point) -> String {
    match point.workers {
        Some(1) => " of 1 worker".into(),
        Some(workers) => format!(" of {workers} workers"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(workers: u32, outstanding: Option<f64>, rate_iops: Option<f64>) -> Point {
        Point { workers: Some(workers), outstanding, rate_iops, ..Point::default() }
    }

    fn shown(points: &[Point]) -> Vec<(Option<Axis>, Option<String>, Vec<f64>)> {
        let points: Vec<&Point> = points.iter().collect();
        let shape = |s: Sweep<'_>| (s.axis, s.at, s.places.iter().map(|(load, _)| *load).collect());
        sweeps(&points).into_iter().map(shape).collect()
    }

    #[test]
    fn one_variable_at_a_time_gives_a_sweep_for_each() {
        let points = [
            point(4, Some(32.0), None),
            point(4, Some(4.0), None),
            point(1, Some(8.0), None),
            point(2, Some(16.0), None),
            point(4, Some(32.0), None),
            point(4, None, Some(1_000.0)),
            point(4, None, Some(2_000.0)),
        ];
        assert_eq!(
            shown(&points),
            [
                (Some(Axis::Workers), Some("8 outstanding each".into()), vec![1.0, 2.0, 4.0]),
                (Some(Axis::Outstanding), Some("depths of 4 workers".into()), vec![4.0, 32.0]),
                (Some(Axis::Rate), Some("rates of 4 workers".into()), vec![1_000.0, 2_000.0]),
            ]
        );
    }

    #[test]
    fn a_table_without_depths_grows_by_workers_and_a_single_point_is_no_sweep() {
        let grown = [point(1, None, None), point(2, None, None), point(2, None, None)];
        assert_eq!(shown(&grown), [(Some(Axis::Workers), None, vec![1.0, 2.0])]);
        assert_eq!(shown(&grown[..1]), [(None, None, vec![0.0])]);
        assert_eq!(shown(&grown[1..]), [(None, None, vec![0.0])], "repeats are one place");
        // A blank cell leaves its point out of the series, and the series as it is.
        let blank = Point { workers: None, ..Point::default() };
        let with_blank = [grown[0].clone(), blank, grown[1].clone()];
        assert_eq!(
            shown(&with_blank),
            [(Some(Axis::Workers), None, vec![1.0, 2.0]), (None, None, vec![0.0])]
        );
    }
}
