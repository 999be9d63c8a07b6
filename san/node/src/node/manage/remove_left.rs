//! Volumes that interrupted commands have left are removed together: as many in each commit as it can have.

use std::collections::BTreeSet;

use super::volumes::removal;
use crate::config::catalog::{Catalog, VolumeState};
use crate::config::steps::{self, Step};
use crate::config::{ConfigError, ConfigStore, MOST_CHANGES};

/// A volume that a command has left; and if it is of a command of another node, that node, with the version of its
/// [`Maker`](crate::config::catalog::Maker) that was seen.
pub(in crate::node) type Left = (u64, Option<(u32, Option<u64>)>);

/// What became of volumes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::node) struct Removed {
    /// They are not there any more.
    pub(in crate::node) gone: BTreeSet<u64>,
    /// They need several commits each.
    pub(in crate::node) long: Vec<Left>,
}

/// Removes volumes that are left, each as [`RemoveVolume::left`](super::RemoveVolume::left) does.
pub(in crate::node) struct RemoveLeft {
    volumes: Vec<Left>,
    removed: Removed,
    tries: usize,
}

impl RemoveLeft {
    pub(in crate::node) fn new(volumes: Vec<Left>) -> RemoveLeft {
        RemoveLeft { volumes, removed: Removed::default(), tries: 0 }
    }

    /// Makes the next step: one reading and one commit.
    pub(in crate::node) fn step(
        &mut self,
        store: &mut dyn ConfigStore,
    ) -> Result<Step<Removed>, ConfigError> {
        if self.volumes.is_empty() {
            return Ok(Step::Done(std::mem::take(&mut self.removed)));
        }
        let catalog = Catalog::read(store)?;
        let (mut changes, mut now, mut later) = (Vec::new(), Vec::new(), Vec::new());
        for left in &self.volumes {
            let (id, silent) = *left;
            let Some((volume, version)) = catalog.volumes.get(&id) else {
                self.removed.gone.insert(id);
                continue;
            };
            let shows = silent.is_some_and(|(node, seen)| catalog.makers.get(&node).copied() != seen);
            if volume.attached.is_some() || volume.state == VolumeState::Ready || shows {
                continue;
            }
            // A volume with a record that is being removed is one that a person removes.
            let takes_back = !catalog.records.contains_key(&id);
            match removal(&catalog, id, volume, *version, takes_back).at_once() {
                None => self.removed.long.push(*left),
                Some(more) if changes.len() + more.len() <= MOST_CHANGES => {
                    changes.extend(more);
                    now.push(*left);
                }
                Some(_) => later.push(*left),
            }
        }
        if !changes.is_empty() && !store.commit(&changes)? {
            self.volumes = [now, later].concat();
            self.tries += 1;
            return if self.tries == steps::TRIES { Err(ConfigError::Contended) } else { Ok(Step::More) };
        }
        self.tries = 0;
        self.removed.gone.extend(now.iter().map(|(id, _)| *id));
        self.volumes = later;
        Ok(Step::More)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::manage::plan::MakeRecords;
    use crate::node::manage::plan::tests::{GIB, checked, cluster, complete, creation};
    use crate::node::under_way::UnderWay;

    #[test]
    fn many_volumes_are_removed_with_few_commits_and_others_stay() {
        let mut store = cluster(1 << 50);
        let all = UnderWay::default();
        let mut ids = Vec::new();
        for number in 0..100 {
            let (mut plan, _running) = creation(&all, checked(&format!("x-{number}"), GIB, 1), 1);
            ids.push(complete(&mut store, &mut plan).unwrap()[0]);
        }
        let of = checked("long", 192 * 16 * GIB, 12);
        let (mut plan, _running) = creation(&all, of.clone(), 1);
        let long = complete(&mut store, &mut plan).unwrap()[0].id;
        // One of them is ready meanwhile.
        let mut records = MakeRecords::new(vec![ids[0]], checked("x", GIB, 1).layout, false);
        assert!(steps::all(&mut store, |store| records.step(store)).unwrap().is_empty());
        let before = store.revision().unwrap();
        let left: Vec<Left> = ids.iter().map(|of| of.id).chain([long, 9_999]).map(|id| (id, None)).collect();
        let mut remove = RemoveLeft::new(left);
        let removed = steps::all(&mut store, |store| remove.step(store)).unwrap();
        // A volume is itself, its name, its plan and three replicas.
        assert_eq!(store.revision().unwrap() - before, 99_u64.div_ceil(MOST_CHANGES as u64 / 6));
        assert_eq!((removed.gone.len(), removed.long), (100, vec![(long, None)]));
        let catalog = Catalog::read(&mut store).unwrap();
        assert_eq!(catalog.volumes.keys().copied().collect::<Vec<u64>>(), [ids[0].id, long]);
        assert!(
            catalog
                .replicas
                .values()
                .filter(|(of, _)| of.volume != ids[0].id && of.volume != long)
                .all(|(of, _)| of.unless_used)
        );
    }
}
