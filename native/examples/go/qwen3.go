package main

// libqwen3 for Go: Open loads a model, Submit queues a request and gives a Stream of its events.
//
// Threads: one goroutine polls, in a C call that waits 100 ms at most; any goroutine may submit, read its stream and
// cancel. Only Open, Close and Next wait. The library's sentence about an error belongs to an OS thread, and Go moves
// goroutines between those: check keeps the thread from the call to the reading of the sentence.
// Ownership: C reads a request and its prompt during qwen3_submit only. The prompt is copied to C's memory, as C may not
// be given Go memory that has Go pointers in it.

// #cgo LDFLAGS: -lqwen3
// #include <qwen3.h>
// #include <stdlib.h>
import "C"

import (
	"context"
	"runtime"
	"sync"
	"unsafe"
)

// Event is a token, or the end of a request with its reason and its number of tokens.
type Event struct {
	Token  int32  `json:"token"`
	Finish string `json:"finish,omitempty"` // "" for a token
	Tokens int64  `json:"tokens,omitempty"`
}

type Sampling struct {
	MaxTokens   int64   `json:"max_tokens"`  // -1: until the context is full
	Temperature float32 `json:"temperature"` // 0: greedy
	Seed        uint64  `json:"seed"`
	IgnoreEOS   bool    `json:"ignore_eos"`
}

// Error is a status of qwen3.h with the library's sentence.
type Error struct {
	Status   int
	Sentence string
}

func (failure *Error) Error() string { return failure.Sentence }

type Engine struct {
	handle            *C.qwen3_engine
	stopping, stopped chan struct{}
	mutex             sync.Mutex // of all below, and of the events of all streams
	nextTag           uint64
	streams           map[uint64]*Stream // by tag, of requests that have not finished
}

// Stream holds the events of one request until its reader takes them, however many: a slow reader holds nobody up.
type Stream struct {
	engine *Engine
	id     C.uint64_t
	events []Event
	ready  chan struct{} // holds an element while events are there
}

func check(call func() C.qwen3_status) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if status := call(); status != C.QWEN3_OK {
		return &Error{int(status), C.GoString(C.qwen3_last_error())}
	}
	return nil
}

// Open loads a model with the default options, which takes seconds.
func Open(modelDir string) (*Engine, error) {
	if C.qwen3_abi_version() != C.QWEN3_ABI_VERSION {
		return nil, &Error{C.QWEN3_UNSUPPORTED, "this program and libqwen3.so are of different ABI versions"}
	}
	directory := C.CString(modelDir)
	defer C.free(unsafe.Pointer(directory))
	engine := &Engine{stopping: make(chan struct{}), stopped: make(chan struct{}), streams: map[uint64]*Stream{}}
	var handle *C.qwen3_engine
	err := check(func() C.qwen3_status { return C.qwen3_engine_open(directory, nil, &handle) })
	if err != nil {
		return nil, err
	}
	engine.handle = handle
	go engine.poll()
	return engine, nil
}

// Close waits for the poller, which must not call again, and frees the engine. Nothing may be called during it or later.
func (engine *Engine) Close() {
	close(engine.stopping)
	<-engine.stopped
	C.qwen3_engine_close(engine.handle)
}

// Submit queues a request. The poller knows its stream, by the tag, before the first event can come.
func (engine *Engine) Submit(prompt []int32, sampling Sampling) (*Stream, error) {
	var request C.qwen3_request
	C.qwen3_request_init(&request, C.sizeof_qwen3_request)
	copied := C.malloc(C.size_t(4 * (len(prompt) + 1)))
	defer C.free(copied)
	copy(unsafe.Slice((*int32)(copied), len(prompt)), prompt)
	request.prompt = (*C.int32_t)(copied)
	request.n_prompt = C.size_t(len(prompt))
	request.max_tokens = C.int64_t(sampling.MaxTokens)
	request.temperature = C.float(sampling.Temperature)
	request.seed = C.uint64_t(sampling.Seed)
	if sampling.IgnoreEOS {
		request.ignore_eos = 1
	}
	stream := &Stream{engine: engine, ready: make(chan struct{}, 1)}
	engine.mutex.Lock()
	engine.nextTag++
	tag := engine.nextTag
	engine.streams[tag] = stream
	engine.mutex.Unlock()
	request.tag = C.uint64_t(tag)
	var id C.uint64_t
	err := check(func() C.qwen3_status { return C.qwen3_submit(engine.handle, &request, &id) })
	if err != nil {
		engine.mutex.Lock()
		delete(engine.streams, tag)
		engine.mutex.Unlock()
		return nil, err
	}
	stream.id = id
	return stream, nil
}

// Next waits for events and takes all that are there; the last of a stream has Finish set. Nil: ctx is done, which has
// cancelled the request.
func (stream *Stream) Next(ctx context.Context) []Event {
	for {
		select {
		case <-ctx.Done():
			C.qwen3_cancel(stream.engine.handle, stream.id, -1) // it may have ended by itself, which is no failure
			return nil
		case <-stream.ready:
		}
		stream.engine.mutex.Lock()
		events := stream.events
		stream.events = nil
		stream.engine.mutex.Unlock()
		if len(events) > 0 { // else they were taken together with those before
			return events
		}
	}
}

func (stream *Stream) push(event Event) { // the caller holds the mutex
	stream.events = append(stream.events, event)
	select {
	case stream.ready <- struct{}{}:
	default: // the reader has been told
	}
}

// Stats says how many requests compute now, and how many have been cancelled.
func (engine *Engine) Stats() (running int32, cancelled uint64) {
	var stats C.qwen3_stats
	stats.struct_size = C.sizeof_qwen3_stats
	C.qwen3_engine_stats(engine.handle, &stats)
	return int32(stats.n_running), uint64(stats.samples_cancelled)
}

// poll is the one caller of qwen3_poll. When the engine has failed, or Close wants it to leave, all streams end.
func (engine *Engine) poll() {
	defer close(engine.stopped)
	reasons := map[C.qwen3_finish_reason]string{C.QWEN3_FINISH_STOP: "stop", C.QWEN3_FINISH_LENGTH: "length",
		C.QWEN3_FINISH_CANCELLED: "cancelled", C.QWEN3_FINISH_MATCHER: "matcher"}
	for running := true; running; {
		var events [64]C.qwen3_event
		var n C.size_t
		status := C.qwen3_poll(engine.handle, &events[0], C.sizeof_qwen3_event, 64, nil, 0, 100, &n)
		running = status == C.QWEN3_OK || status == C.QWEN3_TIMEOUT
		engine.mutex.Lock()
		for _, event := range events[:n] {
			stream := engine.streams[uint64(event.tag)]
			switch event.kind { // kinds of later versions are skipped
			case C.QWEN3_EVENT_TOKEN:
				stream.push(Event{Token: int32(event.token)})
			case C.QWEN3_EVENT_FINISHED:
				reason, known := reasons[event.finish_reason]
				if !known {
					reason = "error"
				}
				stream.push(Event{Token: -1, Finish: reason, Tokens: int64(event.n_generated)})
				delete(engine.streams, uint64(event.tag))
			}
		}
		select {
		case <-engine.stopping:
			running = false
		default:
		}
		engine.mutex.Unlock()
	}
	engine.mutex.Lock()
	defer engine.mutex.Unlock()
	for _, stream := range engine.streams {
		stream.push(Event{Token: -1, Finish: "error"})
	}
}
