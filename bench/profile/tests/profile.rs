//! The profile itself: as a TOML table, its rules, its explanation, and finding out what a text is.

mod common;

use common::any_profile;
use loadline_base::units::{ByteSize, Rate};
use loadline_profile::{
    Arrival, Data, ErrorKind, Extent, HotSpot, Notation, OfferedRate, Pattern, Profile, read,
};
use proptest::prelude::*;

const FULL: &str = r#"
block_size = "8KiB"
threads = 4
outstanding = 16
write_percent = 30
pattern = { mixed = { random_percent = 70 } }
alignment = "16KiB"
working_set = "10%"
base_offset = "1MiB"
hot_spots = [{ io_percent = 95, extent = "5%" }, { io_percent = 4, extent = "10%" }]
rate = "20000iops poisson"
data = { compressible = { ratio = 2.0 } }
direct = false
write_through = true
flush_every = 8
"#;

#[test]
fn a_table_may_say_everything_or_only_what_differs() {
    let full: Profile = toml::from_str(FULL).unwrap();
    assert_eq!(full.pattern, Pattern::Mixed { random_percent: 70 });
    assert_eq!(full.working_set, Some(Extent::Percent(10.0)));
    assert_eq!(full.rate, Some(OfferedRate { rate: Rate::Iops(20_000.0), arrival: Arrival::Poisson }));
    assert_eq!(full.data, Data::Compressible { ratio: 2.0 });
    assert_eq!(full.hot_spots[0], HotSpot { io_percent: 95, extent: Extent::Percent(5.0) });

    let block_only: Profile = toml::from_str("block_size = \"64KiB\"").unwrap();
    assert_eq!(block_only, Profile { block_size: ByteSize::kib(64), ..Profile::default() });
}

#[test]
fn a_misspelt_field_is_named_with_its_line() {
    let error = read("block_size = \"4KiB\"\nthread = 2\n").unwrap_err().to_string();
    assert!(
        error.starts_with("TOML profile, line 2: there is no key \"thread\" here; did you mean \"threads\"?"),
        "{error}"
    );
    let error = read("block_size = \"4Q\"\n").unwrap_err().to_string();
    assert!(error.contains("line 1: \"4Q\" is not a size"), "{error}");
    for (text, says) in [
        (
            "threads = \"2\"",
            "the text \"2\" stands where a whole number from 0 to 4294967295 is needed: write digits without quotes",
        ),
        ("threads = -1", "-1 stands where a whole number from 0 to 4294967295 is needed"),
        (
            "write_percent = 300",
            "300 stands where a whole number from 0 to 100 is needed: give such a number",
        ),
        ("direct = \"yes\"", "the text \"yes\" stands where true or false is needed"),
        ("data = \"compressible\"", "a name alone stands where a table is needed"),
        ("hot_spots = 3", "3 stands where a list is needed: write hot_spots = [{ ... }]"),
        ("block_size = true", "true stands where"),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        assert!(
            !["u8", "u32", "struct", "sequence", "invalid type"].iter().any(|rust| error.contains(rust)),
            "{error}"
        );
    }
    let error = read("threads = 0\n").unwrap_err().to_string();
    assert_eq!(error, "TOML profile, threads: 0 threads on a disk; give 1 to 1024");
    let error = read("working_set = \"lots\"\n").unwrap_err().to_string();
    assert!(error.contains("\"lots\" is neither a percentage nor a size; write 10% or 4GiB"), "{error}");
}

#[test]
fn editors_learn_the_fields_from_the_schema() {
    let schema = serde_json::to_value(schemars::schema_for!(Profile)).unwrap();
    assert_eq!(schema["properties"]["working_set"]["anyOf"][0]["$ref"], "#/$defs/Extent");
    assert_eq!(schema["$defs"]["Extent"]["type"], "string");
    assert_eq!(schema["additionalProperties"], false);
}

#[test]
fn every_rule_names_the_field_that_breaks_it() {
    let spots = |spots: &[(u8, &str)]| -> Vec<HotSpot> {
        spots
            .iter()
            .map(|(io_percent, extent)| HotSpot { io_percent: *io_percent, extent: extent.parse().unwrap() })
            .collect()
    };
    let sound = Profile::default;
    let broken: Vec<(&str, Profile)> = vec![
        ("block_size", Profile { block_size: ByteSize(0), ..sound() }),
        ("block_size", Profile { block_size: ByteSize(1000), ..sound() }),
        ("block_size", Profile { block_size: ByteSize(128 << 20), ..sound() }),
        ("alignment", Profile { alignment: Some(ByteSize(0)), ..sound() }),
        ("alignment", Profile { alignment: Some(ByteSize(100)), ..sound() }),
        ("base_offset", Profile { base_offset: ByteSize(1), ..sound() }),
        ("working_set", Profile { working_set: Some(Extent::Percent(0.0)), ..sound() }),
        ("working_set", Profile { working_set: Some(Extent::Percent(f64::NAN)), ..sound() }),
        ("working_set", Profile { working_set: Some(Extent::Percent(101.0)), ..sound() }),
        ("working_set", Profile { working_set: Some(Extent::Bytes(ByteSize(512))), ..sound() }),
        ("threads", Profile { threads: 0, ..sound() }),
        ("threads", Profile { threads: 1025, ..sound() }),
        ("outstanding", Profile { outstanding: 0, ..sound() }),
        ("outstanding", Profile { outstanding: 65_537, ..sound() }),
        ("outstanding", Profile { outstanding: 65_536, threads: 1024, ..sound() }),
        ("write_percent", Profile { write_percent: 101, ..sound() }),
        ("pattern", Profile { pattern: Pattern::Mixed { random_percent: 0 }, ..sound() }),
        ("pattern", Profile { pattern: Pattern::Mixed { random_percent: 100 }, ..sound() }),
        ("flush_every", Profile { flush_every: Some(0), ..sound() }),
        ("hot_spots", Profile { hot_spots: spots(&[(60, "5%"), (50, "5%")]), ..sound() }),
        ("hot_spots", Profile { hot_spots: spots(&[(0, "5%")]), ..sound() }),
        ("hot_spots", Profile { hot_spots: spots(&[(60, "0%")]), ..sound() }),
        ("hot_spots", Profile { hot_spots: spots(&[(50, "60%"), (40, "60%")]), ..sound() }),
        ("hot_spots", Profile { hot_spots: spots(&[(50, "50%"), (40, "50%")]), ..sound() }),
        ("hot_spots", Profile { hot_spots: spots(&[(50, "5%"), (40, "1GiB")]), ..sound() }),
        (
            "hot_spots",
            Profile { hot_spots: spots(&[(50, "2GiB")]), working_set: "1GiB".parse().ok(), ..sound() },
        ),
        (
            "hot_spots",
            Profile { hot_spots: spots(&[(50, "1GiB")]), working_set: "1GiB".parse().ok(), ..sound() },
        ),
        ("hot_spots", Profile { hot_spots: spots(&[(95, "5%")]), pattern: Pattern::Sequential, ..sound() }),
        (
            "rate",
            Profile {
                rate: Some(OfferedRate { rate: Rate::Iops(f64::NAN), arrival: Arrival::Uniform }),
                ..sound()
            },
        ),
        (
            "rate",
            Profile {
                rate: Some(OfferedRate { rate: Rate::Iops(0.0), arrival: Arrival::Uniform }),
                ..sound()
            },
        ),
        ("data", Profile { data: Data::Compressible { ratio: 1.0 }, ..sound() }),
        ("data", Profile { data: Data::Compressible { ratio: f64::INFINITY }, ..sound() }),
    ];
    for (field, profile) in broken {
        let error = profile.validate().expect_err(&format!("{profile:?}"));
        assert_eq!((error.kind, error.place.as_str()), (ErrorKind::Rule, field), "{error}");
    }
    assert_eq!(sound().validate(), Ok(()));
}

#[test]
fn an_explanation_reads_as_sentences() {
    let profile: Profile = "B4-T2-O32-W0-PR".parse().unwrap();
    assert_eq!(
        profile.explain(),
        "Random I/O of 4 KiB: 100 % reads.\n\
         2 threads on each disk, each keeping 32 I/Os outstanding: 64 for each disk.\n\
         Closed loop: the next I/O is issued when one completes, so the storage sets the pace, and by Little's law IOPS × \
         mean latency is the number outstanding.\n\
         Working set: the whole disk; each offset is drawn at random, in steps of 4 KiB.\n\
         The page cache is bypassed."
    );
}

#[test]
fn an_explanation_says_all_that_a_profile_holds() {
    let text = toml::from_str::<Profile>(FULL).unwrap().explain();
    for says in [
        "I/O that is 70 % random and 30 % sequential, of 8 KiB: 70 % reads, 30 % writes.",
        "letting at most 16 I/Os outstanding: 64 for each disk",
        "20000 I/Os a second, which is 156.2 MiB/s, in total over all threads and disks of a worker",
        "a Poisson process",
        "10 % of the disk from 1 MiB on",
        "in steps of 16 KiB",
        "95 % of the I/O to 5 %, then 4 % of the I/O to 10 %, 1 % to the rest",
        "data that compresses 2 to 1",
        "through the page cache",
        "O_DSYNC",
        "After every 8 writes",
    ] {
        assert!(text.contains(says), "{says}\n{text}");
    }
}

#[test]
fn the_notation_is_found_out() {
    for (text, notation) in [
        ("B4-T2-O32-W0-PR", Notation::Name),
        (" b4t2o32w0pr\n", Notation::Name),
        ("# the usual\nblock_size = \"4KiB\"\n", Notation::Toml),
        ("[profile]\nblock_size = \"4KiB\"\n", Notation::Toml),
        ("[[hot_spots]]\nio_percent = 95\nextent = \"5%\"\n", Notation::Toml),
        ("[profile]\nrw=randread\nbs=4k\n", Notation::FioJob),
        ("; a job\n[global]\nbs=4k\n[a]\n", Notation::FioJob),
        ("fio --name=a --rw=randread --bs=4k", Notation::FioCommand),
        ("fio --name=a \\\n  --rw=randread \\\n  --bs=4k\n", Notation::FioCommand),
        ("--name=a --bs=4k", Notation::FioCommand),
        ("diskspd -b4K -t2 -r x", Notation::DiskSpd),
        (r#""C:\my tools\diskspd.exe" -b4K x"#, Notation::DiskSpd),
        ("-b4K -t2 -r x", Notation::DiskSpd),
    ] {
        assert_eq!(read(text).map(|reading| reading.notation), Ok(notation), "{text}");
    }
}

#[test]
fn a_text_in_no_notation_says_what_there_is() {
    for text in ["", "# only a comment", "hello world"] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.ends_with("give a name such as B4-T2-O32-W0-PR or oltp, a TOML table, a DISKSPD or fio command line, or a fio job file"), "{error}");
    }
    assert!(read("B4-T2-X32").unwrap_err().to_string().contains("unknown letter 'X'"));
    assert!(read("–b4K x").unwrap_err().to_string().contains("a dash that is not a hyphen"));
}

proptest! {
    #[test]
    fn a_profile_written_as_toml_or_json_is_read_back(profile in any_profile()) {
        let text = toml::to_string(&profile).unwrap();
        prop_assert_eq!(&toml::from_str::<Profile>(&text).unwrap(), &profile);
        prop_assert_eq!(&read(&text).unwrap().invocations[0].profile, &profile);
        // serde_json may miss a float's last bit unless told otherwise; a ratio in quarters has none to miss.
        let json_safe = match profile.data {
            Data::Compressible { .. } => Profile { data: Data::Compressible { ratio: 2.25 }, ..profile },
            _ => profile,
        };
        let json = serde_json::to_string(&json_safe).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Profile>(&json).unwrap(), &json_safe);
    }

    #[test]
    fn no_text_makes_the_reader_or_the_explanation_panic(text in "\\PC*", lines in "([\\[\\]#;a-z0-9=\"\\-% ]{0,20}\n){0,5}") {
        let _ = (read(&text), read(&lines));
    }

    #[test]
    fn every_profile_has_an_explanation(profile in any_profile()) {
        prop_assert!(profile.validate().is_ok());
        prop_assert!(profile.explain().lines().count() >= 5);
    }
}
