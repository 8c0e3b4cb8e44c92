//! The attention calls of a packed batch.

use tch::{Device, Kind, Tensor};

use crate::Result;
use crate::context::Segment;
use crate::token_shares::Piece;

/// Neighbouring segments up to this many tokens together share one masked attention call.
pub const MERGE_LEN: usize = 384;

/// One attention call: the queries of a range over the keys of up to two ranges.
#[derive(Debug)]
pub(crate) struct Span {
    /// Queries `(start, len)` among those of the rank.
    pub q: (usize, usize),
    /// Keys before the others.
    pub prefix: Option<(usize, usize)>,
    /// Keys `(start, len)` up to those of the last query, among all of the batch.
    pub keys: (usize, usize),
    /// Added to the scores, `[q, prefix + keys]`; absent means causal.
    pub mask: Option<Tensor>,
}

/// The calls for the queries of `pieces`, in order. Neighbouring small segments are grouped into one call each, so short
/// responses of a group cost one call per layer.
pub(crate) fn spans(segments: &[Segment], pieces: &[Piece], kind: Kind, device: Device) -> Result<Vec<Span>> {
    let mut spans = Vec::new();
    let (mut at, mut rest) = (0, pieces);
    while let Some(first) = segments.get(at) {
        let mut run = 1;
        let fits = |next: &Segment| {
            next.start + next.len - first.start <= MERGE_LEN
                && next.prefix.is_none_or(|(start, _)| start >= first.start)
        };
        if first.prefix.is_none() {
            run += segments[at + 1..].iter().take_while(|next| fits(next)).count();
        }
        let num_pieces = rest.iter().take_while(|piece| piece.segment < at + run).count();
        let (own, others) = rest.split_at(num_pieces);
        if run > 1 {
            spans.extend(merged(segments, (at, run), own, kind, device)?);
        } else {
            for piece in own {
                spans.push(single(first, piece, kind, device)?);
            }
        }
        (at, rest) = (at + run, others);
    }
    Ok(spans)
}

fn single(segment: &Segment, piece: &Piece, kind: Kind, device: Device) -> Result<Span> {
    let before = segment.prefix.map_or(0, |(_, len)| len) + piece.offset;
    let mask = if before > 0 { Some(causal_after(before, piece.len, kind, device)?) } else { None };
    let (q, keys) = ((piece.start, piece.len), (segment.start, piece.offset + piece.len));
    Ok(Span { q, prefix: segment.prefix, keys, mask })
}

/// The call of all pieces of `run` segments from number `at` on, whose prefixes are among them; none where there is no piece.
fn merged(
    segments: &[Segment],
    (at, run): (usize, usize),
    pieces: &[Piece],
    kind: Kind,
    device: Device,
) -> Result<Option<Span>> {
    let Some(first) = pieces.first() else { return Ok(None) };
    let members = &segments[at..at + run];
    let len: usize = members.iter().map(|segment| segment.len).sum();
    let base = segments[at].start;
    let num_rows: usize = pieces.iter().map(|piece| piece.len).sum();
    let mut mask = vec![f32::NEG_INFINITY; num_rows * len];
    let mut rows = mask.chunks_exact_mut(len.max(1));
    for piece in pieces {
        let segment = &segments[piece.segment];
        let begin = segment.start - base;
        let shared = segment.prefix.map_or(0..0, |(start, n)| start - base..start - base + n);
        for (offset, row) in (piece.offset..piece.offset + piece.len).zip(&mut rows) {
            row[begin..=begin + offset].fill(0.0);
            row[shared.clone()].fill(0.0);
        }
    }
    let mask = Tensor::f_from_slice(&mask)?.f_view((num_rows as i64, len as i64))?;
    let mask = mask.f_to_kind(kind)?.f_to_device(device)?;
    Ok(Some(Span { q: (first.start, num_rows), prefix: None, keys: (base, len), mask: Some(mask) }))
}

/// The scores' addend `[q, before + q]` of queries that see all that is before them and themselves causally.
pub(crate) fn causal_after(before: usize, q: usize, kind: Kind, device: Device) -> Result<Tensor> {
    let mask = Tensor::f_full([q as i64, (before + q) as i64], f64::NEG_INFINITY, (kind, device))?;
    Ok(mask.f_triu(before as i64 + 1)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenShares;

    fn num_spans(segments: &[Segment], size: usize) -> usize {
        let shares = TokenShares::new(segments, size);
        spans(segments, shares.pieces(0), Kind::Float, Device::Cpu).unwrap().len()
    }

    #[test]
    fn short_neighbours_share_a_call_and_long_ones_do_not() {
        let short = [Segment::alone(0, 4), Segment::after((0, 4), 4, 3), Segment::alone(7, 2)];
        assert_eq!([num_spans(&short, 1), num_spans(&short, 2)], [1, 1]);
        let long =
            [Segment::alone(0, 300), Segment::after((0, 300), 300, 200), Segment::after((0, 300), 500, 200)];
        assert_eq!([num_spans(&long, 1), num_spans(&long, 2)], [3, 6]);
    }
}
