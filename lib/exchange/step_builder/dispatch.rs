//! Which replica holds which group: leases, assignment files, cancelling and asking again.

use super::{GroupId, Order, State, StepBuilder};
use crate::replica::encode_assignment;
use crate::{Format, Heartbeat, Op, Result, Store};
use slime_config::paths;

/// What the builder knows of one replica.
#[derive(Debug, Clone)]
pub(super) struct ReplicaView {
    incarnation: u64,
    beat: u64,
    changed_ms: u64,
    is_alive: bool,
    needs_reset: bool,
    ops: Vec<Op>,
    /// Its segments that cannot be read.
    broken: Vec<String>,
    writing: Option<(String, Vec<u8>)>,
    next_seq: u64,
}

impl ReplicaView {
    pub(super) fn new(now_ms: u64) -> Self {
        Self {
            incarnation: 0,
            beat: 0,
            changed_ms: now_ms,
            is_alive: false,
            needs_reset: true,
            ops: Vec::new(),
            broken: Vec::new(),
            writing: None,
            next_seq: 0,
        }
    }
}

impl<F: Format> StepBuilder<F> {
    /// Whether a replica is silent, which may come to life at any moment.
    pub(super) fn lacks_replicas(&self) -> bool {
        self.replicas.iter().any(|view| !view.is_alive)
    }

    /// Times heartbeats by the own clock; a silent replica loses its groups.
    pub(super) fn watch_replicas(&mut self, store: &mut dyn Store) -> Result<()> {
        Heartbeat::read_all(store, &mut self.heartbeats)?;
        let now_ms = store.now_ms();
        for index in 0..self.config.num_replicas {
            let heartbeat = self.heartbeats.get(&paths::replica(index));
            let view = &mut self.replicas[index as usize];
            if let Some(heartbeat) = heartbeat
                && (heartbeat.incarnation, heartbeat.beat) > (view.incarnation, view.beat)
            {
                view.needs_reset |= heartbeat.incarnation > view.incarnation;
                (view.incarnation, view.beat) = (heartbeat.incarnation, heartbeat.beat);
                view.changed_ms = now_ms;
                view.is_alive = true;
            }
            if now_ms >= view.changed_ms + self.config.lease_ms {
                view.is_alive = false;
                for id in self.held_by(index) {
                    self.ask_again(id);
                }
            }
        }
        Ok(())
    }

    fn held_by(&self, index: u32) -> Vec<GroupId> {
        let is_held = |state: &State, replica| matches!(state, State::Waiting) && replica == Some(index);
        self.groups.iter().filter(|(_, g)| is_held(&g.state, g.replica)).map(|(id, _)| *id).collect()
    }

    /// Takes a group from its replica.
    pub(super) fn cancel(&mut self, id: GroupId) {
        if let Some(group) = self.groups.get_mut(&id)
            && let Some(replica) = group.replica.take()
        {
            let op = Op::Cancel { step: id.0, group: id.1, attempt: group.attempt };
            if let Some(view) = self.replicas.get_mut(replica as usize) {
                view.ops.push(op);
            }
        }
    }

    /// The group goes out again as the next attempt.
    pub(super) fn ask_again(&mut self, id: GroupId) {
        #[cfg(test)]
        if self.owner.fault == crate::simulator::Fault::NeverAskAgain {
            return;
        }
        self.cancel(id);
        if let Some(group) = self.groups.get_mut(&id) {
            group.attempt += 1;
            group.place = None;
        }
    }

    /// A segment of a replica cannot be read. Nobody knows which groups were in it: those the replica holds go out
    /// again, and it forgets that it has sealed those it is asked for later.
    pub(super) fn give_up_segment(&mut self, replica: u32, path: &str) {
        if let Some(view) = self.replicas.get_mut(replica as usize) {
            view.broken.push(path.to_owned());
            view.ops.push(Op::Broken { segment: path.to_owned() });
        }
        for id in self.held_by(replica) {
            self.ask_again(id);
        }
    }

    /// Gives a group up for good.
    pub(super) fn forget(&mut self, id: GroupId) {
        self.cancel(id);
        self.groups.remove(&id);
        self.accepted.retain(|accepted| *accepted != id);
    }

    /// Hands waiting groups to the replicas that hold the fewest.
    pub(super) fn assign(&mut self) {
        let Some(newest) = self.lineage.newest() else { return };
        self.recall_void();
        let waiting: Vec<GroupId> = self
            .groups
            .iter()
            .filter(|(_, group)| matches!(group.state, State::Waiting) && group.replica.is_none())
            .map(|(id, _)| *id)
            .collect();
        let mut num_held: Vec<usize> =
            (0..self.config.num_replicas).map(|index| self.held_by(index).len()).collect();
        for id in waiting {
            let place = match self.config.order {
                Order::Fixed => self.lineage.locate(self.config.version_of(id.0)),
                Order::Arrival => None,
            };
            let is_open = id.0 <= newest.physical.version + self.config.max_staleness;
            if !is_open || (self.config.order == Order::Fixed && place.is_none()) {
                continue;
            }
            let free = (0..num_held.len())
                .filter(|&index| self.replicas[index].is_alive && num_held[index] < self.config.max_in_flight)
                .min_by_key(|&index| num_held[index]);
            let (Some(index), Some(group)) = (free, self.groups.get_mut(&id)) else { break };
            num_held[index] += 1;
            group.replica = Some(index as u32);
            group.place = place;
            let op = self.new_op(id);
            self.replicas[index].ops.push(op);
        }
    }

    /// Groups asked with weights that left the line are asked for again.
    fn recall_void(&mut self) {
        let is_void = |group: &super::Group| {
            matches!(group.state, State::Waiting)
                && group.replica.is_some()
                && group.place.is_some_and(|place| !self.lineage.is_on_line(place))
        };
        let void: Vec<GroupId> = self.groups.iter().filter(|(_, g)| is_void(g)).map(|(id, _)| *id).collect();
        for id in void {
            self.ask_again(id);
        }
    }

    /// Writes one assignment file for each replica that has something to hear.
    pub(super) fn send(&mut self, store: &mut dyn Store) -> Result<()> {
        let is_due = |view: &ReplicaView| view.writing.is_some() || view.needs_reset || !view.ops.is_empty();
        if self.replicas.iter().any(is_due) {
            self.owner.check(store)?;
        }
        for index in 0..self.config.num_replicas {
            let held: Vec<Op> = self.held_by(index).into_iter().map(|id| self.new_op(id)).collect();
            let view = &mut self.replicas[index as usize];
            if view.writing.is_none() && (!view.ops.is_empty() || view.needs_reset) {
                let mut ops = std::mem::take(&mut view.ops);
                if view.needs_reset {
                    let broken = view.broken.iter().cloned().map(|segment| Op::Broken { segment });
                    ops = broken.chain(held).collect();
                }
                let path = paths::assignment(self.step, index, self.owner.incarnation, view.next_seq);
                view.writing = Some((path, encode_assignment(view.needs_reset, ops)));
                view.needs_reset = false;
                view.next_seq += 1;
            }
            // A failed write is repeated with the same name and bytes, since it may have been done.
            if let Some((path, bytes)) = &view.writing {
                store.seal(path, bytes)?;
                view.writing = None;
            }
        }
        Ok(())
    }
}
