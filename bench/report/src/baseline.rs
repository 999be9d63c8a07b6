//! A baseline: results of one study that are kept, one of which is pinned. A new run is compared with the pinned result,
//! and shown beside those that were kept last.
//!
//! | module | idea |
//! | --- | --- |
//! | [`name`] | what a baseline is called |
//! | [`kept`] | one kept result, as a file |
//! | [`store`] | where results are kept: what every store promises |
//! | [`folder`], [`git`] | the stores: a folder; a git ref |
//! | [`history`] | what is kept under one name, as far as a run needs it |
//! | [`trend`] | the kept results of each load, and the noise between runs |
//! | [`course`] | one figure over many runs, each beside the noise of the runs before it |
//! | [`gate`] | what a run came to beside its baseline: comparison, trend, and whether it is kept |
//! | [`text`], [`markdown`], [`junit`] | as text, and as files for a CI |

pub mod course;
pub mod folder;
pub mod gate;
pub mod git;
pub mod history;
pub mod junit;
pub mod kept;
pub mod markdown;
pub mod name;
pub mod store;
pub mod text;
pub mod trend;

use loadline_study::StudyError;

use folder::FolderStore;
use git::GitStore;

pub use gate::Gate;
pub use history::History;
pub use kept::KeptResult;
pub use name::BaselineName;
pub use store::{Addition, BaselineStore, Pin};

/// The prefix of a place that is a git ref.
const GIT: &str = "git:";

/// The store at a place: a folder, or `git:REF` in the repository of the current folder. Nothing is made.
pub fn open(place: &str) -> Result<Box<dyn BaselineStore>, StudyError> {
    match place.strip_prefix(GIT) {
        Some(reference) => Ok(Box::new(GitStore::open(reference)?)),
        None if place.is_empty() => Err(StudyError::usage("--baselines is empty: give a folder, or git:REF")),
        None => Ok(Box::new(FolderStore::new(place))),
    }
}
