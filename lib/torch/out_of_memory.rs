//! What libtorch's allocators say when there is no room, as numbers.

use std::fmt;

/// A request that an allocator refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes of the tensor that was asked for.
    pub asked: u64,
    /// Bytes of the GPU: what is free of what it has; `None` on the host.
    pub free_of: Option<(u64, u64)>,
}

impl OutOfMemory {
    /// What the text of an error says, where it is one of these: `OutOfMemoryError` of `CUDACachingAllocator.cpp`, and that of
    /// `alloc_cpu.cpp`.
    pub fn parse(message: &str) -> Option<Self> {
        let after = |text: &'static str| message.split_once(text).map(|(_, rest)| rest);
        if message.contains("out of memory") {
            let asked = bytes(after("Tried to allocate ")?)?;
            let total = after("total capacity of ").and_then(bytes);
            let free = after("of which ").and_then(bytes);
            return Some(Self { asked, free_of: free.zip(total) });
        }
        if message.contains("DefaultCPUAllocator") {
            return Some(Self { asked: bytes(after("you tried to allocate ")?)?, free_of: None });
        }
        None
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        write!(f, "no room for a tensor of {:.2} GiB", gib(self.asked))?;
        match self.free_of {
            Some((free, total)) => {
                write!(f, ": {:.2} GiB of the GPU's {:.2} GiB are free", gib(free), gib(total))
            }
            None => write!(f, " in the memory of the host"),
        }
    }
}

/// The number with its unit that a text begins with.
fn bytes(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    let number: f64 = words.next()?.parse().ok()?;
    let factor = match words.next()?.trim_end_matches(['.', ',', ';']) {
        "bytes" | "B" => 0,
        "KiB" => 1,
        "MiB" => 2,
        "GiB" => 3,
        _ => return None,
    };
    Some((number * 1024f64.powi(factor)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_both_allocators_are_numbers() {
        let message = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 139.80 GiB of which \
                       512.00 MiB is free. Including non-PyTorch memory, this process has 139.29 GiB memory in use. Of the \
                       allocated memory 137.00 GiB is allocated by PyTorch, and 1.10 GiB is reserved by PyTorch but unallocated.";
        let found = OutOfMemory::parse(message).unwrap();
        assert_eq!((found.asked, found.free_of.unwrap().0), (5 << 29, 1 << 29));
        assert_eq!(
            found.to_string(),
            "no room for a tensor of 2.50 GiB: 0.50 GiB of the GPU's 139.80 GiB are free"
        );
        let message = "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to \
                       allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)";
        let found = OutOfMemory::parse(message).unwrap();
        assert_eq!(found, OutOfMemory { asked: 8 << 30, free_of: None });
        assert_eq!(OutOfMemory::parse("mat1 and mat2 shapes cannot be multiplied"), None);
    }

    #[test]
    fn libtorch_itself_says_so() {
        let size = [1i64 << 50];
        let error = tch::Tensor::f_empty(size, (tch::Kind::Uint8, tch::Device::Cpu)).unwrap_err().to_string();
        assert_eq!(
            OutOfMemory::parse(&error),
            Some(OutOfMemory { asked: 1 << 50, free_of: None }),
            "{error}"
        );
    }
}
