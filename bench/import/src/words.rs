//! What a load's name states, if it is one of ours (`B4-T2-O32-W0-PR`) or made of common words (`4k-randwrite`).
//!
//! Words are separated by hyphens, underscores, blanks or slashes, in any order:
//!
//! | word | meaning |
//! | --- | --- |
//! | `4k`, `512b`, `64kib`, `1m`, `1mb` | block size, binary |
//! | `read`, `randread`, `seqread`, `reads` | no writes |
//! | `write`, `randwrite`, `seqwrite`, `writes` | writes only |
//! | `70r30w`, `30w70r`, `70r`, `30w` | percent of reads and of writes; together they are 100 |
//! | `70read`, `30write`, `70rd`, `70rdpct`, `100readpct` | the same |
//! | `rand`, `random`, `seq`, `sequential`, `rw`, `mixed`, `mix` | nothing about size or share |
//!
//! Any other word has no meaning; two words that contradict each other have none either.

use loadline_profile::Profile;

/// What is known of a load from its name.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Named {
    /// Bytes of each I/O.
    pub(crate) block_bytes: Option<f64>,
    /// Percent of writes.
    pub(crate) write_percent: Option<f64>,
    /// Threads on each disk, of a name of ours.
    pub(crate) threads: Option<f64>,
    /// Outstanding I/Os of each thread, of a name of ours.
    pub(crate) per_thread: Option<f64>,
}

/// Reads a load's name.
pub(crate) fn named(name: &str) -> Named {
    if let Ok(profile) = Profile::of_letters(name) {
        return of_profile(&profile);
    }
    let (mut blocks, mut shares) = (Vec::new(), Vec::new());
    for word in name.to_ascii_lowercase().split(['-', '_', ' ', '/', '\t']) {
        if let Some(share) = share(word) {
            shares.push(share);
        } else if let Some(size) =
            crate::numbers::size(word).filter(|_| word.ends_with(['k', 'm', 'b']) && word.len() <= 8)
        {
            blocks.push(size);
        }
    }
    Named { block_bytes: agreed(&blocks), write_percent: agreed(&shares), ..Named::default() }
}

/// What a profile of ours states.
pub(crate) fn of_profile(profile: &Profile) -> Named {
    Named {
        block_bytes: Some(profile.block_size.bytes() as f64),
        write_percent: Some(f64::from(profile.write_percent)),
        threads: Some(f64::from(profile.threads)),
        per_thread: Some(f64::from(profile.outstanding)),
    }
}

fn agreed(values: &[f64]) -> Option<f64> {
    values.first().copied().filter(|first| values.iter().all(|value| value == first))
}

/// Percent of writes that a word states.
fn share(word: &str) -> Option<f64> {
    match word {
        "read" | "reads" | "randread" | "seqread" | "randomread" | "sequentialread" => return Some(0.0),
        "write" | "writes" | "randwrite" | "seqwrite" | "randomwrite" | "sequentialwrite" => {
            return Some(100.0);
        }
        _ => {}
    }
    let (mut reads, mut writes, mut rest) = (None, None, word);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at_checked(digits)?;
        let percent = f64::from(crate::numbers::whole::<u8>(number).filter(|percent| *percent <= 100)?);
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, next) = after.split_at_checked(letters)?;
        let side = match unit {
            "r" | "rd" | "read" | "reads" | "rdpct" | "readpct" => &mut reads,
            "w" | "wr" | "write" | "writes" | "wrpct" | "writepct" => &mut writes,
            _ => return None,
        };
        if side.replace(percent).is_some() {
            return None;
        }
        rest = next;
    }
    match (reads, writes) {
        (Some(reads), Some(writes)) => (reads + writes == 100.0).then_some(writes),
        (Some(reads), None) => Some(100.0 - reads),
        (None, writes) => writes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_words_say_block_size_and_share_of_writes() {
        for (name, block, writes) in [
            ("4k-randwrite", Some(4096.0), Some(100.0)),
            ("64k-randread", Some(65536.0), Some(0.0)),
            ("8k-70r30w-rand", Some(8192.0), Some(30.0)),
            ("1m-seqread", Some(1048576.0), Some(0.0)),
            ("32k_70rdpct_random", Some(32768.0), Some(30.0)),
            ("512b read", Some(512.0), Some(0.0)),
            ("8k-70r40w", Some(8192.0), None),
            ("4k-8k-read", None, Some(0.0)),
            ("4k-read-write", Some(4096.0), None),
            ("oltp", None, None),
            ("", None, None),
            ("100", None, None),
        ] {
            let named = named(name);
            assert_eq!((named.block_bytes, named.write_percent), (block, writes), "{name}");
            assert_eq!(named.threads, None);
        }
    }

    #[test]
    fn a_name_of_ours_says_its_outstanding_too() {
        let named = named("B4-T2-O32-W10-PR");
        assert_eq!((named.block_bytes, named.write_percent), (Some(4096.0), Some(10.0)));
        assert_eq!((named.threads, named.per_thread), (Some(2.0), Some(32.0)));
    }
}
