//! A real S3 server on a port of this machine: objects are files of a temporary folder, requests are signed and
//! counted, and any of them can be made to fail.

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
use crate::support::{labelmill, send_signal, stderr};

/// The only key that the server knows.
pub const KEY_ID: &str = "AKIAMILLTESTKEY00001";
pub const SECRET: &str = "miLLTestSecret/NeverToBePrinted+0001";

/// The one bucket that exists at the start.
pub const BUCKET: &str = "crowd";

/// How long the server waits for what a test promised.
const PATIENCE: Duration = Duration::from_secs(60);

/// What befalls a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is answered with 503 and not carried out.
    Busy,
    /// It is answered with 403: the key may not do this.
    Denied,
    /// It is answered with 412, whatever its condition.
    Unmatched,
    /// It is carried out, as if it had no condition.
    Unconditional,
    /// The same, once a request of this pattern came in.
    BusyAfter(&'static str),
    /// The connection is reset, and it is not carried out.
    Reset,
    /// It is carried out, and the connection is reset after so many bytes of the answer.
    Cut(usize),
    /// It is carried out, and the client is killed instead of being answered.
    KillAfter,
    /// It waits until [`Server::release`].
    Hold,
    /// From now on its connection moves so many bytes every ten milliseconds, either way.
    Slow(usize),
    /// The same, until so many bytes of the answer were sent; no byte comes after them.
    Stall(usize),
}

/// A fault of the requests whose line holds every word of `pattern`: of `times`, after the first `skip`.
struct Plan {
    fault: Fault,
    pattern: String,
    skip: usize,
    times: usize,
}

#[derive(Default)]
pub struct State {
    root: PathBuf,
    requests: Mutex<Vec<String>>,
    plans: Mutex<Vec<Plan>>,
    victim: Mutex<Option<u32>>,
    held: AtomicBool,
    /// Requests that wait for [`Server::release`].
    waiting: AtomicUsize,
}

/// The server; it stops when it is dropped.
pub struct Server {
    root: tempfile::TempDir,
    port: u16,
    state: Arc<State>,
    runtime: Option<Runtime>,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(None)
    }

    /// A server whose system takes in few bytes that the server has not asked for yet.
    pub fn start_narrow() -> Self {
        Self::start_with(Some(64 << 10))
    }

    fn start_with(receive_buffer: Option<u32>) -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join(BUCKET)).unwrap();
        let state = Arc::new(State { root: root.path().to_path_buf(), ..State::default() });
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

    /// The real binary, told about this server by its environment alone.
    pub fn labelmill(&self, args: &[&str]) -> Command {
        let mut command = labelmill();
        command.args(args).env("AWS_ENDPOINT_URL", self.endpoint()).env("AWS_REGION", "us-east-1");
        command.env("AWS_ACCESS_KEY_ID", KEY_ID).env("AWS_SECRET_ACCESS_KEY", SECRET);
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.labelmill(args).output().unwrap()
    }

    /// Runs the binary, which must end well.
    pub fn run_ok(&self, args: &[&str]) -> Output {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}\n{}", stderr(&output));
        output
    }

    pub fn fault(&self, fault: Fault, pattern: &str, skip: usize, times: usize) {
        self.state.held.fetch_or(fault == Fault::Hold, Ordering::SeqCst);
        let pattern = pattern.to_owned();
        self.state.plans.lock().unwrap().push(Plan { fault, pattern, skip, times });
    }

    /// Forgets the faults, lets requests that are held go on, and returns how many faults were still to come.
    pub fn forget_faults(&self) -> usize {
        self.release();
        self.forget_plans()
    }

    /// Forgets the faults that are still to come, and returns how many: requests that are held stay held.
    pub fn forget_plans(&self) -> usize {
        std::mem::take(&mut *self.state.plans.lock().unwrap()).iter().map(|plan| plan.times).sum()
    }

    /// Lets requests that are held go on.
    pub fn release(&self) {
        self.state.held.store(false, Ordering::SeqCst);
    }

    /// Requests that are held now.
    pub fn n_held(&self) -> usize {
        self.state.waiting.load(Ordering::SeqCst)
    }

    /// The process that [`Fault::KillAfter`] kills.
    pub fn set_victim(&self, pid: Option<u32>) {
        *self.state.victim.lock().unwrap() = pid;
    }

    /// How many requests came in whose line, such as `PutObject /crowd/out/latest.json`, holds every word.
    pub fn count(&self, pattern: &str) -> usize {
        self.state.count(pattern)
    }

    /// The n-th request.
    pub fn line(&self, n: usize) -> String {
        self.state.requests.lock().unwrap().get(n).cloned().unwrap_or_default()
    }

    pub fn forget_requests(&self) {
        self.state.requests.lock().unwrap().clear();
    }

    /// Waits until so many requests came in.
    pub fn wait_for(&self, pattern: &str, times: usize) {
        let start = Instant::now();
        while self.count(pattern) < times {
            assert!(start.elapsed() < PATIENCE, "no request `{pattern}`");
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
    pattern.split(' ').all(|word| line.contains(word))
}

impl State {
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

    /// Kills the victim, once the test has named it.
    pub fn kill(&self) {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(pid) = self.victim.lock().unwrap().take() {
                return send_signal(pid, "KILL");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

tokio::task_local! {
    /// What is to befall the connection whose request is being served: a connection is one task.
    static CONNECTION: Arc<Mutex<Option<Fault>>>;
}

/// Sees every request before it is carried out.
struct Gate(Arc<State>);

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
        // What the file system behind the server would answer as no S3 does: buckets come into being by a put, and
        // folders are broken objects.
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

async fn serve(listener: TcpListener, service: S3Service, state: Arc<State>) {
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
