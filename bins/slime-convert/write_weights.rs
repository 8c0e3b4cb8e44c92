//! Writes tensors of a conversion: copied where they stay as they are, else in pieces of bounded size, or quantised one matrix
//! at a time.

use std::ops::Range;

use slime_cli::Failure;
use slime_weights::{Dtype, Error, Quantiser, WeightWriter, cast, decode_f32, first_not_finite};

use crate::arrange::{Output, Piece, Segment};
use crate::failure;
use crate::read_weights::Checkpoint;
use crate::side_files::SideFiles;

/// Elements that are read, cast and written at once.
const STEP: usize = 4 << 20;
/// Elements that are copied and checked at once.
const COPY_STEP: usize = 32 << 20;
/// Elements that are read at once to be checked: they stay in the cache of a core.
const CHECK_STEP: usize = 128 << 10;

/// A directory in the making and what it is made of.
pub struct TensorWriter<'a> {
    writer: WeightWriter,
    checkpoints: &'a [Checkpoint],
    pieces: &'a [Piece],
    quantiser: Option<Quantiser>,
    /// The piece that was quantised last, and its parts.
    quantised: Option<(usize, Vec<Vec<u8>>)>,
    buffer: Vec<u8>,
}

impl<'a> TensorWriter<'a> {
    /// Writes `pieces` of `checkpoints`.
    pub fn new(
        writer: WeightWriter,
        checkpoints: &'a [Checkpoint],
        pieces: &'a [Piece],
        quantiser: Option<Quantiser>,
    ) -> Self {
        Self { writer, checkpoints, pieces, quantiser, quantised: None, buffer: Vec::new() }
    }

    /// How many files there will be.
    pub fn num_shards(&self) -> usize {
        self.writer.num_shards()
    }

    /// Writes one file.
    pub fn write_shard(&mut self, shard: usize, outputs: &[Output]) -> Result<(), Failure> {
        self.writer.begin_shard(shard);
        for output in &outputs[self.writer.shard(shard)] {
            match output.part {
                None => self.write_piece(output)?,
                Some(part) => self.write_part(output, part)?,
            }
        }
        Ok(())
    }

    /// Waits until the files are durable.
    pub fn sync(&mut self) -> Result<(), Failure> {
        self.writer.end_shard().map_err(failure)
    }

    /// Adds the files of other ranks and those beside the weights, and gives the directory its name.
    pub fn finish(
        mut self,
        others: impl Iterator<Item = usize>,
        side_files: SideFiles,
    ) -> Result<(), Failure> {
        for shard in others {
            self.writer.adopt_shard(shard).map_err(failure)?;
        }
        for (name, content) in side_files.0 {
            self.writer.add_file(&name, &content).map_err(failure)?;
        }
        self.writer.finish().map(drop).map_err(failure)
    }

    fn write_piece(&mut self, output: &Output) -> Result<(), Failure> {
        let piece = &self.pieces[output.piece];
        let (name, to) = (&output.spec.name, output.spec.dtype);
        let mut done = 0;
        if piece.segments.is_empty() {
            return self.writer.write_part(name, &[]).map_err(failure);
        }
        for segment in &piece.segments {
            if to == piece.dtype && self.copy(name, to, segment, done)? {
                done += segment.len();
                continue;
            }
            let writer = &mut self.writer;
            let checkpoints = self.checkpoints;
            for_each_step(checkpoints, segment, piece.dtype, &mut self.buffer, |bytes| {
                let elements = cast(name, bytes, piece.dtype, to).map_err(failure)?;
                if let Some(index) = first_not_finite(&elements, to) {
                    return Err(not_finite(checkpoints, segment, name, done + index));
                }
                done += elements.len() / to.num_bytes();
                writer.write_part(name, &elements).map_err(failure)
            })?;
        }
        Ok(())
    }

    /// Copies a segment, the elements from `done` on of a tensor, while it is read beside to see that all are finite; false if
    /// its bytes do not lie in a file.
    fn copy(&mut self, tensor: &str, dtype: Dtype, segment: &Segment, done: usize) -> Result<bool, Failure> {
        let Segment::Of { checkpoint, name, range } = segment else { return Ok(false) };
        let (writer, checkpoint) = (&mut self.writer, &self.checkpoints[*checkpoint]);
        for start in range.clone().step_by(COPY_STEP) {
            let step = start..range.end.min(start + COPY_STEP);
            let Some(from) = checkpoint.file_range(name, step.clone())? else { return Ok(false) };
            let (checked, copied) = rayon::join(
                || find_not_finite(checkpoint, name, step, dtype),
                || writer.copy_part(tensor, &from).map_err(failure),
            );
            if let Some(index) = checked? {
                return Err(not_finite(self.checkpoints, segment, tensor, done + index - range.start));
            }
            copied?;
        }
        Ok(!range.is_empty())
    }

    /// A part of a quantised matrix; the matrix stays until another one is asked for.
    fn write_part(&mut self, output: &Output, part: usize) -> Result<(), Failure> {
        if self.quantised.as_ref().is_none_or(|(piece, _)| *piece != output.piece) {
            self.quantised = None;
            let parts = self.quantise(&self.pieces[output.piece])?;
            self.quantised = Some((output.piece, parts));
        }
        let bytes = self.quantised.as_ref().map_or(&[][..], |(_, parts)| &parts[part]);
        self.writer.write(&output.spec.name, bytes).map_err(failure)
    }

    fn quantise(&self, piece: &Piece) -> Result<Vec<Vec<u8>>, Failure> {
        let Some(quantiser) = self.quantiser else { return Ok(Vec::new()) };
        let (mut values, mut buffer) = (Vec::with_capacity(piece.shape.iter().product()), Vec::new());
        for segment in &piece.segments {
            for_each_step(self.checkpoints, segment, piece.dtype, &mut buffer, |bytes| {
                if let Some(index) = first_not_finite(bytes, piece.dtype) {
                    return Err(not_finite(self.checkpoints, segment, &piece.name, values.len() + index));
                }
                values.extend(decode_f32(&piece.name, bytes, piece.dtype).map_err(failure)?);
                Ok(())
            })?;
        }
        quantiser.quantise(&values, &piece.shape).map_err(failure)
    }
}

/// The first of the elements `range` of a tensor that is NaN or infinite.
fn find_not_finite(
    checkpoint: &Checkpoint,
    name: &str,
    range: Range<usize>,
    dtype: Dtype,
) -> Result<Option<usize>, Failure> {
    let mut buffer = Vec::new();
    for start in range.clone().step_by(CHECK_STEP) {
        checkpoint.read_elements(name, start..range.end.min(start + CHECK_STEP), &mut buffer)?;
        if let Some(index) = first_not_finite(&buffer, dtype) {
            return Ok(Some(start + index));
        }
    }
    Ok(None)
}

/// Hands the elements of a segment, which are of type `dtype`, over step by step.
fn for_each_step(
    checkpoints: &[Checkpoint],
    segment: &Segment,
    dtype: Dtype,
    buffer: &mut Vec<u8>,
    mut hand: impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    match segment {
        Segment::Zeros(len) => {
            for start in (0..*len).step_by(STEP) {
                buffer.clear();
                buffer.resize(STEP.min(len - start) * dtype.num_bytes(), 0);
                hand(buffer)?;
            }
            Ok(())
        }
        Segment::Of { checkpoint, name, range } => {
            let checkpoint = &checkpoints[*checkpoint];
            if !checkpoint.is_read_in_pieces(name) {
                let size = dtype.num_bytes();
                return hand(&checkpoint.read(name)?[range.start * size..range.end * size]);
            }
            for start in range.clone().step_by(STEP) {
                checkpoint.read_elements(name, start..range.end.min(start + STEP), buffer)?;
                hand(buffer)?;
            }
            if range.is_empty() { hand(&[]) } else { Ok(()) }
        }
    }
}

fn not_finite(checkpoints: &[Checkpoint], segment: &Segment, tensor: &str, index: usize) -> Failure {
    let at = if let Segment::Of { checkpoint, .. } = segment { *checkpoint } else { 0 };
    let path = checkpoints[at].path().to_owned();
    failure(Error::NotFinite { path, tensor: tensor.to_owned(), index })
}
