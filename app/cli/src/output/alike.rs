//! What is to be said of many volumes and is the same of several: once, with how many there are and a few of their names.

use std::collections::HashMap;

use loadline_base::figures::listed;

/// Volumes that a text names.
const MOST_NAMED: usize = 3;

/// Each text with the names of which it is to be said, in the order in which the texts come first. A name is in a text's list once.
pub(crate) fn grouped<'a>(all: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut places = HashMap::new();
    for (name, text) in all {
        let place = *places.entry(text).or_insert(groups.len());
        if place == groups.len() {
            groups.push((text, Vec::new()));
        }
        let names = &mut groups[place].1;
        // All texts of one volume follow each other.
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    groups
}

/// Volumes, for a sentence: the name of a single one; of several, how many there are, and a few of their names.
pub(crate) fn volumes<T: ToString>(names: &[T]) -> String {
    match names {
        [name] => format!("volume {}", name.to_string()),
        names => format!("{} volumes ({})", names.len(), listed(names, MOST_NAMED)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_said_once_with_a_few_names() {
        let names: Vec<String> = (1..=100).map(|number| format!("disk-{number}")).collect();
        let mut all: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "last known")).collect();
        all.insert(1, ("other", "not in sync"));
        all.insert(2, ("other", "not in sync"));
        let groups = grouped(all);
        let said: Vec<(&str, String)> = groups.iter().map(|(text, names)| (*text, volumes(names))).collect();
        assert_eq!(
            said,
            [
                ("last known", "100 volumes (disk-1, disk-2, disk-3 and 97 more)".into()),
                ("not in sync", "volume other".into())
            ]
        );
    }
}
