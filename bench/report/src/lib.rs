//! A run, finished or not, as a table and as data files.
//!
//! | module | idea |
//! | --- | --- |
//! | [`report`], [`rows`] | what a run's folder says, as one value: a row for each step, one for each load |
//! | [`table`] | as aligned text |
//! | [`verdict`], [`validity`] | what it carries and what limits it; whether the figures can be believed |
//! | [`conditions`] | the same load in several conditions, side by side |
//! | [`tiles`] | the answer, how sure it is, and what limits it, in three short texts |
//! | [`kind`] | which chart answers the study's question |
//! | [`names`] | loads by the names that people use |
//! | [`curves`] | each load's sweeps as points of a chart |
//! | [`answers`] | what growth, the storage's own counters and lost nodes mean, in sentences |
//! | [`capacity`] | what was predicted, measured and published of each load, side by side |
//! | [`machines`] | the virtual machines that were its workers: what ran them, how long each start took |
//! | [`faults`] | what was done to the storage while it was measured, and what followed |
//! | [`findings`] | what a reader should know, in sentences |
//! | [`closed_loop`] | where a closed loop flatters the verdict |
//! | [`goals`] | what a study was to find out, and what it found |
//! | [`orientation`] | what a load compares with: published drives and clusters, and how many machines it is enough for |
//! | [`analysis`] | what measured points came to, as text |
//! | [`points`] | its steps as measured points, to be analysed |
//! | [`own`] | single files of ours as measured points: results of a bench and of a step |
//! | [`csv`], [`markdown`], [`json`] | as files |
//! | [`page`] | as one offline page |
//! | [`mod@fio`] | a step in the shape of fio's JSON+ |
//! | [`mod@write`] | all of them, into the run's folder |
//! | [`compare`] | two runs: which loads became faster or slower |
//! | [`baseline`] | results that are kept, and a run that is compared with them |

pub mod analysis;
pub mod answers;
pub mod baseline;
pub mod capacity;
pub mod closed_loop;
mod columns;
pub mod compare;
pub mod conditions;
pub mod csv;
pub mod curves;
pub mod faults;
pub mod findings;
pub mod fio;
pub mod goals;
pub mod json;
pub mod kind;
pub mod machines;
pub mod markdown;
pub mod names;
pub mod orientation;
pub mod own;
pub mod page;
pub mod picture;
pub mod points;
pub mod report;
pub mod rows;
pub mod table;
pub mod tiles;
pub mod validity;
pub mod verdict;
pub mod write;

pub use report::Report;
