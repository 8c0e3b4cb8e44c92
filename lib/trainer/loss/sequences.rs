//! Which rows of a micro-batch belong to which sequence.

use tch::{Device, Kind, Tensor};

use crate::{Place, Result};

/// Sums over the rows of each sequence, as products with a 0/1 matrix: the same bits on every run, on a GPU too.
#[derive(Debug)]
pub struct Sequences {
    membership_sr: Tensor,
    len_s: Tensor,
    samples: Vec<usize>,
}

impl Sequences {
    /// The sequences of rows at `places`, in order of their first row.
    ///
    /// # Errors
    /// libtorch has no room.
    pub fn new(places: &[Place], kind: Kind, device: Device) -> Result<Self> {
        let mut samples: Vec<usize> = Vec::new();
        let mut of_row = Vec::with_capacity(places.len());
        for place in places {
            // Rows of a sample stand together.
            if samples.last() != Some(&place.sample) {
                samples.push(place.sample);
            }
            of_row.push(samples.len() as i64 - 1);
        }
        let (num_s, num_r) = (samples.len() as i64, of_row.len() as i64);
        let mut membership_sr = Tensor::f_zeros([num_s, num_r], (kind, device))?;
        if num_r > 0 {
            let index = Tensor::f_from_slice(&of_row)?.f_unsqueeze(0)?.f_to_device(device)?;
            let _ = membership_sr.f_scatter_value_(0, &index, 1.0)?;
        }
        let len_s = membership_sr.f_sum_dim_intlist(1, false, kind)?;
        Ok(Self { membership_sr, len_s, samples })
    }

    /// The samples, by their place in the optimizer step, one for each sequence.
    pub fn samples(&self) -> &[usize] {
        &self.samples
    }

    /// `[s]`: the sum over a sequence's rows.
    ///
    /// # Errors
    /// The shapes differ.
    pub fn sum(&self, x_r: &Tensor) -> Result<Tensor> {
        Ok(self.membership_sr.f_mv(&x_r.f_to_kind(self.membership_sr.kind())?)?)
    }

    /// `[s]`: the mean over a sequence's rows; the denominator is their number.
    ///
    /// # Errors
    /// The shapes differ.
    pub fn mean(&self, x_r: &Tensor) -> Result<Tensor> {
        Ok(self.sum(x_r)?.f_div(&self.len_s.f_clamp_min(1.0)?)?)
    }

    /// `[r]`: each row with the number of its sequence.
    ///
    /// # Errors
    /// The shapes differ.
    pub fn spread(&self, x_s: &Tensor) -> Result<Tensor> {
        Ok(self.membership_sr.f_tr()?.f_mv(&x_s.f_to_kind(self.membership_sr.kind())?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_summed_and_spread_by_sample() {
        let places: Vec<Place> =
            [(4, 0), (4, 2), (1, 0), (7, 1)].map(|(sample, token)| Place { sample, token }).into();
        let sequences = Sequences::new(&places, Kind::Double, Device::Cpu).unwrap();
        assert_eq!(sequences.samples(), [4, 1, 7]);
        let list = |x: Tensor| Vec::<f64>::try_from(x).unwrap();
        let x_r = Tensor::from_slice(&[1.0, 2.0, 4.0, 8.0]);
        assert_eq!(list(sequences.sum(&x_r).unwrap()), [3.0, 4.0, 8.0]);
        assert_eq!(list(sequences.mean(&x_r).unwrap()), [1.5, 4.0, 8.0]);
        assert_eq!(list(sequences.spread(&sequences.sum(&x_r).unwrap()).unwrap()), [3.0, 3.0, 4.0, 8.0]);
        let none = Sequences::new(&[], Kind::Double, Device::Cpu).unwrap();
        assert_eq!(none.sum(&Tensor::from_slice::<f64>(&[])).unwrap().numel(), 0);
    }
}
