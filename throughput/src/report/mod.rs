//! What came out of each group, and of all: as text, Markdown, JSON and SVG.
//!
//! ```text
//!  table: rows in sections ─┐
//!  targets: is it reached? ─┼─▶ Report, of a group ─▶ Reports ─▶ text, Markdown, JSON
//!  plot: charts ────────────┘                              └──▶ SVG
//! ```

mod table;
mod targets;

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use comfy_table::{TableStyle, presets};
use serde_json::{Map, Value, json};

pub use table::{COLUMNS, Row, Section};
use targets::{Target, table};

use crate::args::Args;
use crate::groups::Group;
use crate::plot::Chart;

/// Everything that one group found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    name: &'static str,
    about: &'static str,
    /// Times are not judged.
    short: bool,
    /// The command line chose sizes: not each that has a target was measured.
    other_sizes: bool,
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
    /// An empty one, of a run with these arguments.
    pub fn new(group: &Group, args: &Args) -> Self {
        Self {
            name: group.name,
            about: group.about,
            short: args.short,
            other_sizes: !args.sizes.is_empty(),
            sections: Vec::new(),
            notes: Vec::new(),
            skipped: None,
            charts: Vec::new(),
            targets: Vec::new(),
        }
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
        preset: TableStyle,
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
            let _ = writeln!(text, "{}", table(&self.targets, preset));
        }
        for note in &self.notes {
            let _ = writeln!(text, "\n{note}");
        }
        text
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

    /// Whether every count holds and everything that has a target was measured, whatever the times are.
    pub fn counts_hold(&self) -> bool {
        self.targets().all(|(_, target)| !target.fails())
    }

    /// One line, and one for each target that was missed.
    pub fn summary(&self) -> String {
        let (all, met) = (self.targets().count(), self.targets().filter(|(_, target)| target.met()).count());
        let mut text = format!("\n{met} of {all} targets met");
        for (report, target) in self.targets().filter(|(_, target)| !target.met()) {
            let _ = write!(text, "\nmissed: {}, {target}", report.name);
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
            "targets": each(&|report| report.targets.iter().map(Target::json).collect()),
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
