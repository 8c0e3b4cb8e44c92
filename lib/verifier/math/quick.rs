//! Plain numbers compared without a tree: most labels and most answers are such.

/// A decimal number of at most 36 digits, without trailing zeros behind its point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plain {
    is_negative: bool,
    digits: u128,
    scale: u32,
}

/// Whether two plain numbers are equal; nothing when one is not plain, or decimals may be rounded.
pub(crate) fn equal(gold: &str, found: &str) -> Option<bool> {
    let (gold, found) = (read(gold)?, read(found)?);
    if gold == found {
        return Some(true);
    }
    // Rounding never reaches further than one.
    let apart = (gold.value() - found.value()).abs();
    let is_far = apart > 1.0 && apart > 1e-9 * gold.value().abs();
    (gold.scale == 0 && found.scale == 0 || is_far).then_some(false)
}

impl Plain {
    fn value(self) -> f64 {
        let size = self.digits as f64 / 10_f64.powi(self.scale as i32);
        if self.is_negative { -size } else { size }
    }
}

/// Whether a text is one plain number.
pub(crate) fn is_plain(text: &str) -> bool {
    read(text).is_some()
}

fn read(text: &str) -> Option<Plain> {
    let bytes = text.as_bytes();
    let (is_negative, bytes) = match bytes {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    if bytes.is_empty() || bytes.len() > 40 || !bytes[0].is_ascii_digit() {
        return None;
    }
    let (mut digits, mut num_digits, mut scale) = (0_u128, 0, 0);
    let mut point = None;
    // Digits since the last comma, where there was one.
    let mut group: Option<u32> = None;
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'0'..=b'9' => {
                num_digits += 1;
                if num_digits > 36 {
                    return None;
                }
                digits = digits * 10 + u128::from(byte - b'0');
                if point.is_some() {
                    scale += 1;
                }
                group = group.map(|count| count + 1);
            }
            b',' if point.is_none() && (group == Some(3) || group.is_none() && (1..=3).contains(&at)) => {
                group = Some(0);
            }
            b'.' if point.is_none() && matches!(group, None | Some(3)) => {
                point = Some(at);
                group = None;
            }
            _ => return None,
        }
    }
    if matches!(group, Some(count) if count != 3) || point == Some(bytes.len() - 1) {
        return None;
    }
    while scale > 0 && digits % 10 == 0 {
        digits /= 10;
        scale -= 1;
    }
    Some(Plain { is_negative: is_negative && digits > 0, digits, scale })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_numbers_are_told_at_once() {
        for (gold, found, expected) in [
            ("42", "42", Some(true)),
            ("42", "43", Some(false)),
            ("1000", "1,000.0", Some(true)),
            ("1,000,000", "1000000", Some(true)),
            ("-0", "0", Some(true)),
            ("-5", "5", Some(false)),
            ("0.5", "0.50", Some(true)),
            ("0.5", "0.6", None),
            ("2.5", "4", Some(false)),
            ("-2.5", "2.5", Some(false)),
            ("1,00", "100", None),
            ("1,0000", "10000", None),
            ("1/2", "0.5", None),
            ("", "1", None),
            ("5.", "5", None),
            ("1000,000", "1000000", None),
        ] {
            assert_eq!(equal(gold, found), expected, "{gold} {found}");
        }
        assert_eq!(equal(&"9".repeat(50), "9"), None);
    }
}
