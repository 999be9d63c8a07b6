//! The page of the cluster that a run starts for itself, beside the page of the run.

use loadline_console::following::Place;
use loadline_console::server::Console;
use loadline_study::progress::{Progress, Update};

/// The name of the measured cluster on the pages of the run's console.
pub(super) const NAME: &str = "measured";
/// Why the cluster has ended, as its page shows it.
const ENDED: &str = "the run has stopped the cluster that it had started";

/// Has a console follow the run's own cluster for as long as that runs, and shows the run as `shown` does.
pub(super) struct WithClusterPage {
    /// The console of the run.
    pub(super) console: Console,
    /// How else the run is shown.
    pub(super) shown: Box<dyn Progress>,
}

impl Progress for WithClusterPage {
    fn update(&mut self, update: Update<'_>) {
        match update {
            // The console learns the other nodes from the first one.
            Update::ClusterRuns([api, ..]) => {
                let place = Place { name: NAME.into(), api: api.clone(), access: None };
                if let Err(why) = self.console.follow(place) {
                    let notice = format!("the cluster has no page: cannot start a thread: {why}");
                    self.shown.update(Update::Notice(&notice));
                }
            }
            Update::ClusterEnds => self.console.end_cluster(NAME, ENDED),
            other => self.shown.update(other),
        }
    }
}
