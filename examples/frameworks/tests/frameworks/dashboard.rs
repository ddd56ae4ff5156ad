//! The example `metrics`: its dashboard, and the traces of its calls.

use std::collections::BTreeSet;

use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::Value;

use crate::metrics_example::{calls, failures};
use crate::trace_context::TraceContext;

/// The prefix of all names.
const OURS: &str = "tokio_rdma_";

/// The queries of the panels, wherever they are.
fn queries(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(entries) => {
            into.extend(entries.get("expr").and_then(Value::as_str).map(str::to_owned));
            entries.values().for_each(|value| queries(value, into));
        }
        Value::Array(values) => values.iter().for_each(|value| queries(value, into)),
        _ => {}
    }
}

/// The names of metrics in a text.
fn names(text: &str) -> impl Iterator<Item = String> + '_ {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with(OURS)).map(str::to_owned)
}

#[test]
fn the_dashboard_queries_the_metrics_of_the_example() {
    // One for this thread: other tests of this process are not counted.
    let recorder = PrometheusBuilder::new().set_buckets(&[0.001, 1.0]).expect("buckets").build_recorder();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            calls().await.expect("answered");
            failures().await.expect("as expected");
        });
    });
    let text = recorder.handle().render();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let exported: BTreeSet<_> = samples.flat_map(|line| names(line).take(1).collect::<Vec<_>>()).collect();
    let dashboard = include_str!("../../metrics/dashboard.json");
    let mut all = Vec::new();
    queries(&serde_json::from_str(dashboard).expect("JSON"), &mut all);
    let queried: BTreeSet<_> = all.iter().flat_map(|query| names(query)).collect();
    let missing: Vec<_> = queried.difference(&exported).collect();
    assert!(missing.is_empty(), "not exported: {missing:?} of {exported:?}");
    // A histogram has three names, of which a panel needs one.
    let stem = |name: &String| {
        let stems = ["_bucket", "_sum", "_count"].map(|end| name.strip_suffix(end));
        stems.into_iter().flatten().next().unwrap_or(name).to_owned()
    };
    let [queried, exported] =
        [queried, exported].map(|names| names.iter().map(stem).collect::<BTreeSet<_>>());
    assert_eq!(queried, exported, "every metric has a panel");
    assert!(queried.len() >= 10, "{queried:?}");
}

// A span of the server is in the trace of the client, and is another span.
#[tokio::test]
async fn traces_cross_a_call() {
    let contexts = calls().await.expect("answered");
    assert_eq!(contexts.len(), 3);
    for (client, server) in contexts {
        assert_eq!(client.trace, server.trace);
        assert_ne!(client.span, server.span);
    }
}

#[test]
fn contexts_are_those_of_the_specification() {
    // The example of W3C Trace Context, section 3.2.2.
    let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let context: TraceContext = text.parse().expect("a context");
    assert_eq!((context.trace, context.span), (0x0af7651916cd43dd8448eb211c80319c, 0xb7ad6b7169203331));
    assert_eq!(context.to_string(), text);
    let later = format!("cc{}-what-the-future-will-be-like", &text[2..]);
    assert_eq!(later.parse::<TraceContext>().expect("a later version"), context);
    for wrong in [
        "",
        "00",
        &text[..54],
        &text.to_uppercase(),
        &text.replacen("00", "ff", 1),
        &format!("{text}-more"),
        &text.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
        &text.replace("b7ad6b7169203331", &"0".repeat(16)),
        &text.replace("b7ad", "+7ad"),
    ] {
        wrong.parse::<TraceContext>().expect_err(wrong);
    }
}
