//! Plots as SVG: lines over steps that have names, with a bar from the least to the most of each point.

use std::io;
use std::path::Path;

use plotters::prelude::*;

use crate::args::size;
use crate::report::Section;
use crate::stats::Spread;

/// Told apart by most people, and dark enough on white.
const COLORS: [RGBColor; 6] = [
    RGBColor(31, 90, 180),
    RGBColor(200, 40, 40),
    RGBColor(40, 130, 60),
    RGBColor(130, 80, 170),
    RGBColor(200, 120, 20),
    RGBColor(90, 90, 90),
];

/// One plot.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Chart {
    /// Its file, without `.svg`.
    pub file: String,
    /// What is above it.
    pub title: String,
    /// What the steps are.
    pub x: String,
    /// What the values are.
    pub y: String,
    /// The names of the steps.
    pub steps: Vec<String>,
    /// Name and values of each line; `None` where nothing was measured.
    pub lines: Vec<(String, Vec<Option<Spread>>)>,
    /// Bars beside each other instead of lines: for steps between which nothing is.
    pub bars: bool,
}

impl Chart {
    /// Of one number of a section over message size, a line for each of these methods.
    pub fn over_size(
        file: &str,
        title: &str,
        section: &Section,
        (key, y): (&str, &str),
        methods: &[&str],
    ) -> Self {
        let mut sizes: Vec<u64> = section.rows.iter().map(super::report::Row::size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let line = |method: &&str| {
            ((*method).to_string(), sizes.iter().map(|size| section.get(method, *size, key)).collect())
        };
        Self {
            file: file.into(),
            title: title.into(),
            x: "message".into(),
            y: y.into(),
            steps: sizes.iter().map(|bytes| size(*bytes)).collect(),
            lines: methods.iter().map(line).collect(),
            bars: false,
        }
    }

    /// Writes it into a folder.
    ///
    /// # Errors
    /// As the file system reports them.
    pub fn draw(&self, dir: &Path) -> io::Result<()> {
        let path = dir.join(format!("{}.svg", self.file));
        self.draw_at(&path).map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
    }

    fn draw_at(&self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::new(path, (720, 400)).into_drawing_area();
        root.fill(&WHITE)?;
        let highest = self.lines.iter().flat_map(|line| line.1.iter().flatten()).map(|spread| spread.max);
        let highest = highest.fold(0.0, f64::max).max(f64::MIN_POSITIVE) * 1.05;
        let last = self.steps.len().max(2) as f64 - 1.0;
        let margin = if self.bars { 0.5 } else { 0.1 };
        // All bars of a step take four fifths of it.
        let width = 0.8 / self.lines.len().max(1) as f64;
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(-margin..last + margin, 0.0..highest)?;
        let name = |x: &f64| {
            let whole = (x - x.round()).abs() < 1e-6 && *x > -0.5;
            if whole {
                self.steps.get(x.round() as usize).cloned().unwrap_or_default()
            } else {
                String::new()
            }
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(&self.x)
            .y_desc(&self.y)
            .x_labels(self.steps.len() * 2 + 1)
            .x_label_formatter(&name)
            .draw()?;
        for (index, (name, values)) in self.lines.iter().enumerate() {
            let color = COLORS[index % COLORS.len()].to_rgba();
            let points: Vec<(f64, Spread)> =
                values.iter().enumerate().filter_map(|(x, value)| Some((x as f64, (*value)?))).collect();
            if self.bars {
                let left = width * index as f64 - 0.4;
                let bar = |(x, y): &(f64, Spread)| {
                    Rectangle::new([(x + left, 0.0), (x + left + width, y.median)], color.filled())
                };
                chart
                    .draw_series(points.iter().map(bar))?
                    .label(name)
                    .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 16, y + 4)], color.filled()));
                continue;
            }
            chart
                .draw_series(LineSeries::new(
                    points.iter().map(|(x, y)| (*x, y.median)),
                    color.stroke_width(2),
                ))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
            chart.draw_series(points.iter().map(|(x, y)| {
                // Beside each other, so that the bars of two methods can be told apart.
                let x = x + 0.015 * index as f64;
                PathElement::new([(x, y.min), (x, y.max)], color.stroke_width(1))
            }))?;
            chart.draw_series(points.iter().map(|(x, y)| Circle::new((*x, y.median), 3, color.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        root.present()?;
        Ok(())
    }
}
