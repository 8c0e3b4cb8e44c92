//! How the layers of a model are dealt out to the stages of a pipeline.

use std::ops::Range;

/// The stages of a pipeline. Every stage has `chunks` runs of neighbouring layers: a pass goes through the first of every
/// stage, then through the second of every stage and so on (interleaved stages, arXiv 2104.04473).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pipeline {
    /// How many stages.
    pub num_stages: usize,
    /// Runs of layers of each stage.
    pub chunks: usize,
    /// Layers of the first run of all, where that is to have another number than the others.
    pub first: Option<usize>,
    /// Layers of the last one.
    pub last: Option<usize>,
}

impl Pipeline {
    /// One stage with all layers.
    pub const WHOLE: Self = Self::even(1);

    /// Stages with a run each, of equal length.
    pub const fn even(num_stages: usize) -> Self {
        Self { num_stages, chunks: 1, first: None, last: None }
    }

    /// Runs of layers, of all stages together.
    pub fn num_chunks(self) -> usize {
        self.num_stages * self.chunks
    }

    /// The layers of each run, in the order of a pass. Those without a number of their own are equal, the first of them one
    /// longer where something is left over.
    pub fn layers(self, num_layers: usize) -> Vec<Range<usize>> {
        let num = self.num_chunks();
        let (first, last) = (self.first.filter(|_| num > 1), self.last.filter(|_| num > 1));
        let rest = num_layers.saturating_sub(first.unwrap_or(0) + last.unwrap_or(0));
        let others = num - usize::from(first.is_some()) - usize::from(last.is_some());
        let mut start = 0;
        let mut at_rest = 0;
        let run = |at: usize| {
            let len = match (first, last) {
                (Some(first), _) if at == 0 => first,
                (_, Some(last)) if at + 1 == num => last,
                _ => {
                    at_rest += 1;
                    rest / others + usize::from(at_rest <= rest % others)
                }
            };
            start += len;
            start - len..start
        };
        (0..num).map(run).collect()
    }

    /// The runs of one stage, in the order of a pass.
    pub fn of_stage(self, stage: usize, num_layers: usize) -> Vec<Range<usize>> {
        self.layers(num_layers).into_iter().skip(stage).step_by(self.num_stages).collect()
    }

    /// What is wrong with these stages for a model of `num_layers` layers.
    pub fn misfit(self, num_layers: usize) -> Option<String> {
        let num = self.num_chunks();
        if self.chunks > 1 && self.num_stages == 1 {
            return Some("parallel.virtual_pp: one stage has nothing to interleave with".to_owned());
        }
        for (key, given) in [("first_stage_layers", self.first), ("last_stage_layers", self.last)] {
            if let (Some(_), 1) = (given, self.num_stages) {
                return Some(format!("parallel.{key}: one stage has all layers"));
            }
        }
        let given = self.first.unwrap_or(0) + self.last.unwrap_or(0);
        let others = num - (usize::from(self.first.is_some()) + usize::from(self.last.is_some())).min(num);
        if given > num_layers || (others == 0 && given != num_layers) {
            return Some(format!(
                "parallel: first_stage_layers and last_stage_layers take {given} of the model's {num_layers} layers"
            ));
        }
        let layers = self.layers(num_layers);
        let empty = layers.iter().position(Range::is_empty);
        empty.map(|at| {
            let (stage, chunks) = (at % self.num_stages, self.chunks);
            let runs = if chunks > 1 { format!(" in {chunks} runs each") } else { String::new() };
            format!(
                "parallel.pp: {} stages{runs} of the model's {num_layers} layers leave stage {stage} without one",
                self.num_stages
            )
        })
    }
}

/// A stage of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PipelineStage {
    /// Which, from 0.
    pub rank: usize,
    /// All of them.
    pub pipeline: Pipeline,
}

impl PipelineStage {
    /// The one that has everything.
    pub const WHOLE: Self = Self { rank: 0, pipeline: Pipeline::WHOLE };

    /// The runs of layers that it has.
    pub fn layers(self, num_layers: usize) -> Vec<Range<usize>> {
        self.pipeline.of_stage(self.rank, num_layers)
    }

    /// Whether a pass begins here, with the embedding.
    pub fn is_first(self) -> bool {
        self.rank == 0
    }

    /// Whether a pass ends here, with the final norm and the heads.
    pub fn is_last(self) -> bool {
        self.rank + 1 == self.pipeline.num_stages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lens(pipeline: Pipeline, num_layers: usize) -> Vec<usize> {
        assert_eq!(pipeline.misfit(num_layers), None);
        let layers = pipeline.layers(num_layers);
        assert!(layers.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(layers.last().map(|last| last.end), Some(num_layers));
        layers.iter().map(ExactSizeIterator::len).collect()
    }

    #[test]
    fn layers_are_dealt_out_in_order() {
        assert_eq!(lens(Pipeline::even(4), 92), [23; 4]);
        assert_eq!(lens(Pipeline::even(4), 94), [24, 24, 23, 23]);
        assert_eq!(lens(Pipeline { last: Some(22), ..Pipeline::even(4) }, 94), [24, 24, 24, 22]);
        let both = Pipeline { first: Some(14), last: Some(16), ..Pipeline::even(8) };
        assert_eq!(lens(both, 78), [14, 8, 8, 8, 8, 8, 8, 16]);
        assert_eq!(lens(Pipeline { first: Some(1), last: Some(2), ..Pipeline::even(2) }, 3), [1, 2]);
    }

    #[test]
    fn interleaved_stages_have_every_second_run() {
        let pipeline = Pipeline { chunks: 2, ..Pipeline::even(2) };
        assert_eq!(pipeline.of_stage(0, 7), [0..2, 4..6]);
        assert_eq!(pipeline.of_stage(1, 7), [2..4, 6..7]);
    }

    #[test]
    fn stages_without_layers_are_named() {
        let problem = |pipeline: Pipeline, num| pipeline.misfit(num).unwrap();
        assert_eq!(
            problem(Pipeline::even(4), 3),
            "parallel.pp: 4 stages of the model's 3 layers leave stage 3 without one"
        );
        assert!(problem(Pipeline { chunks: 2, ..Pipeline::even(2) }, 3).contains("in 2 runs each"));
        assert!(
            problem(Pipeline { last: Some(9), ..Pipeline::even(2) }, 8).contains("take 9 of the model's 8")
        );
        assert!(
            problem(Pipeline { first: Some(2), last: Some(2), ..Pipeline::even(2) }, 8).contains("take 4")
        );
        assert!(problem(Pipeline { last: Some(8), ..Pipeline::even(2) }, 8).contains("leave stage 0"));
        assert!(problem(Pipeline { chunks: 2, ..Pipeline::WHOLE }, 8).starts_with("parallel.virtual_pp"));
        assert!(
            problem(Pipeline { last: Some(8), ..Pipeline::WHOLE }, 8)
                .starts_with("parallel.last_stage_layers")
        );
    }
}
