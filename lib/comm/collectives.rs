//! Typed collectives over any `Communicator`: each is a few exchanges and, where values meet, one reduction in rank
//! order. Results are therefore bit-identical on every backend.

use crate::communicator::COLLECTIVE;
use crate::reduce::in_rank_order;
use crate::{Communicator, Dtype, Element, Error, Incoming, Op, Outgoing, Result};
use half::bf16;

/// Bytes an all-reduce treats at a time: bounds its extra memory, which is this much plus one share.
const BLOCK_BYTES: usize = 64 << 20;

/// Shares of `len` elements for `size` ranks: equal, the first `len % size` ranks get one more.
pub fn even_counts(len: usize, size: usize) -> Vec<usize> {
    (0..size).map(|rank| len / size + usize::from(rank < len % size)).collect()
}

/// The typed operations. Counts are in elements, one per rank, the same on all ranks.
pub trait Collectives: Communicator {
    /// Every rank's `data` becomes the reduction of all ranks' `data`.
    fn all_reduce<T: Element>(&self, data: &mut [T], op: Op) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        for block in data.chunks_mut(BLOCK_BYTES / size_of::<T>()) {
            let counts = even_counts(block.len(), self.size());
            let mut share = vec![T::zeroed(); counts[self.rank()]];
            self.reduce_scatter(block, &counts, &mut share, op)?;
            self.all_gather_v(&share, &counts, block)?;
        }
        Ok(())
    }

    /// `all_reduce` of a buffer whose type is known at run time; it must be aligned for `dtype`.
    fn all_reduce_bytes(&self, data: &mut [u8], dtype: Dtype, op: Op) -> Result<()> {
        match dtype {
            Dtype::F32 => self.all_reduce(typed::<f32>("all_reduce", data)?, op),
            Dtype::F64 => self.all_reduce(typed::<f64>("all_reduce", data)?, op),
            Dtype::Bf16 => self.all_reduce(typed::<bf16>("all_reduce", data)?, op),
            Dtype::U8 => self.all_reduce(data, op),
            Dtype::U64 => self.all_reduce(typed::<u64>("all_reduce", data)?, op),
        }
    }

    /// Rank r's `output`, `counts[r]` long, becomes the reduction of all ranks' r-th part of `input`.
    fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        counts: &[usize],
        output: &mut [T],
        op: Op,
    ) -> Result<()> {
        let call = "reduce_scatter";
        check_counts(call, self, counts)?;
        check(call, counts.iter().sum(), input.len())?;
        let mine = counts[self.rank()];
        check(call, mine, output.len())?;
        let mut received = vec![T::zeroed(); mine * self.size()];
        self.all_to_all_v(input, counts, &mut received, &vec![mine; self.size()])?;
        // chunks() refuses a width of 0, which an empty share has.
        let contributions: Vec<&[T]> =
            (0..self.size()).map(|r| &received[r * mine..(r + 1) * mine]).collect();
        in_rank_order(op, &contributions, output);
        Ok(())
    }

    /// `reduce_scatter` of buffers whose type is known at run time; they must be aligned for `dtype`.
    fn reduce_scatter_bytes(
        &self,
        input: &[u8],
        counts: &[usize],
        output: &mut [u8],
        dtype: Dtype,
        op: Op,
    ) -> Result<()> {
        let call = "reduce_scatter";
        macro_rules! reduce {
            ($($name:ident => $element:ty),*) => {
                match dtype {
                    $(Dtype::$name => {
                        let output = typed::<$element>(call, output)?;
                        self.reduce_scatter(typed_ref::<$element>(call, input)?, counts, output, op)
                    })*
                }
            };
        }
        reduce!(F32 => f32, F64 => f64, Bf16 => bf16, U8 => u8, U64 => u64)
    }

    /// Every rank's `data` becomes `root`'s. A binomial tree.
    fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<()> {
        let size = self.size();
        check_rank("broadcast", root, size)?;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(data);
        let place = (self.rank() + size - root) % size;
        let peer = |place: usize| (place + root) % size;
        let mut width = size.next_power_of_two();
        // A place receives from the one with its lowest set bit cleared, then serves the places below that bit.
        if place != 0 {
            width = 1 << place.trailing_zeros();
            let from = peer(place - width);
            self.exchange(COLLECTIVE, &[], &mut [Incoming { from, data: bytes }])?;
        }
        while width > 1 {
            width /= 2;
            if place + width < size {
                let to = peer(place + width);
                self.exchange(COLLECTIVE, &[Outgoing { to, data: bytes }], &mut [])?;
            }
        }
        Ok(())
    }

    /// `output` becomes all ranks' `input` in rank order; all inputs have the same length.
    fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.all_gather_v(input, &vec![input.len(); self.size()], output)
    }

    /// `output` becomes all ranks' `input` in rank order; rank r's is `counts[r]` long.
    fn all_gather_v<T: Element>(&self, input: &[T], counts: &[usize], output: &mut [T]) -> Result<()> {
        let call = "all_gather";
        check_counts(call, self, counts)?;
        check(call, counts[self.rank()], input.len())?;
        check(call, counts.iter().sum(), output.len())?;
        let out: Vec<_> = peers(self).map(|to| Outgoing { to, data: bytemuck::cast_slice(input) }).collect();
        scatter_into(self, &out, input, counts, output)
    }

    /// The r-th part of `input`, `input_counts[r]` long, goes to rank r; `output` gets the parts of all ranks.
    fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        input_counts: &[usize],
        output: &mut [T],
        output_counts: &[usize],
    ) -> Result<()> {
        let call = "all_to_all";
        check_counts(call, self, input_counts)?;
        check_counts(call, self, output_counts)?;
        check(call, input_counts.iter().sum(), input.len())?;
        check(call, output_counts.iter().sum(), output.len())?;
        check(call, input_counts[self.rank()], output_counts[self.rank()])?;
        let mut out = Vec::with_capacity(self.size());
        let mut mine: &[T] = &[];
        let mut rest = input;
        for (to, &count) in input_counts.iter().enumerate() {
            let (part, after) = rest.split_at(count);
            rest = after;
            if to == self.rank() {
                mine = part;
            } else {
                out.push(Outgoing { to, data: bytemuck::cast_slice(part) });
            }
        }
        scatter_into(self, &out, mine, output_counts, output)
    }

    /// Sends to one rank of this group. Returns when `data` may be used again, which may be when it was received.
    fn send<T: Element>(&self, data: &[T], to: usize, tag: u8) -> Result<()> {
        check_rank("send", to, self.size())?;
        self.exchange(u16::from(tag) + 1, &[Outgoing { to, data: bytemuck::cast_slice(data) }], &mut [])
    }

    /// As [`Self::send`], without waiting for the receiver: `data` may be used again at once.
    fn send_later<T: Element>(&self, data: &[T], to: usize, tag: u8) -> Result<()> {
        check_rank("send", to, self.size())?;
        self.post(u16::from(tag) + 1, &Outgoing { to, data: bytemuck::cast_slice(data) })
    }

    /// Fills `data` with the next message of `from` with this tag.
    fn recv<T: Element>(&self, data: &mut [T], from: usize, tag: u8) -> Result<()> {
        check_rank("recv", from, self.size())?;
        let into = Incoming { from, data: bytemuck::cast_slice_mut(data) };
        self.exchange(u16::from(tag) + 1, &[], &mut [into])
    }
}

impl<C: Communicator + ?Sized> Collectives for C {}

fn typed<'a, T: Element>(call: &'static str, data: &'a mut [u8]) -> Result<&'a mut [T]> {
    let got = data.len();
    if got == 0 {
        // Nothing has no alignment.
        return Ok(&mut []);
    }
    bytemuck::try_cast_slice_mut(data).map_err(|_| Error::Length {
        call,
        expected: got / size_of::<T>(),
        got,
    })
}

fn typed_ref<'a, T: Element>(call: &'static str, data: &'a [u8]) -> Result<&'a [T]> {
    let got = data.len();
    if got == 0 {
        return Ok(&[]);
    }
    bytemuck::try_cast_slice(data).map_err(|_| Error::Length { call, expected: got / size_of::<T>(), got })
}

fn check(call: &'static str, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(Error::Length { call, expected, got }) }
}

fn check_counts<C: Communicator + ?Sized>(call: &'static str, comm: &C, counts: &[usize]) -> Result<()> {
    check(call, comm.size(), counts.len())
}

fn check_rank(call: &'static str, rank: usize, size: usize) -> Result<()> {
    if rank < size { Ok(()) } else { Err(Error::Rank { call, rank, size }) }
}

/// All other ranks, starting behind this one, so that not all ranks send to rank 0 first.
pub(crate) fn peers<C: Communicator + ?Sized>(comm: &C) -> impl Iterator<Item = usize> + use<C> {
    let (rank, size) = (comm.rank(), comm.size());
    (1..size).map(move |i| (rank + i) % size)
}

/// Sends `out` and fills `output` by `counts`, the own part from `mine`.
fn scatter_into<T: Element, C: Communicator + ?Sized>(
    comm: &C,
    out: &[Outgoing<'_>],
    mine: &[T],
    counts: &[usize],
    output: &mut [T],
) -> Result<()> {
    let mut into = Vec::with_capacity(comm.size());
    let mut rest = output;
    for (from, &count) in counts.iter().enumerate() {
        let (part, after) = rest.split_at_mut(count);
        rest = after;
        if from == comm.rank() {
            part.copy_from_slice(mine);
        } else {
            into.push(Incoming { from, data: bytemuck::cast_slice_mut(part) });
        }
    }
    comm.exchange(COLLECTIVE, out, &mut into)
}
