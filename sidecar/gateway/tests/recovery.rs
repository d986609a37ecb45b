//! Lost connections: the window, what is kept and what is dropped (tunnel contract A.5), and `--on-lost`.

mod support;

use core::time::Duration;

use sidecar_gateway::report::GatewayEvent;
use support::{Gateway, Got, JOB, TOKEN, policy};
use tokio::time::{sleep, timeout};

#[tokio::test]
async fn a_redial_within_the_window_takes_the_session_up_without_a_word() {
    let mut gateway = Gateway::start(&["--cases", "1"]).await;
    let mut agent = gateway.dial("a").await;
    agent.warm_up().await;
    agent.play(20).await;
    let (session, observation) = agent.observation().await;
    drop(agent);
    let why = gateway.disconnected().await;
    assert!(why.contains("end of file") || why.contains("reset"), "{why}");

    // The answer was kept; it is taken, and the next observation follows without warmup or session_open.
    let mut agent = gateway.dial("a").await;
    agent.answer(&session, &policy(&observation)).await;
    match agent.next().await {
        Got::Data { session: same, .. } => assert_eq!(same, session),
        other => panic!("{other:?} instead of the next observation"),
    }
    // That one is left unanswered; only its session's end can be seen from here.
    drop(agent);
    gateway.disconnected().await;
}

#[tokio::test]
async fn when_the_window_has_passed_the_job_is_over_and_dials_get_401() {
    let mut gateway = Gateway::start(&["--cases", "2", "--window", "150ms", "--linger", "10s"]).await;
    let mut agent = gateway.dial("a").await;
    agent.warm_up().await;
    agent.play(5).await;
    drop(agent);
    gateway.event(|event| matches!(event, GatewayEvent::WindowExpired { .. }).then_some(())).await;
    assert_eq!(gateway.refusal(JOB, "a", TOKEN).await, 401);
    assert_eq!(gateway.refusal(JOB, "b", TOKEN).await, 401);
}

#[tokio::test]
async fn the_report_of_a_job_that_was_lost_says_so() {
    let gateway = Gateway::start(&["--cases", "2", "--window", "150ms"]).await;
    let mut agent = gateway.dial("a").await;
    agent.warm_up().await;
    agent.play(5).await;
    agent.observation().await;
    drop(agent);
    let report = gateway.report().await;
    assert_eq!((report.solved, report.steps, report.lost_exchanges), (0, 5, 1));
    assert_eq!(report.failure.as_deref(), Some("reconnect window expired"));
}

/// A tunnel that is down when its second observation is due; gives the session.
async fn down_when_due(gateway: &mut Gateway) -> String {
    let mut agent = gateway.dial("a").await;
    agent.warm_up().await;
    let (session, observation) = agent.observation().await;
    agent.answer_and_break(&session, &policy(&observation)).await;
    let why = gateway
        .event(|event| match event {
            GatewayEvent::ExchangeLost { step: 1, why, .. } => Some(why.clone()),
            _ => None,
        })
        .await;
    assert!(why.contains("while the tunnel was down"), "{why}");
    session
}

#[tokio::test]
async fn what_is_due_while_the_tunnel_is_down_is_dropped_and_not_queued() {
    let mut gateway = Gateway::start(&["--cases", "1", "--step-delay", "20ms", "--case-timeout", "2s"]).await;
    down_when_due(&mut gateway).await;
    let mut agent = gateway.dial("a").await;
    let quiet = timeout(Duration::from_millis(400), agent.next()).await;
    assert!(quiet.is_err(), "{quiet:?}: a simulator that stalls sends nothing again");
    agent.expect("session_close").await;
    agent.play_out().await;
    let report = gateway.report().await;
    assert_eq!((report.solved, report.dropped_frames, report.lost_exchanges, report.reasked), (0, 1, 1, 0));
}

#[tokio::test]
async fn a_simulator_that_asks_again_goes_on_after_what_was_dropped() {
    // It was never delivered, so no kept answer is waited for.
    let flags = ["--cases", "1", "--step-delay", "2ms", "--on-lost", "reask", "--reask-after", "1h"];
    let mut gateway = Gateway::start(&flags).await;
    let session = down_when_due(&mut gateway).await;
    let mut agent = gateway.dial("a").await;
    match agent.next().await {
        Got::Data { session: same, payload } => {
            assert_eq!(same, session);
            agent.answer(&session, &policy(&payload)).await;
        }
        other => panic!("{other:?} instead of the step that was dropped"),
    }
    agent.play_out().await;
    let report = gateway.report().await;
    assert_eq!(
        (report.solved, report.reasked, report.dropped_frames, report.duplicate_answers),
        (1, 1, 1, 0)
    );
}

#[tokio::test]
async fn a_delivered_step_is_asked_again_only_when_no_kept_answer_comes() {
    let flags = ["--cases", "1", "--on-lost", "reask", "--reask-after", "1s", "--cut-at", "10,20"];
    let mut gateway = Gateway::start(&flags).await;
    let mut agent = gateway.dial("a").await;
    agent.warm_up().await;
    agent.play(10).await;
    let (session, observation) = agent.observation().await;
    assert_eq!(agent.next().await, Got::End(None));
    gateway.disconnected().await;

    let mut agent = gateway.dial("a").await;
    agent.answer(&session, &policy(&observation)).await;
    agent.play(9).await;
    let (_, lost) = agent.observation().await;
    assert_eq!(agent.next().await, Got::End(None));
    gateway.disconnected().await;

    let mut agent = gateway.dial("a").await;
    let (_, again) = agent.observation().await;
    assert_eq!(again, lost, "the same step, byte for byte");
    agent.answer(&session, &policy(&again)).await;
    agent.play_out().await;
    let report = gateway.report().await;
    assert_eq!((report.solved, report.lost_exchanges, report.reasked), (1, 2, 1));
    assert_eq!((report.connections, report.duplicate_answers, report.faults_left), (3, 0, 0));
    assert_eq!(report.latency_ns.count, 498, "exchanges that a loss touched are no latency");
}

#[tokio::test]
async fn a_warm_up_that_was_cut_begins_again() {
    let mut gateway = Gateway::start(&["--cases", "1"]).await;
    let mut agent = gateway.dial("a").await;
    agent.expect("warmup").await;
    drop(agent);
    gateway.disconnected().await;
    gateway.dial("a").await.play_out().await;
    assert_eq!(gateway.report().await.solved, 1);
}

#[tokio::test]
async fn a_dial_that_ends_before_its_upgrade_keeps_no_job_alive() {
    let gateway = Gateway::start(&["--cases", "1", "--parallel-cap", "2", "--window", "200ms"]).await;
    for _ in 0..10 {
        let raw = gateway.dial_raw("gone").await;
        raw.set_zero_linger().unwrap();
        drop(raw);
    }
    sleep(Duration::from_millis(300)).await;
    let tried = gateway.try_dial(JOB, "a", TOKEN).await;
    // Where one of them was upgraded after all, its window has passed and the job is over; else it goes on.
    match tried {
        Ok(mut agent) => {
            agent.play_out().await;
            assert_eq!(gateway.report().await.solved, 1);
        }
        Err(_) => assert!(gateway.report().await.failure.is_some()),
    }
}
