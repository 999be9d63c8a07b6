//! Stands between a store and an etcd, and sends each transaction twice: the store receives the second answer only. So does a proxy that repeats
//! a request after it has lost the connection to a member (etcd#14890).

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use axum::body::Bytes;
use axum::http::{Request, Response, request};
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

/// A listener that forwards requests to a member until it is dropped.
pub(super) struct Doubling {
    endpoint: String,
    /// Transactions that were sent twice.
    doubled: Arc<AtomicU64>,
    /// The thread ends when the sender is dropped.
    thread: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Doubling {
    /// Begins to forward to `member`.
    pub(super) fn start(member: String) -> Doubling {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let endpoint = listener.local_addr().expect("it is bound").to_string();
        listener.set_nonblocking(true).expect("it is a socket");
        let (ends, ended) = oneshot::channel::<()>();
        let doubled = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&doubled);
        let accept = async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("it does not block");
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, member.clone(), Arc::clone(&count)));
            }
        };
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("it starts");
            runtime.block_on(async {
                tokio::select! {
                    () = accept => {}
                    _ = ended => {}
                }
            });
        });
        Doubling { endpoint, doubled, thread: Some((ends, thread)) }
    }

    /// Where it listens.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// How many transactions were sent twice, and answered both times.
    pub(super) fn count(&self) -> u64 {
        self.doubled.load(Ordering::Relaxed)
    }
}

impl Drop for Doubling {
    fn drop(&mut self) {
        if let Some((ends, thread)) = self.thread.take() {
            drop(ends);
            let _ = thread.join();
        }
    }
}

async fn serve(client: TcpStream, member: String, count: Arc<AtomicU64>) {
    let Ok(mut server) = h2::server::handshake(client).await else { return };
    let Ok(upstream) = TcpStream::connect(&member).await else { return };
    let Ok((requests, connection)) = h2::client::handshake(upstream).await else { return };
    tokio::spawn(connection);
    while let Some(Ok((request, answers))) = server.accept().await {
        let (head, body) = request.into_parts();
        let (requests, count) = (requests.clone(), Arc::clone(&count));
        tokio::spawn(async move {
            if !head.uri.path().ends_with("/Txn") {
                return once(head, body, answers, requests).await;
            }
            twice(head, body, answers, requests).await?;
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
    }
}

async fn send(
    requests: &SendRequest<Bytes>,
    head: request::Parts,
) -> Result<(h2::client::ResponseFuture, SendStream<Bytes>), h2::Error> {
    requests.clone().ready().await?.send_request(Request::from_parts(head, ()), false)
}

async fn once(
    head: request::Parts,
    mut body: RecvStream,
    answers: SendResponse<Bytes>,
    requests: SendRequest<Bytes>,
) -> Result<(), h2::Error> {
    let (answer, mut to) = send(&requests, head).await?;
    tokio::spawn(async move {
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            body.flow_control().release_capacity(chunk.len())?;
            to.send_data(chunk, false)?;
        }
        to.send_data(Bytes::new(), true)
    });
    pass_on(answer.await?, answers).await
}

async fn twice(
    head: request::Parts,
    mut body: RecvStream,
    answers: SendResponse<Bytes>,
    requests: SendRequest<Bytes>,
) -> Result<(), h2::Error> {
    let mut whole = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        whole.extend_from_slice(&chunk);
    }
    let whole = Bytes::from(whole);
    let (answer, mut to) = send(&requests, head.clone()).await?;
    to.send_data(whole.clone(), true)?;
    let mut lost = answer.await?.into_body();
    while let Some(chunk) = lost.data().await {
        let count = chunk?.len();
        lost.flow_control().release_capacity(count)?;
    }
    let (answer, mut to) = send(&requests, head).await?;
    to.send_data(whole, true)?;
    pass_on(answer.await?, answers).await
}

async fn pass_on(answer: Response<RecvStream>, mut answers: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let (head, mut body) = answer.into_parts();
    let ends = body.is_end_stream();
    let mut to = answers.send_response(Response::from_parts(head, ()), ends)?;
    if ends {
        return Ok(());
    }
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        to.send_data(chunk, false)?;
    }
    match body.trailers().await? {
        Some(trailers) => to.send_trailers(trailers),
        None => to.send_data(Bytes::new(), true),
    }
}
