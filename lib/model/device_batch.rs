//! What a paged batch's attention reads on a device, sent there once for all layers.

use slime_kernel::paged_attention::Items;
use slime_torch::Chunks;
use tch::{Device, Tensor};

use crate::Result;
use crate::ops::attend::PREFILL_LEN;

/// A paged batch's lists on a device.
#[derive(Debug)]
pub(crate) struct DeviceBatch {
    /// Slot of every new token, `[t]` i64.
    pub slots_t: Tensor,
    /// The tokens of sequences with few new ones, each an item of its own.
    pub decode: Items,
    /// The others.
    pub prefill: Option<Prefill>,
}

/// The sequences with many new tokens.
#[derive(Debug)]
pub(crate) struct Prefill {
    /// Rows of their tokens, i64.
    pub rows_q: Tensor,
    /// Slots of all their positions, one sequence after the other, i64.
    pub slots_s: Tensor,
    /// Which of both belong together.
    pub chunks: Chunks,
}

impl Prefill {
    /// Of sequences whose `(first row, new tokens, all tokens, blocks)` these are; `None` where there are none.
    fn new(
        sequences: &[(usize, usize, usize, &[u32])],
        block_size: usize,
        device: Device,
    ) -> Result<Option<Self>> {
        if sequences.is_empty() {
            return Ok(None);
        }
        let (mut rows, mut slots) = (Vec::new(), Vec::new());
        let (mut cu_q, mut cu_k) = (vec![0i32], vec![0i32]);
        for &(first, q_len, context_len, table) in sequences {
            rows.extend((first..first + q_len).map(|row| row as i64));
            slots.extend(
                (0..context_len).map(|at| {
                    i64::from(table[at / block_size]) * block_size as i64 + (at % block_size) as i64
                }),
            );
            cu_q.push(rows.len() as i32);
            cu_k.push(slots.len() as i32);
        }
        let most = |lens: &mut dyn Iterator<Item = usize>| lens.max().unwrap_or(0);
        let long = |values: &[i64]| Tensor::f_from_slice(values)?.f_to_device(device);
        let int = |values: &[i32]| Tensor::f_from_slice(values)?.f_to_device(device);
        Ok(Some(Self {
            rows_q: long(&rows)?,
            slots_s: long(&slots)?,
            chunks: Chunks {
                even_len: None,
                cu_q: int(&cu_q)?,
                cu_k: int(&cu_k)?,
                max_q: most(&mut sequences.iter().map(|sequence| sequence.1)),
                max_k: most(&mut sequences.iter().map(|sequence| sequence.2)),
            },
        }))
    }
}

impl DeviceBatch {
    /// The lists of sequences with `q_lens` new tokens of `context_lens`; tables are as long as their contexts at least.
    pub fn new(
        block_tables: &[Vec<u32>],
        q_lens: &[usize],
        context_lens: &[usize],
        block_size: usize,
        device: Device,
    ) -> Result<Self> {
        let mut slots: Vec<i64> = Vec::new();
        let (mut rows, mut seqs, mut visible) = (Vec::new(), Vec::new(), Vec::new());
        let mut long = Vec::new();
        for (seq, (table, (&q_len, &context_len))) in
            block_tables.iter().zip(q_lens.iter().zip(context_lens)).enumerate()
        {
            if q_len >= PREFILL_LEN {
                long.push((slots.len(), q_len, context_len, table.as_slice()));
            }
            for at in context_len - q_len..context_len {
                if q_len < PREFILL_LEN {
                    rows.push(slots.len() as i32);
                    seqs.push(seq as i32);
                    visible.push(at as i32 + 1);
                }
                slots.push(i64::from(table[at / block_size]) * block_size as i64 + (at % block_size) as i64);
            }
        }
        let width = block_tables.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let mut tables = vec![0i32; width * block_tables.len()];
        for (row, table) in tables.chunks_exact_mut(width).zip(block_tables) {
            row.iter_mut().zip(table).for_each(|(place, block)| *place = *block as i32);
        }
        let int = |values: &[i32]| Tensor::f_from_slice(values)?.f_to_device(device);
        let decode = Items {
            max_visible: visible.iter().copied().max().unwrap_or(0) as usize,
            rows_n: int(&rows)?,
            seqs_n: int(&seqs)?,
            visible_n: int(&visible)?,
            tables_sb: int(&tables)?.f_view((block_tables.len() as i64, width as i64))?,
            block_size,
            partials: None,
        };
        let prefill = Prefill::new(&long, block_size, device)?;
        Ok(Self { slots_t: Tensor::f_from_slice(&slots)?.f_to_device(device)?, decode, prefill })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_short_chunks_are_items_and_every_token_has_its_slot() {
        let tables = [vec![3, 1], vec![0, 2, 4]];
        let batch = DeviceBatch::new(&tables, &[6, 2], &[6, 9], 4, Device::Cpu).unwrap();
        let list =
            |tensor: &Tensor| Vec::<i64>::try_from(tensor.to_kind(tch::Kind::Int64).view([-1])).unwrap();
        assert_eq!(list(&batch.slots_t), [12, 13, 14, 15, 4, 5, 11, 16]);
        assert_eq!(list(&batch.decode.rows_n), [6, 7]);
        assert_eq!((list(&batch.decode.seqs_n), list(&batch.decode.visible_n)), (vec![1, 1], vec![8, 9]));
        assert_eq!(list(&batch.decode.tables_sb), [3, 1, 0, 0, 2, 4]);
        assert_eq!(batch.decode.max_visible, 9);
        let prefill = batch.prefill.unwrap();
        assert_eq!(list(&prefill.rows_q), [0, 1, 2, 3, 4, 5]);
        assert_eq!(list(&prefill.slots_s), [12, 13, 14, 15, 4, 5]);
        assert_eq!((list(&prefill.chunks.cu_q), list(&prefill.chunks.cu_k)), (vec![0, 6], vec![0, 6]));
    }
}
