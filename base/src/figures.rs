//! Figures as people read them in tables and sentences.

/// `12,345`; below a hundred with one decimal where it has one worth keeping.
pub fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let first = match digits.len() % 3 {
        0 => 3,
        n => n,
    };
    if digits.len() <= 3 {
        return if number < 100.0 && number.fract() != 0.0 { format!("{number:.1}") } else { digits };
    }
    let (head, rest) = digits.split_at(first);
    let groups: Vec<&str> =
        rest.as_bytes().chunks(3).map(|c| std::str::from_utf8(c).unwrap_or_default()).collect();
    format!("{head},{}", groups.join(","))
}

/// A latency of so many microseconds: `83.2 us`, `7.05 ms`, `5.20 s`.
pub fn latency(micros: f64) -> String {
    match micros {
        us if us < 1e3 => format!("{us:.1} us"),
        us if us < 1e6 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

/// A number of bytes a second in megabytes a second (10^6), as networks and drives are labelled, without the unit: `25.0`, `1,500`.
pub fn megabytes(bytes_per_s: f64) -> String {
    let mb = bytes_per_s / 1e6;
    if mb < 100.0 { format!("{mb:.1}") } else { thousands(mb) }
}

/// A number and what it counts, by the word for one: `1 step`, `2 steps`, `3 copies`.
pub fn counted(number: u64, one: &str) -> String {
    match (number, one.strip_suffix("copy")) {
        (1, _) => format!("1 {one}"),
        (_, Some(before)) => format!("{number} {before}copies"),
        _ => format!("{number} {one}s"),
    }
}

/// The verb behind such a number.
pub fn are(number: u64) -> &'static str {
    if number == 1 { "is" } else { "are" }
}

/// The first few of a list, and how many more there are.
pub fn listed<T: ToString>(all: &[T], most: usize) -> String {
    let named: Vec<String> = all.iter().take(most).map(T::to_string).collect();
    match all.len().saturating_sub(most) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// A moment, in seconds since 1970, as a date and a time of day to the minute.
pub fn moment(seconds: u64) -> String {
    // Days since 1 March of year 0, so that a leap day is the last of its year: 400 years have 146,097 days.
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_exact_enough() {
        assert_eq!(
            [0.2, 7.0, 99.94, 523.7, 12_345.0, 1_234_567.0].map(thousands),
            ["0.2", "7", "99.9", "524", "12,345", "1,234,567"]
        );
        assert_eq!([512.0, 2.5e7, 1.5e9].map(megabytes), ["0.0", "25.0", "1,500"]);
        assert_eq!([83.24, 7_051.0, 5_200_000.0].map(latency), ["83.2 us", "7.05 ms", "5.20 s"]);
    }

    #[test]
    fn one_has_a_word_of_its_own() {
        let words = ["block", "I/O", "copy", "in-sync copy"];
        assert_eq!(words.map(|one| counted(1, one)), ["1 block", "1 I/O", "1 copy", "1 in-sync copy"]);
        assert_eq!(words.map(|one| counted(2, one)), ["2 blocks", "2 I/Os", "2 copies", "2 in-sync copies"]);
        assert_eq!(counted(0, "error"), "0 errors");
        assert_eq!([0, 1, 2].map(are), ["are", "is", "are"]);
    }

    #[test]
    fn a_long_list_says_how_much_longer_it_is() {
        assert_eq!(listed(&[1, 2, 3], 3), "1, 2, 3");
        assert_eq!(listed(&[1, 2, 3, 4, 5], 2), "1, 2 and 3 more");
    }

    #[test]
    fn a_moment_is_a_date_and_a_time_of_day() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(moment(seconds), text);
        }
    }
}
