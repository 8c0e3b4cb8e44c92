//! In which order a stage of a pipeline takes the passes of its micro-batches.
//!
//! One forward, one backward (arXiv 2104.04473, as in Megatron-LM): after a few forward passes a stage takes a backward pass
//! after each forward one, so that it never keeps more micro-batches than there are stages from it on. With several runs of
//! layers on each stage micro-batches go through in groups of about as many as there are stages.

use slime_comm::even_counts;
use slime_config::{Pipeline, PipelineStage};

/// Which pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

/// A pass of one micro-batch through one run of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Action {
    pub direction: Direction,
    pub run: usize,
    pub batch: usize,
}

/// The forward and backward passes of `num_batches` micro-batches on a stage.
pub(crate) fn one_forward_one_backward(stage: PipelineStage, num_batches: usize) -> Vec<Action> {
    let Pipeline { num_stages, chunks, .. } = stage.pipeline;
    let forward = order(stage.pipeline, num_batches, Direction::Forward);
    let backward = order(stage.pipeline, num_batches, Direction::Backward);
    let behind = num_stages - 1 - stage.rank;
    // Until the first micro-batch has come back, a pass through every run for the group that follows it.
    let ahead =
        if chunks == 1 { behind } else { 2 * behind + (chunks - 1) * group_lens(num_stages, num_batches)[0] };
    let ahead = ahead.min(forward.len());
    let mut actions = forward[..ahead].to_vec();
    for (forward, backward) in forward[ahead..].iter().zip(&backward) {
        actions.extend([*forward, *backward]);
    }
    actions.extend(&backward[forward.len() - ahead..]);
    actions
}

/// The forward passes alone.
pub(crate) fn forward_only(stage: PipelineStage, num_batches: usize) -> Vec<Action> {
    order(stage.pipeline, num_batches, Direction::Forward)
}

/// Every micro-batch through every run, the runs backward for backward passes.
fn order(pipeline: Pipeline, num_batches: usize, direction: Direction) -> Vec<Action> {
    let Pipeline { num_stages, chunks, .. } = pipeline;
    let mut actions = Vec::with_capacity(num_batches * chunks);
    let mut start = 0;
    for len in group_lens(num_stages, num_batches) {
        for at in 0..chunks {
            let run = if direction == Direction::Forward { at } else { chunks - 1 - at };
            actions.extend((start..start + len).map(|batch| Action { direction, run, batch }));
        }
        start += len;
    }
    actions
}

/// Groups of at least as many micro-batches as there are stages (a smaller one behind others would have to wait for itself), as
/// far as there are so many; the first have one more.
fn group_lens(num_stages: usize, num_batches: usize) -> Vec<usize> {
    let num_groups = (num_batches / num_stages).max(1);
    even_counts(num_batches, num_groups)
}

/// The most that a stage keeps between forward and backward passes of `num_batches` micro-batches, where its run number `run`
/// keeps `bytes(run)` of each.
pub(crate) fn most_kept(stage: PipelineStage, num_batches: usize, bytes: impl Fn(usize) -> u64) -> u64 {
    let (mut kept, mut most) = (0, 0);
    for Action { direction, run, .. } in one_forward_one_backward(stage, num_batches) {
        match direction {
            Direction::Forward => kept += bytes(run),
            Direction::Backward => kept -= bytes(run),
        }
        most = most.max(kept);
    }
    most
}

/// The share of its time that a stage waits, on average, where the passes of run `at` of all runs take `cost(at)`, backward
/// ones twice that, and messages nothing. Of equal runs, one a stage, `(p - 1) / (m + p - 1)` for p stages and m micro-batches.
pub(crate) fn bubble(pipeline: Pipeline, num_batches: usize, cost: impl Fn(usize) -> f64) -> f64 {
    let Pipeline { num_stages, chunks, .. } = pipeline;
    let schedules: Vec<Vec<Action>> = (0..num_stages)
        .map(|rank| one_forward_one_backward(PipelineStage { rank, pipeline }, num_batches))
        .collect();
    let num_runs = num_stages * chunks;
    // When each pass of each micro-batch has ended, by direction and place among all runs.
    let mut ended = vec![[None, None]; num_runs * num_batches];
    let mut next = vec![0; num_stages];
    let mut free = vec![0.0_f64; num_stages];
    let mut busy = 0.0;
    loop {
        let mut has_moved = false;
        for rank in 0..num_stages {
            while let Some(action) = schedules[rank].get(next[rank]) {
                let at = action.run * num_stages + rank;
                let slot = |at: usize| at * num_batches + action.batch;
                let (needs, side, factor) = match action.direction {
                    Direction::Forward => (at.checked_sub(1).map(|at| ended[slot(at)][0]), 0, 1.0),
                    Direction::Backward if at + 1 == num_runs => (Some(ended[slot(at)][0]), 1, 2.0),
                    Direction::Backward => (Some(ended[slot(at + 1)][1]), 1, 2.0),
                };
                let Some(ready) = needs.unwrap_or(Some(0.0_f64)) else { break };
                let time = factor * cost(at);
                free[rank] = ready.max(free[rank]) + time;
                busy += time;
                ended[slot(at)][side] = Some(free[rank]);
                next[rank] += 1;
                has_moved = true;
            }
        }
        if !has_moved {
            break;
        }
    }
    debug_assert!(next.iter().zip(&schedules).all(|(next, schedule)| *next == schedule.len()));
    let all = free.iter().copied().fold(0.0, f64::max) * num_stages as f64;
    if all > 0.0 { 1.0 - busy / all } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, VecDeque};

    use super::*;

    fn stages(pipeline: Pipeline) -> impl Iterator<Item = PipelineStage> {
        (0..pipeline.num_stages).map(move |rank| PipelineStage { rank, pipeline })
    }

    /// Plays the schedules of all stages with messages that wait in order between each two of them, as they are sent;
    /// returns the most micro-batches whose backward pass a stage has yet to take.
    fn play(pipeline: Pipeline, num_batches: usize) -> usize {
        let num_stages = pipeline.num_stages;
        let last = pipeline.num_chunks() - 1;
        let schedules: Vec<_> = stages(pipeline).map(|s| one_forward_one_backward(s, num_batches)).collect();
        let mut messages: HashMap<(usize, usize, Direction), VecDeque<(usize, usize)>> = HashMap::new();
        let mut next = vec![0; num_stages];
        let mut kept = vec![0_usize; num_stages];
        let mut most = 0;
        loop {
            let mut has_moved = false;
            for rank in 0..num_stages {
                while let Some(action) = schedules[rank].get(next[rank]) {
                    let (direction, at) = (action.direction, action.run * num_stages + rank);
                    let (before, after) = match direction {
                        Direction::Forward => (at.checked_sub(1), (at < last).then_some(at + 1)),
                        Direction::Backward => ((at < last).then_some(at + 1), at.checked_sub(1)),
                    };
                    if let Some(before) = before {
                        let queue = messages.entry((before % num_stages, rank, direction)).or_default();
                        let Some(came) = queue.pop_front() else { break };
                        assert_eq!(came, (at, action.batch), "messages come in the order they are taken");
                    }
                    if let Some(after) = after {
                        let queue = messages.entry((rank, after % num_stages, direction)).or_default();
                        queue.push_back((after, action.batch));
                    }
                    match direction {
                        Direction::Forward => kept[rank] += 1,
                        Direction::Backward => kept[rank] -= 1,
                    }
                    most = most.max(kept[rank]);
                    next[rank] += 1;
                    has_moved = true;
                }
            }
            if !has_moved {
                break;
            }
        }
        for (rank, schedule) in schedules.iter().enumerate() {
            assert_eq!(
                next[rank],
                schedule.len(),
                "{pipeline:?} with {num_batches}: stage {rank} waits for ever"
            );
            let passes =
                |direction| schedule.iter().filter(move |action| action.direction == direction).count();
            assert_eq!(passes(Direction::Forward), num_batches * pipeline.chunks);
            assert_eq!(passes(Direction::Backward), num_batches * pipeline.chunks);
        }
        most
    }

    #[test]
    fn no_number_of_stages_runs_or_batches_waits_for_ever() {
        for num_stages in 1..=9 {
            for chunks in 1..=if num_stages == 1 { 1 } else { 4 } {
                for num_batches in 1..=3 * num_stages + 1 {
                    let pipeline = Pipeline { chunks, ..Pipeline::even(num_stages) };
                    let most = play(pipeline, num_batches);
                    if chunks == 1 {
                        assert!(most <= num_stages, "{num_stages} stages keep {most}");
                    }
                }
            }
        }
    }

    #[test]
    fn waiting_is_what_the_formula_says_and_interleaving_makes_it_less() {
        for (p, m) in [(2, 2), (2, 16), (4, 4), (4, 16), (8, 64)] {
            let got = bubble(Pipeline::even(p), m, |_| 1.0);
            let expected = (p - 1) as f64 / (m + p - 1) as f64;
            assert!((got - expected).abs() < 1e-12, "{p} stages, {m} batches: {got} and {expected}");
            let interleaved = bubble(Pipeline { chunks: 2, ..Pipeline::even(p) }, m, |_| 0.5);
            // Narayanan et al. 2021: divided by the runs of a stage.
            let expected = (p - 1) as f64 / (2 * m + p - 1) as f64;
            assert!((interleaved - expected).abs() < 1e-12, "{p}, {m}: {interleaved} and {expected}");
        }
        let kept = |rank| most_kept(PipelineStage { rank, pipeline: Pipeline::even(4) }, 9, |_| 1);
        assert_eq!([kept(0), kept(1), kept(3)], [4, 3, 1]);
        assert!(bubble(Pipeline::WHOLE, 3, |_| 1.0).abs() < 1e-12);
        // A last stage with less to do waits for the others.
        let uneven = bubble(Pipeline::even(2), 100, |at| if at == 0 { 2.0 } else { 1.0 });
        assert!(uneven > 0.25 && uneven < 0.26, "{uneven}");
    }
}
