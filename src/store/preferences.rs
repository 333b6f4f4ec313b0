//! Preferences of the window: JSON values by key. Their meaning is up to the window.

use std::collections::BTreeMap;

use rusqlite::params;
use serde_json::Value;

use super::Store;
use hunch_error::Refusal;

use super::{Result, StoreError};

/// Maximum size of a value, in bytes. Presets are the largest.
const MOST: usize = 1 << 20;

impl Store {
    /// Returns all preferences. Values that are not JSON are skipped.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn preferences(&self) -> Result<BTreeMap<String, Value>> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached("SELECT key, value FROM preferences")?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
        let rows: Vec<_> = rows.collect::<rusqlite::Result<_>>()?;
        Ok(rows
            .into_iter()
            .filter_map(|(key, text)| Some((key, serde_json::from_str(&text).ok()?)))
            .collect())
    }

    /// Stores a preference. `null` removes it.
    ///
    /// # Errors
    /// [`Refusal::PreferenceTooLarge`] for a value of more than a megabyte, and when the file cannot be written.
    pub fn set_preference(&self, key: &str, value: &Value) -> Result<()> {
        if value.is_null() {
            self.connection().execute("DELETE FROM preferences WHERE key = ?1", [key])?;
            return Ok(());
        }
        let text = value.to_string();
        if text.len() > MOST {
            return Err(StoreError(Refusal::PreferenceTooLarge { name: key.into() }.into()));
        }
        self.connection().execute(
            "INSERT INTO preferences (key, value) VALUES (?1, ?2)
             ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            params![key, text],
        )?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use hunch_error::Error;

    use super::*;

    #[test]
    fn stores_preferences_by_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hunch.db");
        let store = Store::open(&path).unwrap();
        assert!(store.preferences().unwrap().is_empty());
        store.set_preference("appearance", &json!("dark")).unwrap();
        store.set_preference("presets", &json!([{ "name": "code" }])).unwrap();
        store.set_preference("appearance", &json!("light")).unwrap();
        drop(store);
        let store = Store::open(&path).unwrap();
        let kept = store.preferences().unwrap();
        assert_eq!((&kept["appearance"], &kept["presets"][0]["name"]), (&json!("light"), &json!("code")));
        store.set_preference("appearance", &Value::Null).unwrap();
        assert!(!store.preferences().unwrap().contains_key("appearance"));
        let large = Value::String("x".repeat(MOST));
        assert!(matches!(store.set_preference("presets", &large), Err(StoreError(Error::Refused(_)))));
    }
}
