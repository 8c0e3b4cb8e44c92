//! What the first layer of a decode step reads, from a few numbers for each sequence. Suffixes: n rows, d hidden size, r half
//! of `head_dim`, v vocabulary, b blocks of a sequence.
#![expect(unsafe_code, reason = "launches a kernel")]

use slime_cuda::Program;
use tch::{Kind, Tensor};

use crate::Result;
use crate::arguments::Arguments;
use crate::check::{bf16, device_of, is_as, is_element, refused};

const NAME: &str = "decode_inputs";
const SOURCE: &str = concat!(include_str!("element.cuh"), include_str!("decode_inputs.cu"));
const THREADS: i64 = 128;

/// One new token of each sequence.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    /// The token, or -1 - r for the one in row r of `sampled`, `[n]` i32.
    pub tokens_n: &'a Tensor,
    /// Its position, below 0 where the row is empty, `[n]` i32.
    pub positions_n: &'a Tensor,
    /// What the step before sampled, i32.
    pub sampled: &'a Tensor,
    /// Blocks of every sequence, `[n, b]` i32.
    pub tables_nb: &'a Tensor,
    /// Tokens of a block.
    pub block_size: usize,
}

/// What is written.
#[derive(Debug)]
pub struct Inputs {
    /// Rows of the embedding, `[n, d]`.
    pub x_nd: Tensor,
    /// Cosines of the angles, `[n, r]` f32.
    pub cos_nr: Tensor,
    /// Sines, `[n, r]` f32.
    pub sin_nr: Tensor,
    /// Slots of the cache, -1 of empty rows, `[n]` i64.
    pub slots_n: Tensor,
    /// Positions each row sees, 0 of empty rows, `[n]` i32.
    pub visible_n: Tensor,
}

/// Fills `inputs` from `tokens`, the embedding `embed_vd` and the rotary frequencies `inv_freq_r` (f32).
///
/// # Errors
/// Tensors that do not fit each other; no compiler or driver.
pub fn serve(tokens: Tokens<'_>, embed_vd: &Tensor, inv_freq_r: &Tensor, inputs: &Inputs) -> Result<()> {
    let (num_rows, hidden) = inputs.x_nd.size2()?;
    let (kind, device) = (embed_vd.kind(), embed_vd.device());
    if !is_element(kind, device) || hidden % 8 != 0 || embed_vd.size2()?.1 != hidden {
        return Err(refused(
            NAME,
            "embedding",
            "f32 or bf16 rows on a GPU, a multiple of 8",
            format!("{embed_vd:?}"),
        ));
    }
    let half = inv_freq_r.size1()?;
    let table_len = tokens.tables_nb.size2()?.1;
    let (int, float) = (Kind::Int, Kind::Float);
    for (what, tensor, kind, size) in [
        ("tokens", tokens.tokens_n, int, vec![num_rows]),
        ("positions", tokens.positions_n, int, vec![num_rows]),
        ("block tables", tokens.tables_nb, int, vec![num_rows, table_len]),
        ("sampled tokens", tokens.sampled, int, tokens.sampled.size()),
        ("frequencies", inv_freq_r, float, vec![half]),
        ("rows", &inputs.x_nd, kind, vec![num_rows, hidden]),
        ("cosines", &inputs.cos_nr, float, vec![num_rows, half]),
        ("sines", &inputs.sin_nr, float, vec![num_rows, half]),
        ("slots", &inputs.slots_n, Kind::Int64, vec![num_rows]),
        ("visible positions", &inputs.visible_n, int, vec![num_rows]),
    ] {
        is_as(NAME, what, tensor, (kind, &size, device))?;
    }
    if num_rows == 0 {
        return Ok(());
    }
    let number = device_of(NAME, embed_vd)?;
    let defines = defines(kind, hidden, half, tokens.block_size);
    let program = Program { name: "decode_inputs.cu", source: SOURCE, defines: &defines };
    let arguments = Arguments::default()
        .tensor(tokens.tokens_n)
        .tensor(tokens.positions_n)
        .tensor(tokens.sampled)
        .tensor(tokens.tables_nb)
        .int(table_len as i32)
        .tensor(embed_vd)
        .tensor(inv_freq_r)
        .tensor(&inputs.x_nd)
        .tensor(&inputs.cos_nr)
        .tensor(&inputs.sin_nr)
        .tensor(&inputs.slots_n)
        .tensor(&inputs.visible_n);
    // SAFETY: the arguments are those of the kernel, checked above. Tokens and blocks are the caller's, who takes them from the vocabulary and the cache.
    unsafe { arguments.launch(number, (&program, NAME), ([num_rows as u32, 1, 1], THREADS)) }
}

fn defines(kind: Kind, hidden: i64, half: i64, block_size: usize) -> [(&'static str, i64); 5] {
    [bf16(kind), ("HIDDEN", hidden), ("HALF", half), ("KV_BLOCK", block_size as i64), ("THREADS", THREADS)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::compiles;

    #[test]
    fn kernel_compiles_for_every_supported_gpu() {
        for kind in [Kind::Float, Kind::BFloat16] {
            compiles(NAME, SOURCE, &defines(kind, 4096, 64, 16));
        }
    }
}
