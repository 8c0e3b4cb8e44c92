//! `strftime_now` of Hugging Face chat templates: the date in UTC, formatted as C's strftime does.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Seconds since 1970 in UTC.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Formats a time; an unknown directive is an error that names it.
pub(crate) fn strftime(seconds: u64, format: &str) -> Result<String, String> {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[(days % 7) as usize];
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        let piece = match letters.next() {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('d') => format!("{day:02}"),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('H') => format!("{:02}", second / 3600),
            Some('M') => format!("{:02}", second / 60 % 60),
            Some('S') => format!("{:02}", second % 60),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('%') => "%".to_owned(),
            other => return Err(format!("strftime_now: unknown directive %{}", other.unwrap_or(' '))),
        };
        text.push_str(&piece);
    }
    Ok(text)
}

/// Year, month and day of a day since 1970 (Hinnant, "chrono-compatible low-level date algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // date -u -d @N +'%a %d %b %Y %H:%M:%S'
        let format = "%a %d %b %Y %H:%M:%S";
        assert_eq!(strftime(0, format).unwrap(), "Thu 01 Jan 1970 00:00:00");
        assert_eq!(strftime(951_826_154, format).unwrap(), "Tue 29 Feb 2000 12:09:14");
        assert_eq!(strftime(1_798_761_599, format).unwrap(), "Thu 31 Dec 2026 23:59:59");
        assert_eq!(strftime(951_826_154, "%F %B %A %y %m%%").unwrap(), "2000-02-29 February Tuesday 00 02%");
        assert!(strftime(0, "%Q").unwrap_err().contains("%Q"));
    }
}
