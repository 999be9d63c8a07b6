//! Pure mathematics over measurements. No I/O, no clock, no thread.
//!
//! | module | idea |
//! | --- | --- |
//! | [`interval`] | what one disk of one worker did in one second, and how such records add up |
//! | [`window`] | the measured window: intervals of many disks, workers and seconds, merged |
//! | [`heat`] | how many I/Os took how long, over time, for a heat map |
//! | [`stall`] | when I/Os completed, to the millisecond, and the longest time that none did |
//! | [`tenths`] | how many I/Os completed in each tenth of a second |
//! | [`summary`] | the figures that are printed of a histogram, and the depth gate |
//! | [`point`] | one measured point as any tool states it |
//! | [`analysis`] | what measured points come to: saturation, knee, load line, cliffs, findings |
//! | [`audit`] | does a result hold together: findings |
//! | [`steady`] | steady state |
//! | [`spread`] | what the repeats of one load say: median, range or confidence interval |
//! | [`difference`] | two runs of one load: the ratio and its interval |
//! | [`bootstrap`] | intervals of what is computed from several loads' repeats |
//! | [`search`] | the most load within a limit: what to measure next |
//! | [`curve`] | the load line and the knee of a sweep that was measured |
//! | [`saturation`] | a series that grows by adding workers: where it saturates, and what comes after |
//! | [`change`] | levels of a series and the cliffs between them |
//! | [`capacity`] | how many I/Os a second a cluster of modelled devices carries, predicted |
//! | [`stats`] | the estimators that these share |

pub mod analysis;
pub mod audit;
pub mod bootstrap;
pub mod capacity;
pub mod change;
pub mod curve;
pub mod difference;
pub mod heat;
pub mod interval;
pub mod knee;
pub mod point;
pub mod saturation;
pub mod search;
pub mod spread;
pub mod stall;
pub mod stats;
pub mod steady;
pub mod summary;
pub mod tenths;
pub mod window;
