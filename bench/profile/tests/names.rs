//! Names: reading, printing, and what is said about one that cannot be read.

mod common;

use common::{any_profile, named};
use loadline_base::units::ByteSize;
use loadline_profile::{Extent, Pattern, Profile};
use proptest::prelude::*;

fn error(name: &str) -> String {
    name.parse::<Profile>().expect_err(name).to_string()
}

#[test]
fn a_name_says_block_threads_outstanding_writes_and_pattern() {
    let profile: Profile = "B4-T2-O32-W0-PR".parse().unwrap();
    assert_eq!(
        profile,
        Profile {
            block_size: ByteSize::kib(4),
            threads: 2,
            outstanding: 32,
            write_percent: 0,
            pattern: Pattern::Random,
            ..Profile::default()
        }
    );
}

#[test]
fn the_patterns_are_random_sequential_and_sequential_interleaved() {
    for (name, pattern) in [
        ("B512-T1-O8-W100-PR", Pattern::Random),
        ("B512-T1-O8-W100-PS", Pattern::Sequential),
        ("B512-T1-O8-W100-PSI", Pattern::SequentialInterleaved),
    ] {
        let profile: Profile = name.parse().unwrap();
        assert_eq!(profile.pattern, pattern);
        assert_eq!(profile.name().as_deref(), Some(name));
    }
}

#[test]
fn vmfleet_1_writes_the_same_names_small_and_without_hyphens() {
    assert_eq!("b4t2o32w0pr".parse::<Profile>(), "B4-T2-O32-W0-PR".parse());
    assert_eq!("b512t4o8w30psi".parse::<Profile>(), "B512-T4-O8-W30-PSI".parse());
}

#[test]
fn a_sector_is_half_a_kib() {
    let profile: Profile = "B0.5-T1-O1-W0-PR".parse().unwrap();
    assert_eq!(profile.block_size, ByteSize(512));
    assert_eq!(profile.name().as_deref(), Some("B0.5-T1-O1-W0-PR"));
}

#[test]
fn an_unknown_letter_is_named_with_its_place_and_an_example() {
    assert_eq!(
        error("B4-T2-Q32-W0-PR"),
        "profile name \"B4-T2-Q32-W0-PR\", character 7: unknown letter 'Q': there are B, T, O, W and P; a name is \
         B<KiB>-T<threads>-O<outstanding>-W<write percent>-P<R, S or SI>, such as B4-T2-O32-W0-PR"
    );
    assert!(error("B4K-T2-O32-W0-PR").contains("character 3: unknown letter 'K'"));
    assert!(error("b4t2o32w0px").contains("character 11: after 'P', \"X\" is not a pattern"));
}

#[test]
fn a_name_that_is_incomplete_doubled_or_out_of_range_says_so() {
    for (name, says) in [
        ("B4-T2-O32-PR", "'W' is missing"),
        ("B4-T2-T3-O32-W0-PR", "character 7: 'T' is there twice"),
        ("B4-T2-O32-W101-PR", "\"101\" is not a percentage"),
        ("B4-T-O32-W0-PR", "character 5: after 'T', \"\" is not a whole number"),
        ("B0.3-T2-O32-W0-PR", "\"0.3\" is not a number of KiB"),
        ("B4-T0-O32-W0-PR", "threads: 0 threads on a disk; give 1 to 1024"),
        ("B4-T2-O70000-W0-PR", "outstanding: 70000 I/Os"),
        ("B100000-T2-O1-W0-PR", "block_size: 100000KiB is not a block size"),
        ("B4--T2-O32-W0-PR", "character 3: unknown letter '-'"),
        ("", "is not a name"),
    ] {
        assert!(error(name).contains(says), "{name}: {}", error(name));
    }
}

#[test]
fn what_a_name_cannot_say_has_no_name_but_a_label() {
    let profile = Profile {
        working_set: Some(Extent::Percent(10.0)),
        rate: Some("100MB/s poisson".parse().unwrap()),
        flush_every: Some(8),
        .."B8-T4-O16-W30-PR".parse().unwrap()
    };
    assert_eq!(profile.name(), None);
    assert_eq!(profile.label(), "B8-T4-O16-W30-PR-WS10pct-100MBps-poisson-flush8");
    let mixed = Profile { pattern: Pattern::Mixed { random_percent: 70 }, ..Profile::default() };
    assert_eq!((mixed.name(), mixed.label().as_str()), (None, "B4-T1-O32-W0-PM70"));
}

proptest! {
    #[test]
    fn a_printed_name_is_read_back(profile in named()) {
        let name = profile.name().unwrap();
        prop_assert_eq!(name.parse(), Ok(profile.clone()));
        prop_assert_eq!(name.to_lowercase().replace('-', "").parse(), Ok(profile.clone()));
        prop_assert_eq!(profile.label(), name);
    }

    #[test]
    fn a_label_is_safe_for_a_file_name_and_differs_where_profiles_do(a in any_profile(), b in any_profile()) {
        let safe = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        prop_assert!(a.label().chars().all(safe), "{}", a.label());
        prop_assert_eq!(a.label() == b.label(), a == b);
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "\\PC*", nearly in "[BTOWPRSbtowp0-9.\\-Qé]{0,30}") {
        let _ = text.parse::<Profile>();
        let _ = nearly.parse::<Profile>();
    }
}

#[test]
fn loads_of_one_sweep_share_a_family() {
    let of = |name: &str| name.parse::<Profile>().unwrap();
    assert_eq!(of("B4-T2-O32-W0-PR").family(), "B4-W0-PR");
    assert_eq!(of("B4-T1-O1-W0-PR").family(), of("B4-T8-O64-W0-PR").family());
    let mut paced = of("B8-T1-O1-W30-PSI");
    paced.rate = Some("500iops".parse().unwrap());
    paced.direct = false;
    assert_eq!(paced.family(), "B8-W30-PSI-buffered");
}
