//! Compares two checkpoints tensor by tensor in f64.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use slime_cli::Failure;
use slime_weights::{TensorSpec, decode_f32};

use crate::failure;
use crate::read_weights::Checkpoint;

/// The exit code of a comparison that found differences, as of diff(1).
const DIFFERENT: u8 = 1;

/// Prints every tensor that differs; a failure with code 1 when there is one.
pub fn diff(a: &Path, b: &Path) -> Result<(), Failure> {
    let (left, right) = (Checkpoint::open(a)?, Checkpoint::open(b)?);
    let (left_specs, right_specs) = (left.tensors()?, right.tensors()?);
    let names: BTreeSet<&str> = left_specs.iter().chain(&right_specs).map(|s| s.name.as_str()).collect();
    let mut num_different = 0;
    for name in &names {
        let find = |specs: &[TensorSpec]| specs.iter().find(|spec| spec.name == *name).cloned();
        let line = match (find(&left_specs), find(&right_specs)) {
            (Some(l), Some(r)) if l.shape == r.shape => compare((&left, &l), (&right, &r))?,
            (Some(l), Some(r)) => Some(format!("shape {:?} | {:?}", l.shape, r.shape)),
            (Some(_), None) => Some(format!("only in {}", a.display())),
            _ => Some(format!("only in {}", b.display())),
        };
        if let Some(line) = line {
            num_different += 1;
            let mut stdout = std::io::stdout();
            writeln!(stdout, "{name:<58} {line}").map_err(|error| Failure::io("stdout", &error))?;
        }
    }
    match num_different {
        0 => Ok(()),
        n => Err(Failure::new(DIFFERENT, format!("{n} of {} tensors differ", names.len()))),
    }
}

/// What differs between two tensors of the same shape: the type, or the values.
fn compare(
    (left, l): (&Checkpoint, &TensorSpec),
    (right, r): (&Checkpoint, &TensorSpec),
) -> Result<Option<String>, Failure> {
    let (left, right) = (left.read(&l.name)?, right.read(&r.name)?);
    if l.dtype == r.dtype && left == right {
        return Ok(None);
    }
    let dtypes = if l.dtype == r.dtype { l.dtype.to_string() } else { format!("{} | {}", l.dtype, r.dtype) };
    if l.dtype.torch_name().is_none() || r.dtype.torch_name().is_none() {
        return Ok(Some(format!("{dtypes}: bytes differ")));
    }
    let left = decode_f32(&l.name, &left, l.dtype).map_err(failure)?;
    let right = decode_f32(&r.name, &right, r.dtype).map_err(failure)?;
    let (mut max, mut difference, mut norm) = (0.0_f64, 0.0_f64, 0.0_f64);
    for (x, y) in left.iter().zip(&right) {
        let delta = f64::from(*x) - f64::from(*y);
        max = max.max(delta.abs());
        difference += delta * delta;
        norm += f64::from(*x) * f64::from(*x);
    }
    let relative = (difference / norm.max(f64::MIN_POSITIVE)).sqrt();
    Ok(Some(format!("{dtypes}: max |a - b| {max:.3e}, |a - b| / |a| {relative:.3e}")))
}
