//! How codes of four bits lie in words of 32 bits: the three orders of the hub.
//!
//! Each is a bijection between a matrix of codes and a matrix of words; all numbers are little-endian. AWQ is the `gemm`
//! version of `AutoAWQ`, GPTQ that of `AutoGPTQ`, the last `pack-quantized` of compressed-tensors.

use rayon::prelude::*;

/// Codes of a word.
pub const CODES: usize = 8;

/// Which dimension of the codes is packed, and in which order its eight neighbours lie in a word, lowest bits first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// Whether words run along the rows of the matrix (a word holds codes of one row) or along its columns.
    pub along: Along,
    /// The neighbour at each place of a word.
    pub places: [usize; CODES],
}

/// The dimension that is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Along {
    /// Eight columns of a row make a word.
    Columns,
    /// Eight rows of a column make a word.
    Rows,
}

/// Neighbours as they come.
const PLAIN: [usize; CODES] = [0, 1, 2, 3, 4, 5, 6, 7];
/// Even ones first: what AWQ's kernel wants.
const INTERLEAVED: [usize; CODES] = [0, 2, 4, 6, 1, 3, 5, 7];

impl Order {
    /// Columns as they come.
    pub const COLUMNS: Self = Self { along: Along::Columns, places: PLAIN };
    /// Rows as they come.
    pub const ROWS: Self = Self { along: Along::Rows, places: PLAIN };
    /// Columns, even ones first.
    pub const AWQ: Self = Self { along: Along::Columns, places: INTERLEAVED };

    /// The shape of the words of `rows` x `columns` codes; what is left over has a word of its own.
    pub fn words(self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        match self.along {
            Along::Columns => [rows, columns.div_ceil(CODES)],
            Along::Rows => [rows.div_ceil(CODES), columns],
        }
    }

    /// The codes `[rows, columns]` as bytes of words.
    pub fn pack(self, codes: &[u8], shape: [usize; 2]) -> Vec<u8> {
        let [rows, columns] = shape;
        let [num_rows, width] = self.words(shape);
        let mut words = vec![0; num_rows * width * 4];
        words.par_chunks_mut((width * 4).max(1)).enumerate().for_each(|(row, words)| {
            for (column, word) in words.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let mut bits = 0;
                for (place, neighbour) in self.places.iter().enumerate() {
                    let (r, c) = match self.along {
                        Along::Columns => (row, column * CODES + neighbour),
                        Along::Rows => (row * CODES + neighbour, column),
                    };
                    if r < rows && c < columns {
                        bits |= u32::from(codes[r * columns + c] & 0xf) << (4 * place);
                    }
                }
                *word = bits.to_le_bytes();
            }
        });
        words
    }

    /// The codes `[rows, columns]` of words.
    pub fn unpack(self, words: &[u8], shape: [usize; 2]) -> Vec<u8> {
        let [rows, columns] = shape;
        let width = self.words(shape)[1];
        let (words, _) = words.as_chunks::<4>();
        let mut place_of = [0; CODES];
        self.places.iter().enumerate().for_each(|(place, neighbour)| place_of[*neighbour] = place);
        let mut codes = vec![0; rows * columns];
        codes.par_chunks_mut(columns.max(1)).enumerate().for_each(|(row, codes)| {
            for (column, code) in codes.iter_mut().enumerate() {
                let (word, neighbour) = match self.along {
                    Along::Columns => (row * width + column / CODES, column % CODES),
                    Along::Rows => (row / CODES * width + column, row % CODES),
                };
                *code = (u32::from_le_bytes(words[word]) >> (4 * place_of[neighbour])) as u8 & 0xf;
            }
        });
        codes
    }
}

/// The matrix `[columns, rows]` of the codes `[rows, columns]`.
pub fn transposed<T: Copy + Default + Send + Sync>(values: &[T], [rows, columns]: [usize; 2]) -> Vec<T> {
    let mut out = vec![T::default(); values.len()];
    out.par_chunks_mut(rows.max(1)).enumerate().for_each(|(column, out)| {
        for (row, value) in out.iter_mut().enumerate() {
            *value = values[row * columns + column];
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_bijections_for_every_shape() {
        for order in [Order::COLUMNS, Order::ROWS, Order::AWQ] {
            for shape in [[8, 16], [16, 8], [3, 5], [1, 9], [24, 40]] {
                let codes: Vec<u8> = (0..shape[0] * shape[1]).map(|i| (i * 7 % 16) as u8).collect();
                let words = order.pack(&codes, shape);
                assert_eq!(words.len(), order.words(shape).iter().product::<usize>() * 4);
                assert_eq!(order.unpack(&words, shape), codes, "{order:?} {shape:?}");
            }
        }
    }

    #[test]
    fn words_are_those_of_the_definitions() {
        let codes = [0, 1, 2, 3, 4, 5, 6, 7];
        let word = |order: Order, shape| u32::from_le_bytes(order.pack(&codes, shape).try_into().unwrap());
        assert_eq!(word(Order::COLUMNS, [1, 8]), 0x7654_3210);
        assert_eq!(word(Order::ROWS, [8, 1]), 0x7654_3210);
        assert_eq!(word(Order::AWQ, [1, 8]), 0x7531_6420);
        assert_eq!(transposed(&codes, [2, 4]), [0, 4, 1, 5, 2, 6, 3, 7]);
    }
}
