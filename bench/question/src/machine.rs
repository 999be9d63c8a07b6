//! What a machine does: a kind that is known here, or a profile.

use loadline_study::name::ProfileName;

/// A kind of machine. Its rate is an assumption that the study states, and that a person changes there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    /// The value of the answer, and the name of the load in the report.
    pub(crate) value: &'static str,
    /// What a person sees.
    pub(crate) label: &'static str,
    /// What it means.
    pub(crate) what: &'static str,
    /// I/Os a second of one machine.
    rate: u32,
    /// The load as keys of a `[[profile]]` table, without its rate.
    keys: &'static [(&'static str, &'static str)],
}

/// Every kind. The figures of desktops are those of VMFleet's VDI; the others are round figures.
pub(crate) const KINDS: [Kind; 4] = [
    Kind {
        value: "office-desktops",
        label: "Office desktops, 25 on each machine",
        what: "300 IOPS: 20 KiB, half reads, half random, durable writes. VMFleet counts 12 IOPS for a desktop.",
        rate: 300,
        keys: &[("use", "\"vdi\"")],
    },
    Kind {
        value: "database",
        label: "Database",
        what: "1,000 IOPS: 8 KiB random, 70 % reads.",
        rate: 1000,
        keys: &[("use", "\"oltp\"")],
    },
    Kind {
        value: "file-server",
        label: "File server",
        what: "200 IOPS: 64 KiB, 70 % reads, half random.",
        rate: 200,
        keys: &[("use", "\"B64-T1-O8-W30-PR\""), ("pattern", "{ mixed = { random_percent = 50 } }")],
    },
    Kind {
        value: "backup",
        label: "Backup",
        what: "100 IOPS, which are 52 MB/s: 512 KiB sequential writes.",
        rate: 100,
        keys: &[("use", "\"B512-T1-O4-W100-PS\"")],
    },
];

/// The load of one machine.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Machine {
    /// The name of the load in the report.
    pub(crate) name: String,
    /// What it is, in words.
    pub(crate) what: String,
    /// I/Os a second of one machine; `None` of a profile, which loads the storage as much as it can.
    pub(crate) rate: Option<u32>,
    /// The load as keys and values of TOML, without its rate.
    pub(crate) keys: Vec<(&'static str, String)>,
    /// Whether it writes.
    pub(crate) writes: bool,
    /// Whether the profile itself states a rate.
    pub(crate) has_own_rate: bool,
}

impl Machine {
    /// The machine of an answer. The error says what can be answered.
    pub(crate) fn of(text: &str) -> Result<Machine, String> {
        let value = text.trim().to_ascii_lowercase().replace(' ', "-");
        if let Some(kind) = KINDS.iter().find(|kind| kind.value == value) {
            return Ok(Machine {
                name: kind.value.into(),
                what: kind.what.into(),
                rate: Some(kind.rate),
                keys: kind.keys.iter().map(|(key, value)| (*key, (*value).to_string())).collect(),
                // A kind that only reads would be no machine.
                writes: true,
                has_own_rate: false,
            });
        }
        let profile = ProfileName::try_from(text.trim().to_string()).map_err(|why| {
            format!("{why}. Or give a kind of machine: {}", KINDS.map(|kind| kind.value).join(", "))
        })?;
        let load = profile.profile();
        Ok(Machine {
            name: "machine".into(),
            what: format!("the profile {}, as much as the storage carries", text.trim()),
            rate: None,
            keys: vec![("use", toml::Value::String(text.trim().into()).to_string())],
            writes: load.write_percent > 0,
            has_own_rate: load.rate.is_some(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_found_by_its_value_and_in_words() {
        for kind in KINDS {
            assert_eq!(Machine::of(kind.value).unwrap().rate, Some(kind.rate));
        }
        assert_eq!(Machine::of("Office Desktops").unwrap().name, "office-desktops");
    }

    #[test]
    fn a_profile_is_a_machine_without_a_rate_and_other_words_are_refused_with_what_there_is() {
        let machine = Machine::of("b4-t1-o4-w0-pr").unwrap();
        assert_eq!((machine.rate, machine.writes, machine.has_own_rate), (None, false, false));
        assert!(Machine::of("vmfleet-sql-oltp").unwrap().has_own_rate);
        let why = Machine::of("toaster\"\n[run]").unwrap_err();
        assert!(why.contains("office-desktops, database, file-server, backup"), "{why}");
    }
}
