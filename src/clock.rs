//! The time of day, for what is measured and stored.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the current time in milliseconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
