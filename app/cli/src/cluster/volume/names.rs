//! Names of volumes on a command line: `db-{001..100}` stands for a hundred names, as in a shell.

/// Names that one command can have.
const MOST_NAMES: u64 = 10_000;

/// All names, with each range replaced by its numbers. An error says what is wrong with a name.
pub(super) fn expand(names: &[String]) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for name in names {
        let room = MOST_NAMES - all.len() as u64;
        all.extend(expand_one(name, room)?);
    }
    Ok(all)
}

fn expand_one(name: &str, room: u64) -> Result<Vec<String>, String> {
    let Some((before, range, after)) = split(name) else { return Ok(vec![name.to_owned()]) };
    let wrong =
        |why: &str| Err(format!("the name {name}: {why}. A range is two numbers, such as db-{{001..100}}"));
    let Some((first, last)) = range.split_once("..") else { return wrong("the braces hold no range") };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let (Ok(from), Ok(to)) = (first.parse::<u64>(), last.parse::<u64>()) else {
        return wrong("the braces hold no range of numbers");
    };
    if !is_number(first) || !is_number(last) || split(after).is_some() {
        return wrong("it can have one range of numbers");
    }
    if from > to {
        return wrong("the range ends before it begins");
    }
    if to - from >= room {
        return wrong("one command takes at most 10,000 volumes");
    }
    // As in a shell: with a zero in front, all numbers have as many digits.
    let is_padded = [first, last].iter().any(|number| number.len() > 1 && number.starts_with('0'));
    let width = if is_padded { first.len().max(last.len()) } else { 0 };
    Ok((from..=to).map(|number| format!("{before}{number:0width$}{after}")).collect())
}

/// What is before, between and after the first braces.
fn split(name: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = name.split_once('{')?;
    let (range, after) = rest.split_once('}')?;
    Some((before, range, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(names: &[&str]) -> Result<Vec<String>, String> {
        expand(&names.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn a_range_stands_for_its_numbers_as_in_a_shell() {
        assert_eq!(expanded(&["a", "db-{8..10}"]).unwrap(), ["a", "db-8", "db-9", "db-10"]);
        assert_eq!(expanded(&["db-{08..10}-x"]).unwrap(), ["db-08-x", "db-09-x", "db-10-x"]);
        assert_eq!(expanded(&["v{0..1}"]).unwrap(), ["v0", "v1"]);
        assert_eq!(expanded(&["db-{001..100}"]).unwrap().len(), 100);
    }

    #[test]
    fn what_is_no_range_is_an_error_that_names_the_name() {
        for name in
            ["x{}", "x{1}", "x{1..}", "x{+1..2}", "x{a..b}", "x{3..2}", "x{1..2}{1..2}", "x{1..10001}"]
        {
            let why = expanded(&[name]).unwrap_err();
            assert!(why.contains(name), "{why}");
        }
    }
}
