//! The text format of Prometheus, version 0.0.4.

use std::fmt::Write;

use crate::event_loop::counts::{BOUNDS_NS, Count};

/// The page, as far as it is written.
pub(super) struct Page(pub(super) String);

pub(super) type Labels<'l> = [(&'l str, &'l str)];

impl Page {
    /// A metric begins.
    pub(super) fn metric(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    pub(super) fn value(&mut self, name: &str, labels: &Labels, value: f64) {
        self.0.push_str(name);
        self.labels(labels, None);
        let _ = writeln!(self.0, " {value}");
    }

    fn labels(&mut self, labels: &Labels, le: Option<&str>) {
        let more = le.map(|le| ("le", le));
        for (index, (name, value)) in labels.iter().copied().chain(more).enumerate() {
            let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{name}=\"{escaped}\"", if index == 0 { '{' } else { ',' });
        }
        if !labels.is_empty() || le.is_some() {
            self.0.push('}');
        }
    }

    pub(super) fn histogram(&mut self, name: &str, labels: &Labels, count: &Count) {
        let mut below = 0;
        let bounds = BOUNDS_NS.iter().map(|bound| (*bound as f64 / 1e9).to_string());
        for (bound, class) in bounds.chain(["+Inf".into()]).zip(count.classes) {
            below += class;
            self.0.push_str(name);
            self.0.push_str("_bucket");
            self.labels(labels, Some(&bound));
            let _ = writeln!(self.0, " {below}");
        }
        self.value(&format!("{name}_sum"), labels, count.sum_ns as f64 / 1e9);
        self.value(&format!("{name}_count"), labels, count.ios as f64);
    }

    /// Three metrics of I/Os: how many bytes, how many failed, how long they took.
    pub(super) fn ios<'l>(&mut self, what: &str, help: &str, all: &[(Vec<(&'l str, &'l str)>, Count)]) {
        let name = format!("loadline_{what}_bytes_total");
        self.metric(&name, "counter", &format!("Bytes of {help}."));
        all.iter().for_each(|(labels, count)| self.value(&name, labels, count.bytes as f64));
        let name = format!("loadline_{what}_errors_total");
        self.metric(&name, "counter", &format!("Failed {help}."));
        all.iter().for_each(|(labels, count)| self.value(&name, labels, count.errors as f64));
        let name = format!("loadline_{what}_seconds");
        self.metric(&name, "histogram", &format!("Duration of {help}."));
        all.iter().for_each(|(labels, count)| self.histogram(&name, labels, count));
    }
}
