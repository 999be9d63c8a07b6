use crate::plan::Plan;
use crate::planned_step::Step;
use crate::read::parse;
use crate::when::When;

use super::*;

fn plan(text: &str) -> Result<Vec<Step>, String> {
    let study = format!(
        "name = \"s\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n{text}\n[fleet]\nnodes = 2\ndisk_size = \"64MiB\"\n"
    );
    let study = parse("s.toml", &study).map_err(|error| error.message)?;
    Plan::of(&study).map(|plan| plan.steps).map_err(|error| error.message)
}

const ONE: &str = "[run]\nrepeats = 1\n[target]\nsan = {}\n";

#[test]
fn limits_are_varied_like_other_values_and_each_load_says_its_own() {
    let steps = plan(&format!(
        "{ONE}[matrix]\nvolume_limit = [\"none\", {{ iops = 500 }}, {{ iops = 500, mbps = 20, burst = \"1s\" }}]"
    ));
    let found: Vec<(String, Option<String>)> = steps
        .unwrap()
        .into_iter()
        .map(|step| (step.label, step.volume_limit.map(|limit| limit.to_string())))
        .collect();
    assert_eq!(
        found,
        [
            ("B4-T1-O1-W0-PR".into(), None),
            ("B4-T1-O1-W0-PR-limit500iops".into(), Some("500 requests a second".into())),
            (
                "B4-T1-O1-W0-PR-limit500iops-20MBps-burst1s".into(),
                Some("500 requests a second and 20 MB/s, with bursts of 1s".into())
            ),
        ]
    );
    let vary = plan(&format!("{ONE}[vary]\nvolume_limit = [{{ iops = 5 }}]")).unwrap();
    assert_eq!(vary.iter().map(|step| step.volume_limit.is_some()).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn policies_may_differ_in_the_limit_and_a_varied_one_takes_its_place() {
    let policies = "[run]\nrepeats = 1\n[[policy]]\nname = \"free\"\nsan = {}\n[[policy]]\nname = \"slow\"\nsan = { limit = { mbps = 3 } }\n";
    let limits = |text: &str| -> Vec<Option<u64>> {
        plan(text).unwrap().iter().map(|step| step.volume_limit.and_then(|limit| limit.mbps)).collect()
    };
    assert_eq!(limits(policies), [None, Some(3)]);
    let varied = format!("{policies}[matrix]\nvolume_limit = [\"none\", {{ mbps = 4 }}]\n");
    assert_eq!(limits(&varied), [None, None, Some(4), Some(4)]);
}

#[test]
fn what_is_no_limit_is_refused_before_the_run() {
    let limit = |limit: &str| format!("{ONE}[matrix]\nvolume_limit = [{limit}]");
    for (text, part) in [
        (limit("{ iops = 0 }"), "a limit of 0"),
        (limit("{ mbps = 0 }"), "a limit of 0"),
        (limit("{ burst = \"1s\" }"), "limits nothing"),
        (limit("{}"), "limits nothing"),
        (limit("{ iops = 5, burst = \"2m\" }"), "at most 1m"),
        (limit("{ iops = 5, burst = \"1500us\" }"), "whole milliseconds"),
        (limit("{ iops = -5 }"), "iops"),
        (limit("{ iop = 5 }"), "did you mean \"iops\"?"),
        (limit("\"nothing\""), "\"none\""),
        (ONE.replace("{}", "{ limit = { iops = 0 } }"), "san: limit: a limit of 0"),
        (ONE.replace("{}", "{ limit = \"none\" }"), "a table is needed"),
        ("[matrix]\nvolume_limit = [{ iops = 5 }]".into(), "in a cluster of the SAN only"),
    ] {
        let found = plan(&text).unwrap_err();
        assert!(found.contains(part), "{text}\n{found}");
    }
}

#[test]
fn a_step_says_its_limit_and_is_doubtful_if_it_was_passed() {
    let step =
        plan(&format!("{ONE}[matrix]\nvolume_limit = [{{ iops = 500, mbps = 1 }}]")).unwrap().remove(0);
    let limit = step.volume_limit.unwrap();
    // 1 MB/s are 244.1 blocks of 4 KiB, and a window of a second begins with a tenth more.
    assert!((limit.most_iops(4096, 1.0) - 268.55).abs() < 0.01, "{}", limit.most_iops(4096, 1.0));
    let mut result = StepResult::empty("run", &step, When::now());
    result.figures.window_s = 1.0;
    result.figures.total.iops = 530.0;
    let found = findings(&result, 2);
    assert!(
        found.len() == 1 && found[0].found.contains("limited to 500 requests a second and 1 MB/s"),
        "{found:?}"
    );
    result.figures.total.iops = 570.0;
    assert!(findings(&result, 2)[1].expected.contains("at most 537 I/Os"), "{:?}", findings(&result, 2));
    result.step.volume_limit = None;
    assert_eq!(findings(&result, 2), []);
}
