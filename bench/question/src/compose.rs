//! The study of each question, as TOML whose comments explain each choice.

mod tables;

use loadline_base::figures::thousands;

use crate::question::Question;
use crate::resolved::Resolved;
use crate::sheet::{Sheet, list, quoted};
use crate::storage::Storage;

/// What is offered of a rate that must be carried: arrivals are random, so that a window of exactly this rate may have fewer.
const OFFERED: f64 = 1.1;

/// The text of the study.
pub(crate) fn study(of: &Resolved) -> String {
    let mut sheet = Sheet::default();
    head(of, &mut sheet);
    goals(of, &mut sheet);
    tables::target(of, &mut sheet);
    tables::fleet(of, &mut sheet);
    tables::phases(of, &mut sheet);
    loads(of, &mut sheet);
    if has_conditions(of) {
        tables::conditions(of, &mut sheet);
    }
    tables::run(of, &mut sheet);
    sheet.into_text()
}

/// The options of `loadline run` that this study needs, in the order in which they are typed.
pub(crate) fn run_options(of: &Resolved) -> Vec<String> {
    let mut options = Vec::new();
    if of.question == Question::Slower {
        options.extend(["--baseline".to_string(), baseline(of)]);
    }
    if runs_commands(of) {
        options.push("--run-commands".into());
    }
    if gives_up_disks(of) {
        options.push("--destroy-data".into());
    }
    options
}

/// The name of the baseline: that of the study, without dots.
fn baseline(of: &Resolved) -> String {
    of.name.as_str().replace('.', "-")
}

/// Whether a node is killed and returns.
fn kills(of: &Resolved) -> bool {
    matches!(of.question, Question::NodeDown | Question::Accept)
}

/// Whether commands of the study cause the faults.
fn runs_commands(of: &Resolved) -> bool {
    kills(of) && matches!(of.storage, Storage::Running { .. })
}

/// Whether data on existing disks are lost.
pub(crate) fn gives_up_disks(of: &Resolved) -> bool {
    let is_real = |disk: &loadline_load::Target| !matches!(disk, loadline_load::Target::Null(_));
    matches!(&of.storage, Storage::Devices { disks, .. } if of.machine.writes && disks.iter().any(is_real))
}

/// Whether the loads are measured in conditions, and not while faults are caused: a person is too slow for the latter.
fn has_conditions(of: &Resolved) -> bool {
    of.question == Question::Accept || (of.question == Question::NodeDown && !of.storage.is_cluster())
}

/// Whether the study searches rates, and so has loads without one.
fn searches_rates(of: &Resolved) -> bool {
    of.question == Question::Accept
        || (of.question == Question::Capacity && matches!(of.storage, Storage::Devices { .. }))
}

/// Machines of all nodes.
fn all_machines(of: &Resolved) -> u32 {
    of.machines.saturating_mul(of.storage.places())
}

/// One of two verbs, as the number of machines of all nodes wants it.
fn verb(of: &Resolved, one: &'static str, more: &'static str) -> &'static str {
    if all_machines(of) == 1 { one } else { more }
}

/// Machines of all nodes, in words.
fn machines(of: &Resolved) -> String {
    match all_machines(of) {
        1 => "1 machine".into(),
        count => format!("{count} machines"),
    }
}

fn head(of: &Resolved, sheet: &mut Sheet) {
    let Resolved { question, machine, effort, name, .. } = of;
    let described = question.described();
    sheet.comment(&format!("{} {}", described.words, described.how));
    sheet.comment(&format!(
        "Made by loadline new {} --effort {}. {}",
        question.value(),
        effort.value,
        effort.described(*question)
    ));
    sheet.comment("");
    let options: String = run_options(of).iter().map(|option| format!(" {option}")).collect();
    sheet.comment(&format!("  loadline run {name}.toml{options}"));
    sheet.gap();
    sheet.key("name", quoted(name.as_str()));
    sheet.key("asks", quoted(&asks(of)));
    sheet.key("description", quoted(&format!("{}: {}", machine.name, machine.what)));
}

/// The question of this study, with its figures.
fn asks(of: &Resolved) -> String {
    let within = of.within.words();
    let name = &of.machine.name;
    match of.question {
        Question::Capacity if searches_rates(of) => {
            format!("How many IOPS of {name} do the disks carry with {within}?")
        }
        Question::Capacity => format!("How many machines ({name}) fit on each node with {within}?"),
        Question::NodeDown => {
            let (verb, machines) = (verb(of, "does", "do"), machines(of));
            format!("What {verb} {machines} ({name}) notice when a node dies and returns?")
        }
        Question::Slower => {
            let (verb, machines) = (verb(of, "Is", "Are"), machines(of));
            format!("{verb} {machines} ({name}) slower than in the pinned run?")
        }
        Question::Accept => {
            format!("Does the cluster carry {} ({name}) with {within}, also with a node down?", machines(of))
        }
    }
}

fn goals(of: &Resolved, sheet: &mut Sheet) {
    match of.question {
        Question::Capacity if searches_rates(of) => {
            sheet.gap();
            let divided = of.machine.rate.map(|rate| {
                format!(
                    " Divide it by {}, the rate of one machine, to get the number of machines.",
                    thousands(rate.into())
                )
            });
            sheet.comment(&format!(
                "The run searches the highest rate at which {}.{}",
                of.within.sentence(),
                divided.unwrap_or_default()
            ));
            sheet.key("load_line", of.within.goal());
        }
        Question::Capacity => {
            sheet.gap();
            sheet.comment(&format!(
                "The run searches the most workers on each node, up to workers_per_node, with which {}{}. Each worker is one \
                 machine.",
                of.within.sentence(),
                match of.machine.rate {
                    Some(_) => " and the rate is carried",
                    None => "",
                }
            ));
            sheet.key("capacity", of.within.goal());
        }
        Question::NodeDown if !has_conditions(of) => faults(of, sheet),
        Question::NodeDown | Question::Slower => {}
        Question::Accept => {
            sheet.gap();
            if let Some(rate) = of.machine.rate {
                sheet.comment(
                    "The cluster is accepted if it carries the machines within the limit in each condition below. Otherwise the run exits \
                     with 99.",
                );
                let needed = rate.saturating_mul(all_machines(of));
                let criterion = format!(
                    "fleet >= {needed} IOPS of {} under {} at {}",
                    of.machine.name,
                    of.within.limit,
                    of.within.percentile.name()
                );
                sheet.key("success", list(&[criterion]));
            }
            sheet.comment("The run searches the most that the healthy cluster carries, to show how far from the limit it is.");
            sheet.key("load_line", of.within.goal());
        }
    }
}

/// A node is killed in the window and returns.
fn faults(of: &Resolved, sheet: &mut Sheet) {
    let [_, kill, back] = of.effort.fault;
    let Some(node) = of.storage.nodes().pop() else { return };
    sheet.gap();
    sheet.comment(
        "In each window the last node is killed, as by a power cut, and starts again later. The report shows how long the load stood still, \
         what was carried meanwhile, and how long the copies took until they were in sync.",
    );
    let node = quoted(&node);
    sheet.key(
        "faults",
        format!(
            "[\n    {{ at = \"{kill}\", do = \"kill\", node = {node} }},\n    {{ at = \"{back}\", do = \"return\", node = {node} }},\n]"
        ),
    );
}

fn loads(of: &Resolved, sheet: &mut Sheet) {
    let machine = &of.machine;
    let rate = machine.rate.filter(|_| !searches_rates(of));
    let named = match (of.question, machine.rate, rate) {
        (Question::Slower, Some(_), _) => {
            "The load at the rate of the machines: its latency is compared. The rate is an assumption: change it, if you know better."
        }
        (_, Some(_), Some(_)) => {
            "One machine. Its rate is an assumption: change it, if you know better. I/Os arrive at random, so a stall is charged to \
             each I/O that waits."
        }
        (Question::Accept, Some(_), None) => {
            "One machine as fast as the storage can do it. [vary] has its rate."
        }
        _ => {
            "One machine as fast as the storage can do it: each completed I/O is followed by the next at once."
        }
    };
    profile(of, &machine.name, rate, named, sheet);
    if of.question == Question::Slower && rate.is_some() {
        let most = format!("{}-most", machine.name);
        profile(
            of,
            &most,
            None,
            "The same load as fast as the storage can do it: its IOPS are compared.",
            sheet,
        );
    }
    if let (Question::Accept, Some(rate)) = (of.question, machine.rate) {
        sheet.table("[vary]");
        sheet.comment(&format!(
            "What each machine must do ({} IOPS) and a tenth more, because arrivals are random.",
            thousands(rate.into())
        ));
        let offered = (f64::from(rate) * OFFERED).round();
        sheet.key("rate", list(&[format!("{offered}iops poisson")]));
    }
}

fn profile(of: &Resolved, name: &str, rate: Option<u32>, comment: &str, sheet: &mut Sheet) {
    sheet.gap();
    sheet.comment(comment);
    sheet.table_here("[[profile]]");
    sheet.key("name", quoted(name));
    for (key, value) in &of.machine.keys {
        sheet.key(key, value);
    }
    if let Some(rate) = rate {
        sheet.key("rate", quoted(&format!("{rate}iops poisson")));
    }
}
