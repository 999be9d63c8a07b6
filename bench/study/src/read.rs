//! A study file's text into a [`Study`], or one message: what, where, and what was probably meant.

use std::ops::Range;
use std::path::Path;

use loadline_profile::plain::{FileWords, explain};
use serde_json::Value;

use crate::error::StudyError;
use crate::file::Study;
use crate::inventory::nodes;
use crate::json_schema;

/// A study is written by people; a file beyond this is something else.
const LONGEST_FILE: u64 = 1 << 20;

/// Reads the study file at `path`. Returns its text too: a run keeps it word for word.
pub fn read(path: &Path) -> Result<(Study, String), StudyError> {
    let fault = |what: String| StudyError::usage(format!("study {}: {what}", path.display()));
    let metadata = std::fs::metadata(path)
        .map_err(|e| fault(format!("cannot be read ({e}); give the path of a study file")))?;
    if !metadata.is_file() {
        return Err(fault("is not a file; give the path of a study file".into()));
    }
    if metadata.len() > LONGEST_FILE {
        return Err(fault(format!(
            "{} bytes are too many for a study; is it the right file?",
            metadata.len()
        )));
    }
    let bytes = std::fs::read(path).map_err(|e| fault(format!("cannot be read ({e})")))?;
    let text = String::from_utf8(bytes).map_err(|e| {
        fault(format!("is not text from byte {} on; save it as UTF-8", e.utf8_error().valid_up_to()))
    })?;
    let mut study = parse(&path.display().to_string(), &text)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    add_hosts(&mut study, folder).map_err(|e| fault(e.message))?;
    locate_token(&mut study, folder).map_err(|e| fault(e.message))?;
    Ok((study, text))
}

/// Adds the hosts of the study's inventory as its nodes, if it names one. `folder` is that of the study file.
fn add_hosts(study: &mut Study, folder: &Path) -> Result<(), StudyError> {
    let fleet = &mut study.fleet;
    let Some(inventory) = &fleet.inventory else { return Ok(()) };
    if !fleet.node.is_empty() || fleet.nodes.is_some() || fleet.join.is_some() {
        return Err(StudyError::usage(
            "[fleet] inventory: its hosts are the nodes, so leave out [[fleet.node]], nodes and join",
        ));
    }
    fleet.node = nodes(&folder.join(inventory), fleet.group.as_deref())?;
    Ok(())
}

/// Makes the path of a token's file whole, since the run may be resumed from another folder.
pub(crate) fn locate_token(study: &mut Study, folder: &Path) -> Result<(), StudyError> {
    let cluster = study.fleet.proxmox.as_mut();
    let Some(file) = cluster.and_then(|cluster| cluster.token_file.as_mut()) else { return Ok(()) };
    *file = std::path::absolute(folder.join(&*file))
        .map_err(|e| StudyError::failed(format!("[fleet.proxmox] token_file {}: {e}", file.display())))?;
    Ok(())
}

/// Reads a study from text; `origin` is what messages call the file.
pub fn parse(origin: &str, text: &str) -> Result<Study, StudyError> {
    let error = match toml::from_str::<Study>(text) {
        Ok(mut study) => {
            let moved = study.fleet.move_to_libvirt();
            return moved.map(|()| study).map_err(|e| StudyError::usage(format!("{origin}: {}", e.message)));
        }
        Err(error) => error,
    };
    let line = error.span().map(|span| line_at(text, span.start).1).unwrap_or_default();
    let message = explain(
        error.message(),
        line,
        &FileWords { keys_of: &keys_of, lists_tables: &lists_tables, section_of: &section_of },
    );
    Err(StudyError::usage(match error.span() {
        Some(span) => {
            let (line, column, shown) = locate(text, &span);
            format!("{origin}:{line}:{column}: {message}\n{shown}")
        }
        None => format!("{origin}: {message}"),
    }))
}

/// Line and column (both from 1) of a span's beginning, and its line with the place underlined.
fn locate(text: &str, span: &Range<usize>) -> (usize, usize, String) {
    let mut start = span.start.min(text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let (line_start, full) = line_at(text, start);
    let line = text[..line_start].matches('\n').count() + 1;
    let column = text[line_start..start].chars().count() + 1;
    let end = span.end.clamp(start, line_start + full.len());
    let marks = text.get(start..end).map_or(1, |marked| marked.chars().count().max(1));
    let gutter = " ".repeat(line.to_string().len());
    let shown =
        format!("{gutter} |\n{line} | {full}\n{gutter} | {}{}", " ".repeat(column - 1), "^".repeat(marks));
    (line, column, shown)
}

/// The published schema of a study file.
fn published() -> Value {
    // A test keeps the file to the types, so that it is one.
    serde_json::from_str(&json_schema::published_study()).unwrap_or_default()
}

/// Whether a key of the study file is a list of tables, such as `faults`.
fn lists_tables(key: &str) -> bool {
    let schema = published();
    let definitions = schema["definitions"].as_object().into_iter().flat_map(|all| all.values());
    let is_table = |items: &Value| {
        let name = items["$ref"].as_str().and_then(|path| path.strip_prefix("#/definitions/"));
        name.is_some_and(|name| schema["definitions"][name]["properties"].is_object())
    };
    definitions.chain([&schema]).any(|object| is_table(&object["properties"][key]["items"]))
}

/// Where the line begins that holds this byte, and the line.
fn line_at(text: &str, byte: usize) -> (usize, &str) {
    let before = &text.as_bytes()[..byte.min(text.len())];
    let start = before.iter().rposition(|c| *c == b'\n').map_or(0, |at| at + 1);
    (start, text[start..].lines().next().unwrap_or_default())
}

/// The keys of the table that a type of the study file describes.
fn keys_of(type_name: &str) -> Vec<String> {
    let schema = published();
    let table = match type_name.split_once("::") {
        // The values of a pattern and the like: `Pattern::Mixed` is { mixed = { ... } }.
        Some(_) => return Vec::new(),
        None => schema.pointer(&format!("/definitions/{type_name}/properties")).and_then(Value::as_object),
    };
    table.map(|keys| keys.keys().cloned().collect()).unwrap_or_default()
}

/// The sections in which a key exists, as they are written: `[run]`, `[[profile]]`, or the top. Those of `[[ceilings.node]]` have names that
/// many keys could have (`size`, `address`): a person who wrote one elsewhere means something else.
fn section_of(key: &str) -> Option<String> {
    let schema = published();
    let has = |object: &Value| object.pointer("/properties").is_some_and(|p| p.get(key).is_some());
    if has(&schema) {
        return Some("the top of the file, before the first [section]".into());
    }
    let sections = [
        ("[run]", "RunSection"),
        ("[phases]", "Phases"),
        ("[fleet]", "FleetSection"),
        ("[[fleet.node]]", "NodeSpec"),
        ("machine = { ... }, in [fleet] or [[fleet.node]]", "Machine"),
        ("[fleet.proxmox]", "Proxmox"),
        ("[target]", "TargetSection"),
        ("[matrix] or [vary]", "Axes"),
        ("[target] san", "SanSection"),
        ("[target.external]", "ExternalSpec"),
        ("[[condition]]", "Condition"),
        ("[[published]]", "PublishedFigure"),
        ("faults = [{ ... }], at the top of the file", "TimedFault"),
        ("[ceilings]", "Ceilings"),
        ("[[policy]]", "PolicySection"),
        ("[phases.steady]", "SteadyGoal"),
        ("load_line = { ... }, at the top of the file", "LoadLineGoal"),
        ("capacity = { ... }, at the top of the file", "CapacityGoal"),
        ("[[profile]]", "ProfileEntry"),
    ];
    let found = sections
        .into_iter()
        .filter(|(_, name)| schema.pointer(&format!("/definitions/{name}")).is_some_and(has));
    let found: Vec<&str> = found.map(|(section, _)| section).collect();
    (!found.is_empty()).then(|| found.join(", or in "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        parse("study.toml", text).unwrap_err().message
    }

    #[test]
    fn a_wrong_key_is_named_with_its_line_and_the_nearest_right_one() {
        let message = message("name = \"s\"\n\n[run]\nrepeat = 3\n");
        assert!(
            message.starts_with("study.toml:4:1: there is no key \"repeat\" here; did you mean \"repeats\"?"),
            "{message}"
        );
        assert!(message.ends_with("  |\n4 | repeat = 3\n  | ^^^^^^"), "{message}");
    }

    #[test]
    fn a_key_in_the_wrong_section_is_sent_to_the_right_one() {
        for (text, section) in [
            ("name = \"s\"\n[phases]\nrepeats = 3", "[run]"),
            ("name = \"s\"\n[run]\nworkers_per_node = 3", "[fleet]"),
            ("name = \"s\"\nwarm_up = \"3s\"", "[phases]"),
            ("name = \"s\"\n[run]\nprofiles = []", "the top of the file"),
        ] {
            let message = message(text);
            assert!(message.contains(&format!("; it belongs in {section}")), "{message}");
        }
    }

    #[test]
    fn a_key_that_several_tables_have_is_sent_to_none_that_is_wrong() {
        for (text, place, says, never) in [
            (
                "[target.san]\nsize = \"3GiB\"",
                "3:1: ",
                "(copies, least, stripes, log, limit, node, access, api, access_file, commands, commands_here, command_limit)",
                "belongs in",
            ),
            (
                "[[fleet.node]]\naddress = \"a\"",
                "3:1: ",
                "(name, ssh, ssh_key, disks, cpus, cpu_limit, memory_limit, machine)",
                "belongs in",
            ),
            (
                "[run]\npercentile = 99",
                "3:1: ",
                "it belongs in load_line = { ... }, at the top of the file, or in capacity",
                "?",
            ),
            (
                "[run]\nthreads = 2",
                "3:1: ",
                "it belongs in [matrix] or [vary], or in [ceilings], or in [[profile]]",
                "?",
            ),
            (
                "[[profile]]\npattern = { mixed = { random = 3 } }",
                "3:23: ",
                "there is no key \"random\" here; did you mean \"random_percent\"? (random_percent)",
                "unexpected",
            ),
        ] {
            let message = message(&format!("name = \"s\"\n{text}\n"));
            let first = message.lines().next().unwrap();
            let is_there = first.starts_with(&format!("study.toml:{place}"));
            assert!(is_there && first.contains(says) && !first.contains(never), "{text:?} gives {first}");
        }
    }

    #[test]
    fn a_wrong_value_is_named_with_its_line() {
        for (text, start, part) in [
            ("name = \"s\"\n[phases]\nmeasure = \"30\"", "study.toml:3:11: ", "a span of time: write"),
            ("name = \"s\"\n[fleet]\ndisk_size = \"64Q\"", "study.toml:3:13: ", "a size: write"),
            ("name = \"s\"\nprofiles = [\"B4-T1\"]", "study.toml:2:12: ", "'O' is missing"),
            ("name = \"s\"\n[run]\nengine = \"iouring\"", "study.toml:3:10: ", "did you mean \"io_uring\"?"),
            ("name = \"s\"\n[run]\nlimits = [\"p98 <= 1s\"]", "study.toml:3:10: ", "there is no figure"),
            ("name = \"s\"\n[fleet]\nnodes = -1", "study.toml:3:9: ", "-1"),
            ("name = \"a/b\"", "study.toml:1:8: ", "is not a name"),
            ("name = \"s\"\nname = \"t\"", "study.toml:2:1: ", "duplicate"),
            ("name = ", "study.toml:1:", ""),
            ("[run]\nrepeats = 1", "study.toml:1:1: ", "the key \"name\" is missing"),
        ] {
            let message = message(text);
            assert!(message.starts_with(start) && message.contains(part), "{text:?} gives {message}");
        }
    }

    #[test]
    fn a_value_of_the_wrong_kind_says_what_to_write_and_nothing_of_rust() {
        for (text, says) in [
            (
                "profiles = \"oltp\"",
                "2:12: the text \"oltp\" stands where a list is needed: write profiles = [\"oltp\"]",
            ),
            ("profiles = [4]", "2:13: 4 stands where a text is needed: write it in quotes, \"4\""),
            ("profile = [\"x\"]", "2:12: the text \"x\" stands where a table is needed (keys: "),
            (
                "[profile]\nthreads = 2",
                "2:1: [profile] is one table, and there may be several: write [[profile]]",
            ),
            (
                "[[profiles]]\nx = 1",
                "2:1: [[profiles]] begins a table, and profiles is a list of texts: write profiles = [\"...\"]",
            ),
            (
                "[[fleet]]\nnodes = 2",
                "2:1: [[fleet]] begins one of several tables, and there is only one: write [fleet]",
            ),
            ("fleet = 3", "2:9: 3 stands where a table is needed (keys: "),
            ("[fleet]\nnodes = \"3\"", "3:9: the text \"3\" stands where a whole number"),
            ("[fleet]\nnodes = 1.5", "3:9: 1.5 stands where a whole number"),
            (
                "[fleet]\nnodes = 5000000000",
                "3:9: 5000000000 stands where a whole number from 0 to 4294967295",
            ),
            (
                "[fleet]\nlisten = \"x\"",
                "3:10: this is no address with a port: write one such as \"0.0.0.0:7400\"",
            ),
            (
                "[fleet]\nworkers = 0",
                "3:1: there is no key \"workers\" here; did you mean \"workers_per_node\"?",
            ),
            (
                "[run]\nseed = -1",
                "3:8: -1 stands where a whole number from 0 on is needed: give such a number",
            ),
            (
                "[[condition]]\nname = \"x\"\ndo = \"kill\"",
                "stands where a list is needed: write do = [{ ... }]",
            ),
            ("[run]\nlimits = \"errors <= 0\"", "write limits = [\"errors <= 0\"]"),
            ("[run]\nverify = \"yes\"", "3:10: the text \"yes\" stands where true or false is needed"),
            ("[phases]\nmeasure = 30", "3:11: 30 stands where a span of time is needed: write 500us"),
            (
                "load_line = { limit = \"3ms\" }",
                "the key \"percentile\" is missing: write percentile = ... in this table",
            ),
            ("[matrix]\nthreads = 4", "3:11: 4 stands where a list is needed: write threads = [4]"),
            ("[matrix]\nworkers = 0", "3:11: write a list of numbers of workers"),
            ("[[profile]]\npattern = \"rand\"", "did you mean \"random\"?"),
            ("[[profile]]\npattern = { mixed = 3 }", "3:21: 3 stands where a table is needed"),
            ("[[profile]]\ndata = \"compressible\"", "3:8: a name alone stands where a table is needed"),
            (
                "[target]\nsan = true",
                "3:7: true stands where a table is needed (keys: access, access_file, api",
            ),
            ("faults = [\"x\"]", "the text \"x\" stands where a table is needed (keys: at, do"),
        ] {
            let message = message(&format!("name = \"s\"\n{text}\n"));
            let first = message.lines().next().unwrap();
            assert!(first.contains(says), "{text:?} gives {first}");
            let rust = ["struct", "u8", "u32", "f64", "sequence", "invalid type", "variant", "map,"];
            assert!(!rust.iter().any(|word| first.contains(word)), "{text:?} gives {first}");
        }
    }

    #[test]
    fn a_line_is_found_behind_letters_of_several_bytes() {
        let message = message("name = \"s\"\ndescription = \"größer → schneller\"\nprofils = []");
        assert!(message.starts_with("study.toml:3:1: "), "{message}");
        let message = self::message("name = \"s\" # größer\nx = \"→\" y");
        assert!(message.starts_with("study.toml:2:"), "{message}");
    }

    #[test]
    fn what_is_no_study_file_at_all_has_its_own_message() {
        let folder = tempfile::tempdir().unwrap();
        for (path, part) in
            [(folder.path().join("none.toml"), "cannot be read"), (folder.path().into(), "not a file")]
        {
            let message = read(&path).unwrap_err().message;
            assert!(message.contains(part), "{message}");
        }
        let binary = folder.path().join("x.toml");
        std::fs::write(&binary, b"name = \"\xff\"").unwrap();
        assert!(read(&binary).unwrap_err().message.contains("not text from byte 8"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics_the_reader(text in "(name|profiles|\\[run\\]|=|\"|\\n|[a-zä→0-9 ]){0,20}") {
            let _ = parse("study.toml", &text);
        }
    }
}
