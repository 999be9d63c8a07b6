//! The word that was probably meant.

/// Longer words than this are no slip of the finger, and are not compared.
const LONGEST_WORD: usize = 64;

/// The candidate that is fewest edits away from `word`, if that is close enough to be what was meant.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > LONGEST_WORD {
        return None;
    }
    let folded = fold(word);
    let (edits, candidate) =
        candidates.into_iter().map(|c| (distance(&folded, &fold(c)), c)).min_by_key(|(edits, _)| *edits)?;
    (edits * 2 <= folded.chars().count().max(2)).then_some(candidate)
}

/// `Block-Size` and `block_size` are the same word.
fn fold(word: &str) -> String {
    word.to_lowercase().replace(['-', ' '], "_")
}

/// Insertions, deletions, replacements and swaps of neighbours that lead from one word to the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 4] = ["repeats", "seed", "block_size", "write_percent"];

    #[test]
    fn a_slip_of_the_finger_finds_what_was_meant() {
        for (typed, meant) in [
            ("repeat", "repeats"),
            ("sede", "seed"),
            ("Block-Size", "block_size"),
            ("blocksize", "block_size"),
            ("writes_percent", "write_percent"),
        ] {
            assert_eq!(nearest(typed, KEYS), Some(meant), "{typed}");
        }
    }

    #[test]
    fn another_word_altogether_has_no_neighbour() {
        assert_eq!(nearest("bananas", KEYS), None);
        assert_eq!(nearest(&"x".repeat(5000), KEYS), None);
    }
}
