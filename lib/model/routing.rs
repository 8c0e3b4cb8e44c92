//! How the routers of a forward pass choose, freely or as recorded before, and what they chose. Suffixes: t tokens, l layers
//! with experts, k experts of a token.

use std::collections::HashMap;

use tch::{Device, Kind, Tensor};

use crate::ops::route::{self, Routed, Router};
use crate::ops::sequence::Sequence;
use crate::{Error, Result};

/// The experts of some tokens in neighbouring layers that have experts.
#[derive(Debug)]
pub struct Routes {
    /// `[t, l, k]` i16; negative where nothing was recorded.
    ids_tlk: Tensor,
    /// Which of the model's layers with experts is the first of them.
    first: usize,
}

impl Routes {
    /// Stands in place of the experts of a token that nobody recorded.
    pub const NOT_RECORDED: u16 = u16::MAX;

    /// Routes of `ids`, `[t, l, k]` row-major, from the model's first layer with experts on.
    ///
    /// # Errors
    /// The ids are not so many.
    pub fn new(ids: &[u16], [t, l, k]: [usize; 3]) -> Result<Self> {
        if ids.len() != t * l * k {
            return Err(Error::Context { what: "experts to replay", expected: t * l * k, got: ids.len() });
        }
        // Expert numbers are below 2^15, so that 65535 becomes -1 and nothing else is negative.
        let ids: Vec<i16> = ids.iter().map(|id| id.cast_signed()).collect();
        let ids_tlk = Tensor::f_from_slice(&ids)?.f_view([t as i64, l as i64, k as i64])?;
        Ok(Self { ids_tlk, first: 0 })
    }

    /// The ids, `[t, l, k]` row-major.
    ///
    /// # Errors
    /// The device fails.
    pub fn ids(&self) -> Result<Vec<u16>> {
        let ids = Vec::<i16>::try_from(self.ids_tlk.f_to_device(Device::Cpu)?.f_reshape([-1])?)?;
        Ok(ids.into_iter().map(i16::cast_unsigned).collect())
    }

    /// The same in the memory of `device`.
    ///
    /// # Errors
    /// There is no room.
    pub fn to_device(&self, device: Device) -> Result<Self> {
        Ok(Self { ids_tlk: self.ids_tlk.f_to_device(device)?, first: self.first })
    }

    /// The experts `[t, k]` i64 in the layer with experts number `place`.
    fn of_layer(&self, place: usize) -> Result<Tensor> {
        let num_layers = self.ids_tlk.size3()?.1 as usize;
        let at = place.checked_sub(self.first).filter(|at| *at < num_layers).ok_or(Error::Context {
            what: "layers with experts to replay",
            expected: place + 1,
            got: self.first + num_layers,
        })?;
        Ok(self.ids_tlk.f_select(1, at as i64)?.f_to_kind(Kind::Int64)?)
    }

    /// Tokens.
    pub fn num_tokens(&self) -> usize {
        self.ids_tlk.size().first().map_or(0, |t| *t as usize)
    }
}

/// What a pass knows of routes.
#[derive(Debug, Default)]
pub(crate) struct Routing {
    /// Where tokens go that went there before.
    pub given: Option<Routes>,
    /// What each layer with experts, by its number, chose so far, `[t, k]` i16, where that is to be kept.
    pub kept: Option<Vec<(usize, Tensor)>>,
    tape: Tape,
}

/// This rank's choices in a pass whose layers are computed again: they are the same then, whatever rounds otherwise.
#[derive(Debug, Default)]
enum Tape {
    #[default]
    Off,
    /// `[t, k]` i64 of every layer with experts so far, by its number.
    Recorded(HashMap<usize, Tensor>),
    Replayed(HashMap<usize, Tensor>),
}

impl Routing {
    /// The experts and weights of `x_td`, this rank's share of all `num_tokens`, in the layer with experts number `place`.
    pub fn route(
        &mut self,
        router: &Router,
        x_td: &Tensor,
        place: usize,
        (sequence, num_tokens): (&Sequence, usize),
    ) -> Result<Routed> {
        if let Tape::Replayed(chosen) = &self.tape {
            return route::reference(router, x_td, chosen.get(&place));
        }
        let given_tk = match &self.given {
            Some(given) => Some(sequence.own(&given.of_layer(place)?)?),
            None => None,
        };
        let routed = route::reference(router, x_td, given_tk.as_ref())?;
        if let Tape::Recorded(chosen) = &mut self.tape {
            chosen.insert(place, routed.ids_tk.f_detach()?);
        }
        if let Some(kept) = &mut self.kept {
            kept.push((place, sequence.gather(&routed.ids_tk.f_to_kind(Kind::Int16)?, num_tokens)?));
        }
        Ok(routed)
    }

    /// From now on every choice is recorded for [`Self::replay_tape`].
    pub fn begin_tape(&mut self) {
        self.tape = Tape::Recorded(HashMap::new());
    }

    /// From now on every layer chooses what it chose since [`Self::begin_tape`].
    pub fn replay_tape(&mut self) {
        if let Tape::Recorded(chosen) = std::mem::take(&mut self.tape) {
            self.tape = Tape::Replayed(chosen);
        }
    }

    /// What was kept; `None` where nothing was to be, or no layer has experts.
    pub fn take(&mut self) -> Result<Option<Routes>> {
        match self.kept.take() {
            Some(layers) => match layers.first() {
                Some((first, _)) => {
                    let ids: Vec<&Tensor> = layers.iter().map(|(_, ids_tk)| ids_tk).collect();
                    Ok(Some(Routes { ids_tlk: Tensor::f_stack(&ids, 1)?, first: *first }))
                }
                None => Ok(None),
            },
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back_and_what_is_not_recorded_stays_so() {
        let ids = [3, 0, Routes::NOT_RECORDED, Routes::NOT_RECORDED, 5, 511, 2, 1];
        assert_eq!(Routes::new(&ids, [2, 2, 2]).unwrap().ids().unwrap(), ids);
        let error = Routes::new(&ids, [2, 2, 3]).unwrap_err().to_string();
        assert_eq!(error, "experts to replay: expected 12, got 8");
    }
}
