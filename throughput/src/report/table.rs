//! Rows in tables, and how their numbers are written.

use comfy_table::{CellAlignment, Table, TableStyle};
use serde_json::{Map, Value, json};

use crate::args::size;
use crate::stats::Spread;

/// One method at one size.
#[derive(Clone, Debug)]
pub struct Row {
    method: String,
    size: u64,
    labels: Vec<(&'static str, String)>,
    numbers: Vec<(&'static str, Spread)>,
}

impl Row {
    /// An empty row. `size` is the payload of one message, in bytes.
    pub fn new(method: impl Into<String>, size: u64) -> Self {
        Self { method: method.into(), size, labels: Vec::new(), numbers: Vec::new() }
    }

    /// Something that tells it from others of the same method and size: the segment, the number in flight.
    #[must_use]
    pub fn label(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.labels.push((key, value.into()));
        self
    }

    /// Sets a number. A key that [`COLUMNS`] has a title for is shown with it.
    pub fn set(&mut self, key: &'static str, value: Option<Spread>) {
        if let Some(value) = value.filter(|spread| spread.median.is_finite()) {
            self.numbers.push((key, value));
        }
    }

    /// The same, for an exact number.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: f64) -> Self {
        self.set(key, Some(Spread::exact(value)));
        self
    }

    /// The same under another name, where the contest needed names that the table does not.
    #[must_use]
    pub fn renamed(mut self, method: impl Into<String>) -> Self {
        self.method = method.into();
        self
    }

    /// The method.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Bytes of payload of one message.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// A number, if it is there.
    pub fn get(&self, key: &str) -> Option<Spread> {
        self.numbers.iter().find(|(name, _)| *name == key).map(|(_, spread)| *spread)
    }

    /// A label, if it is there.
    pub fn label_of(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(name, _)| *name == key).map(|(_, value)| &**value)
    }

    pub(super) fn json(&self, table: &str) -> Value {
        let mut object = Map::new();
        object.insert("table".into(), json!(table));
        object.insert("method".into(), json!(self.method));
        object.insert("size".into(), json!(self.size));
        for (key, value) in &self.labels {
            object.insert((*key).into(), json!(value));
        }
        for (key, Spread { median, min, max }) in &self.numbers {
            object.insert((*key).into(), json!(median));
            if min < max {
                object.insert(format!("{key}_min"), json!(min));
                object.insert(format!("{key}_max"), json!(max));
            }
        }
        Value::Object(object)
    }
}

/// Titles of the columns by key; a key that is not here is its own title.
pub const COLUMNS: &[(&str, &str)] = &[
    ("speed", "MiB/s"),
    ("rate", "messages/s"),
    ("speed_ratio", "speed / baseline"),
    ("cpu_ratio", "CPU / baseline"),
    ("limit_speed_ratio", "speed / raw"),
    ("limit_cpu_ratio", "CPU / raw"),
    ("sender_cpu", "sender CPU s/GiB"),
    ("receiver_cpu", "receiver CPU s/GiB"),
    ("sender_us", "sender CPU us/message"),
    ("receiver_us", "receiver CPU us/message"),
    ("calls_per_message", "calls/message"),
    ("resumed_per_message", "resumed/message"),
    ("slices_per_call", "slices/call"),
    ("copied_per_message", "copied B/message"),
    ("mutex_speed_ratio", "speed / mutex"),
    ("reported", "reported for Linux"),
    ("time_percent", "% of one by one"),
    ("reported_percent", "reported for Linux, %"),
    ("client_us", "client CPU us/op"),
    ("packets_per_message", "packets/message"),
    ("packet_ratio", "packets / baseline"),
    ("short_per_message", "below MSS"),
    ("below_256", "to 255 B"),
    ("below_512", "to 511 B"),
    ("below_1024", "to 1023 B"),
    ("below_mss", "to MSS-1"),
    ("full", "MSS"),
    ("resent_per_message", "sent again/message"),
];

/// One table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Section {
    /// What is above it.
    pub title: String,
    /// Its rows.
    pub rows: Vec<Row>,
    columns: Vec<&'static str>,
}

impl Section {
    /// A table that shows these numbers of its rows; JSON has all of them.
    pub fn new(title: impl Into<String>, columns: &[&'static str]) -> Self {
        Self { title: title.into(), rows: Vec::new(), columns: columns.to_vec() }
    }

    /// A number of the row of this method and size.
    pub fn get(&self, method: &str, size: u64, key: &str) -> Option<Spread> {
        self.rows.iter().find(|row| row.method == method && row.size == size)?.get(key)
    }

    /// The labels that differ among the rows; what all have in common is in the title.
    fn labels(&self) -> Vec<&'static str> {
        let mut keys: Vec<&'static str> = Vec::new();
        for (key, value) in self.rows.iter().flat_map(|row| &row.labels) {
            let same = self.rows.iter().all(|row| row.label_of(key) == Some(value));
            if !same && !keys.contains(key) {
                keys.push(key);
            }
        }
        keys
    }

    pub(super) fn table(&self, preset: TableStyle) -> Table {
        let labels = self.labels();

        let mut table = Table::new();
        let names = ["size", "method"].into_iter().chain(labels.iter().copied());
        table.load_style(preset).set_header(names.chain(self.columns.iter().map(|key| title(key))));
        for row in &self.rows {
            let mut cells = vec![size(row.size), row.method.clone()];
            cells.extend(labels.iter().map(|key| row.label_of(key).unwrap_or_default().to_string()));
            cells.extend(self.columns.iter().map(|key| row.get(key).map_or_else(String::new, spread)));
            table.add_row(cells);
        }
        for column in table.column_iter_mut().skip(2 + labels.len()) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

fn title(key: &'static str) -> &'static str {
    COLUMNS.iter().find(|(name, _)| *name == key).map_or(key, |(_, title)| title)
}

/// `1.43 (1.38-1.51)`, or one number if all rounds agree.
pub(super) fn spread(Spread { median, min, max }: Spread) -> String {
    if min < max { format!("{} ({}-{})", number(median), number(min), number(max)) } else { number(median) }
}

/// Three significant digits, as many as a noisy machine bears; counts whole.
pub(super) fn number(value: f64) -> String {
    let magnitude = value.abs();
    match magnitude {
        _ if (value - value.round()).abs() < 1e-9 => format!("{value:.0}"),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        0.1.. => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}
