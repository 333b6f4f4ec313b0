//! Python's `strftime` for chat templates. The clock is not read here.

use jiff::Timestamp;
use jiff::fmt::strtime::{BrokenDownTime, Config};
use jiff::tz::TimeZone;

/// Formats seconds since 1970 like Python's `strftime`, in English. Unknown codes stay unchanged, and so does the
/// whole format for a time outside the years -9999 to 9999.
pub(super) fn strftime(unix_seconds: i64, format: &str) -> String {
    let Ok(time) = Timestamp::from_second(unix_seconds) else { return format.to_owned() };
    let time = BrokenDownTime::from(TimeZone::UTC.to_datetime(time));
    let lenient = Config::new().lenient(true);
    time.to_string_with_config(&lenient, format).unwrap_or_else(|_| format.to_owned())
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn formats_known_dates() {
        let all = "%A %a %d %B %b %Y %y %m %j %H:%M:%S %I %p";
        let at = |seconds| strftime(seconds, all);
        assert_eq!(at(0), "Thursday Thu 01 January Jan 1970 70 01 001 00:00:00 12 AM");
        assert_eq!(at(951_827_696), "Tuesday Tue 29 February Feb 2000 00 02 060 12:34:56 12 PM");
        assert_eq!(at(1_735_689_599), "Tuesday Tue 31 December Dec 2024 24 12 366 23:59:59 11 PM");
        assert_eq!(at(-1), "Wednesday Wed 31 December Dec 1969 69 12 365 23:59:59 11 PM");
        assert_eq!(at(i64::MAX), all);
    }

    #[test]
    fn supports_unpadded_fields_and_keeps_unknown_codes() {
        let day = 951_827_696 + 86_400;
        assert_eq!(
            strftime(day, "%-d/%-m %e %F %T 100%% %Q %é %"),
            "1/3  1 2000-03-01 12:34:56 100% %Q %é %"
        );
        assert_eq!(strftime(day, "%999999999d"), "%999999999d", "no template allocates by its width");
    }
}
