//! The pages of `docs/reference` that follow from definitions: a test holds `commands.md` to the definitions of the commands, and
//! `study.md` to the schema of a study file. `LOADLINE_UPDATE_PUBLISHED=1 ./dev test published` writes both.

use std::collections::VecDeque;
use std::fmt::Write;

use clap::{Arg, ArgAction, Command, CommandFactory};
use loadline_study::schema;
use serde_json::{Map, Value};

/// The text of a cell of a table: one line, in which nothing ends the cell.
fn cell(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    // Between backticks every other character stands for itself.
    let spans = text.split('`').enumerate();
    spans
        .map(|(at, span)| if at % 2 == 0 { span.replace('<', "&lt;") } else { span.to_owned() })
        .collect::<Vec<_>>()
        .join("`")
}

// ---- commands.md ------------------------------------------------------------------------------------

/// How an option or an argument is written: `--for <TIME>`, `<TARGET>...`.
fn written(argument: &Arg) -> String {
    let mut names: Vec<String> = argument.get_short().map(|short| format!("-{short}")).into_iter().collect();
    names.extend(argument.get_long().map(|long| format!("--{long}")));
    let takes = matches!(argument.get_action(), ArgAction::Set | ArgAction::Append);
    let values: Vec<String> = if takes {
        argument.get_value_names().unwrap_or_default().iter().map(|name| format!("<{name}>")).collect()
    } else {
        Vec::new()
    };
    let mut text = [names.join(", "), values.join(" ")]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    if argument.is_positional() && matches!(argument.get_action(), ArgAction::Append) {
        text.push_str("...");
    }
    text
}

/// What an argument means, with its values, its default and its variable of the environment.
fn meaning(argument: &Arg) -> String {
    let help = argument.get_long_help().or_else(|| argument.get_help()).map(ToString::to_string);
    let mut text = cell(&help.unwrap_or_default());
    if !text.is_empty() && !text.ends_with('.') {
        text.push('.');
    }
    let values = argument.get_possible_values();
    let values: Vec<String> = values
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}`: {}", value.get_name(), cell(&help.to_string())),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    if !values.is_empty() && !matches!(argument.get_action(), ArgAction::SetTrue | ArgAction::SetFalse) {
        let _ = write!(text, " Values: {}.", values.join("; "));
    }
    let defaults: Vec<String> =
        argument.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    if !defaults.is_empty() && !matches!(argument.get_action(), ArgAction::SetTrue | ArgAction::SetFalse) {
        let _ = write!(text, " Default: {}.", defaults.join(" "));
    }
    if let Some(variable) = argument.get_env() {
        let _ = write!(text, " Environment: `{}`.", variable.to_string_lossy());
    }
    if argument.is_required_set() {
        text.push_str(" Required.");
    }
    text.trim().to_owned()
}

/// Adds a command, and all commands below it. `path` is the command with those above it: `loadline volume create`.
fn write_command(path: &str, command: &Command, page: &mut String) {
    let _ = write!(page, "\n## {path}\n\n");
    let about = command.get_long_about().or_else(|| command.get_about()).map(ToString::to_string);
    for paragraph in about.unwrap_or_default().split("\n\n") {
        let mut paragraph = cell(paragraph).replace("\\|", "|");
        if !paragraph.ends_with('.') {
            paragraph.push('.');
        }
        let _ = write!(page, "{paragraph}\n\n");
    }
    let usage = command.clone().render_usage().to_string();
    let _ = write!(page, "```text\n{}\n```\n", usage.trim_start_matches("Usage: ").trim_end());
    let shown = command.get_arguments().filter(|argument| {
        !argument.is_hide_set() && !matches!(argument.get_id().as_str(), "help" | "version")
    });
    let rows: Vec<String> = shown
        .map(|argument| format!("| `{}` | {} |\n", written(argument).replace('|', "\\|"), meaning(argument)))
        .collect();
    if !rows.is_empty() {
        let _ = write!(page, "\n| Argument or option | Meaning |\n| --- | --- |\n{}", rows.concat());
    }
    if let Some(notes) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        let _ = write!(page, "\n```text\n{}\n```\n", notes.to_string().trim());
    }
    for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help")
    {
        write_command(&format!("{path} {}", below.get_name()), below, page);
    }
}

/// The page of all commands.
fn commands() -> String {
    let mut command = crate::Cli::command().disable_help_subcommand(true);
    command.build();
    let mut page = String::from(
        "# Commands\n\n<!-- Made of the definitions of the commands by a test: app/cli/src/reference.rs -->\n\n\
         `loadline COMMAND --help` prints the same, and so does `man loadline-COMMAND` where the Debian package is installed. \
         [Exit codes](exit-codes.md) have a page of their own.\n",
    );
    write_command("loadline", &command, &mut page);
    page
}

// ---- study.md ---------------------------------------------------------------------------------------

/// The name of the definition that a schema refers to, through `$ref`, `allOf`, `anyOf` and the items of a list.
fn referred(schema: &Value) -> Option<&str> {
    if let Some(name) = schema["$ref"].as_str() {
        return name.strip_prefix("#/definitions/");
    }
    ["allOf", "anyOf"]
        .iter()
        .filter_map(|key| schema[key].as_array())
        .flatten()
        .chain(schema.get("items"))
        .find_map(referred)
}

/// The values that a definition lists, each with its description.
fn listed(definition: &Value) -> String {
    let mut text = String::new();
    for one in definition["oneOf"].as_array().into_iter().flatten() {
        let inner = one["properties"].as_object().and_then(|inner| inner.keys().next());
        let value = match (one["const"].as_str(), inner) {
            (Some(value), _) => format!("\"{value}\""),
            (None, Some(key)) => format!("{{ {key} = … }}"),
            (None, None) => continue,
        };
        let about = cell(one["description"].as_str().unwrap_or_default());
        let _ = write!(text, "{} `{value}`: {about}", if text.is_empty() { " Values:" } else { "" });
    }
    text
}

/// Each definition that is a table, by its name, with where it stands in the file: `[target]`, `[[condition]]`. The first place
/// counts for one that stands in several.
fn tables<'s>(schema: &'s Value, definitions: &'s Map<String, Value>) -> Vec<(&'s str, String)> {
    let mut found: Vec<(&str, String)> = Vec::new();
    let mut open = VecDeque::from([(String::new(), schema)]);
    while let Some((above, table)) = open.pop_front() {
        for (key, value) in table["properties"].as_object().into_iter().flatten() {
            let Some((name, definition)) = referred(value).and_then(|name| definitions.get_key_value(name))
            else {
                continue;
            };
            let name = name.as_str();
            if !definition["properties"].is_object() || found.iter().any(|(known, _)| *known == name) {
                continue;
            }
            let path = if above.is_empty() { key.clone() } else { format!("{above}.{key}") };
            let list = value["items"].is_object();
            found.push((name, if list { format!("[[{path}]]") } else { format!("[{path}]") }));
            open.push_back((path, definition));
        }
    }
    found
}

/// The anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    kept.collect::<String>().to_lowercase()
}

/// A table of the keys of an object. A key whose value is a table names that table.
fn keys(object: &Value, definitions: &Map<String, Value>, tables: &[(&str, String)]) -> String {
    let required = object["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let required: Vec<&str> = required.collect();
    let mut rows = String::from("| Key | Meaning |\n| --- | --- |\n");
    for (key, schema) in object["properties"].as_object().into_iter().flatten() {
        let mut text = cell(schema["description"].as_str().unwrap_or_default());
        if let Some(name) = referred(schema) {
            match tables.iter().find(|(known, _)| *known == name) {
                Some((_, heading)) => {
                    let _ = write!(text, " Keys: [`{heading}`](#{}).", anchor(heading));
                }
                None => text.push_str(&definitions.get(name).map(listed).unwrap_or_default()),
            }
        }
        let default = schema.get("default").filter(|default| !default.is_object() && !default.is_null());
        if let Some(default) = default {
            let _ = write!(text, " Default: `{default}`.");
        }
        if required.contains(&key.as_str()) {
            text.push_str(" Required.");
        }
        let _ = writeln!(rows, "| `{key}` | {} |", text.trim());
    }
    rows
}

/// The page of the keys of a study file.
fn study() -> String {
    let schema = schema::study();
    let definitions = schema["definitions"].as_object().cloned().unwrap_or_default();
    let tables = tables(&schema, &definitions);
    let mut page = String::from(
        "# Keys of a study file\n\n<!-- Made of the schema of a study file by a test: app/cli/src/reference.rs -->\n\n\
         [Run a study](../how-to/run-a-study.md) explains how the keys work together. An editor completes the keys from \
         [study.schema.json](study.schema.json).\n\n## At the top\n\n",
    );
    page.push_str(&keys(&schema, &definitions, &tables));
    for (name, heading) in &tables {
        let definition = &definitions[*name];
        let about = cell(definition["description"].as_str().unwrap_or_default()).replace("\\|", "|");
        let _ = write!(page, "\n## `{heading}`\n\n{about}\n\n{}", keys(definition, &definitions, &tables));
    }
    page
}

#[test]
fn the_published_page_of_the_commands_is_current() {
    let page = commands();
    for known in ["## loadline bench\n", "## loadline volume create\n", "| `--destroy-data` |"] {
        assert!(page.contains(known), "{known}: {page}");
    }
    assert_eq!(
        loadline_packed::is_current(env!("CARGO_MANIFEST_DIR"), "../../docs/reference/commands.md", &page),
        Ok(())
    );
}

#[test]
fn the_published_page_of_the_study_file_is_current() {
    let page = study();
    for known in ["## `[target]`\n", "| `profiles` |"] {
        assert!(page.contains(known), "{known}: {page}");
    }
    assert_eq!(
        loadline_packed::is_current(env!("CARGO_MANIFEST_DIR"), "../../docs/reference/study.md", &page),
        Ok(())
    );
}
