//! Pure mathematics over measurements. No I/O, no clock, no thread.
//!
//! | module | idea |
//! | --- | --- |
//! | [`interval`] | what one disk of one worker did in one second, and how such records add up |
//! | [`window`] | the measured window: intervals of many disks, workers and seconds, merged |
//! | [`stall`] | when I/Os completed, to the millisecond, and the longest time that none did |
//! | [`summary`] | the figures that are printed of a histogram, and the depth gate |
//! | [`audit`] | does a result hold together: findings |

pub mod audit;
pub mod interval;
pub mod stall;
pub mod summary;
pub mod window;
