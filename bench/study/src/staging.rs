//! What a run has its own cluster do: make the disks, and lead it from condition to condition.

use crate::error::StudyError;
use crate::folder::events::RunEvent;
use crate::plan::{Purpose, Step};
use crate::progress::Update;
use crate::runner::Runner;
use crate::workers::Workers;

impl<W: Workers> Runner<'_, W> {
    /// Has the study's own cluster make the disks, if it has one: they are there already if the run is resumed.
    pub(crate) async fn make_volumes(&mut self) -> Result<(), StudyError> {
        let Some(stage) = self.stage.as_ref().filter(|_| !self.is_measured()) else { return Ok(()) };
        let folder = &self.owned.folder;
        let workers = &folder.manifest.workers;
        self.volumes = stage.volumes(&folder.manifest.study, &folder.plan, workers, &mut self.stop).await?;
        Ok(())
    }

    /// Leads the cluster into the condition in which a step is measured, unless it is there. One leads to the next: what was
    /// done before is not done again, but where the run was resumed, or a new repeat begins, all is begun anew.
    pub(crate) async fn enter(&mut self, step: &Step) -> Result<(), StudyError> {
        let Some(stage) = &self.stage else { return Ok(()) };
        let manifest = &self.owned.folder.manifest;
        let conditions = &manifest.study.condition;
        let name = match (&step.condition, step.purpose) {
            (Some(name), _) => name,
            // A search goes on in the first condition, and ceilings come before all.
            (None, Purpose::Search { .. }) => match conditions.first() {
                Some(first) => &first.name,
                None => return Ok(()),
            },
            (None, _) => return Ok(()),
        };
        let Some(place) = conditions.iter().position(|condition| condition.name == *name) else {
            return Ok(());
        };
        let repeat = if matches!(step.purpose, Purpose::Search { .. }) { 0 } else { step.repeat };
        if self.entered == Some((repeat, place)) {
            return Ok(());
        }
        let from = self.entered.filter(|(known, at)| *known == repeat && *at < place).map(|(_, at)| at + 1);
        let to_enter = conditions[from.unwrap_or(0)..=place].to_vec();
        self.shared.lock().show(Update::Notice(&format!("condition {name}")));
        let began = std::time::Instant::now();
        let health = stage.enter(from.is_none(), to_enter, &mut self.stop).await?;
        let (study, plan) = (&manifest.study, &self.owned.folder.plan);
        self.volumes = stage.volumes(study, plan, &manifest.workers, &mut self.stop).await?;
        self.entered = Some((repeat, place));
        let event = RunEvent::ConditionEntered {
            condition: name.clone(),
            repeat: step.repeat,
            seconds: began.elapsed().as_secs_f64(),
            nodes_alive: health.nodes_alive,
            degraded: health.degraded,
            left_bytes: health.left_bytes,
        };
        self.owned.events.run(&event)
    }
}
