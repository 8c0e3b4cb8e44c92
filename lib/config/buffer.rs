//! `rollout.buffer_order` and `rollout.partial`: what becomes of groups between steps.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Which of more accepted groups than a step needs it takes (arrival order).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum BufferOrder {
    /// Those accepted first.
    #[default]
    Fifo,
    /// Those of the newest weights.
    Newest,
    /// Those whose rewards vary most.
    Priority,
    /// From every source in turn.
    Stratified,
    /// As a program says.
    Command(String),
}

impl FromStr for BufferOrder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "fifo" => Ok(Self::Fifo),
            None if text == "newest" => Ok(Self::Newest),
            None if text == "priority" => Ok(Self::Priority),
            None if text == "stratified" => Ok(Self::Stratified),
            Some(("command", program)) if !program.trim().is_empty() => {
                Ok(Self::Command(program.trim().to_owned()))
            }
            _ => Err(format!("{text:?}: expected fifo, newest, priority, stratified or command:PROGRAM")),
        }
    }
}

impl fmt::Display for BufferOrder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fifo => out.write_str("fifo"),
            Self::Newest => out.write_str("newest"),
            Self::Priority => out.write_str("priority"),
            Self::Stratified => out.write_str("stratified"),
            Self::Command(program) => write!(out, "command:{program}"),
        }
    }
}

impl Serialize for BufferOrder {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BufferOrder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What becomes of a sample that is under way when newer weights come (arrival order).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Partial {
    /// It ends under the weights it began with; newer ones wait.
    Off,
    /// It goes on under the newer weights, and all of it is trained.
    Train,
    /// It goes on, and only what its last weights sampled is trained.
    Mask,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_written_as_they_are_read_and_others_refused() {
        for text in ["fifo", "newest", "priority", "stratified", "command:python3 order.py"] {
            assert_eq!(text.parse::<BufferOrder>().unwrap().to_string(), text);
        }
        for text in ["lifo", "command:", "fifo:1"] {
            assert!(text.parse::<BufferOrder>().unwrap_err().contains("expected fifo, newest"), "{text}");
        }
    }
}
