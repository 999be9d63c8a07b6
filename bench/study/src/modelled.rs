//! What of the storage behaves as a model says and not as itself, and whether the machine keeps up with it.

use std::collections::{BTreeMap, BTreeSet};

use loadline_measure::audit::{Finding, FindingKind};
use loadline_target::{KeepsUp, ModelledDevice};

/// The machine may prolong what a model says by so much.
const MACHINES_PART: f64 = 0.1;

/// The modelled devices, as they were after the step before.
#[derive(Debug, Default)]
pub(crate) struct Modelled {
    before: BTreeMap<u32, KeepsUp>,
    /// The devices, as the cluster named them last.
    known: Option<Vec<ModelledDevice>>,
}

impl Modelled {
    /// What a reader of a step should know of the devices that are modelled, as they are after it; `None` if the cluster does not say.
    ///
    /// `lacks_cpu`: nodes used up the cores that the study gives them, so what they do for their models is late too.
    pub(crate) fn findings(&mut self, devices: Option<Vec<ModelledDevice>>, lacks_cpu: bool) -> Vec<Finding> {
        let silent = |device: &ModelledDevice| ModelledDevice { keeps_up: None, ..device.clone() };
        let last = || self.known.as_ref().map(|known| known.iter().map(silent).collect());
        let Some(devices) = devices.or_else(last) else {
            return vec![Finding::doubt(
                FindingKind::Modelled,
                "a cluster that says whether its devices behave as a model says",
                "no answer",
                "The figures may be those of a model. See the nodes' logs.",
            )];
        };
        let devices = &devices;
        self.known = Some(devices.clone());
        if devices.is_empty() {
            return Vec::new();
        }
        let mut during = KeepsUp::default();
        for device in devices {
            let Some(now) = device.keeps_up else { continue };
            // A device that was opened anew counts from nothing.
            let before =
                self.before.insert(device.id, now).filter(|before| before.modelled_ns <= now.modelled_ns);
            let before = before.unwrap_or_default();
            during.modelled_ns += now.modelled_ns - before.modelled_ns;
            during.late_ns += now.late_ns.saturating_sub(before.late_ns);
        }
        let names: BTreeSet<&str> = devices.iter().map(|device| device.model.as_str()).collect();
        let names = names.into_iter().collect::<Vec<_>>().join(" and ");
        let part = during.late_ns as f64 / during.modelled_ns.max(1) as f64;
        let mut findings = vec![Finding::note(
            FindingKind::Modelled,
            "devices that are themselves",
            match devices.len() {
                1 => format!("1 device that behaves as {names}"),
                count => format!("{count} devices that behave as {names}"),
            },
            // Without what differs from step to step, so that a report says it once.
            "The figures are of such drives in nodes like these, and not of this machine's disks.",
        )];
        let found =
            format!("I/Os that took {:.0} % longer than the model says, since the step before", 100.0 * part);
        if part > MACHINES_PART && lacks_cpu {
            findings.push(Finding::note(
                FindingKind::Modelled,
                format!("nodes that have the CPU to behave as {names}"),
                found,
                "Nodes used up the cores of their cpu_limit, so they are late with what they do for the model too. If the machine was busy, it may \
                 be late itself: repeat the step with a larger cpu_limit to see.",
            ));
        } else if part > MACHINES_PART {
            findings.push(Finding::doubt(
                FindingKind::Modelled,
                format!("a machine that is faster than {names}: it may prolong I/Os by {:.0} %", 100.0 * MACHINES_PART),
                found,
                "The machine cannot keep up with the model: that part of the figures is the machine's. Use a slower model, fewer nodes or \
                 a lower load.",
            ));
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use loadline_measure::audit::Severity;

    use super::*;

    fn device(id: u32, modelled_ns: u64, late_ns: u64) -> ModelledDevice {
        ModelledDevice { id, model: "a drive".into(), keeps_up: Some(KeepsUp { modelled_ns, late_ns }) }
    }

    #[test]
    fn each_step_says_what_is_modelled_and_whether_the_machine_kept_up_in_it() {
        let mut modelled = Modelled::default();
        assert_eq!(modelled.findings(None, false)[0].severity, Severity::Doubt, "nothing is known");
        assert_eq!(modelled.findings(Some(Vec::new()), false), []);
        assert_eq!(modelled.findings(None, false), [], "none was modelled when it answered");
        let first = modelled.findings(Some(vec![device(1, 1000, 20), device(2, 1000, 20)]), false);
        assert!(first[0].found.contains("2 devices that behave as a drive"), "{}", first[0]);
        assert!(first.len() == 1 && first[0].severity == Severity::Note, "2 %");
        // One was opened anew, and the other was late in this step: 300 of 1500.
        let second = modelled.findings(Some(vec![device(1, 500, 100), device(2, 2000, 220)]), false);
        assert!(second.len() == 2 && second[1].severity == Severity::Doubt, "{second:?}");
        assert!(second[1].found.contains("20 % longer"), "{}", second[1]);
        // Nodes that lack CPU are late by the study's wish.
        let lacking = modelled.findings(Some(vec![device(1, 1000, 300), device(2, 2000, 220)]), true);
        assert!(lacking.len() == 2 && lacking[1].severity == Severity::Note, "{lacking:?}");
        assert!(lacking[1].cause.contains("cpu_limit"), "{}", lacking[1]);
        // Of one whose node does not report, the rest is still said.
        let silent = ModelledDevice { keeps_up: None, ..device(1, 0, 0) };
        assert_eq!(modelled.findings(Some(vec![silent]), false).len(), 1);
        assert_eq!(modelled.findings(None, false).len(), 1, "no node answers, and they are modelled still");
    }
}
