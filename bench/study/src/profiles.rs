//! Which loads a study measures: its list of names, its tables, and the matrix over them.

use loadline_base::units::ByteSize;
use loadline_profile::{Data, HotSpot, OfferedRate, Pattern, Profile, WorkingSet};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::StudyError;
use crate::file::Study;
use crate::name::{Name, ProfileName};

/// More points than this are a slip in a matrix, and not a study.
pub const MOST_POINTS: usize = 10_000;

/// A load as a table: begin with the load that `use` names (or a random read of 4 KiB, one thread with 32
/// outstanding), and change what is given.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProfileEntry {
    /// What the report calls it. Not given, it is named after its values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// The load that this one begins with, by its name.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub base: Option<ProfileName>,
    /// Bytes in each I/O: 512 B to 64 MiB, a multiple of 512.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<ByteSize>,
    /// Threads on each disk, 1 to 1024.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// I/Os that each thread keeps outstanding; with a rate it is the most that it lets be outstanding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outstanding: Option<u32>,
    /// Percent of the I/Os that are writes, 0 to 100; the others are reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_percent: Option<u8>,
    /// Where one I/O goes after another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<Pattern>,
    /// Random offsets are multiples of it, and sequential ones advance by it. Not given, it is the block size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alignment: Option<ByteSize>,
    /// How much of each disk is used, such as `10%` or `4GiB`. Not given, all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set: Option<WorkingSet>,
    /// Where on the disk the working set begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_offset: Option<ByteSize>,
    /// Parts of the working set that receive their own share of the I/O, one after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hot_spots: Option<Vec<HotSpot>>,
    /// The rate that each worker offers over all its disks, such as `2000iops` or `100MB/s poisson`. Not given,
    /// each completed I/O is followed by the next at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<OfferedRate>,
    /// What writes write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Data>,
    /// Bypass the page cache (`O_DIRECT`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<bool>,
    /// A write completes only when it is durable (`O_DSYNC`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_through: Option<bool>,
    /// After so many writes a thread makes them durable with `fdatasync`. Not given, never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flush_every: Option<u32>,
}

impl ProfileEntry {
    /// The load that the table describes.
    fn profile(&self) -> Profile {
        let base = self.base.as_ref().map(|name| name.profile().clone()).unwrap_or_default();
        // Every field by name: a new one in a profile must be thought of here.
        Profile {
            block_size: self.block_size.unwrap_or(base.block_size),
            threads: self.threads.unwrap_or(base.threads),
            outstanding: self.outstanding.unwrap_or(base.outstanding),
            write_percent: self.write_percent.unwrap_or(base.write_percent),
            pattern: self.pattern.unwrap_or(base.pattern),
            alignment: self.alignment.or(base.alignment),
            working_set: self.working_set.or(base.working_set),
            base_offset: self.base_offset.unwrap_or(base.base_offset),
            hot_spots: self.hot_spots.clone().unwrap_or(base.hot_spots),
            rate: self.rate.or(base.rate),
            data: self.data.unwrap_or(base.data),
            direct: self.direct.unwrap_or(base.direct),
            write_through: self.write_through.unwrap_or(base.write_through),
            flush_every: self.flush_every.or(base.flush_every),
        }
    }
}

/// Values that each profile is measured with, in every combination. What is not given is not varied.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Matrix {
    /// Bytes in each I/O.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub block_size: Vec<ByteSize>,
    /// Percent of the I/Os that are writes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub write_percent: Vec<u8>,
    /// Where one I/O goes after another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pattern: Vec<Pattern>,
    /// How much of each disk is used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub working_set: Vec<WorkingSet>,
    /// Threads on each disk.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<u32>,
    /// I/Os that each thread keeps outstanding.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outstanding: Vec<u32>,
    /// The rate that each worker offers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rate: Vec<OfferedRate>,
}

impl Matrix {
    /// Whether nothing is varied.
    pub fn is_empty(&self) -> bool {
        *self == Matrix::default()
    }

    /// How many combinations there are. Saturates.
    fn combinations(&self) -> usize {
        [
            self.block_size.len(),
            self.write_percent.len(),
            self.pattern.len(),
            self.working_set.len(),
            self.threads.len(),
            self.outstanding.len(),
            self.rate.len(),
        ]
        .into_iter()
        .fold(1, |all, axis| all.saturating_mul(axis.max(1)))
    }

    /// `base` in every combination; the last axis varies fastest.
    fn over(&self, base: Profile) -> Vec<Profile> {
        let mut points = vec![base];
        vary(&mut points, &self.block_size, |p, v| p.block_size = *v);
        vary(&mut points, &self.write_percent, |p, v| p.write_percent = *v);
        vary(&mut points, &self.pattern, |p, v| p.pattern = *v);
        vary(&mut points, &self.working_set, |p, v| p.working_set = Some(*v));
        vary(&mut points, &self.threads, |p, v| p.threads = *v);
        vary(&mut points, &self.outstanding, |p, v| p.outstanding = *v);
        vary(&mut points, &self.rate, |p, v| p.rate = Some(*v));
        points
    }
}

fn vary<T>(points: &mut Vec<Profile>, values: &[T], set: impl Fn(&mut Profile, &T)) {
    if values.is_empty() {
        return;
    }
    *points = points
        .iter()
        .flat_map(|point| {
            values.iter().map(|value| {
                let mut varied = point.clone();
                set(&mut varied, value);
                varied
            })
        })
        .collect();
}

/// One load that is measured, and what it is called.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Different from every other point's label; letters, digits, dots, hyphens and underscores.
    pub label: String,
    /// The load.
    pub profile: Profile,
}

/// Every load that a study measures, in the order of the file, checked.
pub fn points(study: &Study) -> Result<Vec<Point>, StudyError> {
    let named = study.profiles.iter().map(|name| (None, name.profile().clone()));
    let tables = study.profile.iter().map(|entry| (entry.name.clone(), entry.profile()));
    let mut bases: Vec<(Option<Name>, Profile)> = named.chain(tables).collect();
    if bases.is_empty() {
        if study.matrix.is_empty() {
            return Err(StudyError::usage(
                "the study measures nothing: give it profiles = [\"B4-T1-O8-W0-PR\"], a [[profile]] table or a \
                 [matrix]",
            ));
        }
        bases.push((None, Profile::default()));
    }
    let combinations = study.matrix.combinations();
    let count = bases.len().saturating_mul(combinations);
    if count > MOST_POINTS {
        return Err(StudyError::usage(format!(
            "{} profiles in {combinations} combinations of the matrix are {count} loads, more than the \
             {MOST_POINTS} that one study measures: vary less at once",
            bases.len()
        )));
    }
    let mut points: Vec<Point> = Vec::with_capacity(count);
    for (name, base) in bases {
        for profile in study.matrix.over(base) {
            let label = match &name {
                Some(name) if combinations > 1 => format!("{name}-{}", profile.label()),
                Some(name) => name.to_string(),
                None => profile.label(),
            };
            profile.validate().map_err(|e| StudyError::usage(format!("profile {label}: {e}")))?;
            points.push(Point { label, profile });
        }
    }
    distinct(&points)?;
    Ok(points)
}

/// Two rows of one table that carry the same name could not be told apart.
fn distinct(points: &[Point]) -> Result<(), StudyError> {
    let mut labels: Vec<&str> = points.iter().map(|point| point.label.as_str()).collect();
    labels.sort_unstable();
    match labels.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(StudyError::usage(format!(
            "profile {} is there twice: remove one, or give one of the [[profile]] tables another name (to measure \
             a load several times, set repeats in [run])",
            pair[0]
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::parse;

    fn points_of(text: &str) -> Result<Vec<Point>, StudyError> {
        points(&parse("study.toml", &format!("name = \"s\"\n{text}")).unwrap())
    }

    fn labels(text: &str) -> Vec<String> {
        points_of(text).unwrap().into_iter().map(|point| point.label).collect()
    }

    #[test]
    fn a_simple_list_of_names_is_a_study() {
        let text = r#"profiles = ["B4-T1-O8-W0-PR", "B64-T2-O4-W100-PS"]"#;
        assert_eq!(labels(text), ["B4-T1-O8-W0-PR", "B64-T2-O4-W100-PS"]);
    }

    #[test]
    fn a_table_changes_what_it_names_and_keeps_the_rest() {
        let text = "[[profile]]\nuse = \"B8-T2-O4-W30-PR\"\nworking_set = \"50%\"\nrate = \"500iops\"";
        let point = points_of(text).unwrap().remove(0);
        assert_eq!((point.profile.threads, point.profile.outstanding), (2, 4));
        assert_eq!(point.profile.rate.unwrap().to_string(), "500iops");
        assert!(point.label.starts_with("B8-T2-O4-W30-PR-"), "{}", point.label);
    }

    #[test]
    fn a_matrix_measures_every_combination_once() {
        let text = "[matrix]\nblock_size = [\"4K\", \"64K\"]\nwrite_percent = [0, 100]\noutstanding = [1, 8]";
        assert_eq!(
            labels(text),
            [
                "B4-T1-O1-W0-PR",
                "B4-T1-O8-W0-PR",
                "B4-T1-O1-W100-PR",
                "B4-T1-O8-W100-PR",
                "B64-T1-O1-W0-PR",
                "B64-T1-O8-W0-PR",
                "B64-T1-O1-W100-PR",
                "B64-T1-O8-W100-PR",
            ]
        );
    }

    #[test]
    fn a_named_table_in_a_matrix_keeps_its_name_in_front() {
        let text = "[[profile]]\nname = \"oltp\"\nblock_size = \"8K\"\n[matrix]\nthreads = [1, 2]";
        assert_eq!(labels(text), ["oltp-B8-T1-O32-W0-PR", "oltp-B8-T2-O32-W0-PR"]);
    }

    #[test]
    fn what_cannot_be_measured_is_refused_with_the_profiles_name() {
        for (text, part) in [
            ("", "measures nothing"),
            ("profiles = [\"B4-T1-O8-W0-PR\", \"b4t1o8w0pr\"]", "there twice"),
            ("[matrix]\nblock_size = [1000]", "multiple of 512"),
            ("[[profile]]\nname = \"x\"\nthreads = 0", "profile x"),
            (
                &format!(
                    "[matrix]\nthreads = {0:?}\noutstanding = {0:?}\nwrite_percent = {1:?}",
                    (1..=100).collect::<Vec<u32>>(),
                    [0, 1]
                ),
                "20000 loads",
            ),
        ] {
            let message = points_of(text).unwrap_err().message;
            assert!(message.contains(part), "{message}");
        }
    }
}
