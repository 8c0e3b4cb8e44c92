//! System calls as data: what confines a case is decided in one place and performed by whoever forks the case, our own
//! loop or an interpreter.
#![expect(unsafe_code, reason = "raw system calls, the only ones an interpreter can make too")]

use serde::{Deserialize, Serialize};

use crate::filter::Filter;

/// An argument of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Arg {
    /// A number, or a pointer that is null.
    Number(i64),
    /// Memory the kernel reads: one byte for each character, all below 256.
    Memory(String),
    /// The pointer to the zygote's system call filter.
    Filter(()),
}

/// One call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Call {
    /// What messages call it.
    pub(crate) name: String,
    number: i64,
    args: Vec<Arg>,
    /// A failure is no reason to stop.
    is_tolerated: bool,
}

impl Call {
    pub(crate) fn new(name: impl Into<String>, number: i64, args: impl Into<Vec<Arg>>) -> Self {
        Self { name: name.into(), number, args: args.into(), is_tolerated: false }
    }

    pub(crate) fn tolerated(mut self) -> Self {
        self.is_tolerated = true;
        self
    }
}

/// A number as an argument.
pub(crate) fn number(value: impl Into<i64>) -> Arg {
    Arg::Number(value.into())
}

/// Bytes as an argument.
pub(crate) fn memory(bytes: &[u8]) -> Arg {
    Arg::Memory(bytes.iter().map(|byte| char::from(*byte)).collect())
}

/// A path or another text as an argument, closed with a zero byte.
pub(crate) fn text(value: &str) -> Arg {
    memory(&[value.as_bytes(), &[0]].concat())
}

/// Performs calls in order; the first that fails is told by name, as `mount /work: Permission denied`.
pub(crate) fn perform(calls: &[Call], filter: &Filter) -> Result<(), String> {
    calls.iter().try_for_each(|call| {
        let result = perform_one(call, filter);
        match result {
            Err(error) if !call.is_tolerated => Err(format!("{}: {error}", call.name)),
            _ => Ok(()),
        }
    })
}

fn perform_one(call: &Call, filter: &Filter) -> std::io::Result<()> {
    let program = filter.program();
    let memories: Vec<Vec<u8>> = call
        .args
        .iter()
        .map(|arg| match arg {
            Arg::Memory(chars) => chars.chars().map(|letter| letter as u8).collect(),
            Arg::Number(_) | Arg::Filter(()) => Vec::new(),
        })
        .collect();
    let mut words = [0_i64; 6];
    for ((word, arg), memory) in words.iter_mut().zip(&call.args).zip(&memories) {
        *word = match arg {
            Arg::Number(value) => *value,
            Arg::Memory(_) => memory.as_ptr() as i64,
            Arg::Filter(()) => (&raw const program) as i64,
        };
    }
    let [a, b, c, d, e, f] = words;
    // SAFETY: pointers among the words are to `memories` and `program`, which live until the call has returned; the calls
    // made here (those of `plan.rs`) only read through them, within the sizes that `plan.rs` writes them with.
    let result = unsafe { libc::syscall(call.number, a, b, c, d, e, f) };
    if result == -1 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_performed_in_order_and_failures_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("é").to_string_lossy().into_owned();
        let mkdir = |path: &str| {
            let args = [number(libc::AT_FDCWD), text(path), number(0o700)];
            Call::new(format!("mkdirat {path}"), libc::SYS_mkdirat, args)
        };
        let calls = [mkdir(&path), mkdir(&path).tolerated(), mkdir(&format!("{path}/a"))];
        // The way through JSON is the one an interpreter sees.
        let calls: Vec<Call> = serde_json::from_str(&serde_json::to_string(&calls).unwrap()).unwrap();
        perform(&calls, &Filter::default()).unwrap();
        assert!(dir.path().join("é/a").is_dir());
        let problem = perform(&calls[..1], &Filter::default()).unwrap_err();
        assert!(problem.starts_with(&format!("mkdirat {path}: File exists")), "{problem}");
    }
}
