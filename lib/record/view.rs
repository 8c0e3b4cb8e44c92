//! A batch of samples in place: typed columns over mapped bytes.

use crate::{Error, Result, Sample, SampleId, VersionRun};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrowPrimitiveType, ListArray, PrimitiveArray, RecordBatch, StringArray};

/// The columns of one batch.
#[derive(Debug)]
pub(crate) struct SampleBatch {
    step: PrimitiveArray<UInt64Type>,
    group: PrimitiveArray<UInt32Type>,
    index: PrimitiveArray<UInt32Type>,
    attempt: PrimitiveArray<UInt32Type>,
    episode: PrimitiveArray<UInt64Type>,
    part: PrimitiveArray<UInt32Type>,
    prompt_id: StringArray,
    source: StringArray,
    status: StringArray,
    finish_reason: StringArray,
    prompt: StringArray,
    tools: StringArray,
    response: StringArray,
    tokens: Lists<UInt32Type>,
    prompt_len: PrimitiveArray<UInt32Type>,
    loss_mask: Lists<UInt8Type>,
    rollout_log_probs: Lists<Float32Type>,
    /// Files of earlier versions have neither.
    kept: Option<[Lists<UInt32Type>; 2]>,
    /// Files of earlier versions have none.
    routed_experts: Option<Lists<UInt16Type>>,
    version_runs: ListArray,
    versions: PrimitiveArray<UInt64Type>,
    version_lens: PrimitiveArray<UInt32Type>,
    label: StringArray,
    metadata: StringArray,
    weight: PrimitiveArray<Float32Type>,
}

/// A list column whose values are numbers without nulls.
#[derive(Debug)]
pub(crate) struct Lists<T: ArrowPrimitiveType> {
    lists: ListArray,
    values: PrimitiveArray<T>,
}

impl<T: ArrowPrimitiveType> Lists<T> {
    pub(crate) fn new(batch: &RecordBatch, name: &str) -> Result<Self> {
        let lists = list_column(batch, name)?;
        let values = typed(lists.values().as_ref(), name, |array| array.as_primitive_opt::<T>())?;
        no_nulls(&values, name)?;
        Ok(Self { lists, values })
    }

    pub(crate) fn row(&self, i: usize) -> &[T::Native] {
        &self.values.values()[range(&self.lists, i)]
    }
}

fn range(lists: &ListArray, i: usize) -> std::ops::Range<usize> {
    let offsets = lists.value_offsets();
    offsets[i] as usize..offsets[i + 1] as usize
}

fn wrong(column: &str, expected: &str, got: impl Into<String>) -> Error {
    Error::Schema { column: column.to_owned(), expected: expected.to_owned(), got: got.into() }
}

fn no_nulls(array: &dyn Array, column: &str) -> Result<()> {
    match array.null_count() {
        0 => Ok(()),
        nulls => Err(wrong(column, "no nulls", format!("{nulls} nulls"))),
    }
}

fn typed<A: Clone>(array: &dyn Array, column: &str, cast: impl Fn(&dyn Array) -> Option<&A>) -> Result<A> {
    let name = std::any::type_name::<A>();
    let expected = name.rsplit_once("::").map_or(name, |(_, last)| last).trim_end_matches('>');
    cast(array).cloned().ok_or_else(|| wrong(column, expected, array.data_type().to_string()))
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a dyn Array> {
    let column = batch.column_by_name(name).ok_or_else(|| wrong(name, "the column", "a file without it"))?;
    Ok(column.as_ref())
}

pub(crate) fn numbers<T: ArrowPrimitiveType>(batch: &RecordBatch, name: &str) -> Result<PrimitiveArray<T>> {
    let array = typed(column(batch, name)?, name, |array| array.as_primitive_opt::<T>())?;
    no_nulls(&array, name)?;
    Ok(array)
}

pub(crate) fn strings(batch: &RecordBatch, name: &str) -> Result<StringArray> {
    let array = optional_strings(batch, name)?;
    no_nulls(&array, name)?;
    Ok(array)
}

pub(crate) fn optional_strings(batch: &RecordBatch, name: &str) -> Result<StringArray> {
    typed(column(batch, name)?, name, |array| array.as_string_opt::<i32>())
}

fn list_column(batch: &RecordBatch, name: &str) -> Result<ListArray> {
    let lists = typed(column(batch, name)?, name, |array| array.as_list_opt::<i32>())?;
    no_nulls(&lists, name)?;
    Ok(lists)
}

impl SampleBatch {
    pub(crate) fn new(batch: &RecordBatch) -> Result<Self> {
        let version_runs = list_column(batch, "weight_versions")?;
        let runs = typed(version_runs.values().as_ref(), "weight_versions", |array| array.as_struct_opt())?;
        no_nulls(&runs, "weight_versions")?;
        let runs = RecordBatch::from(runs);
        Ok(Self {
            step: numbers(batch, "step")?,
            group: numbers(batch, "group")?,
            index: numbers(batch, "index")?,
            attempt: numbers(batch, "attempt")?,
            episode: numbers(batch, "episode")?,
            part: numbers(batch, "part")?,
            prompt_id: strings(batch, "prompt_id")?,
            source: strings(batch, "source")?,
            status: strings(batch, "status")?,
            finish_reason: strings(batch, "finish_reason")?,
            prompt: strings(batch, "prompt")?,
            tools: optional_strings(batch, "tools")?,
            response: strings(batch, "response")?,
            tokens: Lists::new(batch, "tokens")?,
            prompt_len: numbers(batch, "prompt_len")?,
            loss_mask: Lists::new(batch, "loss_mask")?,
            rollout_log_probs: Lists::new(batch, "rollout_log_probs")?,
            kept: match batch.column_by_name("kept_lens") {
                Some(_) => Some([Lists::new(batch, "kept_token_ids")?, Lists::new(batch, "kept_lens")?]),
                None => None,
            },
            routed_experts: match batch.column_by_name("routed_experts") {
                Some(_) => Some(Lists::new(batch, "routed_experts")?),
                None => None,
            },
            versions: numbers(&runs, "version")?,
            version_lens: numbers(&runs, "len")?,
            version_runs,
            label: optional_strings(batch, "label")?,
            metadata: optional_strings(batch, "metadata")?,
            weight: numbers(batch, "weight")?,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.step.len()
    }

    pub(crate) fn view(&self, row: usize) -> SampleView<'_> {
        SampleView { batch: self, row }
    }
}

/// One sample of an open segment, in place.
#[derive(Debug, Clone, Copy)]
pub struct SampleView<'a> {
    batch: &'a SampleBatch,
    row: usize,
}

impl<'a> SampleView<'a> {
    /// The sample's name.
    pub fn id(&self) -> SampleId {
        SampleId {
            step: self.batch.step.value(self.row),
            group: self.batch.group.value(self.row),
            index: self.batch.index.value(self.row),
            attempt: self.batch.attempt.value(self.row),
            part: self.batch.part.value(self.row),
        }
    }

    /// Token ids of prompt and response.
    pub fn tokens(&self) -> &'a [u32] {
        self.batch.tokens.row(self.row)
    }

    /// How many of the tokens are the prompt.
    pub fn prompt_len(&self) -> u32 {
        self.batch.prompt_len.value(self.row)
    }

    /// Per response token whether it is trained.
    pub fn loss_mask(&self) -> &'a [u8] {
        self.batch.loss_mask.row(self.row)
    }

    /// Per response token its log-probability when sampled; may be empty.
    pub fn rollout_log_probs(&self) -> &'a [f32] {
        self.batch.rollout_log_probs.row(self.row)
    }

    /// The response as text.
    pub fn response(&self) -> &'a str {
        self.batch.response.value(self.row)
    }

    /// The prompt as JSON text.
    pub fn prompt(&self) -> &'a str {
        self.batch.prompt.value(self.row)
    }

    /// The reference answer.
    pub fn label(&self) -> Option<&'a str> {
        optional(&self.batch.label, self.row)
    }

    /// The sample's weight in the loss.
    pub fn weight(&self) -> f32 {
        self.batch.weight.value(self.row)
    }

    /// XXH3 (64 bits) of the token ids.
    pub fn tokens_hash(&self) -> u64 {
        crate::tokens_hash(self.tokens())
    }

    /// A copy.
    ///
    /// # Errors
    /// [`Error::Status`] when the status is no word of ours, [`Error::Sample`] when fields disagree.
    pub fn to_sample(&self) -> Result<Sample> {
        let (batch, row) = (self.batch, self.row);
        let SampleId { step, group, index, attempt, part } = self.id();
        let runs = range(&batch.version_runs, row);
        let (kept_token_ids, kept_lens) = match &batch.kept {
            Some([ids, lens]) => (ids.row(row).to_vec(), lens.row(row).to_vec()),
            None => (Vec::new(), Vec::new()),
        };
        let sample = Sample {
            step,
            group,
            index,
            attempt,
            episode: batch.episode.value(row),
            part,
            prompt_id: batch.prompt_id.value(row).to_owned(),
            source: batch.source.value(row).to_owned(),
            status: batch.status.value(row).parse()?,
            finish_reason: batch.finish_reason.value(row).to_owned(),
            prompt: self.prompt().to_owned(),
            tools: optional(&batch.tools, row).map(str::to_owned),
            response: self.response().to_owned(),
            tokens: self.tokens().to_vec(),
            prompt_len: self.prompt_len(),
            loss_mask: self.loss_mask().to_vec(),
            rollout_log_probs: self.rollout_log_probs().to_vec(),
            kept_token_ids,
            kept_lens,
            routed_experts: batch
                .routed_experts
                .as_ref()
                .map_or_else(Vec::new, |lists| lists.row(row).to_vec()),
            weight_versions: runs
                .map(|i| VersionRun { version: batch.versions.value(i), len: batch.version_lens.value(i) })
                .collect(),
            label: self.label().map(str::to_owned),
            metadata: optional(&batch.metadata, row).map(str::to_owned),
            weight: self.weight(),
        };
        sample.validate()?;
        Ok(sample)
    }
}

pub(crate) fn optional(array: &StringArray, row: usize) -> Option<&str> {
    (!array.is_null(row)).then(|| array.value(row))
}
