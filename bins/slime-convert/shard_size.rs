//! Sizes of files as people write them: `500MB`, `5GiB`.

/// The units, longest first; those with an i are powers of 1024, as in Hugging Face's `max_shard_size`.
const UNITS: [(&str, usize); 7] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

/// Bytes of a whole number with a unit.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let wrong = || format!("expected a whole number with B, KB, MB, GB, KiB, MiB or GiB, got {text}");
    let (unit, factor) = UNITS.iter().find(|(unit, _)| text.ends_with(unit)).ok_or_else(wrong)?;
    let number: usize = text[..text.len() - unit.len()].trim_end().parse().map_err(|_| wrong())?;
    match number.checked_mul(*factor) {
        Some(0) => Err(format!("expected more than nothing, got {text}")),
        Some(bytes) => Ok(bytes),
        None => Err(format!("{text} is more than this machine can count")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_hugging_face() {
        assert_eq!(parse_size("5GB"), Ok(5_000_000_000));
        assert_eq!(parse_size("5 GiB"), Ok(5 << 30));
        assert_eq!(parse_size("300KiB"), Ok(300 << 10));
        assert_eq!(parse_size("17B"), Ok(17));
    }

    #[test]
    fn what_is_no_size_says_what_one_is() {
        for text in
            ["", "5", "GB", "-1GB", "1.5GB", "5gb", "5TB", "0MB", "99999999999999999999B", "99999999999GiB"]
        {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert!(parse_size("5").is_err_and(|message| message.contains("GiB, got 5")));
    }
}
