//! Which tensors a conversion writes, and which elements of which checkpoint each of them is made of; it reads no tensor.

use std::collections::BTreeSet;
use std::ops::Range;

use slime_cli::Failure;
use slime_config::HfConfig;
use slime_weights::{Dtype, Quantiser, StorageSpec, TensorSpec, is_f32, storages};

use crate::args::Experts;

/// Elements that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// Elements of a tensor of a checkpoint, by its place among those that are read.
    Of { checkpoint: usize, name: String, range: Range<usize> },
    /// That many zeros.
    Zeros(usize),
}

/// A tensor of the result before it is cast or quantised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub name: String,
    /// The type its elements have in their checkpoint.
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub segments: Vec<Segment>,
}

/// A tensor that is written: a piece as it is, or a part of its quantised form.
#[derive(Debug, Clone)]
pub struct Output {
    pub spec: TensorSpec,
    /// The place of its piece among all.
    pub piece: usize,
    /// Which of the tensors that a quantised piece becomes.
    pub part: Option<usize>,
}

impl Segment {
    pub fn len(&self) -> usize {
        match self {
            Self::Of { range, .. } => range.len(),
            Self::Zeros(len) => *len,
        }
    }

    /// Elements `range` of this one, as far as it has them.
    fn slice(&self, range: Range<usize>) -> Self {
        match self {
            Self::Zeros(_) => Self::Zeros(range.len()),
            Self::Of { checkpoint, name, range: whole } => Self::Of {
                checkpoint: *checkpoint,
                name: name.clone(),
                range: whole.start + range.start..whole.start + range.end,
            },
        }
    }
}

/// Elements `range` of what `segments` make up.
fn slice(segments: &[Segment], range: &Range<usize>) -> Vec<Segment> {
    let (mut at, mut found) = (0, Vec::new());
    for segment in segments {
        let (start, end) = (range.start.max(at), range.end.min(at + segment.len()));
        if start < end {
            found.push(segment.slice(start - at..end - at));
        }
        at += segment.len();
    }
    found
}

/// The tensors of one checkpoint as they are.
pub fn pieces(checkpoint: usize, tensors: Vec<TensorSpec>) -> Vec<Piece> {
    let piece = |TensorSpec { name, dtype, shape }: TensorSpec| {
        let range = 0..shape.iter().product();
        let segments = vec![Segment::Of { checkpoint, name: name.clone(), range }];
        Piece { name, dtype, shape, segments }
    };
    tensors.into_iter().map(piece).collect()
}

/// Adds the tensors of `origin` that are not among `pieces`; of a tied model not its output head. Their names are the answer.
pub fn fill_in(pieces: &mut Vec<Piece>, origin: Vec<Piece>, config: Option<&HfConfig>) -> Vec<String> {
    let names: BTreeSet<String> = pieces.iter().map(|piece| piece.name.clone()).collect();
    let is_tied = config.is_some_and(|config| config.tie_word_embeddings);
    let is_missing =
        |piece: &Piece| !(names.contains(&piece.name) || is_tied && piece.name == "lm_head.weight");
    let missing: Vec<Piece> = origin.into_iter().filter(is_missing).collect();
    let added = missing.iter().map(|piece| piece.name.clone()).collect();
    pieces.extend(missing);
    added
}

/// Brings the experts of every layer into the wanted form.
pub fn arrange_experts(pieces: &mut Vec<Piece>, config: &HfConfig, experts: Experts) {
    for storage in storages(config) {
        match experts {
            Experts::Split => split(pieces, &storage),
            Experts::Fused => fuse(pieces, &storage),
        }
    }
}

fn split(pieces: &mut Vec<Piece>, storage: &StorageSpec) {
    let Some(fused) = storage.fused.first() else { return };
    let Some(at) = pieces.iter().position(|piece| piece.name == fused.name && piece.shape == fused.shape)
    else {
        return;
    };
    let whole = pieces.remove(at);
    pieces.extend(storage.views.iter().map(|view| Piece {
        name: view.name.clone(),
        dtype: whole.dtype,
        shape: view.shape.clone(),
        segments: slice(&whole.segments, &storage.range(view)),
    }));
}

fn fuse(pieces: &mut Vec<Piece>, storage: &StorageSpec) {
    let Some(fused) = storage.fused.first() else { return };
    let find =
        |name: &str, shape: &[usize]| pieces.iter().find(|piece| piece.name == name && piece.shape == shape);
    let parts: Option<Vec<&Piece>> = storage.views.iter().map(|view| find(&view.name, &view.shape)).collect();
    let Some(parts) = parts.filter(|parts| parts.iter().all(|part| part.dtype == parts[0].dtype)) else {
        return;
    };
    let whole = Piece {
        name: fused.name.clone(),
        dtype: parts[0].dtype,
        shape: fused.shape.clone(),
        segments: parts.iter().flat_map(|part| part.segments.clone()).collect(),
    };
    let names: BTreeSet<&str> = storage.views.iter().map(|view| view.name.as_str()).collect();
    pieces.retain(|piece| !names.contains(piece.name.as_str()));
    pieces.push(whole);
}

/// Gives embeddings and output heads `num_rows` rows.
pub fn arrange_vocab(pieces: &mut [Piece], num_rows: usize) {
    let is_of_vocab = |name: &str| {
        ["embed_tokens.weight", "lm_head.weight", "shared_head.head.weight"]
            .iter()
            .any(|end| name.ends_with(end))
    };
    for piece in pieces.iter_mut().filter(|piece| is_of_vocab(&piece.name) && piece.shape.len() == 2) {
        let (rows, width) = (piece.shape[0], piece.shape[1]);
        piece.shape[0] = num_rows;
        piece.segments = slice(&piece.segments, &(0..num_rows.min(rows) * width));
        if num_rows > rows {
            piece.segments.push(Segment::Zeros((num_rows - rows) * width));
        }
    }
}

/// The tensors that are written, in the order of the pieces: floating ones as `dtype` where it is given, except those that stay
/// f32; matrices quantised.
pub fn outputs(pieces: &[Piece], dtype: Option<Dtype>, quantiser: Option<Quantiser>) -> Vec<Output> {
    let mut outputs = Vec::new();
    for (piece, Piece { name, dtype: from, shape, .. }) in pieces.iter().enumerate() {
        if let Some(quantiser) = quantiser.filter(|quantiser| quantiser.applies(name, shape)) {
            let specs = quantiser.specs(name, shape).into_iter().enumerate();
            outputs.extend(specs.map(|(part, spec)| Output { spec, piece, part: Some(part) }));
            continue;
        }
        let is_cast = from.torch_name().is_some() && !is_f32(name);
        let dtype = dtype.filter(|_| is_cast).unwrap_or(*from);
        let spec = TensorSpec { name: name.clone(), dtype, shape: shape.clone() };
        outputs.push(Output { spec, piece, part: None });
    }
    outputs
}

/// The modules whose matrices `quantiser` leaves as they are, embeddings apart.
///
/// # Errors
/// It leaves all of them.
pub fn kept_modules(pieces: &[Piece], quantiser: &Quantiser) -> Result<Vec<String>, Failure> {
    let tensors = pieces.iter().map(|piece| (piece.name.as_str(), piece.shape.as_slice()));
    quantiser.kept_modules(tensors).ok_or_else(|| {
        let of = if quantiser.only_experts { "no matrix of an expert" } else { "no matrix" };
        let message =
            format!("{of} has columns that are a multiple of the group size {}", quantiser.group_size);
        Failure::data(message).with_hint("a smaller --group-size, such as 32, or --dtype fp8_block")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(range: Range<usize>) -> Segment {
        Segment::Of { checkpoint: 0, name: "x".to_owned(), range }
    }

    #[test]
    fn slices_cross_segments() {
        let segments = [of(0..4), Segment::Zeros(3), of(10..12)];
        assert_eq!(slice(&segments, &(2..8)), [of(2..4), Segment::Zeros(3), of(10..11)]);
        assert_eq!(slice(&segments, &(7..9)), [of(10..12)]);
        assert!(slice(&segments, &(3..3)).is_empty());
    }

    #[test]
    fn vocabulary_grows_with_zeros_and_shrinks() {
        let spec = |name: &str| TensorSpec { name: name.to_owned(), dtype: Dtype::BF16, shape: vec![5, 2] };
        let mut pieces = pieces(0, vec![spec("model.embed_tokens.weight"), spec("model.norm.weight")]);
        arrange_vocab(&mut pieces, 8);
        assert_eq!(
            (pieces[0].shape.as_slice(), pieces[0].segments.last()),
            ([8, 2].as_slice(), Some(&Segment::Zeros(6)))
        );
        arrange_vocab(&mut pieces, 3);
        assert_eq!((pieces[0].shape.as_slice(), pieces[0].segments.len()), ([3, 2].as_slice(), 1));
        assert_eq!(pieces[1].shape, [5, 2]);
    }
}
