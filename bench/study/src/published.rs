//! Figures that someone has published, as a study states them.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::error::StudyError;
use crate::name::Name;
use crate::point::{Point, without};

/// A published figure of a load: how it changed against the first condition or another load, or how much it was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishedFigure {
    /// The load: the name of a profile of the study, such as `B4-T1-O8-W0-PR`, or of its table.
    pub load: String,
    /// The condition of the study that the figure is of. Not given: any, in a study without conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<Name>,
    /// How much more or less than in the first condition, or than the load `against`: `"-36%"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
    /// The load that the change is against, in the same condition. Not given: the same load in the first condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
    /// I/Os a second of the whole cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub iops: Option<f64>,
    /// Where it was published.
    pub source: String,
}

/// A change in percent, written with its sign: `-36%`, `+24%`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("examples" = ["-36%", "+24%"]))]
pub struct Change(f64);

/// Text that is no change.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("\"{0}\" is no change: write a percentage with its sign, such as -36% or +24%")]
pub struct ChangeError(String);

impl Change {
    /// The ratio to what it was before: 0.64 of -36%.
    pub fn ratio(self) -> f64 {
        1.0 + self.0 / 100.0
    }
}

impl FromStr for Change {
    type Err = ChangeError;

    fn from_str(text: &str) -> Result<Change, ChangeError> {
        let percent = text
            .trim()
            .strip_suffix('%')
            .map(str::trim_end)
            .filter(|percent| percent.starts_with(['+', '-']));
        let percent = percent.and_then(|percent| percent.parse::<f64>().ok());
        let is_possible = |percent: &f64| (-100.0..1e6).contains(percent);
        percent.filter(is_possible).map(Change).ok_or_else(|| ChangeError(text.to_string()))
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:+}%", self.0)
    }
}

impl TryFrom<String> for Change {
    type Error = ChangeError;

    fn try_from(text: String) -> Result<Change, ChangeError> {
        text.parse()
    }
}

impl From<Change> for String {
    fn from(change: Change) -> String {
        change.to_string()
    }
}

impl PublishedFigure {
    /// Whether it is of this load in this condition, given the load's names.
    pub fn is_of<S: AsRef<str>>(&self, names: &[S], condition: Option<&Name>) -> bool {
        is_among(&self.load, names) && self.condition.as_ref() == condition
    }

    /// Whether its change is against this load in this condition, given the load's names.
    pub fn is_against<S: AsRef<str>>(&self, names: &[S], condition: Option<&Name>) -> bool {
        let is_named = self.against.as_ref().is_some_and(|load| is_among(load, names));
        is_named && self.condition.as_ref() == condition
    }
}

fn is_among<S: AsRef<str>>(load: &str, names: &[S]) -> bool {
    names.iter().any(|name| name.as_ref().eq_ignore_ascii_case(load))
}

/// The names by which a published figure may call a load in a condition: its label, that without the condition, and its table's.
pub fn names(label: &str, condition: Option<&Name>, table: Option<&Name>) -> Vec<String> {
    let bare = condition.map(|condition| without(label, condition));
    [Some(label.to_string()), bare, table.map(ToString::to_string)].into_iter().flatten().collect()
}

/// What published figures a study of these loads cannot state. `first` is its first condition.
pub(crate) fn check(
    published: &[PublishedFigure],
    first: Option<&Name>,
    points: &[Point],
) -> Result<(), StudyError> {
    for figure in published {
        let of = figure.condition.as_ref().map(|condition| format!(" in {condition}")).unwrap_or_default();
        let usage = |why: String| Err(StudyError::usage(format!("[[published]] {}{of}: {why}", figure.load)));
        if figure.change.is_some() == figure.iops.is_some() {
            return usage("give either change or iops".into());
        }
        if figure.iops.is_some_and(|iops| !(iops > 0.0 && iops.is_finite())) {
            return usage("iops must be above 0".into());
        }
        if figure.condition.is_none() && first.is_some() {
            return usage("say which condition of the study it is of".into());
        }
        let is_in_first = figure.condition.is_none() || figure.condition.as_ref() == first;
        if figure.change.is_some() && figure.against.is_none() && is_in_first {
            return usage(
                "a change is against the first condition: name one of the others, or the load that it is against".into(),
            );
        }
        if figure.iops.is_some() && figure.against.is_some() {
            return usage("against is of a change, and iops is none".into());
        }
        let all = |point: &Point| names(&point.label, point.condition.as_ref(), point.table.as_ref());
        let is_of = |point: &Point| figure.is_of(&all(point), point.condition.as_ref());
        let is_against = |point: &Point| figure.is_against(&all(point), point.condition.as_ref());
        if let Some(against) =
            figure.against.as_ref().filter(|_| !points.iter().any(|point| is_against(point) && !is_of(point)))
        {
            return usage(format!("against = \"{against}\": the study measures no such load beside it"));
        }
        if !points.iter().any(is_of) {
            return usage(
                "the study measures no such load: name a profile as the study does, and a condition of it"
                    .into(),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::plan::Plan;
    use crate::read::parse;

    use super::*;

    fn refusal(published: &str) -> String {
        let study = format!(
            "name = \"s\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n[[published]]\nsource = \"x\"\n{published}\n[target]\nsan = {{}}\n[fleet]\n\
             nodes = 3\ndisk_size = \"64MiB\"\n[[condition]]\nname = \"healthy\"\n[[condition]]\nname = \"down\"\n\
             do = [{{ do = \"kill\", node = \"node-3\" }}]\n"
        );
        let planned = parse("s.toml", &study).and_then(|study| Plan::of(&study).map(drop));
        planned.err().map(|error| error.message).unwrap_or_default()
    }

    #[test]
    fn a_published_figure_is_of_a_load_and_a_condition_of_the_study() {
        let load = "load = \"b4-t1-o1-w0-pr\"\n";
        assert_eq!(refusal(&format!("{load}condition = \"down\"\nchange = \"-36%\"")), "");
        assert_eq!(refusal(&format!("{load}condition = \"healthy\"\niops = 5727985")), "");
        for (text, part) in [
            (format!("{load}condition = \"down\""), "either change or iops"),
            (format!("{load}condition = \"down\"\nchange = \"-36%\"\niops = 5"), "either change or iops"),
            (format!("{load}iops = 5"), "which condition"),
            (format!("{load}condition = \"healthy\"\nchange = \"-36%\""), "one of the others"),
            (format!("{load}condition = \"up\"\niops = 5"), "no such load"),
            ("load = \"oltp\"\ncondition = \"down\"\niops = 5".into(), "no such load"),
            (format!("{load}condition = \"down\"\niops = 0"), "above 0"),
            (
                format!("{load}condition = \"healthy\"\nagainst = \"oltp\"\nchange = \"-5%\""),
                "no such load beside",
            ),
            (
                format!("{load}condition = \"healthy\"\nagainst = \"B4-T1-O1-W0-PR\"\nchange = \"-5%\""),
                "no such load beside",
            ),
            (format!("{load}condition = \"down\"\nagainst = \"oltp\"\niops = 5"), "against is of a change"),
            (format!("{load}condition = \"down\"\nchange = \"36\""), "with its sign"),
        ] {
            let found = refusal(&text);
            assert!(found.contains(part), "{text}\n{found}");
        }
    }

    #[test]
    fn a_change_may_be_against_another_load() {
        let study = "name = \"s\"\nprofiles = [\"B4-T1-O1-W0-PR\", \"B4-T1-O1-W30-PR\"]\n[[published]]\nsource = \"x\"\n\
             load = \"B4-T1-O1-W30-PR\"\nagainst = \"b4-t1-o1-w0-pr\"\nchange = \"-40%\"\n[target]\nsan = {}\n[fleet]\nnodes = 3\n\
             disk_size = \"64MiB\"\n";
        let study = parse("s.toml", study).unwrap();
        assert!(Plan::of(&study).is_ok(), "{:?}", Plan::of(&study).err());
        let figure = &study.published[0];
        assert!(
            figure.is_against(&["B4-T1-O1-W0-PR"], None) && !figure.is_against(&["B4-T1-O1-W30-PR"], None)
        );
        assert!(
            !figure.is_against(&["B4-T1-O1-W0-PR"], "down".parse().ok().as_ref()),
            "in another condition"
        );
    }

    #[test]
    fn a_change_is_written_as_it_is_read() {
        for text in ["-36%", "+24%", "-0.5%"] {
            assert_eq!(text.parse::<Change>().unwrap().to_string(), text);
        }
        assert_eq!("-36%".parse::<Change>().unwrap().ratio(), 0.64);
        assert!(["36%", "-36", "", "%", "-101%"].iter().all(|text| text.parse::<Change>().is_err()));
    }
}
