//! The YAML form of an inventory.

use saphyr::{LoadableYamlNode, Scalar, Yaml};

use super::range::expand;
use super::{DEEPEST, Inventory, Variables};

/// Reads an inventory.
pub(super) fn read(text: &str) -> Result<Inventory, String> {
    let documents = Yaml::load_from_str(text).map_err(|e| format!("it is not YAML: {e}"))?;
    let mut inventory = Inventory::default();
    let Some(document) = documents.first() else { return Ok(inventory) };
    for (name, group) in entries(document, "the inventory")? {
        if name == "plugin" {
            return Err(
                "it has a plugin find hosts: save what that finds as a file (ansible-inventory --list --yaml), and name that".into(),
            );
        }
        take(&mut inventory, &name, group, 0)?;
    }
    Ok(inventory)
}

fn take(inventory: &mut Inventory, name: &str, group: &Yaml<'_>, depth: usize) -> Result<(), String> {
    if depth > DEEPEST {
        return Err("its groups are nested too deep".into());
    }
    inventory.groups.entry(name.into()).or_default();
    for (key, value) in entries(group, name)? {
        match key.as_str() {
            "hosts" => {
                for (pattern, own) in entries(value, &format!("hosts of {name}"))? {
                    let variables = variables(own, &pattern)?;
                    inventory.add(name, expand(&pattern)?, &variables)?;
                }
            }
            "children" => {
                for (child, group) in entries(value, &format!("children of {name}"))? {
                    let children = &mut inventory.groups.entry(name.into()).or_default().children;
                    if !children.contains(&child) {
                        children.push(child.clone());
                    }
                    take(inventory, &child, group, depth + 1)?;
                }
            }
            "vars" => {
                let variables = variables(value, name)?;
                inventory.groups.entry(name.into()).or_default().variables.extend(variables);
            }
            other => {
                return Err(format!("group {name}: there is no {other}; there are hosts, children and vars"));
            }
        }
    }
    Ok(())
}

/// The entries of a table; none of a key without a value.
fn entries<'a>(value: &'a Yaml<'a>, what: &str) -> Result<Vec<(String, &'a Yaml<'a>)>, String> {
    match value {
        Yaml::Value(Scalar::Null) => Ok(Vec::new()),
        Yaml::Mapping(all) => {
            all.iter().map(|(key, value)| Ok((word(key).ok_or("a key is not a word")?, value))).collect()
        }
        _ => Err(format!("{what} is not a table of names")),
    }
}

/// Variables that are words or numbers; others say nothing of connections, unless they should be words.
fn variables(value: &Yaml<'_>, what: &str) -> Result<Variables, String> {
    let mut all = Variables::new();
    for (key, value) in entries(value, what)? {
        match word(value) {
            Some(word) => drop(all.insert(key, word)),
            None if key.starts_with("ansible_") => {
                // Its name is what counts; the value is none that a connection can have.
                all.insert(key, "{{ not a word }}".into());
            }
            None => {}
        }
    }
    Ok(all)
}

fn word(value: &Yaml<'_>) -> Option<String> {
    match value {
        Yaml::Value(Scalar::String(text)) => Some(text.to_string()),
        Yaml::Value(Scalar::Integer(number)) => Some(number.to_string()),
        Yaml::Value(Scalar::Boolean(yes)) => Some(yes.to_string()),
        Yaml::Value(Scalar::FloatingPoint(number)) => Some(number.to_string()),
        _ => None,
    }
}
