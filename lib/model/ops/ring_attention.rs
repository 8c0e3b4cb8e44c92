//! Attention of ranks that have the tokens of a batch between them: keys and values go round the ranks, every rank adds what its
//! queries find in each part, and in the backward pass gradients of keys and values go round with them (arXiv 2310.01889). No
//! rank ever holds all keys. Suffixes: t tokens of this rank, u tokens of another, h query heads, g key-value heads, p query
//! heads of one of these, k `head_dim`, q and s some of t and u.

use std::sync::Arc;

use slime_torch::{CustomFunction, Forward, Group, custom_function};
use tch::{Kind, Tensor};

use crate::context::Segment;
use crate::{Error, Result, TokenShares};

/// Scores that are computed at a time, in bytes.
const SCORE_BYTES: usize = 64 << 20;
/// Tags of messages.
const KEYS: u8 = 3;
const GRADIENTS: u8 = 4;

type Range = (usize, usize);

/// Who has which tokens.
#[derive(Debug)]
pub(crate) struct Ring {
    pub group: Group,
    pub segments: Vec<Segment>,
    pub shares: TokenShares,
}

/// Queries of this rank with the keys of another rank that they see.
#[derive(Debug, PartialEq, Eq)]
struct Meeting {
    q: Range,
    keys: Vec<Range>,
    /// The keys are those of the queries themselves.
    is_causal: bool,
}

/// Attention output `[t, h * k]` of this rank's queries over the keys of all ranks.
///
/// # Errors
/// The shapes do not fit, or a failed transfer.
pub(crate) fn train(ring: &Arc<Ring>, q_thk: &Tensor, k_tgk: &Tensor, v_tgk: &Tensor) -> Result<Tensor> {
    let (t, heads, dim) = q_thk.size3()?;
    let outputs = custom_function(&[q_thk, k_tgk, v_tgk], RingAttention(ring.clone()))?;
    let missing = || Error::Context { what: "results of attention", expected: 1, got: 0 };
    let out_gptk = outputs.into_iter().next().ok_or_else(missing)?;
    Ok(out_gptk.f_permute([2, 0, 1, 3])?.f_reshape([t, heads * dim])?)
}

struct RingAttention(Arc<Ring>);

impl CustomFunction for RingAttention {
    fn forward(&self, inputs: &[Tensor]) -> std::result::Result<Forward, String> {
        let [q, k, v] = inputs else { return Err(format!("expected 3 inputs, got {}", inputs.len())) };
        let (out, lse) = self.0.forward(q, k, v).map_err(|error| error.to_string())?;
        let narrow = out.f_to_kind(q.kind()).map_err(|error| error.to_string())?;
        let saved = vec![q.shallow_clone(), k.shallow_clone(), v.shallow_clone(), out, lse];
        Ok(Forward { outputs: vec![narrow], saved })
    }

    fn backward(
        &self,
        saved: &[Tensor],
        grads: &[Option<Tensor>],
    ) -> std::result::Result<Vec<Option<Tensor>>, String> {
        let [q, k, v, out, lse] = saved else {
            return Err(format!("expected 5 tensors, got {}", saved.len()));
        };
        // The ring turns on every rank, also where nothing reads the output.
        let grad = match grads.first().and_then(Option::as_ref) {
            Some(grad) => grad.shallow_clone(),
            None => out.f_zeros_like().map_err(|error| error.to_string())?,
        };
        let grads = self.0.backward([q, k, v], (out, lse), &grad).map_err(|error| error.to_string())?;
        Ok(grads.into_iter().map(Some).collect())
    }
}

impl Ring {
    /// The output `[g, p, t, k]` and the logarithm of the sum of exponentials `[g, p, t]`, both in f32 (f64 of f64).
    fn forward(&self, q_thk: &Tensor, k_tgk: &Tensor, v_tgk: &Tensor) -> Result<(Tensor, Tensor)> {
        let groups = k_tgk.size3()?.1;
        let q_gptk = by_group(q_thk, groups)?;
        let out_gptk = q_gptk.f_zeros_like()?;
        let size = q_gptk.size();
        let lse_gpt = q_gptk.f_new_full(&size[..3], f64::NEG_INFINITY, (q_gptk.kind(), q_gptk.device()))?;
        self.turn(&[k_tgk, v_tgk], |source, keys| {
            let [k_ugk, v_ugk] = keys else { return Ok(()) };
            let (k_guk, v_guk) = (by_key(k_ugk)?, by_key(v_ugk)?);
            for meeting in self.meetings(source) {
                let (k_gsk, v_gsk) = (some(&k_guk, 1, &meeting.keys)?, some(&v_guk, 1, &meeting.keys)?);
                for q in meeting.chunks(&q_gptk, &k_gsk)? {
                    let scores = meeting.scores(&rows(&q_gptk, q)?, &k_gsk, q)?;
                    let part_gpq = scores.f_logsumexp([-1], false)?;
                    let weights = scores.f_sub(&part_gpq.f_unsqueeze(-1)?)?.f_exp()?;
                    let part_gpqk = weights.f_matmul(&v_gsk.f_unsqueeze(1)?)?;
                    let (mut out, mut lse) = (rows(&out_gptk, q)?, rows(&lse_gpt, q)?);
                    let sum = lse.f_logaddexp(&part_gpq)?;
                    let (old, new) = (lse.f_sub(&sum)?.f_exp()?, part_gpq.f_sub(&sum)?.f_exp()?);
                    let merged =
                        out.f_mul(&old.f_unsqueeze(-1)?)?.f_add(&part_gpqk.f_mul(&new.f_unsqueeze(-1)?)?)?;
                    out.f_copy_(&merged)?;
                    lse.f_copy_(&sum)?;
                }
            }
            Ok(())
        })?;
        Ok((out_gptk, lse_gpt))
    }

    /// Gradients of queries, keys and values, in their kinds, from that of the output `[g, p, t, k]`.
    fn backward(
        &self,
        [q_thk, k_tgk, v_tgk]: [&Tensor; 3],
        (out_gptk, lse_gpt): (&Tensor, &Tensor),
        grad_gptk: &Tensor,
    ) -> Result<[Tensor; 3]> {
        let groups = k_tgk.size3()?.1;
        let q_gptk = by_group(q_thk, groups)?;
        let grad_gptk = grad_gptk.f_to_kind(q_gptk.kind())?;
        let dq_gptk = q_gptk.f_zeros_like()?;
        let scale = 1.0 / (q_thk.size3()?.2 as f64).sqrt();
        let delta_gpt = grad_gptk.f_mul(out_gptk)?.f_sum_dim_intlist([-1].as_slice(), false, None)?;
        let part = |source: usize, keys: &[Tensor], grads: &[Tensor]| {
            let ([k_ugk, v_ugk], [dk_guk, dv_guk]) = (keys, grads) else { return Ok(()) };
            let (k_guk, v_guk) = (by_key(k_ugk)?, by_key(v_ugk)?);
            for meeting in self.meetings(source) {
                let (k_gsk, v_gsk) = (some(&k_guk, 1, &meeting.keys)?, some(&v_guk, 1, &meeting.keys)?);
                let (mut dk_gsk, mut dv_gsk) = (k_gsk.f_zeros_like()?, v_gsk.f_zeros_like()?);
                for q in meeting.chunks(&q_gptk, &k_gsk)? {
                    let (q_gpqk, grad_gpqk) = (rows(&q_gptk, q)?, rows(&grad_gptk, q)?);
                    let scores = meeting.scores(&q_gpqk, &k_gsk, q)?;
                    let weights = scores.f_sub(&rows(lse_gpt, q)?.f_unsqueeze(-1)?)?.f_exp()?;
                    // Query heads that share a key-value head add up.
                    let over_heads = |a: &Tensor, b: &Tensor| {
                        a.f_transpose(-2, -1)?.f_matmul(b)?.f_sum_dim_intlist([1].as_slice(), false, None)
                    };
                    let _ = dv_gsk.f_add_(&over_heads(&weights, &grad_gpqk)?)?;
                    let slope = grad_gpqk.f_matmul(&v_gsk.f_unsqueeze(1)?.f_transpose(-2, -1)?)?;
                    let slope = slope.f_sub(&rows(&delta_gpt, q)?.f_unsqueeze(-1)?)?.f_mul(&weights)?;
                    let slope = slope.f_mul_scalar(scale)?;
                    let _ = rows(&dq_gptk, q)?.f_add_(&slope.f_matmul(&k_gsk.f_unsqueeze(1)?)?)?;
                    let _ = dk_gsk.f_add_(&over_heads(&slope, &q_gpqk)?)?;
                }
                add_to(dk_guk, &meeting.keys, &dk_gsk)?;
                add_to(dv_guk, &meeting.keys, &dv_gsk)?;
            }
            Ok(())
        };
        let [dk_guk, dv_guk] = self.turn_with_gradients([k_tgk, v_tgk], q_gptk.kind(), part)?;
        let (t, heads, dim) = q_thk.size3()?;
        let dq_thk = dq_gptk.f_permute([2, 0, 1, 3])?.f_reshape([t, heads, dim])?;
        let narrow = |x: &Tensor, like: &Tensor| x.f_to_kind(like.kind());
        Ok([
            narrow(&dq_thk, q_thk)?,
            narrow(&dk_guk.f_permute([1, 0, 2])?, k_tgk)?,
            narrow(&dv_guk.f_permute([1, 0, 2])?, v_tgk)?,
        ])
    }

    /// Shows `visit` the keys and values of every rank, its own first; those that come next are on their way meanwhile.
    fn turn(&self, own: &[&Tensor], mut visit: impl FnMut(usize, &[Tensor]) -> Result<()>) -> Result<()> {
        let (rank, size) = (self.group.rank(), self.group.size());
        let mut held: Vec<Tensor> =
            own.iter().map(|x| x.f_contiguous()).collect::<std::result::Result<_, _>>()?;
        for step in 0..size {
            let source = (rank + size - step) % size;
            if step + 1 < size {
                for x in &held {
                    self.group.send_later(x, (rank + 1) % size, KEYS)?;
                }
            }
            visit(source, &held)?;
            if step + 1 < size {
                held = self.next(&held, (source + size - 1) % size, 0, KEYS)?;
            }
        }
        Ok(())
    }

    /// The same with gradients in `kind`, which every rank adds to and which come back to the rank of their keys.
    fn turn_with_gradients(
        &self,
        own: [&Tensor; 2],
        kind: Kind,
        visit: impl Fn(usize, &[Tensor], &[Tensor]) -> Result<()>,
    ) -> Result<[Tensor; 2]> {
        let (rank, size) = (self.group.rank(), self.group.size());
        let zeros = |x: &Tensor| x.f_permute([1, 0, 2])?.f_contiguous()?.f_to_kind(kind)?.f_zeros_like();
        let mut grads = vec![zeros(own[0])?, zeros(own[1])?];
        let mut step = 0;
        self.turn(&own, |source, held| {
            if step > 0 {
                grads = self.next(&grads, source, 1, GRADIENTS)?;
            }
            visit(source, held, &grads)?;
            if size > 1 {
                for x in &grads {
                    self.group.send_later(x, (rank + 1) % size, GRADIENTS)?;
                }
            }
            step += 1;
            Ok(())
        })?;
        if size > 1 {
            grads = self.next(&grads, rank, 1, GRADIENTS)?;
        }
        let mut grads = grads.into_iter();
        match (grads.next(), grads.next()) {
            (Some(dk), Some(dv)) => Ok([dk, dv]),
            _ => Err(Error::Context { what: "gradients of keys and values", expected: 2, got: 0 }),
        }
    }

    /// What the rank before has of the tokens of `source`, like `held` but for the number of tokens, which is dimension `along`.
    fn next(&self, held: &[Tensor], source: usize, along: usize, tag: u8) -> Result<Vec<Tensor>> {
        let (rank, size) = (self.group.rank(), self.group.size());
        let num_tokens = self.shares.of(source).len() as i64;
        let receive = |like: &Tensor| {
            let mut shape = like.size();
            shape[along] = num_tokens;
            Ok(self.group.recv(&shape, (like.kind(), like.device()), (rank + size - 1) % size, tag)?)
        };
        held.iter().map(receive).collect()
    }

    /// Which queries of this rank see which keys of `source`.
    fn meetings(&self, source: usize) -> Vec<Meeting> {
        let mut meetings = Vec::new();
        for piece in self.shares.pieces(self.group.rank()) {
            let (q, segment) = ((piece.start, piece.len), &self.segments[piece.segment]);
            let mut keys: Vec<Range> = Vec::new();
            for other in self.shares.pieces(source) {
                if other.segment == piece.segment && other.offset == piece.offset {
                    meetings.push(Meeting { q, keys: vec![(other.start, other.len)], is_causal: true });
                } else if other.segment == piece.segment && other.offset < piece.offset {
                    push(&mut keys, (other.start, other.len));
                } else if let Some((start, len)) = segment.prefix {
                    let first = self.segments[other.segment].start + other.offset;
                    let (begin, end) = (first.max(start), (first + other.len).min(start + len));
                    if begin < end {
                        push(&mut keys, (other.start + begin - first, end - begin));
                    }
                }
            }
            if !keys.is_empty() {
                meetings.push(Meeting { q, keys, is_causal: false });
            }
        }
        meetings
    }
}

/// Adds a range, as one with the last where it goes on from there.
fn push(ranges: &mut Vec<Range>, (start, len): Range) {
    match ranges.last_mut() {
        Some((last, last_len)) if *last + *last_len == start => *last_len += len,
        _ => ranges.push((start, len)),
    }
}

impl Meeting {
    /// The queries in runs whose scores stay small.
    fn chunks(&self, q_gptk: &Tensor, k_gsk: &Tensor) -> Result<Vec<Range>> {
        let size = q_gptk.size();
        let of_row = size[0] * size[1] * k_gsk.size3()?.1 * q_gptk.kind().elt_size_in_bytes() as i64;
        let at_a_time = (SCORE_BYTES / of_row.max(1) as usize).max(1);
        let (start, len) = self.q;
        let chunk = |at: usize| (start + at, at_a_time.min(len - at));
        Ok((0..len).step_by(at_a_time).map(chunk).collect())
    }

    /// Scores `[g, p, q, s]` of some of the queries, those that they do not see at minus infinity.
    fn scores(&self, q_gpqk: &Tensor, k_gsk: &Tensor, (start, len): Range) -> Result<Tensor> {
        let scale = 1.0 / (k_gsk.size3()?.2 as f64).sqrt();
        let scores = q_gpqk.f_matmul(&k_gsk.f_unsqueeze(1)?.f_transpose(-2, -1)?)?.f_mul_scalar(scale)?;
        if !self.is_causal {
            return Ok(scores);
        }
        let before = (start - self.q.0) as i64;
        let hidden = Tensor::f_ones([len as i64, self.q.1 as i64], (Kind::Bool, scores.device()))?;
        Ok(scores.f_masked_fill(&hidden.f_triu(before + 1)?, f64::NEG_INFINITY)?)
    }
}

/// Queries as `[g, p, t, k]`, in f32 (f64 of f64).
fn by_group(q_thk: &Tensor, groups: i64) -> Result<Tensor> {
    let (t, heads, dim) = q_thk.size3()?;
    let q = wide(q_thk)?.f_reshape([t, groups, heads / groups, dim])?;
    Ok(q.f_permute([1, 2, 0, 3])?.f_contiguous()?)
}

/// Keys or values as `[g, u, k]`, in f32 (f64 of f64).
fn by_key(x_ugk: &Tensor) -> Result<Tensor> {
    Ok(wide(x_ugk)?.f_permute([1, 0, 2])?)
}

fn wide(x: &Tensor) -> Result<Tensor> {
    Ok(x.f_to_kind(if x.kind() == Kind::Double { Kind::Double } else { Kind::Float })?)
}

/// Some rows of `[g, p, t, ..]`, sharing memory.
fn rows(x: &Tensor, (start, len): Range) -> Result<Tensor> {
    Ok(x.f_narrow(2, start as i64, len as i64)?)
}

/// Ranges of dimension `along`, side by side.
fn some(x: &Tensor, along: i64, ranges: &[Range]) -> Result<Tensor> {
    let part = |(start, len): &Range| x.f_narrow(along, *start as i64, *len as i64);
    let parts = ranges.iter().map(part).collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(Tensor::f_cat(&parts, along)?)
}

/// Adds `part_gsk` to the ranges of `whole_guk` that it was taken from.
fn add_to(whole_guk: &Tensor, ranges: &[Range], part_gsk: &Tensor) -> Result<()> {
    let mut at = 0;
    for (start, len) in ranges {
        let mut place = whole_guk.f_narrow(1, *start as i64, *len as i64)?;
        let _ = place.f_add_(&part_gsk.f_narrow(1, at, *len as i64)?)?;
        at += *len as i64;
    }
    Ok(())
}
