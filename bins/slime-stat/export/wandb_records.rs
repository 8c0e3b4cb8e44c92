//! The records of a W&B log, as far as a run of numbers needs them (`wandb_internal.proto` of the package `wandb`).

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct Record {
    #[prost(int64, tag = "1")]
    pub num: i64,
    #[prost(message, optional, tag = "2")]
    pub history: Option<History>,
    #[prost(message, optional, tag = "3")]
    pub summary: Option<Items>,
    #[prost(message, optional, tag = "12")]
    pub metric: Option<Metric>,
    #[prost(message, optional, tag = "17")]
    pub run: Option<RunRecord>,
    #[prost(message, optional, tag = "18")]
    pub exit: Option<Exit>,
    #[prost(message, optional, tag = "21")]
    pub header: Option<Header>,
}

/// `SummaryRecord` and `ConfigRecord` are alike.
#[derive(Clone, PartialEq, Message)]
pub struct Items {
    #[prost(message, repeated, tag = "1")]
    pub update: Vec<Item>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Item {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "16")]
    pub value_json: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct History {
    #[prost(message, repeated, tag = "1")]
    pub item: Vec<Item>,
    #[prost(message, optional, tag = "2")]
    pub step: Option<Step>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Step {
    #[prost(int64, tag = "1")]
    pub num: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Metric {
    #[prost(string, tag = "1")]
    pub name: String,
    /// `step_metric`: the number it is drawn over.
    #[prost(string, tag = "4")]
    pub over: String,
    #[prost(message, optional, tag = "6")]
    pub options: Option<MetricOptions>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MetricOptions {
    #[prost(bool, tag = "1")]
    pub step_sync: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct RunRecord {
    #[prost(string, tag = "1")]
    pub run_id: String,
    #[prost(string, tag = "3")]
    pub project: String,
    #[prost(message, optional, tag = "4")]
    pub config: Option<Items>,
    #[prost(string, tag = "8")]
    pub display_name: String,
    #[prost(message, optional, tag = "17")]
    pub start_time: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Timestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Exit {
    #[prost(int32, tag = "1")]
    pub exit_code: i32,
    #[prost(int32, tag = "2")]
    pub runtime: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Header {
    #[prost(message, optional, tag = "1")]
    pub version_info: Option<VersionInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub struct VersionInfo {
    #[prost(string, tag = "1")]
    pub producer: String,
    #[prost(string, tag = "2")]
    pub min_consumer: String,
}
