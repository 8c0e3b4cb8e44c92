//! Draws a token from every row of logits, with its log-prob. Suffixes: n rows, v vocabulary.
#![expect(unsafe_code, reason = "launches a kernel")]

use slime_cuda::Program;
use tch::{Kind, Tensor};

use crate::Result;
use crate::arguments::Arguments;
use crate::check::{device_of, is_as};

const NAME: &str = "sample";
const SOURCE: &str = include_str!("sample.cu");
const THREADS: i64 = 1024;

/// How each row is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Draw<'a> {
    /// 1 / temperature (0: the most likely token, with its log-prob under the plain softmax), top-k (0: all), top-p, min-p,
    /// `[n, 4]` f32.
    pub params_n4: &'a Tensor,
    /// What decides, in [0, 1), `[n]` f64.
    pub uniforms_n: &'a Tensor,
}

/// Draws from `softmax(logits / temperature)` cut to top-k, then top-p of what is left, then min-p (the order of Hugging
/// Face's logits processors; ids of equal logits at the edge of a cut stay in together), renormalised. Writes the tokens
/// `[n]` i32, -1 where a row of `logits_nv` (f32) has NaN or plus infinity, and their log-probs `[n]` f32.
///
/// # Errors
/// Tensors that do not fit each other; no compiler or driver.
pub fn serve(logits_nv: &Tensor, draw: Draw<'_>, tokens_n: &Tensor, log_probs_n: &Tensor) -> Result<()> {
    let (num_rows, vocab) = logits_nv.size2()?;
    let device = logits_nv.device();
    for (what, tensor, kind, size) in [
        ("logits", logits_nv, Kind::Float, &[num_rows, vocab][..]),
        ("parameters", draw.params_n4, Kind::Float, &[num_rows, 4]),
        ("uniform numbers", draw.uniforms_n, Kind::Double, &[num_rows]),
        ("tokens", tokens_n, Kind::Int, &[num_rows]),
        ("log-probs", log_probs_n, Kind::Float, &[num_rows]),
    ] {
        is_as(NAME, what, tensor, (kind, size, device))?;
    }
    if num_rows == 0 {
        return Ok(());
    }
    let number = device_of(NAME, logits_nv)?;
    let program = Program { name: "sample.cu", source: SOURCE, defines: &[("THREADS", THREADS)] };
    let arguments = Arguments::default()
        .tensor(logits_nv)
        .int(vocab as i32)
        .tensor(draw.params_n4)
        .tensor(draw.uniforms_n)
        .tensor(tokens_n)
        .tensor(log_probs_n);
    // SAFETY: the arguments are those of the kernel, checked above.
    unsafe { arguments.launch(number, (&program, NAME), ([num_rows as u32, 1, 1], THREADS)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::compiles;

    #[test]
    fn kernel_compiles_for_every_supported_gpu() {
        compiles(NAME, SOURCE, &[("THREADS", THREADS)]);
    }
}
