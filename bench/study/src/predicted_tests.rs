use loadline_measure::audit::Severity;
use loadline_measure::capacity::{Prediction, Range};

use crate::plan::Plan;
use crate::read::parse;
use crate::when::When;

use super::*;

fn study(more: &str) -> Study {
    let text = format!(
        "name = \"s\"\nprofiles = [\"B4-T2-O4-W0-PR\"]\n{more}\n[target]\nsan = {{ copies = 2, node = {{ model = \"intel-s4500\" }} }}\n\
         [fleet]\nnodes = 3\ndisk_size = \"64MiB\"\n"
    );
    parse("s.toml", &text).unwrap()
}

fn steps(study: &Study) -> Vec<Step> {
    Plan::of(study).unwrap().steps
}

#[test]
fn what_is_asked_of_each_volume_is_what_is_outstanding_offered_and_allowed() {
    let placed =
        PlacedVolume { owner: Some("node-1".into()), stripes: vec![vec!["node-1".into(), "node-2".into()]] };
    let placement = BTreeMap::from([("v".to_string(), placed)]);
    let names = BTreeSet::from(["v".to_string()]);
    let of = |more: &str| {
        let study = study(more);
        let step = steps(&study).pop().unwrap();
        asked((&step, &study, true), &names, &placement).unwrap().remove(0)
    };
    let plain = of("");
    assert_eq!((plain.outstanding, plain.most_iops, plain.owner.as_str()), (8.0, None, "node-1"));
    assert_eq!(of("[matrix]\nrate = [\"500iops\"]").most_iops, Some(500.0));
    let limited = of("[matrix]\nrate = [\"500iops\"]\nvolume_limit = [{ iops = 300 }]").most_iops.unwrap();
    assert!((300.0..303.0).contains(&limited), "a burst in 30 s: {limited}");
    let study = study("[matrix]\nvolume_limit = [{ iops = 300, burst = \"10s\" }]");
    let of_burst = |has_burst| {
        let step = steps(&study).pop().unwrap();
        asked((&step, &study, has_burst), &names, &placement).unwrap().remove(0).most_iops
    };
    assert_eq!((of_burst(false), of_burst(true)), (Some(300.0), Some(400.0)), "10 s to be caught up in 30 s");
    let gone = PlacedVolume { owner: None, stripes: Vec::new() };
    assert_eq!(asked((&steps(&study)[0], &study, true), &names, &BTreeMap::from([("v".into(), gone)])), None);
}

#[test]
fn faults_that_no_model_knows_of_are_not_predicted() {
    let down = "[[condition]]\nname = \"healthy\"\n[[condition]]\nname = \"down\"\ndo = [{ do = \"kill\", node = \"node-3\" }]\n";
    let slow = "[[condition]]\nname = \"slow\"\ndo = [{ do = { slow-device = { by = \"5ms\" } }, node = \"node-1\" }]\n";
    let study = study(&format!("{down}{slow}"));
    let found: Vec<bool> = steps(&study).iter().take(3).map(|step| is_predictable(&study, step)).collect();
    assert_eq!(found, [true, true, false]);
}

#[test]
fn a_figure_outside_of_what_was_predicted_is_a_finding() {
    let mut result = StepResult::empty("run", &steps(&study(""))[0], When::now());
    let at = |result: &mut StepResult, iops: f64| {
        result.figures.total.iops = iops;
        finding(result)
    };
    assert_eq!(at(&mut result, 1.0), None, "nothing was predicted");
    result.prediction = Some(Prediction {
        iops: Range { low: 1_000.0, high: 2_000.0 },
        mean_us: None,
        binds: "the device of node-2".into(),
        low_if: String::new(),
        high_if: String::new(),
    });
    assert_eq!(at(&mut result, 1_500.0), None);
    assert_eq!(at(&mut result, 2_050.0), None, "by the chance of a window");
    let above = at(&mut result, 3_000.0).unwrap();
    assert!(above.severity == Severity::Doubt && above.found.contains("50 % more"), "{above}");
    let below = at(&mut result, 800.0).unwrap();
    assert!(below.severity == Severity::Note && below.found.contains("20 % less"), "{below}");
    assert!(below.expected.contains("limited by the device of node-2"), "{below}");
}
