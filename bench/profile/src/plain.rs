//! Errors of serde about a TOML file, in the terms of TOML: what stands there, what is needed, what to write.

use loadline_base::nearest::nearest;

/// What is known of the file that was read, for messages about it.
pub struct FileWords<'a> {
    /// The keys of the table that a Rust type describes, by the type's name; empty if there is none.
    pub keys_of: &'a dyn Fn(&str) -> Vec<String>,
    /// Whether a key is a list of tables.
    pub lists_tables: &'a dyn Fn(&str) -> bool,
    /// Where a key that is not known here belongs, such as `[run]`.
    pub section_of: &'a dyn Fn(&str) -> Option<String>,
}

/// `message`, which is serde's, in plain words. `line` is the line of the file that it is about.
pub fn explain(message: &str, line: &str, words: &FileWords<'_>) -> String {
    if let Some(said) = unexpected_key(message) {
        return explain(&said, line, words);
    }
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let named = quoted.split_first();
    let (said, right) = named.map_or(("", &[][..]), |(wrong, right)| (*wrong, right));
    let meant = || {
        let longer = right.iter().copied().find(|word| said.len() >= 4 && word.starts_with(said));
        let word = longer.or_else(|| nearest(said, right.iter().copied()))?;
        Some(format!("; did you mean \"{word}\"?"))
    };
    let listed = if right.is_empty() { String::new() } else { format!(" ({})", right.join(", ")) };
    if message.starts_with("unknown field") {
        let advice =
            meant().or_else(|| (words.section_of)(said).map(|section| format!("; it belongs in {section}")));
        format!("there is no key \"{said}\" here{}{listed}", advice.unwrap_or_default())
    } else if message.starts_with("unknown variant") {
        format!("\"{said}\" is not known here{}{listed}", meant().unwrap_or_default())
    } else if message.starts_with("missing field") {
        format!("the key \"{said}\" is missing: write {said} = ... in this table")
    } else if message.starts_with("duplicate key") {
        format!("{}: it is there twice; remove one", message.trim_end_matches('.'))
    } else if message == "invalid socket address syntax" {
        "this is no address with a port: write one such as \"0.0.0.0:7400\"".into()
    } else if message == "invalid IP address syntax" {
        "this is no IP address: write one such as \"10.0.0.1\"".into()
    } else if let Some((found, wanted)) = stated(message) {
        heading(line, wanted).unwrap_or_else(|| mismatch(found, wanted, line, words))
    } else {
        message.to_string()
    }
}

/// The message about a key that the table of a variant does not have, as that about a key of another table is.
fn unexpected_key(message: &str) -> Option<String> {
    let (keys, available) =
        message.strip_prefix("unexpected keys in table: ")?.split_once(", available keys: ")?;
    let first = keys.split(", ").next().unwrap_or(keys);
    let available: Vec<String> = available.split(", ").map(|key| format!("`{key}`")).collect();
    Some(format!("unknown field `{first}`, expected one of {}", available.join(", ")))
}

/// What was found and what is expected, of messages that state both.
fn stated(message: &str) -> Option<(&str, &str)> {
    let both = ["invalid type: ", "invalid value: ", "invalid length "]
        .iter()
        .find_map(|kind| message.strip_prefix(kind));
    both?.split_once(", expected ")
}

/// A heading of the wrong kind: `[profile]` in place of `[[profile]]`, and the other way round.
fn heading(line: &str, wanted: &str) -> Option<String> {
    let line = line.split('#').next().unwrap_or_default().trim();
    if let Some(name) = line.strip_prefix("[[").and_then(|rest| rest.strip_suffix("]]")) {
        return Some(match wanted {
            "a string" => {
                format!("[[{name}]] begins a table, and {name} is a list of texts: write {name} = [\"...\"]")
            }
            _ => format!("[[{name}]] begins one of several tables, and there is only one: write [{name}]"),
        });
    }
    let name = line.strip_prefix('[')?.strip_suffix(']')?;
    Some(match wanted {
        "a sequence" => format!("[{name}] is one table, and there may be several: write [[{name}]]"),
        wanted => format!("[{name}] is a table, and {} is needed: write {name} = ...", plain_type(wanted)),
    })
}

fn mismatch(found: &str, wanted: &str, line: &str, words: &FileWords<'_>) -> String {
    let (shown, literal) = value(found);
    let key = line
        .split_once('=')
        .map(|(key, _)| key.trim())
        .filter(|key| !key.is_empty() && !key.contains(['{', '[', '"']));
    let so = |value: &str| match key {
        Some(key) => format!("write {key} = {value}"),
        None => format!("write {value}"),
    };
    let table = wanted.strip_prefix("struct variant ").or_else(|| wanted.strip_prefix("struct "));
    if let Some(name) = table {
        let name = name.split_ascii_whitespace().next().unwrap_or(name);
        let keys = (words.keys_of)(name);
        let keys = if keys.is_empty() { String::new() } else { format!(" (keys: {})", keys.join(", ")) };
        let advice = match keys.is_empty() {
            true if found == "unit variant" => {
                "write it with its own values, such as { compressible = { ratio = 2.0 } }".into()
            }
            _ => "write it in braces, such as { key = value }, or under a heading of its own".to_string(),
        };
        return format!("{shown} stands where a table is needed{keys}: {advice}");
    }
    match wanted {
        "a sequence" => {
            // A list that begins on this line could be anything.
            let example = match literal {
                _ if key.is_some_and(|key| (words.lists_tables)(key)) => "[{ ... }]".to_string(),
                Some(literal) => format!("[{literal}]"),
                None => "[...]".to_string(),
            };
            format!("{shown} stands where a list is needed: {}", so(&example))
        }
        "a boolean" => format!("{shown} stands where true or false is needed: write it without quotes"),
        "a string" => {
            let example = literal.map_or("\"...\"".to_string(), |literal| format!("\"{literal}\""));
            format!("{shown} stands where a text is needed: write it in quotes, {example}")
        }
        "u8" | "u16" | "u32" | "u64" | "usize" | "i64" | "f64" | "f32" => {
            let advice = match found.starts_with("string ") {
                true => "write digits without quotes",
                false => "give such a number",
            };
            format!("{shown} stands where {} is needed: {advice}", plain_type(wanted))
        }
        // A type of ours says after a colon what to write.
        own => match own.split_once(": ") {
            Some((kind, write)) => format!("{shown} stands where {kind} is needed: {write}"),
            None => format!("{shown} stands where {own} is needed"),
        },
    }
}

fn plain_type(wanted: &str) -> &str {
    match wanted {
        "u8" => "a whole number from 0 to 100",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" | "i64" => "a whole number from 0 on",
        "f64" | "f32" => "a number",
        "a string" => "a text in quotes",
        "a sequence" => "a list",
        "a boolean" => "true or false",
        other => other,
    }
}

/// What stands in the file, in words, and as it would be written again if that is known.
fn value(found: &str) -> (String, Option<String>) {
    let literal = |prefix: &str| found.strip_prefix(prefix).map(|rest| rest.trim_matches('`').to_string());
    if let Some(text) = found.strip_prefix("string ") {
        return (format!("the text {text}"), Some(text.to_string()));
    }
    for prefix in ["integer ", "floating point ", "boolean "] {
        if let Some(text) = literal(prefix) {
            return (text.clone(), Some(text));
        }
    }
    match found {
        "map" => ("a table".into(), None),
        "sequence" => ("a list".into(), None),
        "unit variant" => ("a name alone".into(), None),
        digits if digits.bytes().all(|c| c.is_ascii_digit()) => ("a list".into(), None),
        other => (other.to_string(), None),
    }
}
