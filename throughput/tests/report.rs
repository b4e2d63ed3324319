//! What the program computes and prints, without a clock and without a socket, and its short form.

use clap::Parser;
use segchain_throughput::args::Args;
use segchain_throughput::groups::{ALL, chosen};
use segchain_throughput::measure;
use segchain_throughput::report::{Report, Reports, Row, Section};
use segchain_throughput::stats::Spread;

/// An empty report of a run with these arguments.
fn report(line: &str) -> Report {
    let args = ["throughput"].into_iter().chain(line.split_whitespace());
    Report::new(&ALL[0], &Args::try_parse_from(args).expect("a good command line"))
}

fn reports(report: Report) -> Reports {
    let mut reports = Reports::new("a machine".into());
    reports.push(report);
    reports
}

fn spread(median: f64, min: f64, max: f64) -> Option<Spread> {
    Spread::of([median, min, max])
}

#[test]
fn the_median_of_an_even_number_of_rounds_lies_between_the_middle_two() {
    let spread = Spread::of([4.0, 1.0, 2.0, 8.0]).expect("four values");
    assert_eq!((spread.median, spread.min, spread.max), (3.0, 1.0, 8.0));
    assert_eq!(Spread::of([]), None);
}

#[test]
fn ratios_are_paired_round_by_round() {
    // The second round was disturbed for both: the ratio does not see it. A ratio of medians would say 2.0 to 0.2.
    let ratio = Spread::of_ratios(&[20.0, 2.0, 22.0], &[10.0, 1.0, 11.0]).expect("three rounds");
    assert_eq!((ratio.median, ratio.min, ratio.max), (2.0, 2.0, 2.0));
}

#[test]
fn json_has_the_median_and_the_ends_where_they_differ() {
    let mut row = Row::new("whole", 4096).label("segment", "4k").with("calls_per_message", 1.0);
    row.set("speed_ratio", spread(1.4, 1.2, 1.9));
    row.set("cpu_ratio", None);
    let mut section = Section::new("a table", &["speed_ratio"]);
    section.rows.push(row);
    let mut report = report("");
    report.sections.push(section);
    report.exactly("calls", 1.0, spread(1.0, 1.0, 1.0));
    let reports = reports(report);
    let json = reports.json();
    let expected = serde_json::json!([{
        "table": "a table", "method": "whole", "size": 4096, "segment": "4k", "calls_per_message": 1.0,
        "speed_ratio": 1.4, "speed_ratio_min": 1.2, "speed_ratio_max": 1.9,
    }]);
    assert_eq!(json["groups"][ALL[0].name], expected);
    assert_eq!(json["targets"][ALL[0].name][0]["met"], true);
    assert!(reports.counts_hold());
}

#[test]
fn a_count_that_differs_in_one_round_does_not_hold() {
    let mut report = report("--short");
    report.exactly("calls", 1.0, spread(1.0, 1.0, 1.1));
    assert!(!reports(report).counts_hold());
}

#[test]
fn what_was_not_measured_is_a_missed_target_unless_other_sizes_were_asked_for() {
    type Set = fn(&mut Report);
    let targets: [Set; 5] = [
        |report| report.exactly("it", 1.0, None),
        |report| report.at_least("it", 1.0, None),
        |report| report.at_most("it", 1.0, None),
        |report| report.no_slower_than_noise("it", spread(1.0, 1.0, 1.0), None),
        |report| report.no_dearer_than_noise("it", None, spread(1.0, 1.0, 1.0)),
    ];
    for (line, holds) in [("", false), ("--short", false), ("--sizes 8k", true)] {
        for set in targets {
            let mut report = report(line);
            set(&mut report);
            let reports = reports(report);
            assert_eq!(reports.counts_hold(), holds, "{line}");
            assert_eq!(reports.summary().contains("it: "), !holds, "{line}");
        }
    }
}

#[test]
fn a_missed_ratio_is_shown_but_does_not_fail_the_program_and_one_short_round_is_not_judged() {
    for line in ["", "--short"] {
        let mut report = report(line);
        report.at_least("speed", 1.8, spread(1.5, 1.0, 2.0));
        let reports = reports(report);
        assert!(reports.counts_hold());
        assert_eq!(reports.summary().contains("missed"), line.is_empty());
    }
}

#[test]
fn the_noise_row_is_the_bound_of_what_has_to_be_inside_it() {
    let noise = spread(1.0, 0.9, 1.1);
    let verdicts = |ratio: f64| {
        let mut report = report("");
        report.no_slower_than_noise("speed", spread(ratio, ratio, ratio), noise);
        report.no_dearer_than_noise("CPU", spread(ratio, ratio, ratio), noise);
        let json = reports(report).json();
        [0, 1].map(|at| json["targets"][ALL[0].name][at]["met"] == true)
    };
    assert_eq!(verdicts(1.0), [true, true]);
    assert_eq!(verdicts(0.8), [false, true]); // slower than every round of the noise, and cheaper
    assert_eq!(verdicts(1.2), [true, false]);
}

#[test]
fn a_target_that_raw_calls_miss_too_says_so() {
    let verdict = |raw: f64| {
        let mut report = report("");
        report.at_least("speed", 1.8, spread(1.5, 1.5, 1.5));
        report.beside(spread(raw, raw, raw));
        report.text()
    };
    assert!(verdict(1.6).contains("by raw calls too"));
    assert!(!verdict(2.0).contains("by raw calls too"));
}

#[test]
fn an_unknown_group_is_named() {
    let error = chosen(&["whole-wrote".into()]).expect_err("no such group");
    assert!(error.to_string().contains("whole-wrote"), "{error}");
}

#[test]
fn a_path_that_does_not_do_is_found_out_before_the_measurements() {
    for option in ["--plot", "--markdown"] {
        // A group that does not exist either: that would be the error if the path was looked at later.
        let words = ["throughput", "--only", "none-such", option, "/dev/null/there"];
        let args = Args::try_parse_from(words).expect("a good command line");
        let error = segchain_throughput::run(args).expect_err("no such folder");
        assert!(error.to_string().starts_with("/dev/null/there: "), "{error}");
    }
}

#[test]
fn the_short_form_runs_and_its_json_has_each_group_that_was_asked_for() {
    const CHEAP: [&str; 2] = ["whole-read", "checksum"];
    let words = ["throughput", "--short", "--json", "--only", &CHEAP.join(",")];
    let args = Args::try_parse_from(words).expect("a good command line");
    let mut tables = Vec::new();
    let reports = measure(args, &mut tables).expect("every method sends the right bytes");
    let tables = String::from_utf8(tables).expect("UTF-8");
    assert!(reports.counts_hold(), "{tables}");
    let json = reports.json();
    assert_eq!(json["groups"].as_object().expect("groups").len(), CHEAP.len());
    for group in CHEAP {
        let rows = json["groups"][group].as_array().expect("the group");
        assert!(!rows.is_empty(), "{group} is empty");
        for key in ["table", "method"] {
            assert!(rows.iter().all(|row| row[key].is_string()), "{group}: {key}");
        }
        assert!(rows.iter().all(|row| row["size"].is_u64() && row["speed"].is_f64()), "{group}");
        assert!(tables.contains(&format!("## {group}")));
    }
}
