//! Drawing prompts, and continuing from the manifests and assignment files that are there.

use std::collections::{BTreeMap, BTreeSet};

use slime_record::{Draw, Manifest, Stages};

use super::{BuilderAction, DrawnPrompt, Group, GroupId, Order, State, StepBuilder, StepPolicy};
use crate::segment::from_json;
use crate::steps::open_steps;
use crate::{Assignment, Error, Format, Op, Physical, Result, Store};
use slime_config::paths;

/// A draw as an earlier builder asked for it.
struct Asked {
    attempt: u32,
    cursor: u64,
    chosen: Option<u64>,
    replica: u32,
    place: Option<Physical>,
}

impl<F: Format> StepBuilder<F> {
    /// Adopts every manifest that is there, whoever committed it. Gives the names in the folder of the next step.
    pub(super) fn catch_up(
        &mut self,
        store: &mut dyn Store,
        policy: &mut dyn StepPolicy,
    ) -> Result<Vec<String>> {
        if !self.is_adopted {
            let steps = store.list(paths::ROLLOUT)?;
            for step in steps.iter().rev().filter_map(|name| paths::parse_number(name)) {
                if let Some(bytes) = store.read(&paths::manifest(step))? {
                    self.recall(store, step)?;
                    self.apply(from_json(&paths::manifest(step), &bytes)?, policy)?;
                    break;
                }
            }
        }
        let mut names = Vec::new();
        while self.step < self.config.num_steps {
            let path = paths::manifest(self.step);
            names = store.list(&paths::step(self.step))?;
            let is_committed = names.iter().any(|name| name == paths::MANIFEST);
            let Some(bytes) = (if is_committed { store.read(&path)? } else { None }) else { break };
            self.apply(from_json(&path, &bytes)?, policy)?;
        }
        if !self.is_adopted {
            self.adopt_assignments(store, policy)?;
            self.is_adopted = true;
        }
        Ok(names)
    }

    /// Makes a manifest the state to continue from. Own draws that fit it stay, others are given up.
    pub(super) fn apply(&mut self, manifest: Manifest, policy: &mut dyn StepPolicy) -> Result<()> {
        // What can fail comes first, so an error leaves the state as it was.
        let stages = &manifest.stages;
        let mut outstanding = Vec::new();
        for draw in &manifest.outstanding {
            let id = (draw.step, draw.group);
            if self.groups.get(&id).is_none_or(|group| group.cursor != draw.cursor) {
                outstanding.push((id, draw.clone(), Self::prompt_of(policy, draw, stages)?));
            }
        }
        let mut carried = Vec::new();
        for entry in &manifest.carried {
            let position = entry.chosen.unwrap_or(entry.cursor);
            carried.push((entry.clone(), Self::prompt_at(policy, entry.step, position, stages)?));
        }
        self.history.learn(&manifest);
        self.step = manifest.step + 1;
        self.cursor = manifest.cursor;
        self.returned = manifest.returned.iter().copied().collect();
        self.next_group.clone_from(&manifest.next_group);
        let dropped: Vec<GroupId> = self
            .groups
            .iter()
            .filter(|(id, group)| !self.fits(&manifest, **id, group))
            .map(|(id, _)| *id)
            .collect();
        for id in dropped {
            self.forget(id);
        }
        for (id, draw, prompt) in outstanding {
            self.insert_draw(id, &draw, prompt);
        }
        // The order of acceptance is the manifest's, then what was accepted since.
        let own = std::mem::take(&mut self.accepted);
        for (entry, prompt) in carried {
            let id = (entry.step, entry.group);
            self.accepted.push(id);
            let group = Group {
                is_counted: true,
                cursor: entry.cursor,
                chosen: entry.chosen,
                prompt,
                attempt: entry.attempt,
                replica: None,
                place: None,
                state: State::Accepted(Box::new(entry)),
            };
            self.groups.insert(id, group);
        }
        let carried: BTreeSet<GroupId> = self.accepted.iter().copied().collect();
        self.accepted.extend(own.into_iter().filter(|id| !carried.contains(id)));
        self.expired.clear();
        self.num_replaced_tokens = 0;
        self.forget_old_segments();
        self.actions.push(BuilderAction::Committed { manifest: Box::new(manifest) });
        Ok(())
    }

    fn fits(&self, manifest: &Manifest, id: GroupId, group: &Group) -> bool {
        if self.config.order == Order::Fixed {
            return id.0 > manifest.step && !self.config.has_filter;
        }
        let is_same = |step, number, cursor| (step, number) == id && cursor == group.cursor;
        let is_named = manifest.outstanding.iter().any(|draw| is_same(draw.step, draw.group, draw.cursor))
            || manifest.carried.iter().any(|entry| is_same(entry.step, entry.group, entry.cursor));
        let is_newer = id.1 >= manifest.next_group.get(&id.0).copied().unwrap_or(0)
            && id.0 > manifest.step
            && (group.cursor >= manifest.cursor || manifest.returned.contains(&group.cursor));
        is_named || is_newer
    }

    fn insert_draw(&mut self, id: GroupId, draw: &Draw, prompt: DrawnPrompt) {
        let group = Group {
            is_counted: false,
            cursor: draw.cursor,
            chosen: draw.chosen,
            prompt,
            attempt: draw.attempt,
            replica: None,
            place: None,
            state: State::Waiting,
        };
        self.groups.insert(id, group);
    }

    /// What earlier builders asked since the last manifest: same identity, prompt and replica.
    fn adopt_assignments(&mut self, store: &mut dyn Store, policy: &mut dyn StepPolicy) -> Result<()> {
        let mut files = Vec::new();
        for step in open_steps(store)? {
            let dir = paths::step(step);
            for name in store.list(&dir)? {
                if let Some(found) = paths::parse_assignment(&name) {
                    let number = (found.incarnation, found.seq);
                    files.push((number, found.index, format!("{dir}/{name}")));
                }
            }
        }
        files.sort();
        let mut asked: BTreeMap<GroupId, Asked> = BTreeMap::new();
        for (_, replica, path) in files {
            let Some(bytes) = store.read(&path)? else { continue };
            for op in from_json::<Assignment>(&path, &bytes)?.ops {
                match op {
                    Op::New { step, group, attempt, cursor, chosen, place, .. } => {
                        if asked.get(&(step, group)).is_none_or(|known| known.attempt <= attempt) {
                            asked.insert((step, group), Asked { attempt, cursor, chosen, replica, place });
                        }
                    }
                    Op::Cancel { step, group, attempt } => {
                        if asked.get(&(step, group)).is_some_and(|known| known.attempt <= attempt) {
                            asked.remove(&(step, group));
                        }
                    }
                    Op::Broken { .. } => {}
                }
            }
        }
        for (id, asked) in asked {
            self.adopt_asked(id, &asked, policy)?;
        }
        Ok(())
    }

    fn adopt_asked(&mut self, id: GroupId, asked: &Asked, policy: &mut dyn StepPolicy) -> Result<()> {
        if !self.groups.contains_key(&id) {
            let is_open = self.may_draw(id.0) && id.1 >= self.next_group.get(&id.0).copied().unwrap_or(0);
            let is_free = (asked.cursor >= self.cursor || self.returned.contains(&asked.cursor))
                && self.groups.values().all(|group| group.cursor != asked.cursor);
            let is_right = match self.config.order {
                Order::Fixed => id.0 == self.step || !self.config.has_filter,
                Order::Arrival => is_free,
            };
            if !is_open
                || !is_right
                || (self.config.order == Order::Fixed && asked.cursor != self.fixed_cursor(id))
            {
                return Ok(());
            }
            let Asked { attempt, cursor, chosen, .. } = *asked;
            let draw = Draw { step: id.0, group: id.1, cursor, chosen, attempt };
            let prompt = Self::prompt_of(policy, &draw, self.history.stages())?;
            self.insert_draw(id, &draw, prompt);
        }
        if let Some(group) = self.groups.get_mut(&id)
            && matches!(group.state, State::Waiting)
            && group.cursor == asked.cursor
            && asked.attempt >= group.attempt
        {
            group.attempt = asked.attempt;
            group.replica = Some(asked.replica);
            group.place = asked.place;
        }
        Ok(())
    }

    fn fixed_cursor(&self, id: GroupId) -> u64 {
        self.cursor + (id.0 - self.step) * self.config.num_groups as u64 + u64::from(id.1)
    }

    /// Whether what a step is drawn by is known: the manifests of all steps whose version may be the newest when it
    /// opens.
    fn may_draw(&self, step: u64) -> bool {
        (self.step..=self.step + self.config.max_staleness).contains(&step)
    }

    fn prompt_of(policy: &mut dyn StepPolicy, draw: &Draw, stages: &Stages) -> Result<DrawnPrompt> {
        Self::prompt_at(policy, draw.step, draw.chosen.unwrap_or(draw.cursor), stages)
    }

    fn prompt_at(
        policy: &mut dyn StepPolicy,
        step: u64,
        position: u64,
        stages: &Stages,
    ) -> Result<DrawnPrompt> {
        policy.draw(step, position, stages)?.ok_or(Error::PromptsEnded { cursor: position })
    }

    /// Draws what the open steps lack.
    pub(super) fn draw_due(&mut self, policy: &mut dyn StepPolicy) -> Result<()> {
        let Some(newest) = self.lineage.newest() else { return Ok(()) };
        let last_step = (newest.physical.version + self.config.max_staleness).min(self.config.num_steps - 1);
        for step in (self.step..=last_step).take_while(|step| self.may_draw(*step)).collect::<Vec<_>>() {
            if self.config.order == Order::Fixed && self.config.has_filter && step > self.step {
                break;
            }
            while let Some(id) = self.next_draw(step) {
                let cursor = match self.config.order {
                    Order::Fixed => self.fixed_cursor(id),
                    Order::Arrival => self.next_cursor(),
                };
                let chosen = Some(policy.choose(id.0, cursor, &self.history)?).filter(|at| *at != cursor);
                let draw = Draw { step: id.0, group: id.1, cursor, chosen, attempt: 0 };
                let prompt = Self::prompt_of(policy, &draw, self.history.stages())?;
                self.insert_draw(id, &draw, prompt);
            }
        }
        Ok(())
    }

    /// The identity of the next group to draw for a step; none when it has enough.
    fn next_draw(&self, step: u64) -> Option<GroupId> {
        let of_step = || self.groups.range((step, 0)..=(step, u32::MAX));
        let num_drawn = of_step().next_back().map_or(0, |(id, _)| id.1 + 1);
        let next = num_drawn.max(self.next_group.get(&step).copied().unwrap_or(0));
        if self.config.order == Order::Fixed
            && let Some(missing) = (0..num_drawn).find(|number| !self.groups.contains_key(&(step, *number)))
        {
            return Some((step, missing));
        }
        let is_live = |group: &Group| !matches!(group.state, State::Refused { .. });
        let (num_live, num_wanted) = match self.config.order {
            Order::Fixed => (of_step().filter(|(_, group)| is_live(group)).count(), self.config.num_groups),
            Order::Arrival => {
                let live = self.groups.range(..=(step, u32::MAX)).filter(|(_, group)| is_live(group)).count();
                let num_more = self.config.num_groups * (step - self.step) as usize;
                (live, self.config.over_sampling + num_more)
            }
        };
        let is_first = self.config.order == Order::Fixed
            && self.config.has_filter
            && num_drawn < self.config.over_sampling as u32;
        let is_wanted = num_live < num_wanted || (is_first && step == self.step);
        (is_wanted && (self.config.order == Order::Arrival || next < self.config.max_groups))
            .then_some((step, next))
    }

    fn next_cursor(&self) -> u64 {
        let used: BTreeSet<u64> = self.groups.values().map(|group| group.cursor).collect();
        if let Some(returned) = self.returned.iter().find(|cursor| !used.contains(cursor)) {
            return *returned;
        }
        let mut cursor = self.cursor;
        while used.contains(&cursor) {
            cursor += 1;
        }
        cursor
    }
}
