//! A run, finished or not, as a table and as data files.
//!
//! | module | idea |
//! | --- | --- |
//! | [`report`] | what a run's folder says, as one value: a row for each step, one for each load |
//! | [`spread`] | what the repeats of one load say: median, range or confidence interval |
//! | [`table`] | as aligned text |
//! | [`findings`] | what a reader should know, in sentences |
//! | [`csv`], [`markdown`], [`json`] | as files |
//! | [`mod@write`] | all of them, into the run's folder |

pub mod csv;
pub mod findings;
pub mod json;
pub mod markdown;
pub mod report;
pub mod spread;
pub mod table;
pub mod write;

pub use report::Report;
