//! What came out: rows in sections, targets and whether they are met, charts; as text, Markdown, JSON and SVG.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

use crate::args::size;
use crate::groups::Group;
use crate::plot::Chart;
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

    fn json(&self, table: &str) -> Value {
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
    ("time_percent", "% of one by one"),
    ("published_percent", "published %"),
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

    fn table(&self, preset: comfy_table::TableStyle) -> Table {
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

/// What has to be reached.
#[derive(Clone, Debug)]
pub struct Target {
    what: String,
    wanted: String,
    reached: Spread,
    met: bool,
    /// What raw calls reach.
    raw: Option<Spread>,
    bound: Bound,
}

/// How a median is judged.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    Least(f64),
    Most(f64),
    /// A count, which holds on any machine.
    Exact,
}

impl Bound {
    fn holds(self, median: f64) -> bool {
        match self {
            Self::Least(least) => median >= least,
            Self::Most(most) => median <= most,
            Self::Exact => true,
        }
    }
}

impl Target {
    fn verdict(&self) -> &'static str {
        match self.raw {
            _ if self.met => "met",
            Some(raw) if !self.bound.holds(raw.median) => "MISSED, by raw calls too",
            _ => "MISSED",
        }
    }
}

/// Everything that one group found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    name: &'static str,
    about: &'static str,
    short: bool,
    /// The tables.
    pub sections: Vec<Section>,
    /// Remarks under the tables: what could not be measured here, and why.
    pub notes: Vec<String>,
    /// Why nothing was measured.
    pub skipped: Option<String>,
    /// The plots.
    pub charts: Vec<Chart>,
    targets: Vec<Target>,
}

impl Report {
    /// An empty one.
    pub fn new(group: &Group, short: bool) -> Self {
        Self {
            name: group.name,
            about: group.about,
            short,
            sections: Vec::new(),
            notes: Vec::new(),
            skipped: None,
            charts: Vec::new(),
            targets: Vec::new(),
        }
    }

    /// The median is to be at least so much. Nothing to say if it was not measured.
    pub fn at_least(&mut self, what: impl Into<String>, wanted: f64, reached: Option<Spread>) {
        self.ratio(what, format!("at least {}", number(wanted)), Bound::Least(wanted), reached);
    }

    /// The median is to be at most so much.
    pub fn at_most(&mut self, what: impl Into<String>, wanted: f64, reached: Option<Spread>) {
        self.ratio(what, format!("at most {}", number(wanted)), Bound::Most(wanted), reached);
    }

    /// The median of a speed ratio is not to be below every round of the noise row.
    pub fn no_slower_than_noise(
        &mut self,
        what: impl Into<String>,
        reached: Option<Spread>,
        noise: Option<Spread>,
    ) {
        let Some(noise) = noise else { return };
        self.ratio(what, format!("noise {}", spread(noise)), Bound::Least(noise.min), reached);
    }

    /// The median of a CPU ratio is not to be above every round of the noise row.
    pub fn no_dearer_than_noise(
        &mut self,
        what: impl Into<String>,
        reached: Option<Spread>,
        noise: Option<Spread>,
    ) {
        let Some(noise) = noise else { return };
        self.ratio(what, format!("noise {}", spread(noise)), Bound::Most(noise.max), reached);
    }

    /// A count that does not depend on the machine; the program fails if it does not hold.
    pub fn exactly(&mut self, what: impl Into<String>, wanted: f64, reached: Option<Spread>) {
        let Some(reached) = reached else { return };
        let met = [reached.min, reached.max].iter().all(|value| (value - wanted).abs() < 1e-9);
        let wanted = format!("exactly {}", number(wanted));
        self.targets.push(Target { what: what.into(), wanted, reached, met, raw: None, bound: Bound::Exact });
    }

    /// What raw calls reach where the last target was set. If they miss it too, no library can meet it on this machine,
    /// and the table says so.
    pub fn beside(&mut self, raw: Option<Spread>) {
        if let Some(target) = self.targets.last_mut() {
            target.raw = raw;
        }
    }

    fn ratio(&mut self, what: impl Into<String>, wanted: String, bound: Bound, reached: Option<Spread>) {
        // One tiny round says nothing about time.
        let Some(reached) = reached.filter(|_| !self.short) else { return };
        let met = bound.holds(reached.median);
        self.targets.push(Target { what: what.into(), wanted, reached, met, raw: None, bound });
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        self.write(presets::UTF8_FULL_CONDENSED, |text, title| writeln!(text, "\n{title}"), "\n")
    }

    fn markdown(&self) -> String {
        let text = self.write(presets::ASCII_MARKDOWN, |text, title| writeln!(text, "\n{title}:\n"), "\n");
        // Columns need no filling in Markdown.
        let narrow = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n";
        let mut text: String = text.lines().map(narrow).collect();
        for chart in &self.charts {
            let _ = writeln!(text, "\n![{}](plots/{}.svg)", chart.title, chart.file);
        }
        text
    }

    fn write(
        &self,
        preset: comfy_table::TableStyle,
        heading: impl Fn(&mut String, &str) -> std::fmt::Result,
        gap: &str,
    ) -> String {
        let mut text = format!("{gap}## {}\n\n{}\n", self.name, self.about);
        if let Some(why) = &self.skipped {
            let _ = writeln!(text, "\nSkipped: {why}.");
        }
        for section in &self.sections {
            let _ = heading(&mut text, &section.title);
            let _ = writeln!(text, "{}", section.table(preset));
        }
        if !self.targets.is_empty() {
            let _ = heading(&mut text, "Targets");
            let mut table = Table::new();
            table.load_style(preset).set_header(["what", "wanted", "reached", "raw reaches", ""]);
            for target in &self.targets {
                let Target { what, wanted, reached, raw, .. } = target;
                let raw = raw.map_or_else(String::new, spread);
                table.add_row([what, wanted, &spread(*reached), &raw, target.verdict()]);
            }
            let _ = writeln!(text, "{table}");
        }
        for note in &self.notes {
            let _ = writeln!(text, "\n{note}");
        }
        text
    }

    fn json_targets(&self) -> Value {
        let target = |Target { what, wanted, reached, met, .. }: &Target| json!({"what": what, "wanted": wanted, "reached": reached.median, "met": met});
        self.targets.iter().map(target).collect()
    }
}

/// All groups of a run.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    head: String,
    reports: Vec<Report>,
}

impl Reports {
    /// None yet, under the head that says what they depend on.
    pub fn new(head: String) -> Self {
        Self { head, reports: Vec::new() }
    }

    /// Adds one.
    pub fn push(&mut self, report: Report) {
        self.reports.push(report);
    }

    /// Whether every count holds, whatever the times are.
    pub fn counts_hold(&self) -> bool {
        self.targets().all(|(_, target)| target.met || target.bound != Bound::Exact)
    }

    /// One line, and one for each target that was missed.
    pub fn summary(&self) -> String {
        let (all, met) = (self.targets().count(), self.targets().filter(|(_, target)| target.met).count());
        let mut text = format!("\n{met} of {all} targets met");
        for (report, target) in self.targets().filter(|(_, target)| !target.met) {
            let Target { what, wanted, reached, raw, .. } = target;
            let _ = write!(text, "\nmissed: {}, {what}: {wanted}, reached {}", report.name, spread(*reached));
            if let Some(raw) = raw {
                let _ = write!(text, ", raw {}", spread(*raw));
            }
        }
        text
    }

    /// The tables as Markdown, headings of the second level.
    pub fn markdown(&self) -> String {
        let groups: String = self.reports.iter().map(Report::markdown).collect();
        format!("```text\n{}\n```\n{groups}", self.head)
    }

    /// `{"groups": {NAME: [{"method": …, "size": …, "speed_ratio": …}]}, "targets": {NAME: […]}, …}`: a number is the
    /// median, with `_min` and `_max` beside it where they differ.
    pub fn json(&self) -> Value {
        let each = |value: &dyn Fn(&Report) -> Value| -> Value {
            self.reports
                .iter()
                .map(|report| (report.name.to_string(), value(report)))
                .collect::<Map<_, _>>()
                .into()
        };
        let rows = |report: &Report| -> Value {
            let rows = |section: &Section| {
                section.rows.iter().map(|row| row.json(&section.title)).collect::<Vec<_>>()
            };
            report.sections.iter().flat_map(rows).collect()
        };
        let mut skipped = each(&|report| json!(report.skipped));
        if let Some(skipped) = skipped.as_object_mut() {
            skipped.retain(|_, why| !why.is_null());
        }
        json!({
            "head": self.head,
            "groups": each(&rows),
            "targets": each(&Report::json_targets),
            "skipped": skipped,
        })
    }

    /// Writes every chart as `FILE.svg` into `dir`.
    ///
    /// # Errors
    /// As the file system reports them.
    pub fn draw(&self, dir: &Path) -> io::Result<()> {
        self.reports.iter().flat_map(|report| &report.charts).try_for_each(|chart| chart.draw(dir))
    }

    fn targets(&self) -> impl Iterator<Item = (&Report, &Target)> {
        self.reports.iter().flat_map(|report| report.targets.iter().map(move |target| (report, target)))
    }
}

fn title(key: &'static str) -> &'static str {
    COLUMNS.iter().find(|(name, _)| *name == key).map_or(key, |(_, title)| title)
}

/// A page with what is between its lines `<!-- measured: begin -->` and `<!-- measured: end -->` replaced; without those
/// lines the new text is all of it.
///
/// ```
/// use segchain_throughput::report::fill_in;
/// let page = "# Page\n<!-- measured: begin -->\nold\n<!-- measured: end -->\n";
/// assert_eq!(fill_in(page, "new"), "# Page\n<!-- measured: begin -->\nnew\n<!-- measured: end -->\n");
/// assert_eq!(fill_in("", "new"), "new");
/// ```
pub fn fill_in(page: &str, text: &str) -> String {
    const BEGIN: &str = "<!-- measured: begin -->\n";
    const END: &str = "<!-- measured: end -->";
    match (page.split_once(BEGIN), page.rsplit_once(END)) {
        (Some((before, _)), Some((_, after))) => format!("{before}{BEGIN}{text}\n{END}{after}"),
        _ => text.to_string(),
    }
}

/// `1.43 (1.38-1.51)`, or one number if all rounds agree.
fn spread(Spread { median, min, max }: Spread) -> String {
    if min < max { format!("{} ({}-{})", number(median), number(min), number(max)) } else { number(median) }
}

/// Three significant digits, as many as a noisy machine bears; counts whole.
fn number(value: f64) -> String {
    let magnitude = value.abs();
    match magnitude {
        _ if (value - value.round()).abs() < 1e-9 => format!("{value:.0}"),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        0.1.. => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}
