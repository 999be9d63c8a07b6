//! A study that answers make, as the console can start it: what the start needs, and which role.

use std::path::Path;

use loadline_question::draft::PlanFigures;
use loadline_question::{Answers, Draft, Fault, Field, draft};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::access::role::Role;

/// What answers make: a study, or what is wrong with the answers.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct DraftView {
    /// What is wrong with the answers. Empty if there is a study.
    pub faults: Vec<Fault>,
    /// The study; `null` if an answer has a fault.
    pub study: Option<StudyView>,
}

/// A study that the answers make.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct StudyView {
    /// Its name.
    pub name: String,
    /// Its file: TOML with comments.
    pub text: String,
    /// How long it takes and how much space it needs.
    pub plan: PlanFigures,
    /// What the one who starts it must permit.
    pub needs: Vec<Need>,
    /// The least role that may start it.
    pub role: Role,
    /// Why the console cannot start it, whoever asks; `null` if it can.
    pub refused: Option<String>,
}

/// Something that a run does only with a permission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Need {
    /// The permission.
    pub permission: Permission,
    /// What the run will do, in a sentence.
    pub effect: String,
}

/// A permission to do what cannot be undone, or what reaches beyond the run's own files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Permission {
    /// Data on existing disks are lost.
    DestroyData,
    /// Commands on hosts kill a node and start it again.
    RunCommands,
    /// Workers are started on other hosts.
    UseHosts,
}

/// A study to be started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartStudy {
    /// The answers.
    pub answers: Answers,
    /// What is permitted: all that the draft of these answers needs.
    #[serde(default)]
    pub permits: Vec<Permission>,
}

/// The study of these answers. Paths must be absolute: the one who answers does not see the folder of the study file.
///
/// # Errors
/// The answers that cannot be used.
pub(crate) fn drafted(answers: &Answers) -> Result<(Draft, StudyView), Vec<Fault>> {
    let relative = relative(answers);
    let made = match draft(answers) {
        Ok(made) if relative.is_empty() => made,
        made => {
            let others = made.err().unwrap_or_default();
            let is_new = |fault: &Fault| relative.iter().all(|one| one.field != fault.field);
            let mut faults: Vec<Fault> = others.into_iter().filter(is_new).collect();
            faults.extend(relative);
            return Err(faults);
        }
    };
    let needs = needs(&made, answers);
    // An access file is one of the console's own user, who can do more than an operator.
    let role = match needs.is_empty() && answers.given(Field::AccessFile).is_none() {
        true => Role::Operator,
        false => Role::Admin,
    };
    let missing = answers.given(Field::Folder).filter(|_| answers.needs(Field::Folder)).and_then(no_folder);
    let asks_a_person = made.study.target.external.as_ref().is_some_and(|of| of.prompt);
    let options: String = made.run_options.iter().map(|option| format!(" {option}")).collect();
    let refused = asks_a_person.then(|| {
        format!(
            "the run asks a person at a terminal to stop and to start a node. Save the study, and run it at a terminal: loadline run \
             {}.toml{options}",
            made.name
        )
    });
    let refused = refused.or(missing);
    let view = StudyView {
        name: made.name.clone(),
        text: made.text.clone(),
        plan: made.plan.clone(),
        needs,
        role,
        refused,
    };
    Ok((made, view))
}

/// Why the run could not make its files in this folder, if it is none: `loadline run` refuses it too, and only when it is started.
fn no_folder(path: &str) -> Option<String> {
    let why = match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => return None,
        Ok(_) => format!("{path} is no folder on the console's machine"),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            format!("there is no folder {path} on the console's machine")
        }
        Err(e) => format!("the folder {path} of the console's machine cannot be used: {e}"),
    };
    Some(format!("{why}. Make the folder, or name another one"))
}

/// Answers that are paths and do not begin at the root.
fn relative(answers: &Answers) -> Vec<Fault> {
    let fault = |field: Field| {
        let text = answers.given(field).filter(|_| answers.needs(field))?;
        let all: Vec<&str> = match field {
            Field::Devices => text.split(|c: char| c == ',' || c.is_whitespace()).collect(),
            _ => vec![text],
        };
        // nbd://…, rbd:…, vhost-user:… and null:… are no paths.
        let is_address = |part: &str| field == Field::Devices && part.contains(':');
        let is_relative =
            |part: &&str| !(part.is_empty() || Path::new(part).is_absolute() || is_address(part));
        let wrong = all.into_iter().find(is_relative)?;
        let message = format!("{wrong:?} is no path from the root of the console's machine: begin it with /");
        Some(Fault { field, missing: false, message })
    };
    [Field::AccessFile, Field::Folder, Field::Devices].into_iter().filter_map(fault).collect()
}

fn needs(made: &Draft, answers: &Answers) -> Vec<Need> {
    let mut needs = Vec::new();
    if made.destroys_data {
        let disks = answers.given(Field::Devices).unwrap_or("the disks");
        needs.push(Need {
            permission: Permission::DestroyData,
            effect: format!("All data on {disks} are lost: the run writes to them"),
        });
    }
    let hosts: Vec<&str> = made.study.fleet.node.iter().filter_map(|node| node.ssh.as_deref()).collect();
    if !hosts.is_empty() {
        needs.push(Need {
            permission: Permission::UseHosts,
            effect: format!(
                "Workers are started by SSH on {}, with the keys of the console's user",
                hosts.join(", ")
            ),
        });
    }
    if made.run_options.iter().any(|option| option == "--run-commands") {
        needs.push(Need {
            permission: Permission::RunCommands,
            effect: "Commands of the study kill a node on its host, and start it again".into(),
        });
    }
    needs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(given: &[(&str, &str)]) -> Answers {
        let of = |(key, value): &(&str, &str)| ((*key).to_string(), serde_json::json!(value));
        serde_json::from_value(given.iter().map(of).collect::<serde_json::Map<_, _>>().into()).unwrap()
    }

    fn view(given: &[(&str, &str)]) -> StudyView {
        drafted(&answers(given)).unwrap_or_else(|faults| panic!("{given:?}: {faults:?}")).1
    }

    #[test]
    fn what_destroys_data_runs_commands_or_uses_hosts_needs_a_permission_and_the_role_admin() {
        let permissions =
            |view: &StudyView| view.needs.iter().map(|need| need.permission).collect::<Vec<_>>();
        let disks = [("question", "slower"), ("storage", "devices"), ("devices", "/dev/sdb nbd://h/x")];
        let destroys = view(&disks);
        assert_eq!((permissions(&destroys), destroys.role), (vec![Permission::DestroyData], Role::Admin));
        assert!(destroys.needs[0].effect.contains("/dev/sdb nbd://h/x"), "{destroys:?}");
        let reads = view(&[&disks[..], &[("load", "4k-randread")]].concat());
        assert_eq!((permissions(&reads), reads.role), (vec![], Role::Operator));
        let running = [("storage", "running"), ("api", "127.0.0.1:7400"), ("hosts", "a=root@a b=root@b")];
        let kills = view(&[&[("question", "node-down")][..], &running].concat());
        assert_eq!(permissions(&kills), [Permission::UseHosts, Permission::RunCommands]);
        assert_eq!(kills.role, Role::Admin);
        let here =
            [("question", "capacity"), ("storage", "running"), ("hosts", "a"), ("access_file", "/a.pem")];
        let by_access = view(&[&here[..], &[("api", "https://a:1")]].concat());
        assert_eq!((permissions(&by_access), by_access.role), (vec![], Role::Admin));
        assert_eq!(view(&[("question", "accept")]).role, Role::Operator, "its own cluster has own nodes");
    }

    #[test]
    fn a_path_begins_at_the_root() {
        for (field, storage, text) in [
            ("folder", "folder", "data"),
            ("devices", "devices", "/dev/sdb disk.img"),
            ("access_file", "running", "~/a.pem"),
        ] {
            let more = [("api", "https://a:1"), ("hosts", "a")];
            let mut given = vec![("question", "slower"), ("storage", storage), (field, text)];
            given.extend(more.into_iter().filter(|_| storage == "running"));
            let faults = drafted(&answers(&given)).unwrap_err();
            assert_eq!(
                faults.iter().map(|fault| fault.field.key()).collect::<Vec<_>>(),
                [field],
                "{faults:?}"
            );
            assert!(faults[0].message.contains("begin it with /"), "{faults:?}");
        }
        view(&[("question", "slower"), ("storage", "devices"), ("devices", "null:1GiB rbd:p/i")]);
    }

    #[test]
    fn a_folder_that_is_missing_is_said_with_the_plan() {
        let place = tempfile::tempdir().unwrap();
        let of = |path: &Path| {
            view(&[("question", "slower"), ("storage", "folder"), ("folder", path.to_str().unwrap())]).refused
        };
        assert_eq!(of(place.path()), None);
        let none = place.path().join("none");
        let why = of(&none).unwrap();
        assert!(why.contains(none.to_str().unwrap()) && why.contains("Make the folder"), "{why}");
        std::fs::write(&none, "").unwrap();
        assert!(of(&none).unwrap().contains("is no folder"));
    }

    #[test]
    fn a_study_that_asks_a_person_is_not_started_and_the_command_is_named() {
        let given = [("question", "node-down"), ("storage", "folder"), ("folder", "/mnt/x")];
        let refused = view(&given).refused.unwrap();
        assert!(refused.contains("terminal") && refused.contains("loadline run node-down.toml"), "{refused}");
        assert_eq!(view(&[("question", "node-down")]).refused, None);
    }
}
