//! A run as an offline run of Weights & Biases: a LevelDB-style log of protobuf records, which `wandb sync` uploads.

use std::io::Write;
use std::path::Path;

use prost::Message;
use serde_json::{Value, json};
use slime_cli::{Failure, Output};
use slime_metrics::event_file::tag;

use super::rows::Rows;
use super::wandb_records::{
    Exit, Header, History, Item, Items, Metric, MetricOptions, Record, RunRecord, Step, Timestamp,
    VersionInfo,
};
use crate::read_run::Run;

/// `:W&B`, the number 0xBEE1 and version 0 begin every log.
const HEAD: [u8; 7] = [b':', b'W', b'&', b'B', 0xe1, 0xbe, 0];
/// The log is in blocks, in which a record's parts have a head of checksum, length and kind.
const BLOCK: usize = 32 << 10;
const PART_HEAD: usize = 7;
/// The program version that wrote logs of this kind, and the oldest that reads them.
const PRODUCER: &str = "0.19.11";
const MIN_CONSUMER: &str = "0.40.0";
/// Evaluations are drawn over this number.
const STEP_METRIC: &str = "version";

/// Writes `offline-run-<time>-<id>/run-<id>.wandb` into a folder; the same run has the same names again.
///
/// # Errors
/// It cannot be written.
pub fn write(run: &Run, place: &str) -> Result<(), Failure> {
    let root = std::fs::canonicalize(run.dir.root()).unwrap_or_else(|_| run.dir.root().to_owned());
    let id = format!("{:08x}", crc32fast::hash(root.to_string_lossy().as_bytes()));
    let start = run.metrics.times.values().copied().fold(f64::INFINITY, f64::min);
    let start = if start.is_finite() { start } else { 0.0 };
    let folder = Path::new(place).join(format!("offline-run-{}-{id}", compact_time(start as i64)));
    super::folder(&folder.join("files"))?;
    let path = folder.join(format!("run-{id}.wandb"));
    let name = path.to_string_lossy();
    let mut output = Output::create(&name)?;
    let bytes = log(&records(run, &id, start));
    output.write_all(&bytes).map_err(|error| Failure::io(&name, &error))?;
    output.finish()
}

/// The records of a run in their order.
fn records(run: &Run, id: &str, start: f64) -> Vec<Record> {
    let version_info = VersionInfo { producer: PRODUCER.to_owned(), min_consumer: MIN_CONSUMER.to_owned() };
    let header = Header { version_info: Some(version_info) };
    let of_run = RunRecord {
        run_id: id.to_owned(),
        project: "slime".to_owned(),
        config: Some(Items { update: config(run) }),
        display_name: run.name.clone(),
        start_time: Some(Timestamp { seconds: start as i64 }),
    };
    let mut records = vec![
        Record { header: Some(header), ..Record::default() },
        Record { run: Some(of_run), ..Record::default() },
    ];
    let mut metric = |name: String, step_metric: &str| {
        let options = (!step_metric.is_empty()).then_some(MetricOptions { step_sync: true });
        let metric = Metric { name, over: step_metric.to_owned(), options };
        records.push(Record { metric: Some(metric), ..Record::default() });
    };
    metric(STEP_METRIC.to_owned(), "");
    let evals = Rows::of_evals(&run.metrics);
    for set in run.metrics.sets() {
        evals.names.iter().for_each(|name| metric(tag(Some(set), name), STEP_METRIC));
    }
    let mut newest: Vec<Item> = Vec::new();
    let rows = rows(run, &evals);
    for (step, time, items) in &rows {
        let mut items = items.clone();
        for item in &items {
            newest.retain(|known| known.key != item.key);
            newest.push(item.clone());
        }
        items.push(item("_timestamp", &json!(time.unwrap_or(start))));
        items.push(item("_runtime", &json!((time.unwrap_or(start) - start).max(0.0))));
        items.push(item("_step", &json!(step)));
        let history = History { item: items, step: Some(Step { num: *step as i64 }) };
        records.push(Record { history: Some(history), ..Record::default() });
    }
    records.push(Record { summary: Some(Items { update: newest }), ..Record::default() });
    let exit = Exit {
        exit_code: i32::from(run.metrics.outcome == "failed"),
        runtime: run.duration_s().unwrap_or(0.0) as i32,
    };
    records.push(Record { exit: Some(exit), ..Record::default() });
    for (num, record) in records.iter_mut().enumerate() {
        record.num = num as i64 + 1;
    }
    records
}

fn item(key: &str, value: &Value) -> Item {
    Item { key: key.to_owned(), value_json: value.to_string() }
}

/// Step, time and numbers of each row of the history: those of step k, and the evaluations of version k, which is
/// the policy before step k.
fn rows(run: &Run, evals: &Rows) -> Vec<(u64, Option<f64>, Vec<Item>)> {
    let steps = Rows::of_steps(&run.metrics);
    let mut rows: std::collections::BTreeMap<u64, (Option<f64>, Vec<Item>)> =
        std::collections::BTreeMap::new();
    let known = |name: &str, value: &Option<f64>| value.map(|value| item(name, &json!(value)));
    for row in &evals.entries {
        let set = row.set.as_deref().unwrap_or_default();
        let (time, items) = rows.entry(row.at).or_default();
        *time = time.or(row.time);
        if items.is_empty() {
            items.push(item(STEP_METRIC, &json!(row.at)));
        }
        items.extend(
            evals.names.iter().zip(&row.values).filter_map(|(name, v)| known(&tag(Some(set), name), v)),
        );
    }
    for row in &steps.entries {
        let (time, items) = rows.entry(row.at).or_default();
        *time = row.time.or(*time);
        items.extend(steps.names.iter().zip(&row.values).filter_map(|(name, v)| known(name, v)));
    }
    rows.into_iter().map(|(at, (time, items))| (at, time, items)).collect()
}

/// The sections of the configuration, each one value.
fn config(run: &Run) -> Vec<Item> {
    let sections = run.config.as_ref().and_then(|config| serde_json::to_value(config).ok());
    let sections = sections.and_then(|value| value.as_object().cloned()).unwrap_or_default();
    sections.iter().map(|(name, value)| item(name, value)).collect()
}

/// The whole log.
fn log(records: &[Record]) -> Vec<u8> {
    let mut log = HEAD.to_vec();
    for record in records {
        append(&mut log, &record.encode_to_vec());
    }
    log
}

/// Adds a record in as many parts as the blocks it lies in.
fn append(log: &mut Vec<u8>, record: &[u8]) {
    let (full, first, middle, last) = (1_u8, 2, 3, 4);
    let mut rest = record;
    let mut is_first = true;
    loop {
        let room = BLOCK - log.len() % BLOCK;
        if room < PART_HEAD {
            log.resize(log.len() + room, 0);
            continue;
        }
        let (part, after) = rest.split_at(rest.len().min(room - PART_HEAD));
        let kind = match (is_first, after.is_empty()) {
            (true, true) => full,
            (true, false) => first,
            (false, false) => middle,
            (false, true) => last,
        };
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&[kind]);
        checksum.update(part);
        log.extend(checksum.finalize().to_le_bytes());
        log.extend((part.len() as u16).to_le_bytes());
        log.push(kind);
        log.extend(part);
        (rest, is_first) = (after, false);
        if rest.is_empty() {
            return;
        }
    }
}

/// `YYYYMMDD_HHMMSS` in UTC.
fn compact_time(seconds: i64) -> String {
    let (days, clock) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since 1 March of year 0, in eras of 400 years (Howard Hinnant, "chrono-compatible low-level date algorithms").
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}_{:02}{:02}{:02}", clock / 3600, clock / 60 % 60, clock % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_records_lie_in_parts_that_join_again() {
        let records: Vec<Vec<u8>> =
            [10, 32_700, 0, 90_000, 40, BLOCK - PART_HEAD].iter().map(|len| vec![7_u8; *len]).collect();
        let mut log = HEAD.to_vec();
        for record in &records {
            append(&mut log, record);
        }
        let (mut at, mut read, mut open) = (HEAD.len(), Vec::new(), Vec::new());
        while at < log.len() {
            if BLOCK - at % BLOCK < PART_HEAD {
                at += BLOCK - at % BLOCK;
                continue;
            }
            let len = usize::from(u16::from_le_bytes([log[at + 4], log[at + 5]]));
            let kind = log[at + 6];
            assert!(at % BLOCK + PART_HEAD + len <= BLOCK, "a part crosses a block");
            open.extend_from_slice(&log[at + 7..at + 7 + len]);
            if matches!(kind, 1 | 4) {
                read.push(std::mem::take(&mut open));
            }
            at += PART_HEAD + len;
        }
        assert_eq!(read, records);
    }

    #[test]
    fn times_are_calendar_times() {
        assert_eq!(compact_time(0), "19700101_000000");
        assert_eq!(compact_time(1_796_029_212), "20261130_090012");
        assert_eq!(compact_time(951_782_400), "20000229_000000");
    }
}
