//! libqwen3 for Rust, with std alone: `Engine` opens a model, `submit` gives a `Stream` of a request's events.
//!
//! Threads: one polls and hands each event to its stream's channel; any thread may submit, read its stream and cancel.
//! None of these waits for computation but reading a stream. Ownership: a `Stream` borrows its `Engine`, which is the
//! header's rule that nothing may be called once the engine is closed. Errors are the library's sentences.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::raw::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::{mem, ptr, thread};

/// What this host needs of qwen3.h, with the header's names, order and types. The sizes are those of ABI version 1.
#[rustfmt::skip]
pub mod ffi {
    use std::os::raw::{c_char, c_void};
    #[repr(C)] pub struct Request {
        pub struct_size: usize, pub prompt: *const i32, pub n_prompt: usize, pub max_tokens: i64, pub min_tokens: i64,
        pub n: i32, pub priority: i32, pub logit_bias: *const c_void, pub n_logit_bias: usize,
        pub repetition_penalty: f32, pub presence_penalty: f32, pub frequency_penalty: f32, pub temperature: f32,
        pub min_p: f32, pub top_p: f32, pub top_k: i32, pub ignore_eos: i32, pub seed: u64,
        pub stop_ids: *const i32, pub n_stop_ids: usize, pub logprobs: i32, pub top_logprobs: i32,
        pub prompt_logprobs: i32, pub constrained: i32, pub cache_salt: *const c_char, pub tag: u64,
    }
    #[repr(C)] #[derive(Clone, Copy)] pub struct Event {
        pub request: u64, pub tag: u64, pub kind: i32, pub sample: i32, pub token: i32, pub logprob: f32,
        pub n_logprobs: u32, pub first_logprob: u32, pub finish_reason: i32, pub reserved: i32, pub index: i64,
        pub time_ns: i64, pub n_prompt: i64, pub n_cached: i64, pub n_generated: i64, pub queued_ns: i64,
        pub started_ns: i64, pub first_token_ns: i64,
    }
    const _: () = assert!(std::mem::size_of::<Request>() == 152 && std::mem::size_of::<Event>() == 112);
    pub const ABI_VERSION: u32 = 1;
    pub const OK: i32 = 0;
    pub const TIMEOUT: i32 = 8;
    pub const EVENT_TOKEN: i32 = 1;
    pub const EVENT_FINISHED: i32 = 3;
    #[link(name = "qwen3")] extern "C" {
        pub fn qwen3_abi_version() -> u32;
        pub fn qwen3_last_error() -> *const c_char;
        pub fn qwen3_engine_open(model_dir: *const c_char, options: *const c_void, engine: *mut *mut c_void) -> i32;
        pub fn qwen3_engine_close(engine: *mut c_void);
        pub fn qwen3_request_init(request: *mut Request, struct_size: usize) -> i32;
        pub fn qwen3_submit(engine: *mut c_void, request: *const Request, id: *mut u64) -> i32;
        pub fn qwen3_cancel(engine: *mut c_void, id: u64, sample: i32) -> i32;
        pub fn qwen3_poll(engine: *mut c_void, events: *mut Event, event_size: usize, capacity: usize,
            logprobs: *mut c_void, logprobs_capacity: usize, timeout_ms: i32, n: *mut usize) -> i32;
    }
}

/// The library's sentence, if the call failed. It belongs to the calling thread, so it is read at once.
fn check(status: i32) -> Result<(), String> {
    if status == ffi::OK {
        return Ok(());
    }
    Err(unsafe { CStr::from_ptr(ffi::qwen3_last_error()) }.to_string_lossy().into_owned())
}

struct Shared {
    handle: *mut c_void,
    streams: Mutex<HashMap<u64, Sender<ffi::Event>>>, // by tag, of requests that have not finished
    stopping: AtomicBool,
    next_tag: AtomicU64,
}
unsafe impl Send for Shared {} // the header: all functions may be called from any thread
unsafe impl Sync for Shared {}

pub struct Engine {
    shared: Arc<Shared>,
    poller: Option<thread::JoinHandle<()>>,
}

pub struct Sampling {
    pub max_tokens: i64,  // -1: until the context is full
    pub temperature: f32, // 0: greedy
    pub seed: u64,
    pub ignore_eos: bool,
}

impl Engine {
    /// Loads a model with the default options, which takes seconds.
    pub fn open(model_dir: &str) -> Result<Engine, String> {
        let version = unsafe { ffi::qwen3_abi_version() };
        if version != ffi::ABI_VERSION {
            return Err(format!("built for ABI version {}, but the library has {}", ffi::ABI_VERSION, version));
        }
        let directory = CString::new(model_dir).map_err(|_| "a path holds no NUL".to_string())?;
        let mut handle = ptr::null_mut();
        check(unsafe { ffi::qwen3_engine_open(directory.as_ptr(), ptr::null(), &mut handle) })?;
        let shared = Arc::new(Shared {
            handle,
            streams: Mutex::default(),
            stopping: AtomicBool::new(false),
            next_tag: AtomicU64::new(1),
        });
        let polled = shared.clone();
        Ok(Engine { shared, poller: Some(thread::spawn(move || poll(&polled))) })
    }

    /// Queues a request. The poller knows its stream, by the tag, before the first event can come.
    pub fn submit(&self, prompt: &[i32], sampling: &Sampling) -> Result<Stream<'_>, String> {
        let mut request: ffi::Request = unsafe { mem::zeroed() };
        check(unsafe { ffi::qwen3_request_init(&mut request, mem::size_of::<ffi::Request>()) })?;
        request.prompt = prompt.as_ptr(); // read during qwen3_submit only
        request.n_prompt = prompt.len();
        request.max_tokens = sampling.max_tokens;
        request.temperature = sampling.temperature;
        request.seed = sampling.seed;
        request.ignore_eos = sampling.ignore_eos as i32;
        request.tag = self.shared.next_tag.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = channel();
        self.shared.streams.lock().unwrap().insert(request.tag, sender);
        let mut id = 0;
        if let Err(sentence) = check(unsafe { ffi::qwen3_submit(self.shared.handle, &request, &mut id) }) {
            self.shared.streams.lock().unwrap().remove(&request.tag);
            return Err(sentence);
        }
        Ok(Stream { engine: self, id, events, ended: false })
    }
}

impl Drop for Engine {
    /// The poller leaves before the engine is closed, as it must not call again afterwards.
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        let _ = self.poller.take().map(|poller| poller.join());
        unsafe { ffi::qwen3_engine_close(self.shared.handle) }
    }
}

/// The one caller of qwen3_poll. Waits 100 ms at most, to see `stopping`. When it leaves, all streams end.
fn poll(shared: &Shared) {
    const SIZE: usize = mem::size_of::<ffi::Event>();
    let mut events: [ffi::Event; 64] = unsafe { mem::zeroed() };
    while !shared.stopping.load(Ordering::Relaxed) {
        let mut n = 0;
        let out = events.as_mut_ptr();
        let status = unsafe { ffi::qwen3_poll(shared.handle, out, SIZE, 64, ptr::null_mut(), 0, 100, &mut n) };
        if status != ffi::OK && status != ffi::TIMEOUT {
            break;
        }
        let mut streams = shared.streams.lock().unwrap();
        for event in &events[..n] {
            if let Some(sender) = streams.get(&event.tag) {
                let _ = sender.send(*event); // fails when the stream was dropped
            }
            if event.kind == ffi::EVENT_FINISHED {
                streams.remove(&event.tag);
            }
        }
    }
    shared.streams.lock().unwrap().clear();
}

/// The events of one request, FINISHED the last. Dropping it before that cancels the request.
pub struct Stream<'a> {
    engine: &'a Engine,
    id: u64,
    events: Receiver<ffi::Event>,
    ended: bool,
}

impl Stream<'_> {
    /// The request still gets its FINISHED. That it has ended by itself in the meantime is no failure.
    pub fn cancel(&self) {
        let _ = unsafe { ffi::qwen3_cancel(self.engine.shared.handle, self.id, -1) };
    }
}

impl Iterator for Stream<'_> {
    type Item = ffi::Event;
    fn next(&mut self) -> Option<ffi::Event> {
        let event = if self.ended { None } else { self.events.recv().ok() };
        self.ended = event.map_or(true, |event| event.kind == ffi::EVENT_FINISHED);
        event
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.cancel();
        }
    }
}
