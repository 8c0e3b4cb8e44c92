//! One packed forward pass: tokens, who sees whom, and the rows that predict trained tokens.

use slime_model::Segment;
use slime_record::Sample;

/// Where a trained token is: which sample, and which of its response tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index into the samples that were packed.
    pub sample: usize,
    /// Index into the sample's response.
    pub token: usize,
}

/// Where the tokens of a segment come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Index into the samples that were packed.
    pub sample: usize,
    /// Index of the segment's first token among the sample's.
    pub token: usize,
}

/// One forward pass. Row r of the output is a trained token: `places[r]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MicroBatch {
    /// The tokens that are fed, `[t]`.
    pub tokens: Vec<i64>,
    /// Who sees whom.
    pub segments: Vec<Segment>,
    /// Whose tokens each segment feeds; of a shared prompt the first sample that shares it.
    pub sources: Vec<Source>,
    /// For each trained token, the fed token whose hidden state predicts it, `[r]`.
    pub rows: Vec<i64>,
    /// The trained tokens, `[r]`.
    pub targets: Vec<i64>,
    /// Where they belong, `[r]`.
    pub places: Vec<Place>,
}

/// Which rows a sample has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rows {
    /// One for each trained token: the fed token before it, whose hidden state predicts it.
    #[default]
    Trained,
    /// One: the sample's last token. Its target is token 0, which nobody reads.
    Last,
}

impl Rows {
    /// Response tokens that must be fed for the rows of `sample`; `None` where it has no row.
    pub(crate) fn num_fed(self, sample: &Sample) -> Option<usize> {
        match self {
            // Up to the last trained one, which is only predicted.
            Self::Trained => sample.loss_mask.iter().rposition(|mask| *mask != 0),
            Self::Last => Some(sample.response_len()),
        }
    }
}

impl MicroBatch {
    /// One token that predicts nothing: what a rank computes that has no samples left while others go on.
    pub fn idle() -> Self {
        Self {
            tokens: vec![0],
            segments: vec![Segment::alone(0, 1)],
            sources: vec![Source { sample: 0, token: 0 }],
            ..Self::default()
        }
    }

    /// Adds the prompt that the samples `sharing` have and, after it, their responses.
    pub(crate) fn push(&mut self, samples: &[&Sample], sharing: &[usize], rows: Rows) {
        let Some(&first) = sharing.first() else { return };
        let prompt = samples[first].prompt_tokens();
        self.sources.push(Source { sample: first, token: 0 });
        let prefix = (self.tokens.len(), prompt.len());
        self.segments.push(Segment::alone(prefix.0, prefix.1));
        self.tokens.extend(prompt.iter().map(|token| i64::from(*token)));
        for &i in sharing {
            self.push_response(prefix, i, samples[i], rows);
        }
    }

    fn push_response(&mut self, prefix: (usize, usize), i: usize, sample: &Sample, rows: Rows) {
        let start = self.tokens.len();
        let response = sample.response_tokens();
        let num_fed = rows.num_fed(sample).unwrap_or(0);
        if num_fed > 0 {
            self.segments.push(Segment::after(prefix, start, num_fed));
            self.sources.push(Source { sample: i, token: prefix.1 });
            self.tokens.extend(response[..num_fed].iter().map(|token| i64::from(*token)));
        }
        // The fed token before response token `token`.
        let before = |token: usize| if token == 0 { prefix.0 + prefix.1 - 1 } else { start + token - 1 };
        if rows == Rows::Last {
            self.push_row(before(num_fed), 0, Place { sample: i, token: num_fed.saturating_sub(1) });
            return;
        }
        for (token, target) in response.iter().enumerate().filter(|(token, _)| sample.loss_mask[*token] != 0)
        {
            self.push_row(before(token), *target, Place { sample: i, token });
        }
    }

    fn push_row(&mut self, row: usize, target: u32, place: Place) {
        self.rows.push(row as i64);
        self.targets.push(i64::from(target));
        self.places.push(place);
    }
}
