//! The grammar of profile names, for messages.

pub(crate) const GRAMMAR: &str = "a name is B<KiB>-T<threads>-O<outstanding>-W<write percent>-P<R, S or SI>, \
                       such as B4-T2-O32-W0-PR";
