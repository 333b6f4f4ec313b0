//! Calendar date and time from seconds since 1970, and Python's `strftime`. The clock is not read here.

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
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

/// Date and time in the Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CivilTime {
    year: i64,
    /// 1 to 12.
    month: usize,
    /// 1 to 31.
    day: i64,
    /// 1 to 366.
    day_of_year: i64,
    /// 0 (Sunday) to 6.
    weekday: usize,
    second_of_day: i64,
}

impl CivilTime {
    /// Converts seconds since the start of 1970.
    pub(super) fn from_unix(seconds: i64) -> Self {
        let days = seconds.div_euclid(86_400);
        // Years start in March, so that a leap day is the last day of a year (H. Hinnant,
        // "chrono-Compatible Low-Level Date Algorithms", civil_from_days).
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_march_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_march_year + 2) / 153;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = i64::from(year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
        let day_of_year = match month {
            1 | 2 => day_of_march_year - 306 + 1,
            _ => day_of_march_year + 59 + leap + 1,
        };
        Self {
            year,
            month: month as usize,
            day: day_of_march_year - (153 * shifted_month + 2) / 5 + 1,
            day_of_year,
            weekday: (days + 4).rem_euclid(7) as usize,
            second_of_day: seconds.rem_euclid(86_400),
        }
    }

    /// Formats like Python's `strftime` in English. Unknown codes stay unchanged.
    pub(super) fn format(&self, format: &str) -> String {
        let mut text = String::with_capacity(format.len() + 8);
        let mut rest = format.chars();
        while let Some(c) = rest.next() {
            if c != '%' {
                text.push(c);
                continue;
            }
            let after = rest.as_str();
            let (padded, code) = match after.strip_prefix('-') {
                Some(unpadded) => (false, unpadded.chars().next()),
                None => (true, after.chars().next()),
            };
            match code.and_then(|code| self.field(code, padded)) {
                Some(field) => {
                    text.push_str(&field);
                    rest.nth(usize::from(!padded));
                }
                None => text.push('%'),
            }
        }
        text
    }

    fn field(&self, code: char, padded: bool) -> Option<String> {
        let (hour, minute) = (self.second_of_day / 3_600, self.second_of_day / 60 % 60);
        let number = |value: i64, width: usize| {
            if padded { format!("{value:0width$}") } else { value.to_string() }
        };
        Some(match code {
            'Y' => self.year.to_string(),
            'y' => number(self.year.rem_euclid(100), 2),
            'm' => number(self.month as i64, 2),
            'd' => number(self.day, 2),
            'e' => format!("{:2}", self.day),
            'j' => number(self.day_of_year, 3),
            'H' => number(hour, 2),
            'I' => number((hour + 11) % 12 + 1, 2),
            'M' => number(minute, 2),
            'S' => number(self.second_of_day % 60, 2),
            'p' => (if hour < 12 { "AM" } else { "PM" }).into(),
            'A' => DAYS[self.weekday].into(),
            'a' => DAYS[self.weekday][..3].into(),
            'B' => MONTHS[self.month - 1].into(),
            'b' => MONTHS[self.month - 1][..3].into(),
            'F' => self.format("%Y-%m-%d"),
            'T' => self.format("%H:%M:%S"),
            '%' => "%".into(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::CivilTime;

    #[test]
    fn formats_known_dates() {
        let all = "%A %a %d %B %b %Y %y %m %j %H:%M:%S %I %p";
        let at = |seconds| CivilTime::from_unix(seconds).format(all);
        assert_eq!(at(0), "Thursday Thu 01 January Jan 1970 70 01 001 00:00:00 12 AM");
        assert_eq!(at(951_827_696), "Tuesday Tue 29 February Feb 2000 00 02 060 12:34:56 12 PM");
        assert_eq!(at(1_735_689_599), "Tuesday Tue 31 December Dec 2024 24 12 366 23:59:59 11 PM");
        assert_eq!(at(-1), "Wednesday Wed 31 December Dec 1969 69 12 365 23:59:59 11 PM");
    }

    #[test]
    fn supports_unpadded_fields_and_keeps_unknown_codes() {
        let day = CivilTime::from_unix(951_827_696 + 86_400);
        assert_eq!(day.format("%-d/%-m %e %F 100%% %Q %"), "1/3  1 2000-03-01 100% %Q %");
    }
}
