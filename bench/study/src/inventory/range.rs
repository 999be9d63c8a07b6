//! Ranges in names of hosts: `node[01:16]`, `db-[a:f]`, `rack[1:9:2]`.

/// More hosts than this in one pattern are a slip.
const MOST: usize = 4096;

/// The names that a pattern stands for.
pub(super) fn expand(pattern: &str) -> Result<Vec<String>, String> {
    let Some((before, rest)) = pattern.split_once('[') else { return Ok(vec![pattern.into()]) };
    let fault = || format!("{pattern} is not a pattern of hosts: write node[01:16], or node[a:f]");
    let (range, after) = rest.split_once(']').ok_or_else(fault)?;
    let mut parts = range.split(':');
    let (first, last, step) =
        (parts.next().unwrap_or_default(), parts.next().ok_or_else(fault)?, parts.next().unwrap_or("1"));
    let step: usize = step.parse().ok().filter(|step| *step > 0).ok_or_else(fault)?;
    if parts.next().is_some() {
        return Err(fault());
    }
    let mut names = Vec::new();
    let ends = expand(after)?;
    let middles: Vec<String> = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(low), Ok(high)) if low <= high && high - low <= MOST as u64 => {
            let width = if first.starts_with('0') { first.len() } else { 0 };
            (low..=high).step_by(step).map(|number| format!("{number:0width$}")).collect()
        }
        _ => match (first.as_bytes(), last.as_bytes()) {
            ([low], [high]) if low <= high && low.is_ascii_alphabetic() && high.is_ascii_alphabetic() => {
                (*low..=*high).step_by(step).map(|letter| char::from(letter).to_string()).collect()
            }
            _ => return Err(fault()),
        },
    };
    if middles.len() * ends.len() > MOST {
        return Err(format!("{pattern} stands for more than {MOST} hosts"));
    }
    for middle in &middles {
        names.extend(ends.iter().map(|end| format!("{before}{middle}{end}")));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_stands_for_its_hosts() {
        assert_eq!(expand("n[08:10]").unwrap(), ["n08", "n09", "n10"]);
        assert_eq!(expand("n[1:5:2].x").unwrap(), ["n1.x", "n3.x", "n5.x"]);
        assert_eq!(expand("[a:b][1:2]").unwrap(), ["a1", "a2", "b1", "b2"]);
        assert_eq!(expand("plain").unwrap(), ["plain"]);
        for bad in ["n[1:", "n[5:1]", "n[1]", "n[1:2:0]", "n[1:99999]", "n[ab:cd]", "n[1:2:3:4]"] {
            assert!(expand(bad).is_err(), "{bad}");
        }
    }
}
