//! Stored measurements: comparisons and the cost curves of this machine.

use rusqlite::{OptionalExtension, params};
use serde::{Deserialize, Serialize};

use super::packed::{json, pack, unpack};
use super::{Result, Store};
use crate::api::types::{ComparisonEntry, ComparisonReport};
use hunch_core::pass_cost::CostCurve;
use hunch_error::Refusal;
use hunch_model::device::Compute;

impl Store {
    /// Stores a comparison and returns its id. The id in `entry` is ignored.
    ///
    /// # Errors
    /// [`Error::Store`] when the file cannot be written. The same holds for the methods below.
    pub fn add_comparison(&self, entry: &ComparisonEntry, report: &ComparisonReport) -> Result<i64> {
        let connection = self.connection();
        connection.execute(
            "INSERT INTO comparisons (ended_ms, entry, report) VALUES (?1, ?2, ?3)",
            params![entry.ended_ms, json(entry)?, pack(report)?],
        )?;
        Ok(connection.last_insert_rowid())
    }

    /// Lists the comparisons, newest first. Entries this version cannot read are skipped.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn comparisons(&self) -> Result<Vec<ComparisonEntry>> {
        let connection = self.connection();
        let mut statement =
            connection.prepare_cached("SELECT id, entry FROM comparisons ORDER BY ended_ms DESC, id DESC")?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?;
        let rows: Vec<_> = rows.collect::<rusqlite::Result<_>>()?;
        let entry = |(id, text): (i64, String)| {
            let entry: ComparisonEntry = serde_json::from_str(&text).ok()?;
            Some(ComparisonEntry { id, ..entry })
        };
        Ok(rows.into_iter().filter_map(entry).collect())
    }

    /// Returns the report of a comparison.
    ///
    /// # Errors
    /// When there is no such comparison, or it is damaged.
    pub fn comparison(&self, id: i64) -> Result<ComparisonReport> {
        let packed: Option<Vec<u8>> = self
            .connection()
            .query_row("SELECT report FROM comparisons WHERE id = ?1", [id], |row| row.get(0))
            .optional()?;
        let packed = packed.ok_or(Refusal::NoSuchComparison { id })?;
        Ok(unpack(&packed)?)
    }

    /// Removes a comparison, if it exists.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn delete_comparison(&self, id: i64) -> Result<()> {
        self.connection().execute("DELETE FROM comparisons WHERE id = ?1", [id])?;
        Ok(())
    }

    /// Stores a cost curve, replacing the previous one for the same models and device.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_cost_curve(&self, of: &CurveOf<'_>, curve: &CostCurve) -> Result<()> {
        self.connection().execute(
            "INSERT INTO cost_curves (key, curve) VALUES (?1, ?2)
             ON CONFLICT (key) DO UPDATE SET curve = excluded.curve",
            params![json(of)?, json(curve)?],
        )?;
        Ok(())
    }

    /// Returns the last cost curve of these models on this device.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn cost_curve(&self, of: &CurveOf<'_>) -> Result<Option<CostCurve>> {
        let text: Option<String> = self
            .connection()
            .query_row("SELECT curve FROM cost_curves WHERE key = ?1", [json(of)?], |row| row.get(0))
            .optional()?;
        // A curve this version cannot read is treated as missing.
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// Returns the costs of a pair. Without a draft, returns those of the target as measured with any draft. A curve
    /// that cannot be read is treated as missing.
    pub fn known_costs(&self, of: &CurveOf<'_>) -> Option<CostCurve> {
        let curve = if of.draft.is_some() { self.cost_curve(of) } else { self.cost_curve_of_target(of) };
        curve.ok().flatten()
    }

    /// Returns the last cost curve of this target on this device, measured with any draft.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn cost_curve_of_target(&self, of: &CurveOf<'_>) -> Result<Option<CostCurve>> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached("SELECT key, curve FROM cost_curves")?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
        let rows: Vec<_> = rows.collect::<rusqlite::Result<_>>()?;
        let curves = rows.into_iter().filter_map(|(key, curve)| {
            let key: StoredCurveOf = serde_json::from_str(&key).ok()?;
            let same = key.target == of.target
                && key.read_by_a_pass.0 == of.read_by_a_pass.0
                && (key.device.as_str(), key.threads) == (of.device, of.threads);
            same.then(|| serde_json::from_str::<CostCurve>(&curve).ok()).flatten()
        });
        Ok(curves.max_by_key(|curve| curve.measured_ms))
    }
}

/// Key of a cost curve, as read from the file.
#[derive(Deserialize)]
struct StoredCurveOf {
    target: String,
    read_by_a_pass: (u64, Option<u64>),
    device: String,
    threads: u32,
}

/// Key of a cost curve. Includes sizes, because another quantisation has the same name and other costs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CurveOf<'a> {
    /// Name of the target.
    pub target: &'a str,
    /// Name of the draft model.
    pub draft: Option<&'a str>,
    /// Bytes of weights read by a pass of the target, and of the draft.
    pub read_by_a_pass: (u64, Option<u64>),
    /// "cpu" or "metal".
    pub device: &'a str,
    /// Number of CPU threads.
    pub threads: u32,
}

impl<'a> CurveOf<'a> {
    /// Makes the key of a target and an optional draft on a device. Each has a name and the bytes read by a pass.
    pub fn on(compute: &Compute, target: (&'a str, u64), draft: Option<(&'a str, u64)>) -> Self {
        Self {
            target: target.0,
            draft: draft.map(|draft| draft.0),
            read_by_a_pass: (target.1, draft.map(|draft| draft.1)),
            device: compute.name(),
            threads: compute.threads().count() as u32,
        }
    }
}
