//! `tunnel` and `record`.

use sidecar_core::record::{MAX_RECORD, ToSidecar, ToWorker, decode, encode};
use sidecar_core::tunnel::control::{
    Control, ControlLexer, MAX_SESSION_CLOSE, write_ready, write_session_close,
};
use sidecar_core::tunnel::data::{DataHead, MAX_DATA_HEAD, Progress, data_head_size, encode_data_head, skip_data_head};
use sidecar_core::tunnel::{AgentId, Epoch, JobId, SessionId, clip};

use crate::Proof;
use crate::codec::is_told;

pub(crate) fn run() -> Proof {
    let session = SessionId::new("s-1").map_err(|_| line!())?;
    ensure!(AgentId::new("").is_err_and(|error| is_told(&error)));
    ensure!(JobId::new("j").is_ok_and(|job| job.as_str() == "j"));
    control(&session)?;
    data(&session)?;
    record(session)
}

fn control(session: &SessionId) -> Proof {
    let mut text = [0; MAX_SESSION_CLOSE];
    let mut lexer = ControlLexer::new();
    let length = write_ready(&mut text).map_err(|_| line!())?;
    ensure!(lexer.feed(&text[..length]).is_ok() && lexer.finish() == Ok(Control::Ready));
    let length = write_session_close(session, "done\n", &mut text).map_err(|_| line!())?;
    ensure!(lexer.feed(&text[..length]).is_ok());
    let expected = Control::SessionClose { session: session.clone(), reason: clip("done\n") };
    ensure!(lexer.finish() == Ok(expected));
    ensure!(lexer.feed(b"[]").is_err_and(|error| is_told(&error)));
    ensure!(write_ready(&mut []).is_err_and(|error| is_told(&error)));
    Ok(())
}

fn data(session: &SessionId) -> Proof {
    let mut bytes = [0; MAX_DATA_HEAD];
    let length = encode_data_head(session, &mut bytes);
    ensure!(data_head_size(session) == length && skip_data_head(&bytes, session) == Some(length));
    let mut head = DataHead::new();
    ensure!(head.feed(&bytes[..3]) == Ok(Progress::NeedMore) && head.missing() == 1);
    ensure!(head.finish().is_err_and(|error| is_told(&error)));
    ensure!(head.feed(&bytes[3..]) == Ok(Progress::Complete { consumed: length - 3 }));
    ensure!(head.session() == Some("s-1"));
    head.reset();
    ensure!(head.feed(&[0xff; 4]).is_err_and(|error| is_told(&error)));
    Ok(())
}

fn record(session: SessionId) -> Proof {
    let mut bytes = [0; MAX_RECORD];
    let opened = ToWorker::SessionOpened { session, epoch: Epoch(1), resumed: false };
    let length = encode(&opened, &mut bytes).map_err(|_| line!())?;
    ensure!(decode(&bytes[..length]) == Ok(opened));
    let failed = ToSidecar::Failed { sequence: 1, message: clip("no") };
    let length = encode(&failed, &mut bytes).map_err(|_| line!())?;
    ensure!(decode(&bytes[..length]) == Ok(failed));
    ensure!(decode::<ToSidecar>(&bytes[..1]).is_err_and(|error| is_told(&error)));
    Ok(())
}
