//! A service and a client that only know tonic, compiled from one source for HTTP/2 over TCP and for messages over RDMA: the two
//! lines of the guide are all that differs.

mod http2;
mod messages;

/// The page that has the lines.
const GUIDE: &str = include_str!("../../../../docs/guide/src/rpc.md");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_sees_the_same_answers() {
    let expected = [
        "say: hello",
        "count: 3 notes, 11 bytes",
        "repeat: again again again",
        "chat: question 1, question 2",
        "too long: OutOfRange",
        "no token: Unauthenticated: who are you?",
        "no service: Unimplemented",
    ];
    assert_eq!(common::within(http2::program::run()).await, expected);
    assert_eq!(common::within(messages::program::run()).await, expected);
}

// The modules have the lines of the guide, with an address of the test.
#[test]
fn guide_has_the_two_lines() {
    let section = GUIDE.split("\n## ").find(|section| section.starts_with("In messages")).expect("a section");
    let code = section.split("```").find(|block| block.starts_with("rust,no_run")).expect("a block");
    let addresses = [
        ("from_static(\"http://host:50051\")", "from_shared(format!(\"http://{address}\"))?"),
        ("\"0.0.0.0:50051\"", "address"),
        ("\"host:50051\"", "address"),
    ];
    let code = addresses.iter().fold(code.to_owned(), |code, (guide, test)| code.replace(guide, test));
    let lines: Vec<&str> = code.lines().map(str::trim).filter(|line| line.ends_with(".await")).collect();
    let [old_server, server, old_channel, channel] = lines[..] else { panic!("{lines:?}") };
    for line in [old_server, old_channel] {
        let line = line.strip_prefix("// was: ").expect("what the line replaces");
        assert!(include_str!("two_lines/http2.rs").contains(line), "{line}");
    }
    for line in [server, channel] {
        assert!(include_str!("two_lines/messages.rs").contains(line), "{line}");
    }
}
