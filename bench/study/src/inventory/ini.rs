//! The INI form of an inventory.

use super::range::expand;
use super::{Inventory, Variables};

/// What a section's lines are.
enum Section {
    Hosts(String),
    Children(String),
    Variables(String),
}

/// Reads an inventory. The error names the line.
pub(super) fn read(text: &str) -> Result<Inventory, String> {
    let mut inventory = Inventory::default();
    let mut section = Section::Hosts("ungrouped".into());
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        take(&mut inventory, &mut section, line).map_err(|what| format!("line {number}: {what}"))?;
    }
    Ok(inventory)
}

fn take(inventory: &mut Inventory, section: &mut Section, line: &str) -> Result<(), String> {
    if line.starts_with('[') && !line.contains("] ") && !line.contains('=') {
        let name = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let (name, rest) = name.ok_or_else(|| format!("{line} has no closing ]"))?;
        if !rest.trim().is_empty() && !rest.trim_start().starts_with('#') {
            return Err(format!("{line}: nothing can stand after ]"));
        }
        let (group, kind) = name.split_once(':').unwrap_or((name, ""));
        inventory.groups.entry(group.into()).or_default();
        *section = match kind {
            "" => Section::Hosts(group.into()),
            "children" => Section::Children(group.into()),
            "vars" => Section::Variables(group.into()),
            other => return Err(format!("[{name}]: there is no :{other}; there are :children and :vars")),
        };
        return Ok(());
    }
    match section {
        Section::Hosts(group) => {
            let words = words(line)?;
            let Some((name, variables)) = words.split_first() else { return Ok(()) };
            let mut all = Variables::new();
            for word in variables {
                let (key, value) =
                    word.split_once('=').ok_or_else(|| format!("{word} is not of the form key=value"))?;
                all.insert(key.into(), value.into());
            }
            let (pattern, port) = match name.rsplit_once(':') {
                Some((pattern, port))
                    if !pattern.is_empty()
                        && !pattern.contains(':')
                        && port.bytes().all(|b| b.is_ascii_digit()) =>
                {
                    (pattern, Some(port))
                }
                _ => match name.rsplit_once("]:") {
                    Some((pattern, port)) if port.bytes().all(|b| b.is_ascii_digit()) => {
                        (&name[..pattern.len() + 1], Some(port))
                    }
                    _ => (name.as_str(), None),
                },
            };
            if let Some(port) = port {
                all.entry("ansible_port".into()).or_insert(port.into());
            }
            inventory.add(group, expand(pattern)?, &all)
        }
        Section::Children(group) => {
            let child = words(line)?.into_iter().next().unwrap_or_default();
            inventory.groups.entry(child.clone()).or_default();
            inventory.groups.entry(group.clone()).or_default().children.push(child);
            Ok(())
        }
        Section::Variables(group) => {
            let (key, value) =
                line.split_once('=').ok_or_else(|| format!("{line} is not of the form key=value"))?;
            let value = words(value)?.join(" ");
            inventory.groups.entry(group.clone()).or_default().variables.insert(key.trim().into(), value);
            Ok(())
        }
    }
}

/// The words of a line as a shell reads them, up to a comment.
fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (Some('\''), _) => word.get_or_insert_default().push(letter),
            (_, '\\') => word.get_or_insert_default().extend(letters.next()),
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                word.get_or_insert_default();
                quote = Some(letter);
            }
            (None, '#') if word.is_none() => break,
            (None, _) if letter.is_whitespace() => words.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    match quote {
        Some(quote) => Err(format!("{line}: there is no closing {quote}")),
        None => Ok(words),
    }
}
