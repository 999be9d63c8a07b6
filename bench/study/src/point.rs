//! One load of a study, before it is known how often and when it is measured.

use loadline_profile::Profile;

use crate::name::Name;
use crate::volume_limit::{LimitValue, VolumeLimit};

/// One load that is measured, and what it is called.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Different from every other point's label; letters, digits, dots, hyphens and underscores.
    pub label: String,
    /// What the points of one sweep have in common: all but how much is outstanding or offered, and by how many workers.
    pub family: String,
    /// The load on each disk.
    pub profile: Profile,
    /// How many workers put it on, in a circle over the nodes; `None`: all.
    pub workers: Option<u32>,
    /// Percent of each disk that is written before; `None`: what the loads use.
    pub fill_level: Option<f64>,
    /// Percent of the workers whose volumes are owned by another node.
    pub unaligned_percent: u8,
    /// The limit of each volume, if the study varies it.
    pub varied_limit: Option<LimitValue>,
    /// The limit of each volume, whether the study varies it or its policy states it; `None`: no limit.
    pub volume_limit: Option<VolumeLimit>,
    /// The policy on whose disks it is measured, if the study compares policies.
    pub policy: Option<Name>,
    /// The condition in which it is measured, if the study has some.
    pub condition: Option<Name>,
    /// The name of the table that it comes from.
    pub table: Option<Name>,
}

impl Point {
    /// A load by itself.
    pub(crate) fn of(profile: Profile) -> Point {
        let (label, family) = (String::new(), String::new());
        Point {
            label,
            family,
            profile,
            workers: None,
            fill_level: None,
            unaligned_percent: 0,
            varied_limit: None,
            volume_limit: None,
            policy: None,
            condition: None,
            table: None,
        }
    }

    /// Label and family, given the name of its table and whether the name alone is distinct.
    pub(crate) fn named(mut self, name: Option<&Name>, alone: bool) -> Point {
        self.table = name.cloned();
        let (load, family) = (self.profile.label(), self.profile.family());
        (self.label, self.family) = match name {
            Some(name) if alone => (name.to_string(), name.to_string()),
            Some(name) => (format!("{name}-{load}"), format!("{name}-{family}")),
            None => (load, family),
        };
        if let Some(percent) = self.fill_level {
            self.add(&format!("-fill{percent}pct"));
        }
        if self.unaligned_percent > 0 {
            self.add(&format!("-away{}pct", self.unaligned_percent));
        }
        if let Some(limit) = self.varied_limit.and_then(LimitValue::limit) {
            self.add(&format!("-limit{}", limit.label()));
        }
        if let Some(policy) = self.policy.clone() {
            self.add(&format!("-{policy}"));
        }
        if let Some(condition) = self.condition.clone() {
            self.add(&format!("-{condition}"));
        }
        if let Some(workers) = self.workers {
            self.label.push_str(&format!("-w{workers}"));
        }
        self
    }

    fn add(&mut self, suffix: &str) {
        self.label.push_str(suffix);
        self.family.push_str(suffix);
    }
}

/// A load's label without the condition that it ends with.
pub(crate) fn without(label: &str, condition: &Name) -> String {
    label.strip_suffix(&format!("-{condition}")).unwrap_or(label).to_string()
}
