//! The lists of a decode step in one piece of memory, so that they go to a GPU in one copy. Suffixes: n rows, b blocks.

use tch::{Kind, Tensor};

use crate::Result;
use crate::decode_steps::{DecodeRow, RowDraw};

/// Lists begin at multiples of it, in bytes.
const ALIGNMENT: usize = 256;
/// Positions that a thread block of attention takes: graphs are made for once, twice, four times as many.
const SPLIT: usize = 512;

/// How many rows and blocks of each a step has room for; steps of one shape share a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub rows: usize,
    pub blocks: usize,
}

/// The lists where they are.
pub(crate) struct Views {
    pub tokens_n: Tensor,
    pub positions_n: Tensor,
    pub params_n4: Tensor,
    pub uniforms_n: Tensor,
    pub tables_nb: Tensor,
}

/// First bytes of the lists, and the end.
struct Places {
    positions: usize,
    params: usize,
    uniforms: usize,
    tables: usize,
    end: usize,
}

impl Shape {
    /// Room for `num_rows` sequences of up to `longest` tokens.
    pub fn of(num_rows: usize, longest: usize, block_size: usize) -> Self {
        let splits = longest.div_ceil(SPLIT);
        let splits = if splits == 0 { 0 } else { splits.next_power_of_two() };
        Self { rows: Self::rows_for(num_rows), blocks: splits * SPLIT / block_size }
    }

    /// Few sizes, close to each other where a step is long.
    pub fn rows_for(num_rows: usize) -> usize {
        match num_rows {
            0..=8 => num_rows.max(1).next_power_of_two(),
            9..=64 => num_rows.next_multiple_of(8),
            65..=256 => num_rows.next_multiple_of(16),
            _ => num_rows.next_multiple_of(64),
        }
    }

    /// Bytes of all lists.
    pub fn bytes(self) -> usize {
        self.places().end
    }

    fn places(self) -> Places {
        let after = |start: usize, bytes: usize| (start + bytes).next_multiple_of(ALIGNMENT);
        let positions = after(0, 4 * self.rows);
        let params = after(positions, 4 * self.rows);
        let uniforms = after(params, 16 * self.rows);
        let tables = after(uniforms, 8 * self.rows);
        Places { positions, params, uniforms, tables, end: tables + 4 * self.rows * self.blocks }
    }

    /// Writes the lists of `rows`, as `slime_kernel::decode_inputs` and `slime_kernel::sample` read them; rows beyond are
    /// empty.
    pub fn write(self, bytes: &mut [u8], rows: &[DecodeRow<'_>]) {
        let Places { positions, tables, .. } = self.places();
        let mut ints = |at: usize, value: i32| put(bytes, at, &value.to_le_bytes());
        for at in 0..self.rows {
            let row = rows.get(at);
            let token = row.map_or(0, |row| match row.token {
                Ok(token) => token as i32,
                Err(before) => -1 - before as i32,
            });
            ints(4 * at, token);
            ints(positions + 4 * at, row.map_or(-1, |row| row.position as i32));
            let table = row.map(|row| row.table).unwrap_or_default();
            for (column, block) in table.iter().take(self.blocks).enumerate() {
                ints(tables + 4 * (at * self.blocks + column), *block as i32);
            }
        }
        let draws: Vec<RowDraw> = rows.iter().map(|row| row.draw).collect();
        self.write_draws(bytes, &draws);
    }

    /// Writes how the tokens of rows are drawn; rows beyond are drawn somehow.
    pub fn write_draws(self, bytes: &mut [u8], draws: &[RowDraw]) {
        let Places { params, uniforms, .. } = self.places();
        for at in 0..self.rows {
            let RowDraw { inverse_temperature, top_k, top_p, min_p, uniform } =
                draws.get(at).copied().unwrap_or(RowDraw::GREEDY);
            for (i, value) in [inverse_temperature, top_k as f32, top_p, min_p].into_iter().enumerate() {
                put(bytes, params + 16 * at + 4 * i, &value.to_le_bytes());
            }
            put(bytes, uniforms + 8 * at, &uniform.to_le_bytes());
        }
    }

    /// The lists in `memory`, u8.
    ///
    /// # Errors
    /// There are not as many bytes.
    pub fn views(self, memory: &Tensor) -> Result<Views> {
        let Places { positions, params, uniforms, tables, .. } = self.places();
        let list = |start: usize, kind: Kind, size: &[i64]| {
            let bytes = size.iter().product::<i64>() * kind.elt_size_in_bytes() as i64;
            memory.f_narrow(0, start as i64, bytes)?.f_view_dtype(kind)?.f_view(size)
        };
        let (rows, blocks) = (self.rows as i64, self.blocks as i64);
        Ok(Views {
            tokens_n: list(0, Kind::Int, &[rows])?,
            positions_n: list(positions, Kind::Int, &[rows])?,
            params_n4: list(params, Kind::Float, &[rows, 4])?,
            uniforms_n: list(uniforms, Kind::Double, &[rows])?,
            tables_nb: list(tables, Kind::Int, &[rows, blocks])?,
        })
    }
}

impl RowDraw {
    /// The most likely token.
    pub const GREEDY: Self =
        Self { inverse_temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, uniform: 0.0 };
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_hold_what_they_are_asked_for() {
        for num_rows in 1..=600 {
            let shape = Shape::of(num_rows, 1, 16);
            assert!(shape.rows >= num_rows && shape.rows <= (num_rows + 63).max(2 * num_rows));
            assert_eq!(Shape::rows_for(shape.rows), shape.rows);
        }
        assert_eq!([1, 512, 513, 1025, 1600].map(|len| Shape::of(1, len, 16).blocks), [32, 32, 64, 128, 128]);
        assert_eq!(Shape::of(3, 0, 16), Shape { rows: 4, blocks: 0 });
    }

    #[test]
    fn lists_are_read_back_where_they_were_written() {
        let shape = Shape { rows: 4, blocks: 32 };
        let draw = RowDraw { inverse_temperature: 0.5, top_k: 7, top_p: 0.75, min_p: 0.125, uniform: 0.3 };
        let rows = [
            DecodeRow { token: Ok(70_000), position: 17, table: &[9, 4], draw },
            DecodeRow { token: Err(3), position: 0, table: &[5], draw: RowDraw::GREEDY },
        ];
        let mut bytes = vec![0; shape.bytes()];
        shape.write(&mut bytes, &rows);
        let views = shape.views(&Tensor::from_slice(&bytes)).unwrap();
        let ints = |tensor: &Tensor| Vec::<i32>::try_from(tensor.contiguous().view([-1])).unwrap();
        assert_eq!(ints(&views.tokens_n), [70_000, -4, 0, 0]);
        assert_eq!(ints(&views.positions_n), [17, 0, -1, -1]);
        let tables = ints(&views.tables_nb);
        assert_eq!((&tables[..3], &tables[32..34]), (&[9, 4, 0][..], &[5, 0][..]));
        let params = Vec::<f32>::try_from(views.params_n4.contiguous().view([-1])).unwrap();
        assert!(params[..4].iter().zip([0.5f32, 7.0, 0.75, 0.125]).all(|(a, b)| a.to_bits() == b.to_bits()));
        assert!((views.uniforms_n.double_value(&[0]) - 0.3).abs() < 1e-15);
    }
}
