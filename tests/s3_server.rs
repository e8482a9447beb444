//! A real S3 server on a local port: it stores objects as files of a temporary folder, checks signatures, counts
//! requests, and lets a test make any request fail.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3Result, s3_error};
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;

use crate::s3_connection::Breakable;
use crate::support::{labelmill, send_signal, stderr, temporary_folder};

/// The only access key that the server accepts.
pub const KEY_ID: &str = "AKIAMILLTESTKEY00001";
pub const SECRET: &str = "miLLTestSecret/NeverToBePrinted+0001";

/// The one bucket that exists at the start.
pub const BUCKET: &str = "crowd";

/// How long the server and a test wait for each other.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A fault in the answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The server answers with 503 and does not carry the request out.
    Busy,
    /// The server answers with 403: the key may not do this.
    Denied,
    /// The server answers with 501: it does not know the request.
    NotImplemented,
    /// The server answers with 404: there is no such object.
    NoSuchKey,
    /// The server answers with 412, whatever condition the request has.
    Unmatched,
    /// The server carries the request out and ignores its condition.
    Unconditional,
    /// Like `Busy`, after a request that matches this pattern came in.
    BusyAfter(&'static str),
    /// The server resets the connection and does not carry the request out.
    Reset,
    /// The server carries the request out and resets the connection after this many bytes of the response.
    Cut(usize),
    /// The server carries the request out and kills the client instead of answering.
    KillAfter,
    /// The request waits until [`Server::release`].
    Hold,
    /// From now on the connection moves this many bytes every ten milliseconds in each direction.
    Slow(usize),
    /// The server carries the request out, sends this many bytes of the response and then nothing more.
    Stall(usize),
}

/// A fault for requests whose line contains every word of `pattern`: for `times` of them, after the first `skip`. A word
/// may list alternatives, such as `Put|Delete`.
struct FaultPlan {
    fault: Fault,
    pattern: String,
    skip: usize,
    times: usize,
}

#[derive(Default)]
pub struct ServerState {
    root: PathBuf,
    requests: Mutex<Vec<String>>,
    plans: Mutex<Vec<FaultPlan>>,
    victim: Mutex<Option<u32>>,
    held: AtomicBool,
    /// The number of requests that wait for [`Server::release`].
    waiting: AtomicUsize,
}

/// The server; it stops when it is dropped.
pub struct Server {
    root: tempfile::TempDir,
    port: u16,
    state: Arc<ServerState>,
    runtime: Option<Runtime>,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(None)
    }

    /// A server with a small receive buffer: the system accepts few bytes before the server reads them.
    pub fn start_narrow() -> Self {
        Self::start_with(Some(64 << 10))
    }

    fn start_with(receive_buffer: Option<u32>) -> Self {
        let root = temporary_folder();
        std::fs::create_dir(root.path().join(BUCKET)).unwrap();
        let state =
            Arc::new(ServerState { root: root.path().to_path_buf(), ..ServerState::default() });
        let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(root.path()).unwrap());
        builder.set_auth(SimpleAuth::from_single(KEY_ID, SECRET));
        builder.set_access(Gate(Arc::clone(&state)));
        let service = builder.build();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(async {
            let socket = TcpSocket::new_v4().unwrap();
            if let Some(bytes) = receive_buffer {
                socket.set_recv_buffer_size(bytes).unwrap();
            }
            socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
            socket.listen(1024).unwrap()
        });
        let port = listener.local_addr().unwrap().port();
        runtime.spawn(serve(listener, service, Arc::clone(&state)));
        Self { root, port, state, runtime: Some(runtime) }
    }

    /// The bucket's objects, as files.
    pub fn bucket(&self) -> PathBuf {
        self.root.path().join(BUCKET)
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The real binary, with the endpoint and the credentials of this server in its environment.
    pub fn labelmill(&self, args: &[&str]) -> Command {
        let mut command = labelmill();
        command.args(args).env("AWS_ENDPOINT_URL", self.endpoint()).env("AWS_REGION", "us-east-1");
        command.env("AWS_ACCESS_KEY_ID", KEY_ID).env("AWS_SECRET_ACCESS_KEY", SECRET);
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.labelmill(args).output().unwrap()
    }

    /// Runs the binary, which must succeed.
    pub fn run_ok(&self, args: &[&str]) -> Output {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}\n{}", stderr(&output));
        output
    }

    pub fn fault(&self, fault: Fault, pattern: &str, skip: usize, times: usize) {
        self.state.held.fetch_or(fault == Fault::Hold, Ordering::SeqCst);
        let pattern = pattern.to_owned();
        self.state.plans.lock().unwrap().push(FaultPlan { fault, pattern, skip, times });
    }

    /// Removes all faults, releases held requests, and returns how many faults no request had met.
    pub fn forget_faults(&self) -> usize {
        self.release();
        self.forget_plans()
    }

    /// Removes the faults that no request has met, and returns how many; held requests stay held.
    pub fn forget_plans(&self) -> usize {
        std::mem::take(&mut *self.state.plans.lock().unwrap()).iter().map(|plan| plan.times).sum()
    }

    /// Lets held requests go on.
    pub fn release(&self) {
        self.state.held.store(false, Ordering::SeqCst);
    }

    /// The number of requests that are held now.
    pub fn n_held(&self) -> usize {
        self.state.waiting.load(Ordering::SeqCst)
    }

    /// The process that [`Fault::KillAfter`] kills.
    pub fn set_victim(&self, pid: Option<u32>) {
        *self.state.victim.lock().unwrap() = pid;
    }

    /// How many requests came in whose line, such as `PutObject /crowd/out/latest.json`, contains every word.
    pub fn count(&self, pattern: &str) -> usize {
        self.state.count(pattern)
    }

    /// The line of the n-th request.
    pub fn line(&self, n: usize) -> String {
        self.line_of("", n)
    }

    /// The line of the n-th request that matches the pattern.
    pub fn line_of(&self, pattern: &str, n: usize) -> String {
        let requests = self.state.requests.lock().unwrap();
        requests.iter().filter(|line| matches(line, pattern)).nth(n).cloned().unwrap_or_default()
    }

    pub fn forget_requests(&self) {
        self.state.requests.lock().unwrap().clear();
    }

    /// Waits until this many matching requests came in.
    pub fn wait_for(&self, pattern: &str, times: usize) {
        let start = Instant::now();
        while self.count(pattern) < times {
            assert!(start.elapsed() < REQUEST_TIMEOUT, "no request `{pattern}`");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn matches(line: &str, pattern: &str) -> bool {
    let has = |word: &str| word.split('|').any(|alternative| line.contains(alternative));
    pattern.split(' ').all(has)
}

impl ServerState {
    fn count(&self, pattern: &str) -> usize {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|line| matches(line, pattern)).count()
    }

    /// The fault that is due for a request; a request meets one at most.
    fn due(&self, line: &str) -> Option<Fault> {
        for plan in self.plans.lock().unwrap().iter_mut() {
            if plan.times > 0 && matches(line, &plan.pattern) {
                if plan.skip == 0 {
                    plan.times -= 1;
                    return Some(plan.fault);
                }
                plan.skip -= 1;
            }
        }
        None
    }

    /// Kills the victim as soon as the test has named it.
    pub fn kill(&self) {
        let start = Instant::now();
        while start.elapsed() < REQUEST_TIMEOUT {
            if let Some(pid) = self.victim.lock().unwrap().take() {
                return send_signal(pid, "KILL");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

tokio::task_local! {
    /// The fault of the connection whose request is being served: each connection is one task.
    static CONNECTION: Arc<Mutex<Option<Fault>>>;
}

/// Sees every request before it is carried out.
struct Gate(Arc<ServerState>);

#[async_trait::async_trait]
impl S3Access for Gate {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        if cx.credentials().is_none() {
            return Err(s3_error!(AccessDenied));
        }
        let line = format!("{} {}", cx.s3_op().name(), cx.uri());
        self.0.requests.lock().unwrap().push(line.clone());
        let fault = self.0.due(&line);
        match fault {
            None => {}
            Some(Fault::Busy) => return Err(s3_error!(SlowDown)),
            Some(Fault::BusyAfter(pattern)) => {
                while self.0.count(pattern) == 0 {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                return Err(s3_error!(SlowDown));
            }
            Some(Fault::NotImplemented) => return Err(s3_error!(NotImplemented)),
            Some(Fault::NoSuchKey) => return Err(s3_error!(NoSuchKey)),
            Some(Fault::Denied) => return Err(s3_error!(AccessDenied)),
            Some(Fault::Unconditional) => {}
            Some(Fault::Unmatched) => return Err(s3_error!(PreconditionFailed)),
            Some(Fault::Hold) => {
                self.0.waiting.fetch_add(1, Ordering::SeqCst);
                while self.0.held.load(Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                self.0.waiting.fetch_sub(1, Ordering::SeqCst);
            }
            Some(fault) => {
                CONNECTION.with(|connection| *connection.lock().unwrap() = Some(fault));
                if fault == Fault::Reset {
                    return Err(s3_error!(SlowDown));
                }
            }
        }
        // The file system behind the server differs from S3 here: a put would create a bucket, and a folder would be a
        // broken object.
        let bucket = self.0.root.join(cx.s3_path().get_bucket_name().unwrap_or_default());
        let object = bucket.join(cx.s3_path().get_object_key().unwrap_or_default());
        if !bucket.is_dir() {
            return Err(s3_error!(NoSuchBucket));
        }
        if fault == Some(Fault::Unconditional) {
            let _ = std::fs::remove_file(&object);
        }
        match cx.s3_op().name() {
            "HeadObject" | "GetObject" if object.is_dir() => Err(s3_error!(NoSuchKey)),
            _ => Ok(()),
        }
    }
}

async fn serve(listener: TcpListener, service: S3Service, state: Arc<ServerState>) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let (service, state) = (service.clone(), Arc::clone(&state));
        tokio::spawn(async move {
            let fault = Arc::default();
            let stream = Breakable::new(stream, Arc::clone(&fault), state);
            let http = Builder::new(TokioExecutor::new());
            let _ =
                CONNECTION.scope(fault, http.serve_connection(TokioIo::new(stream), service)).await;
        });
    }
}
