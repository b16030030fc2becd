//! Engines that must be on a GPU.

use engine_host::{
    engine::{self, EngineError, Outcome},
    fault::{Exit, Fault as _},
};
use tokio_util::sync::CancellationToken;

use crate::room::Room;

#[tokio::test]
async fn buffers_on_the_gpu_are_believed_and_others_are_not() {
    let room = Room::new();
    let mut job = room.job(&["--print-line", "CUDA0 buffer size = 900 MiB"]);
    job.gpu_percent = Some(90);
    let engine = room.start(&job).await;
    engine.stop(&CancellationToken::new()).await.unwrap();
    let told = ["launch", "on-gpu", "ready", "handoff", "stop"];
    assert_eq!(room.heard.actions(), told);
    let parts = job.parts();
    let mut request = parts.request(&job, &room.keeper, &room.narrator, &room.cancel);
    request.driver_memory = Some(&|tree| {
        assert!(!tree.is_empty() && tree.iter().all(|process| process.is_alive()));
        Box::pin(async { Some(0) })
    });
    let error = engine::start(request).await.unwrap_err();
    assert!(
        error.to_string().contains("the driver knows of no memory"),
        "{error}"
    );
    // A driver that has no word, or knows of memory, is no hindrance.
    for word in [None, Some(1 << 30)] {
        let answers: Box<engine::DriverMemory> = Box::new(move |_| Box::pin(async move { word }));
        let mut request = parts.request(&job, &room.keeper, &room.narrator, &room.cancel);
        request.driver_memory = Some(&*answers);
        let Ok(Outcome::Started(engine)) = engine::start(request).await else {
            panic!("{word:?} is no disproof")
        };
        engine.stop(&CancellationToken::new()).await.unwrap();
    }

    job.faults = vec!["--print-line".into(), "CPU buffer size = 900 MiB".into()];
    let error = room.fail(&job).await;
    assert_eq!(error.kind(), "not-on-gpu");
    room.assert_empty().await;
}

#[tokio::test]
async fn a_required_gpu_that_cannot_be_proven_is_refused_before_anything_starts() {
    let room = Room::new();
    let mut job = room.job(&[]);
    job.gpu_percent = Some(90);
    let mut parts = job.parts();
    parts.prepared.gpu_evidence = None;
    let error = room.start_parts(&job, &parts).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.exit()),
        ("no-gpu-evidence", Exit::Provider)
    );
    assert!(room.keeper.process().is_none(), "no keeper was needed");
}

#[tokio::test]
async fn where_the_driver_must_know_of_the_engine_its_silence_is_no_proof() {
    let room = Room::new();
    let mut job = room.job(&["--print-line", "running on cuda"]);
    job.gpu_percent = Some(90);
    let mut parts = job.parts();
    parts.prepared.gpu_evidence = Some(engine_provider_api::GpuEvidence {
        proofs: vec!["running on cuda".to_owned()],
        driver_memory: true,
        ..engine_provider_api::GpuEvidence::default()
    });
    let error = room.start_parts(&job, &parts).await.unwrap_err();
    assert!(matches!(error, EngineError::NotOnGpu { .. }), "{error:?}");
    room.assert_empty().await;
}
