//! Whole jobs against the rehearsal gateway, under both drivers and with things going wrong.

mod support;

use std::io::{Read, Write};

use sidecar_shm::stats::Counter;
use support::{FAST, FAST_GATEWAY, Gateway, Region, Running, main_job, sidecar, with_worker};

const UNKNOWN_CONTROL: &str = "control frame of the unknown type \"evaluating\"";
const TOO_LARGE: [&str; 2] = ["too_large", "observation of 300000 bytes is larger than a slot (65536)"];

/// Plays the gateway's cases to the end under each driver; all must be solved.
fn solved(gateway_arguments: &[&str], sidecar_arguments: &[&str]) -> Vec<(serde_json::Value, String)> {
    solved_with(&[], gateway_arguments, sidecar_arguments)
}

/// The same where the region's error log and counters will hold something.
fn solved_with(
    expected: &[&str],
    gateway_arguments: &[&str],
    sidecar_arguments: &[&str],
) -> Vec<(serde_json::Value, String)> {
    ["uring", "epoll"]
        .into_iter()
        .map(|io| {
            let (report, code, said) =
                play(expected, gateway_arguments, &[sidecar_arguments, &["--io", io]].concat());
            assert_eq!(code, 0, "{said}");
            assert_eq!(report["solved"], report["cases"], "{report}\n{said}");
            (report, said)
        })
        .collect()
}

fn play(
    expected: &[&str],
    gateway_arguments: &[&str],
    sidecar_arguments: &[&str],
) -> (serde_json::Value, i32, String) {
    let region = Region::new();
    region.expect(expected);
    let gateway = Gateway::start(&[&FAST_GATEWAY, gateway_arguments].concat());
    let mut command = main_job(&region, &gateway.endpoint);
    command.args(FAST).args(sidecar_arguments);
    with_worker(&mut command, "cartpole");
    let (code, said) = Running::start(&mut command).finish();
    let report = gateway.report();
    assert!(region.leftovers().is_empty(), "{:?}\n{said}", region.leftovers());
    (report, code, said)
}

#[test]
fn cases_are_solved_with_and_without_pictures() {
    solved(&["--cases", "2"], &[]);
    solved(&["--cases", "1", "--payload", "786432"], &[]);
}

/// What `stat` calls a sleep is a system call that waits: a loop that never makes one has none.
#[test]
fn a_busy_loop_counts_no_sleeps() {
    for io in ["uring", "epoll"] {
        let region = Region::new();
        let gateway = Gateway::start(&["--cases", "1"]);
        let mut command = main_job(&region, &gateway.endpoint);
        command.args(["--busy-poll", "--io", io]);
        with_worker(&mut command, "cartpole");
        let (code, said) = Running::start(&mut command).finish();
        assert_eq!(code, 0, "{said}");
        assert_eq!(region.noted().counter(Counter::Sleeps), 0, "{said}");
    }
}

#[test]
fn the_empty_warm_up_frame_is_answered() {
    solved(&["--cases", "1", "--warmup-frame"], &[]);
}

#[test]
fn a_warm_up_payload_is_answered_before_ready_and_goes_no_further() {
    let directory = tempfile::tempdir().unwrap();
    let payload = directory.path().join("observation");
    std::fs::write(&payload, [0; 16]).unwrap();
    for (report, said) in solved(&["--cases", "1"], &["--warmup-payload", payload.to_str().unwrap()]) {
        let (answered, ready) = (said.find("payload was answered"), said.find("INFO ready"));
        assert!(answered.is_some() && answered < ready, "{said}");
        assert_eq!(report["duplicate_answers"], 0, "{report}");
        assert_eq!(report["dropped_frames"], 0, "{report}");
    }
    // A policy that cannot make anything of it fails the warm-up, and the run.
    std::fs::write(&payload, [0; 3]).unwrap();
    let region = Region::new();
    region.expect(&["warm-up failed: 3 bytes are no cart-pole observation"]);
    let gateway = Gateway::start(&["--cases", "1"]);
    let mut command = main_job(&region, &gateway.endpoint);
    command.arg("--warmup-payload").arg(&payload);
    with_worker(&mut command, "cartpole");
    let (code, said) = Running::start(&mut command).finish();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("failed on --warmup-payload"), "{said}");
}

#[test]
fn fragments_empty_finals_single_bytes_and_pings_between_change_nothing() {
    solved(&["--cases", "1", "--payload", "100000", "--fragment", "4096", "--empty-final"], &[]);
    solved(&["--cases", "1", "--payload", "20000", "--fragment", "700", "--ping-between-fragments"], &[]);
    solved(&["--cases", "1", "--one-byte-writes"], &[]);
    solved(&["--cases", "1", "--payload", "70000", "--split-headers"], &[]);
    solved_with(&[UNKNOWN_CONTROL], &["--cases", "1", "--unknown-control"], &[]);
}

#[test]
fn a_cut_in_mid_session_is_mended_and_no_answer_is_given_twice() {
    for how in ["after", "before", "mid-frame"] {
        let cut = format!("100:{how}");
        for (report, said) in
            solved_with(&["connection lost"], &["--cases", "1", "--on-lost", "reask", "--cut-at", &cut], &[])
        {
            assert!(said.contains("redialling"), "{said}");
            assert_eq!(report["duplicate_answers"], 0, "{how}: {report}\n{said}");
        }
    }
}

#[test]
fn ten_cuts_are_ten_first_cuts() {
    let cuts = "40,80,120,160,200,240,280,320,360,400";
    solved_with(&["connection lost"], &["--cases", "1", "--on-lost", "reask", "--cut-at", cuts], &[]);
}

#[test]
fn a_close_frame_in_mid_session_is_no_end() {
    let closed = "connection lost: closed with code 1001: on request";
    solved_with(&[closed], &["--cases", "1", "--on-lost", "reask", "--close-at", "50"], &[]);
}

#[test]
fn refusals_that_pass_are_waited_out() {
    let refused = "no connection yet: upgrade refused with status 500";
    solved_with(&[refused], &["--cases", "1", "--refuse", "500:3"], &[]);
}

#[test]
fn each_malformed_frame_costs_a_redial_or_a_line_and_never_the_job() {
    for kind in ["masked", "rsv", "opcode", "length"] {
        let malformed = ["--cases", "1", "--on-lost", "reask", "--malformed", kind];
        for (_, said) in solved_with(&["connection lost: protocol violation"], &malformed, &[]) {
            assert!(said.contains("redialling"), "{kind}: {said}");
        }
    }
    for (kind, noted) in [
        ("short-data", ["dropped_frames", "data frame dropped: shorter than 4 bytes"]),
        ("sid-overrun", ["dropped_frames", "data frame dropped: session id reaches past"]),
        ("json", ["text message that is no control frame", "text message that is no control frame"]),
    ] {
        for (_, said) in solved_with(&noted, &["--cases", "1", "--malformed", kind], &[]) {
            assert!(!said.contains("redialling") && said.contains("WARN"), "{kind}: {said}");
        }
    }
}

#[test]
fn drain_in_mid_session_ends_with_0() {
    let (_, code, said) = play(&[], &["--cases", "2", "--drain-at", "100"], &[]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("drain"), "{said}");
}

#[test]
fn an_observation_larger_than_a_slot_names_the_size_and_the_flag() {
    let region = Region::new();
    region.expect_late_frames();
    region.expect(&TOO_LARGE);
    let gateway = Gateway::start(&["--cases", "1", "--payload", "300000", "--case-timeout", "2s"]);
    let mut command = main_job(&region, &gateway.endpoint);
    command.args(["--slot-bytes", "65536"]);
    with_worker(&mut command, "cartpole");
    let mut running = Running::start(&mut command);
    running.await_stderr("--slot-bytes");
    assert!(running.stderr().contains("size=3000"), "{}", running.stderr());
    running.signal(rustix::process::Signal::INT);
    assert_eq!(running.finish().0, 130);
}

#[test]
fn a_configured_reply_answers_what_no_slot_can_hold() {
    let directory = tempfile::tempdir().unwrap();
    let reply = directory.path().join("reply");
    std::fs::write(&reply, [1]).unwrap();
    let region = Region::new();
    region.expect(&TOO_LARGE);
    let gateway = Gateway::start(&["--cases", "1", "--payload", "300000"]);
    let mut command = main_job(&region, &gateway.endpoint);
    command.args(["--slot-bytes", "65536", "--on-failure", "reply", "--failure-reply"]).arg(&reply);
    with_worker(&mut command, "cartpole");
    let (code, said) = Running::start(&mut command).finish();
    assert_eq!(code, 0, "{said}");
    let report = gateway.report();
    // Always pushing right loses the pole, but every step of it was answered.
    assert!(report["steps"].as_u64().unwrap() > 3, "{report}");
}

#[test]
fn proxy_variables_are_ignored() {
    // A stray one has burnt all retries of a client before it noticed.
    let region = Region::new();
    let gateway = Gateway::start(&["--cases", "1"]);
    let mut command = main_job(&region, &gateway.endpoint);
    for variable in ["http_proxy", "https_proxy", "all_proxy", "ws_proxy"] {
        command.env(variable, "http://127.0.0.1:1").env(variable.to_uppercase(), "http://127.0.0.1:1");
    }
    with_worker(&mut command, "cartpole");
    let (code, said) = Running::start(&mut command).finish();
    assert_eq!(code, 0, "{said}");
    assert!(!said.contains("refused"), "{said}");
    assert_eq!(gateway.report()["solved"], 1);
}

#[test]
fn signals_end_the_run_cleanly_with_their_exit_codes() {
    for (signal, code) in [(rustix::process::Signal::INT, 130), (rustix::process::Signal::TERM, 143)] {
        let region = Region::new();
        region.expect_late_frames();
        let gateway = Gateway::start(&["--cases", "1", "--step-delay", "5ms"]);
        let mut command = main_job(&region, &gateway.endpoint);
        with_worker(&mut command, "cartpole");
        let mut running = Running::start(&mut command);
        running.await_stderr("session open");
        running.signal(signal);
        let (ended, said) = running.finish();
        assert_eq!(ended, code, "{said}");
        assert!(region.leftovers().is_empty(), "{:?}", region.leftovers());
    }
}

#[test]
fn an_upgrade_takes_the_session_and_the_worker_over() {
    let region = Region::new();
    let mut arguments = FAST_GATEWAY.to_vec();
    arguments.extend(["--cases", "1", "--step-delay", "2ms", "--on-lost", "reask"]);
    let gateway = Gateway::start(&arguments);
    let mut worker = sidecar();
    worker.args(["worker", "--policy", "cartpole", "--shm"]).arg(region.path());
    let worker = Running::start(&mut worker);
    let mut first = Running::start(main_job(&region, &gateway.endpoint).args(FAST));
    first.await_stderr("session open");
    first.signal(rustix::process::Signal::USR2);
    let (code, said) = first.finish();
    assert_eq!(code, 0, "{said}");
    let mut second = Running::start(main_job(&region, &gateway.endpoint).args(FAST));
    second.await_stderr("took over");
    let (code, said) = second.finish();
    assert_eq!(code, 0, "{said}");
    assert_eq!(gateway.report()["solved"], 1, "{said}");
    assert_eq!(worker.finish().0, 0);
}

#[test]
fn no_token_shows_in_arguments_logs_or_region() {
    let region = Region::new();
    region.expect_late_frames();
    let gateway = Gateway::start(&["--cases", "1", "--step-delay", "5ms"]);
    let mut command = main_job(&region, &gateway.endpoint);
    command.arg("--verbose").env("SIDECAR_LOG", "trace");
    with_worker(&mut command, "cartpole");
    let mut running = Running::start(&mut command);
    running.await_stderr("session open");
    let pid = running.pid();
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    let bytes = std::fs::read(region.path()).unwrap();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let mut seen = vec![arguments, bytes];
    for child in children.split_whitespace() {
        seen.push(std::fs::read(format!("/proc/{child}/environ")).unwrap());
    }
    for bytes in seen {
        let token = support::TOKEN.as_bytes();
        assert!(!bytes.windows(token.len()).any(|window| window == token));
    }
    running.signal(rustix::process::Signal::TERM);
    // `finish` looks for the token in the log.
    assert_eq!(running.finish().0, 143);
}

/// Whoever can reach the port must not be able to take the descriptors that a redial needs.
#[test]
fn scrapers_that_say_nothing_cost_a_few_descriptors_for_a_while() {
    let region = Region::new();
    region.expect_late_frames();
    // The job outlasts the silent ones, who take six seconds.
    let gateway = Gateway::start(&["--cases", "20", "--step-delay", "5ms"]);
    let mut command = main_job(&region, &gateway.endpoint);
    command.args(["--metrics", "127.0.0.1:0"]);
    with_worker(&mut command, "cartpole");
    let mut running = Running::start(&mut command);
    running.await_stderr("metrics are served");
    let said = running.stderr();
    let address = said.split("address=").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    running.await_stderr("session open");
    let open = || std::fs::read_dir(format!("/proc/{}/fd", running.pid())).unwrap().count();
    let before = open();
    let connect = || std::net::TcpStream::connect(&address).unwrap();
    let silent: Vec<_> = (0..20).map(|_| connect()).collect();
    let mut scraper = connect();
    scraper.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    // It waits until the silent ones have had their time, eight by eight.
    let mut text = String::new();
    scraper.read_to_string(&mut text).unwrap();
    assert!(text.contains("sidecar_frames_in_total"), "{text}");
    assert!(open() <= before + 8, "{} descriptors, {before} before", open());
    drop(silent);
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.finish().0, 143);
}

#[test]
fn stat_reads_a_running_sidecar_from_outside() {
    let region = Region::new();
    region.expect(&[UNKNOWN_CONTROL]);
    let gateway = Gateway::start(&["--cases", "1", "--step-delay", "2ms", "--unknown-control"]);
    let mut command = main_job(&region, &gateway.endpoint);
    with_worker(&mut command, "cartpole");
    let mut running = Running::start(&mut command);
    running.await_stderr("session open");
    let output = sidecar().args(["stat", "--once", "--shm"]).arg(region.path()).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    for (name, reading) in [("phase", "running"), ("connected", "yes"), ("connected_for", "s")] {
        let line = shown.lines().find(|line| line.split_whitespace().next() == Some(name));
        assert!(line.is_some_and(|line| line.contains(reading)), "{name}: {shown}");
    }
    let follower = Running::start(sidecar().args(["stat", "--every", "500ms", "--shm"]).arg(region.path()));
    let mut frames = 0;
    support::wait_for("frames in the statistics", || {
        let output = sidecar().args(["stat", "--json", "--shm"]).arg(region.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let stat: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        frames = stat["counters"]["frames_in"].as_u64().unwrap();
        frames > 10 && stat["latency_ns"]["worker"]["p50"].as_u64().unwrap() > 0
    });
    let (code, said) = running.finish();
    assert_eq!(code, 0, "{said}");
    assert_eq!(gateway.report()["solved"], 1);
    let output = sidecar().args(["stat", "--json", "--shm"]).arg(region.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "a region that is gone is an error");
    let (code, said) = follower.finish();
    assert!(code == 0 && said.contains("the sidecar has ended"), "but not to those who followed it: {said}");
}

/// The third one was refused once, and each one left a descriptor behind.
#[test]
fn a_process_attaches_as_often_as_it_closes_and_leaves_nothing_behind() {
    let region = Region::new();
    let gateway = Gateway::start(&[&FAST_GATEWAY[..], &["--cases", "1"]].concat());
    let mut command = main_job(&region, &gateway.endpoint);
    command.args(FAST);
    let mut running = Running::start(&mut command);
    let descriptors = format!("/proc/{}/fd", running.pid());
    let open = || std::fs::read_dir(&descriptors).unwrap().count();
    let mut after = Vec::new();
    for round in 0..12 {
        let worker = sidecar_shm::worker::Worker::attach(&region.path(), &Default::default())
            .unwrap_or_else(|error| panic!("round {round}: {error}\n{}", running.stderr()));
        after.push(open());
        drop(worker);
    }
    // The last one or two are watched until another has their seat, and a connection's end takes a moment to be heard.
    let most = after[2] + 2;
    support::wait_for("descriptors that were given back", || open() <= most);
    let mut last = sidecar();
    last.args(["worker", "--policy", "cartpole", "--shm"]).arg(region.path());
    let last = Running::start(&mut last);
    running.await_stderr("ready");
    let (code, said) = running.finish();
    assert_eq!(code, 0, "{said}");
    assert_eq!(gateway.report()["solved"], 1, "{said}");
    assert_eq!(last.finish().0, 0);
}

/// It asks a hundred times in its two seconds.
#[test]
fn a_second_worker_is_one_line_of_the_log() {
    let region = Region::new();
    let gateway = Gateway::start(&[&FAST_GATEWAY[..], &["--cases", "1"]].concat());
    let mut command = main_job(&region, &gateway.endpoint);
    command.args(FAST);
    let mut running = Running::start(&mut command);
    let attach = || sidecar_shm::worker::Worker::attach(&region.path(), &Default::default());
    let first = attach().unwrap();
    let error = attach().unwrap_err().to_string();
    let who = format!("the worker with pid {} is attached", std::process::id());
    assert!(error.contains(&who), "{error}");
    drop(first);
    let mut last = sidecar();
    last.args(["worker", "--policy", "cartpole", "--shm"]).arg(region.path());
    let last = Running::start(&mut last);
    running.await_stderr("ready");
    let (code, said) = running.finish();
    assert_eq!((code, said.matches("a worker was refused").count()), (0, 1), "{said}");
    assert_eq!((gateway.report()["solved"].as_u64(), last.finish().0), (Some(1), 0));
}

/// It looked like a gateway that sends nothing.
#[test]
fn a_worker_that_keeps_its_observations_is_named_when_the_slots_run_out() {
    use sidecar_shm::worker::{Answered, AttachOptions, Event, Worker};

    let region = Region::new();
    region.expect(&["all observation slots are taken"]);
    let gateway = Gateway::start(&[&FAST_GATEWAY[..], &["--cases", "1"]].concat());
    let mut command = main_job(&region, &gateway.endpoint);
    command.args(FAST).args(["--slots", "2", "--blocked-pong", "200ms"]);
    let mut running = Running::start(&mut command);
    let mut worker = Worker::attach(&region.path(), &AttachOptions::default()).unwrap();
    let mut kept = Vec::new();
    while kept.len() < 2 {
        match worker.next(None).unwrap() {
            Event::Warmup => worker.ready().unwrap(),
            Event::Observation(observation) => {
                let mut action = worker.reserve(1).unwrap();
                // Left and right in turn: the pole stands.
                action.as_mut_slice()[0] = kept.len() as u8;
                let Answered::Done = observation.try_answer_and_keep(action, 1) else { panic!("no room") };
                kept.push(observation);
            }
            _ => {}
        }
    }
    running.await_stderr("2 slots are held by the worker after it answered (release each observation)");
    drop((worker, kept));
    let mut last = sidecar();
    last.args(["worker", "--policy", "cartpole", "--shm"]).arg(region.path());
    let last = Running::start(&mut last);
    let (code, said) = running.finish();
    assert_eq!(code, 0, "{said}");
    assert_eq!((gateway.report()["solved"].as_u64(), last.finish().0), (Some(1), 0), "{said}");
}

/// The contract is silent about a clean close: whoever rehearses is told what is waited for, and how to end it.
#[test]
fn a_gateway_that_an_agent_left_in_order_says_what_it_waits_for_and_ends_with_a_report() {
    let region = Region::new();
    region.expect_late_frames();
    let gateway = Gateway::start(
        &[&FAST_GATEWAY[..], &["--cases", "1", "--step-delay", "10ms", "--linger", "0s"]].concat(),
    );
    let mut command = main_job(&region, &gateway.endpoint);
    with_worker(&mut command, "cartpole");
    let mut running = Running::start(&mut command);
    support::wait_for("a step", || gateway.count("step") > 0);
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.wait(), 143);
    let (report, said) = gateway.end();
    assert!(
        said.contains(
            "the connection is gone (closed by the agent with 1000); waiting 1.5s for the agent to come back"
        ),
        "{said}"
    );
    assert!(said.contains("why: reconnect window expired"), "{said}");
    assert_eq!(report["failure"], "reconnect window expired");
}

#[test]
fn a_gateway_that_is_interrupted_reports_what_was_played() {
    let region = Region::new();
    region.expect(&["connection lost"]);
    let gateway = Gateway::start(&["--cases", "1", "--step-delay", "10ms"]);
    let mut command = main_job(&region, &gateway.endpoint);
    with_worker(&mut command, "cartpole");
    let running = Running::start(&mut command);
    support::wait_for("a step", || gateway.count("step") > 0);
    gateway.process.signal(rustix::process::Signal::INT);
    let report = gateway.report();
    assert_eq!((&report["failure"], &report["solved"]), (&"interrupted".into(), &0.into()), "{report}");
    assert!(report["steps"].as_u64().unwrap() > 0, "{report}");
    running.signal(rustix::process::Signal::INT);
    assert_eq!(running.finish().0, 130);
}
