//! The groups that need more than this process, in their short form: a real osd and librados, and network namespaces.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use segchain_testkit::peers::{Ceph, CephOptions, require};
use segchain_throughput::args::Args;
use segchain_throughput::measure;
use serde_json::Value;

/// Runs one group in short form; its rows, and why it was skipped.
fn short(group: &str, more: &[String]) -> (Vec<Value>, Option<String>) {
    let words = ["throughput", "--short", "--only", group].map(String::from);
    let args = Args::try_parse_from(words.iter().chain(more)).expect("a good command line");
    let mut tables = Vec::new();
    let reports = measure(args, &mut tables).expect("the group runs");
    assert!(reports.counts_hold(), "{}", String::from_utf8_lossy(&tables));
    let json = reports.json();
    let skipped = json["skipped"][group].as_str().map(String::from);
    (json["groups"][group].as_array().expect("rows").clone(), skipped)
}

#[test]
fn a_real_osd_answers_both_versions_beside_librados() {
    let options = CephOptions::default().conf("osd_max_object_name_len = 100");
    let Some(ceph) = require(Ceph::start(options)) else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut more = vec![
        format!("--osd={},{}", ceph.osd_v1(), ceph.osd_v2()),
        format!("--nonce={}", ceph.nonce()),
        format!("--epoch={}", ceph.epoch()),
        format!("--pool={}", ceph.pool_id()),
    ];
    let program = require(librados_null(directory.path()));
    if let Some(program) = &program {
        more.push(format!("--librados={}", ceph.conf().display()));
        more.push(format!("--librados-null={}", program.display()));
        more.push(format!("--librados-pool={}", Ceph::POOL));
    }
    let (rows, skipped) = short("ceph", &more);
    assert_eq!(skipped, None);
    for protocol in ["v1", "v2"] {
        for in_flight in ["1", "16"] {
            for method in ["segchain", "librados"] {
                let of = |row: &&Value| {
                    row["method"] == method && row["protocol"] == protocol && row["in_flight"] == in_flight
                };
                let mut rows = rows.iter().filter(of);
                let answered = rows.clone().all(|row| row["rate"].as_f64().is_some_and(|rate| rate > 0.0));
                assert!(answered, "{rows:?}");
                let wanted = method == "segchain" || program.is_some();
                assert_eq!(rows.next().is_some(), wanted, "{method} over {protocol}, {in_flight} in flight");
            }
        }
    }
}

/// Builds the load of librados, if its header is there.
fn librados_null(directory: &Path) -> Result<PathBuf, &'static str> {
    if !Path::new("/usr/include/rados/librados.h").exists() {
        return Err("librados has no header here (Debian: librados-dev)");
    }
    let program = directory.join("librados-null");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/librados-null.c");
    let built =
        Command::new("cc").args(["-O2", "-Werror", "-Wall", source, "-lrados", "-o"]).arg(&program).status();
    assert!(built.expect("a C compiler").success());
    Ok(program)
}

#[test]
fn a_whole_message_takes_the_least_packets() {
    let (rows, skipped) = short("packets", &[]);
    let there = skipped.map_or(Ok(()), |why| Err(format!("the group packets: {why}")));
    let Some(()) = require(there) else { return };
    let packets = |method: &str| {
        let row = rows.iter().find(|row| row["method"] == method).expect("the method");
        (row["packets_per_message"].as_f64(), row["short_per_message"].as_f64())
    };
    assert_eq!(packets("whole"), (Some(91.0), Some(1.0)));
    // The counter sees more where there is more to see: in a send of its own a footer is a packet of its own.
    assert!(packets("page by page") > packets("whole"));
}
