//! A command that does the same to several volumes, one after another.

use std::io::IsTerminal;

use indicatif::ProgressBar;

use crate::cluster::client::Failed;
use crate::output::text::are;

/// Reasons that a message lists.
const MOST_LISTED: usize = 3;

/// Does this to each volume, and shows the progress on a terminal. `done` is what it makes of a volume, such as "deleted".
///
/// A volume for which it fails keeps no other from its turn. If the node or the configuration store does not answer, the rest are not
/// tried. An error has the exit code 1 if something was done, and otherwise that of the first failure.
pub(super) fn each<T>(
    names: &[String],
    done: &str,
    act: impl Fn(&str) -> Result<T, Failed>,
) -> Result<Vec<T>, Failed> {
    let bar =
        (names.len() > 1 && std::io::stderr().is_terminal()).then(|| ProgressBar::new(names.len() as u64));
    let (mut results, mut failures) = (Vec::new(), Vec::new());
    for name in names {
        match act(name) {
            Ok(result) => results.push(result),
            Err(why) => failures.push(why),
        }
        if let Some(bar) = &bar {
            bar.inc(1);
        }
        if failures.last().is_some_and(Failed::is_for_all) {
            break;
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    match failures.is_empty() {
        true => Ok(results),
        false => Err(summary(names.len(), results.len(), failures, done)),
    }
}

/// What was done to how many volumes, and why not to the others.
fn summary(all: usize, done: usize, mut failures: Vec<Failed>, what: &str) -> Failed {
    if all == 1 {
        return failures.remove(0);
    }
    let reasons: Vec<&str> = failures.iter().map(Failed::message).collect();
    let reasons = match reasons.len() {
        0..=MOST_LISTED => reasons.join("; "),
        count => format!("{}; and {} more", reasons[..MOST_LISTED].join("; "), count - MOST_LISTED),
    };
    let untried = match all - done - failures.len() {
        0 => String::new(),
        1 => ", 1 was not tried".into(),
        untried => format!(", {untried} were not tried"),
    };
    let text = format!(
        "of {all} volumes {done} {} {what}, {} {} not{untried}: {reasons}",
        are(done as u64),
        failures.len(),
        are(failures.len() as u64)
    );
    failures.remove(0).among(done > 0, text)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::process::exit::Exit;

    fn names(count: usize) -> Vec<String> {
        (1..=count).map(|number| format!("disk-{number}")).collect()
    }

    #[test]
    fn a_failure_keeps_no_other_volume_from_its_turn_and_few_reasons_are_listed() {
        let refuse = |name: &str| match name.ends_with('5') {
            true => Err(Failed::new(Exit::Usage, format!("volume {name} is attached"), false)),
            false => Ok(()),
        };
        let failed = each(&names(50), "deleted", refuse).expect_err("five are attached");
        assert_eq!(
            failed.message(),
            "of 50 volumes 45 are deleted, 5 are not: volume disk-5 is attached; volume disk-15 is attached; volume disk-25 is \
             attached; and 2 more"
        );
        assert_eq!(failed.exit(), Exit::Failed);
        assert_eq!(each(&names(3), "deleted", |_| Ok(())).ok().map(|all| all.len()), Some(3));
    }

    #[test]
    fn nothing_is_tried_after_a_node_that_does_not_answer() {
        let tried = Cell::new(0);
        let silent = |_: &str| {
            tried.set(tried.get() + 1);
            match tried.get() {
                1 => Ok(()),
                _ => Err(Failed::new(Exit::Failed, "no answer".into(), true)),
            }
        };
        let failed = each(&names(9), "deleted", silent).expect_err("no answer");
        assert_eq!(tried.get(), 2);
        assert_eq!(failed.message(), "of 9 volumes 1 is deleted, 1 is not, 7 were not tried: no answer");
    }

    #[test]
    fn a_volume_that_is_late_keeps_no_other_from_its_turn() {
        let late = |name: &str| match name {
            "disk-1" => Err(Failed::new(Exit::Failed, "volume disk-1 is not served yet".into(), false)),
            _ => Ok(()),
        };
        let failed = each(&names(3), "attached", late).expect_err("one is late");
        assert_eq!(
            failed.message(),
            "of 3 volumes 2 are attached, 1 is not: volume disk-1 is not served yet"
        );
    }

    #[test]
    fn one_volume_keeps_its_own_message_and_exit_code_and_so_do_many_that_all_fail() {
        let refuse =
            |name: &str| Err::<(), _>(Failed::new(Exit::Usage, format!("there is no volume {name}"), false));
        let failed = each(&names(1), "deleted", refuse).expect_err("it is not there");
        assert_eq!((failed.exit(), failed.message()), (Exit::Usage, "there is no volume disk-1"));
        let failed = each(&names(2), "deleted", refuse).expect_err("they are not there");
        assert_eq!(failed.exit(), Exit::Usage);
    }
}
