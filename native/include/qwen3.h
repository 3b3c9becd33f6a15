/* qwen3.h - the C ABI of libqwen3: a continuous-batching inference engine for dense Qwen3 models.
 *
 * Token ids in, token ids out. The library loads a model directory as published (config.json, *.safetensors), runs it on
 * a GPU or on the CPU, and serves many requests at once from one worker thread of its own. It knows no text: tokenizing,
 * chat templates and stop strings are the host's. This header is plain C11 and compiles as C++.
 *
 * A complete host:
 *
 *   //example
 *   qwen3_options options;
 *   qwen3_options_init(&options, sizeof options);
 *   qwen3_engine* engine = NULL;
 *   if (qwen3_engine_open("models/qwen3-8b", &options, &engine) != QWEN3_OK) {
 *     fprintf(stderr, "%s\n", qwen3_last_error());
 *     return 1;
 *   }
 *   int32_t prompt[] = {9707, 11, 1879, 0};
 *   qwen3_request request;
 *   qwen3_request_init(&request, sizeof request);
 *   request.prompt = prompt;
 *   request.n_prompt = 4;
 *   request.max_tokens = 16;
 *   uint64_t id = 0;
 *   if (qwen3_submit(engine, &request, &id) != QWEN3_OK) {
 *     fprintf(stderr, "%s\n", qwen3_last_error());
 *     return 1;
 *   }
 *   for (int running = 1; running;) {
 *     qwen3_event events[64];
 *     size_t n = 0;
 *     qwen3_status status = qwen3_poll(engine, events, sizeof events[0], 64, NULL, 0, 1000, &n);
 *     if (status != QWEN3_OK && status != QWEN3_TIMEOUT) break;
 *     for (size_t i = 0; i < n; i++) {
 *       if (events[i].kind == QWEN3_EVENT_TOKEN) printf("%d\n", (int)events[i].token);
 *       if (events[i].kind == QWEN3_EVENT_FINISHED) running = 0;
 *     }
 *   }
 *   qwen3_engine_close(engine);
 *   //end
 *
 * Conventions
 * - Every function that can fail returns a qwen3_status; the sentence for a person comes from qwen3_last_error() on the
 *   thread that made the call. A failed call changes nothing unless its comment says so.
 * - All functions may be called from any thread at any time, except that nothing may be called with an engine once
 *   qwen3_engine_close has been called with it (calls that are blocked inside qwen3_poll then return QWEN3_CLOSED).
 * - Pointers passed in are read during the call only; the library keeps no pointer of the host's but the callbacks'
 *   `user` values and the matchers of qwen3_request_matcher. Memory written to is always the caller's.
 * - Structs begin with `struct_size`; call the _init function, which sets it and the defaults, then change what you
 *   need. A zero keeps its plain meaning (temperature 0 is greedy). Structs with a struct_size only ever grow at their
 *   end; in a field that a later version adds, zero means "as before".
 * - The library never calls exit() or abort(), installs no signal handler and writes to none of the host's descriptors.
 * - Unless said otherwise, everything here exists since ABI version 1.
 */
#ifndef QWEN3_H
#define QWEN3_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define QWEN3_API __attribute__((visibility("default")))
#else
#define QWEN3_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define QWEN3_ABI_VERSION 1

/* Longest list of alternatives that logprobs may ask for (qwen3_request.top_logprobs). */
#define QWEN3_MAX_TOP_LOGPROBS 20

/* ------------------------------------------------------------------------------------------------ status and version */

typedef int32_t qwen3_status;
enum {
  QWEN3_OK = 0,
  QWEN3_INVALID_ARGUMENT = 1, /* a NULL, a number out of range, a struct_size that is too small */
  QWEN3_NOT_FOUND = 2,        /* no such directory, request or sample (or it has ended) */
  QWEN3_BAD_MODEL = 3,        /* a file of the model directory is missing, broken or contradicts another */
  QWEN3_UNSUPPORTED = 4,      /* a sound model, or a device, that this library cannot run */
  QWEN3_OUT_OF_MEMORY = 5,    /* host memory, device memory or KV blocks */
  QWEN3_CONTEXT_OVERFLOW = 6, /* prompt and output can never fit the context or the KV pool */
  QWEN3_QUEUE_FULL = 7,       /* options.max_queue requests are waiting already; try again later */
  QWEN3_TIMEOUT = 8,          /* qwen3_poll: no event within the time given */
  QWEN3_CLOSED = 9,           /* the engine is being closed */
  QWEN3_DEVICE_ERROR = 10,    /* the device failed; the engine takes no more work */
  QWEN3_INTERNAL = 11,        /* a bug in this library */
  QWEN3_CANCELLED = 12        /* the progress callback asked qwen3_engine_open to stop */
};

/* The ABI version of the loaded library: compare with QWEN3_ABI_VERSION. Never fails, never blocks. */
QWEN3_API uint32_t qwen3_abi_version(void);

/* The library's release, like "0.1.0". Static memory. Never fails, never blocks. */
QWEN3_API const char* qwen3_version(void);

/* The name of a status, like "QWEN3_BAD_MODEL"; "unknown status" for any other value. Static memory. Never blocks. */
QWEN3_API const char* qwen3_status_name(qwen3_status status);

/* One sentence about the last call that failed on the calling thread; "" if none has. Owned by the library, valid until
 * the same thread's next failing call. Never blocks. */
QWEN3_API const char* qwen3_last_error(void);

/* ------------------------------------------------------------------------------------------------------------ options */

typedef int32_t qwen3_log_level;
enum { QWEN3_LOG_DEBUG = 0, QWEN3_LOG_INFO = 1, QWEN3_LOG_WARNING = 2, QWEN3_LOG_ERROR = 3 };

/* Receives one log line (UTF-8, no newline, valid during the call). Called from the opening thread, from the worker thread
 * and from those that ask matchers (qwen3_request_matcher), also from several at once; it must be quick, must not call
 * the library and must not throw or longjmp. */
typedef void (*qwen3_log_callback)(void* user, qwen3_log_level level, const char* line);

/* Called on the opening thread while qwen3_engine_open works: `phase` is a static string ("map": the files, "weights",
 * "kv": workspace and KV pool), done and total are bytes or steps of that phase. Return 0 to go on, anything else to
 * stop: open then returns QWEN3_CANCELLED. */
typedef int32_t (*qwen3_progress_callback)(void* user, const char* phase, uint64_t done, uint64_t total);

typedef struct qwen3_options {
  size_t struct_size;
  const char* device;        /* "auto" (a usable GPU, else the CPU), "cpu", "cuda:N". NULL or "": "auto" */
  const char* kernels;       /* "auto" (the best for the device), or a lower one to compare with: on the CPU "scalar",
                                "avx2", "avx512", "avx512bf16"; on a GPU "generic". NULL or "": "auto" */
  int64_t max_context;       /* tokens of the longest request, prompt and output. 0: what the model allows, lowered to
                                what the KV pool holds. More than the model allows: QWEN3_INVALID_ARGUMENT */
  int32_t max_slots;         /* requests (samples) that run at once, 1..4096. 0 (default): 32 on the CPU, 256 on a GPU */
  int32_t token_budget;      /* tokens computed in one step, 16..65536; caps the slots that are used. 0 (default): 512 on
                                the CPU; 8192 on a GPU, less where the workspace for that would take more than an eighth
                                of what the weights leave */
  int32_t max_queue;         /* requests that may wait. Default 1024. 0: none but those that can start at once */
  int32_t threads;           /* CPU backend: threads that compute, the worker included. 0: one per usable core */
  uint64_t kv_bytes;         /* size of the KV pool. 0: chosen from free memory and max_context; on a GPU all that
                                gpu_memory_fraction leaves */
  int32_t prefix_cache;      /* nonzero: keep and share the KV of common prompt beginnings. Default 1 */
  int32_t n_token_ids;       /* ids 0..n-1 have a token and may be sampled; the rest of a padded vocabulary never is.
                                0: all of the model's vocab */
  double yarn_factor;        /* extend the context by YaRN with this factor (1 < f <= 64). 0: as the config says */
  qwen3_log_level log_level; /* lowest level that reaches the callback. Default QWEN3_LOG_INFO */
  int32_t prefill_spread;    /* while requests decode, a step takes about 1/n of the prompt tokens that wait, 0..4096: even
                                streams, for a server. 0 (default): prompts fill the token budget, which ends a given
                                set of requests soonest */
  qwen3_log_callback log;    /* NULL: no logs */
  void* log_user;
  qwen3_progress_callback progress; /* NULL: none */
  void* progress_user;
  double gpu_memory_fraction; /* share of all of a GPU's memory that weights, workspace, recorded steps and KV pool may
                                 take together, 0 < f <= 1; never more than is free. A pool given by kv_bytes is bound by
                                 the free memory alone. 0: 0.9 */
} qwen3_options;

/* Fills `options` with the defaults above. struct_size: sizeof(qwen3_options) as the host compiled it.
 * QWEN3_INVALID_ARGUMENT: NULL, or a size smaller than ABI version 1's. Never blocks. */
QWEN3_API qwen3_status qwen3_options_init(qwen3_options* options, size_t struct_size);

/* ------------------------------------------------------------------------------------------------------------- engine */

typedef struct qwen3_engine qwen3_engine;

/* Says whether a model of this shape can run at all, from model_dir/config.json and, where it is there,
 * generation_config.json: the first thing that qwen3_engine_open asks. Looks at no weights and no device, so that a host
 * can ask before it downloads them. Blocks while two small files are read.
 * QWEN3_INVALID_ARGUMENT: NULL. QWEN3_NOT_FOUND: no directory, no config.json. QWEN3_BAD_MODEL: a broken file.
 * QWEN3_UNSUPPORTED: an architecture or a feature that this library does not have; see the sentence. */
QWEN3_API qwen3_status qwen3_config_check(const char* model_dir);

/* Loads the model and starts the worker thread.
 * model_dir: directory with config.json and *.safetensors. options: NULL for the defaults. engine (out): set to NULL on
 * failure. Blocks while files are mapped and weights reach the device (seconds).
 * QWEN3_INVALID_ARGUMENT: an option is out of range. QWEN3_NOT_FOUND, QWEN3_BAD_MODEL, QWEN3_UNSUPPORTED: see the
 * sentence. QWEN3_OUT_OF_MEMORY: weights or KV pool do not fit. QWEN3_DEVICE_ERROR: the device cannot be used.
 * QWEN3_CANCELLED: by the progress callback. The model's files must not change while the engine is open. */
QWEN3_API qwen3_status qwen3_engine_open(const char* model_dir, const qwen3_options* options, qwen3_engine** engine);

/* Ends all requests without further events, stops the worker and frees everything. NULL is a no-op. Blocks until the
 * step in progress is done and all threads inside other calls have left. Closing with live requests is legal;
 * sequences (qwen3_sequence) must be closed before. */
QWEN3_API void qwen3_engine_close(qwen3_engine* engine);

#define QWEN3_MAX_EOS_IDS 8

/* What was loaded and what it got. All sizes in bytes, all lengths in tokens. */
typedef struct qwen3_info {
  size_t struct_size;
  int32_t hidden, intermediate, n_layers, n_heads, n_kv_heads, head_dim, vocab; /* the model's shape */
  int32_t tied;               /* 1: lm_head is the embedding table */
  int32_t n_token_ids;        /* sampleable ids */
  int32_t n_eos_ids;          /* ids that end a request unless ignore_eos: of config.json and generation_config.json */
  int32_t eos_ids[QWEN3_MAX_EOS_IDS];
  int64_t n_parameters;
  int64_t max_context;        /* longest request that this engine takes */
  int64_t model_max_context;  /* longest that the model was made for (with YaRN if that is on) */
  int64_t block_size;         /* tokens of one KV block */
  int64_t n_blocks;           /* KV blocks in the pool */
  int32_t max_slots;          /* requests that run at once: options.max_slots, capped by the token budget */
  int32_t token_budget;
  int32_t threads;            /* CPU backend; else 0 */
  int32_t prefix_cache;
  uint64_t weight_bytes;      /* read by the device: mapped file pages on the CPU, device memory on a GPU */
  uint64_t kv_bytes;
  uint64_t workspace_bytes;   /* activations, logits, tables */
  uint64_t free_bytes;        /* memory of the device that was available before opening; 0: unknown */
  double open_seconds;        /* time that qwen3_engine_open took */
  char device[64];            /* "cpu", "cuda:0" */
  char device_name[128];      /* the processor's or GPU's name */
  char kernels[32];           /* the kernels in use: "avx512bf16", "generic", ... */
  uint64_t graph_bytes;       /* GPU: kept free for recorded steps; else 0 */
  uint64_t total_bytes;       /* GPU: all of its memory; else 0 */
  uint64_t coded_bytes;       /* GPU: the weights once more, losslessly coded, for steps of few tokens; 0: not kept */
} qwen3_info;

/* Fills `info`. Its struct_size must be set by the caller. QWEN3_INVALID_ARGUMENT: NULL or too small. Never blocks. */
QWEN3_API qwen3_status qwen3_engine_info(const qwen3_engine* engine, qwen3_info* info);

#define QWEN3_STEP_SIZES 17

/* Counters since the engine was opened, and gauges of now. */
typedef struct qwen3_stats {
  size_t struct_size;
  /* gauges */
  int32_t failed;             /* 1: the device failed; nothing runs any more */
  int32_t n_running;          /* samples that hold a slot */
  int32_t n_waiting;          /* samples that wait for one, preempted ones included */
  int32_t reserved;
  int64_t blocks_total, blocks_free, blocks_cached, blocks_used; /* free + cached + used == total. cached: holds a
                                                                    prefix that nobody uses now */
  /* counters */
  uint64_t requests_submitted, requests_refused;
  uint64_t samples_stopped, samples_length, samples_cancelled, samples_failed; /* finished, by reason */
  uint64_t prompt_tokens;     /* of admitted prompts, cached ones included; a prompt shared by n samples counts once */
  uint64_t cached_tokens;     /* of those: read from the prefix cache */
  uint64_t generated_tokens;
  uint64_t computed_tokens;   /* rows that went through the model: prefill, decode and recomputation */
  uint64_t preemptions;
  uint64_t prefix_queries, prefix_hits; /* tokens looked for in the prefix cache, and found; a sample that shares the
                                           blocks of a running one of its request looks for nothing */
  uint64_t steps;
  uint64_t step_ns;           /* time spent in steps */
  uint64_t idle_checks;       /* integrity checks made when the engine fell idle */
  uint64_t step_sizes[QWEN3_STEP_SIZES]; /* steps by their rows: [0] of one row, [i] of 2^(i-1)+1 .. 2^i; together `steps` */
} qwen3_stats;

/* Fills `stats`. Its struct_size must be set by the caller. QWEN3_INVALID_ARGUMENT: NULL or too small. Blocks for at most
 * a few microseconds; figures may be one step old. */
QWEN3_API qwen3_status qwen3_engine_stats(const qwen3_engine* engine, qwen3_stats* stats);

/* ----------------------------------------------------------------------------------------------------------- requests */

/* Added to the raw logit of one id before everything else. -INFINITY forbids the id. A pair that never grows: arrays of
 * it carry no element size. */
typedef struct qwen3_logit_bias {
  int32_t token;
  float bias;
} qwen3_logit_bias;

typedef struct qwen3_request {
  size_t struct_size;
  const int32_t* prompt;      /* [n_prompt] token ids, each in 0..vocab-1 */
  size_t n_prompt;            /* 1.. */
  int64_t max_tokens;         /* tokens to generate per sample. -1 (default): until the context is full. 0: none, only
                                 with prompt_logprobs (the prompt is scored) */
  int64_t min_tokens;         /* no stop id and no EOS is sampled before this many tokens. Default 0 */
  int32_t n;                  /* samples of the same prompt, 1..128; they share its KV blocks. Default 1 */
  int32_t priority;           /* lower runs first; equal ones in order of arrival. Default 0 */

  /* Sampling, applied in this order: logit_bias and mask, penalties, temperature, min_p, top_k, top_p. */
  const qwen3_logit_bias* logit_bias; /* [n_logit_bias] or NULL */
  size_t n_logit_bias;
  float repetition_penalty;   /* > 0; divides positive and multiplies negative logits of ids in prompt or output. 1: off */
  float presence_penalty;     /* -2..2, subtracted once from ids of the output. 0: off */
  float frequency_penalty;    /* -2..2, subtracted per occurrence in the output. 0: off */
  float temperature;          /* 0 to 1e6; 0: greedy (the highest logit, the lowest id among equals). Default 1 */
  float min_p;                /* 0..1; keeps ids with at least min_p times the best one's probability. 0: off */
  float top_p;                /* 0..1; keeps the smallest set of best ids whose probability reaches top_p, at least one.
                                 1: off */
  int32_t top_k;              /* keeps the k best ids. 0 or -1: off */
  int32_t ignore_eos;         /* nonzero: the model's EOS ids do not end the request (stop_ids still do) */
  uint64_t seed;              /* equal seeds give equal samples, whatever else runs. Sample i uses seed + i. Default 0 */

  const int32_t* stop_ids;    /* [n_stop_ids] ids that end a sample, beside the model's EOS ids; or NULL */
  size_t n_stop_ids;
  int32_t logprobs;           /* nonzero: token events carry the raw log-probability of their token. Default 0 */
  int32_t top_logprobs;       /* 0..QWEN3_MAX_TOP_LOGPROBS best alternatives for each token; implies logprobs */
  int32_t prompt_logprobs;    /* nonzero: one QWEN3_EVENT_PROMPT_TOKEN for each prompt position (with top_logprobs
                                 alternatives); nothing is then read from the prefix cache */
  int32_t constrained;        /* nonzero: each token waits for its mask, see qwen3_request_mask */
  const char* cache_salt;     /* requests share cached prefixes only if their salts are equal. NULL or "": no salt */
  uint64_t tag;               /* returned in every event of this request */
} qwen3_request;

/* Fills `request` with the defaults above (prompt NULL). QWEN3_INVALID_ARGUMENT: NULL or a size smaller than ABI version
 * 1's. Never blocks. */
QWEN3_API qwen3_status qwen3_request_init(qwen3_request* request, size_t struct_size);

/* Queues a request; its events come through qwen3_poll. id (out, not NULL): names it in events and calls; ids start at 1
 * and are never used again. All inputs are copied. Never blocks on computation.
 * QWEN3_INVALID_ARGUMENT: a field is out of range (the sentence names it), n beyond max_slots + max_queue too.
 * QWEN3_CONTEXT_OVERFLOW: prompt plus max_tokens exceeds max_context or the KV pool, even alone. QWEN3_QUEUE_FULL.
 * QWEN3_DEVICE_ERROR: the engine failed. QWEN3_CLOSED: the engine is closing. */
QWEN3_API qwen3_status qwen3_submit(qwen3_engine* engine, const qwen3_request* request, uint64_t* id);

/* Ends a request or one of its samples at once: at the latest when the step in progress ends, its slot and blocks are
 * free. Each sample that was alive still gets its QWEN3_EVENT_FINISHED, with reason QWEN3_FINISH_CANCELLED; token events
 * of the step in progress are dropped. sample: 0..n-1, or -1 for all. Never blocks on computation.
 * QWEN3_NOT_FOUND: no such request or sample, or it has ended. */
QWEN3_API qwen3_status qwen3_cancel(qwen3_engine* engine, uint64_t id, int32_t sample);

/* Hands over the set of ids that a constrained sample may choose from at one position of its output.
 * index: which output token this is for, 0 for the first; it must be the next one, that is, the number of token events
 * that the sample has had. mask: bit i%32 of mask[i/32] set means id i is allowed; n_words: at least
 * (n_token_ids + 31) / 32. A host answers the event of token k with the mask for index k + 1, while the model already
 * computes that position: if the mask is there when the logits are, no time is lost; if it is late, the sample waits for
 * the next step and no other sample does, but that a step of constrained samples alone waits for late masks as long as
 * its layers took, 1 ms at most. Index 0 may be given right after qwen3_submit. Never blocks on computation.
 * QWEN3_NOT_FOUND: no such live request or sample. QWEN3_INVALID_ARGUMENT: not constrained, too few words, a wrong
 * index, or no id allowed. */
QWEN3_API qwen3_status qwen3_request_mask(qwen3_engine* engine, uint64_t id, int32_t sample, int64_t index,
                                          const uint32_t* mask, size_t n_words);

/* A matcher of the host: a grammar, and how far one sample has come in it. The functions get `matcher`; those of
 * llguidance's C interface (llg_matcher_...) fit as they are. They are called on threads of the library, for one matcher
 * by one thread at a time, and may take long: that delays the matcher's own sample alone. None may be NULL. */
typedef struct qwen3_matcher {
  size_t struct_size;
  void* matcher;
  int32_t (*consume_token)(void* matcher, uint32_t token); /* goes on by a token of the sample. Not 0: it has failed */
  int32_t (*compute_mask)(void* matcher, uint32_t* mask, size_t n_bytes); /* writes what may come next, a bit for each id
                                  as in qwen3_request_mask, to mask[n_bytes / 4]; n_bytes is (n_token_ids + 31) / 32 * 4.
                                  Not 0: it has failed */
  bool (*is_stopped)(const void* matcher);   /* nothing but an end may follow, or it has failed */
  bool (*is_accepting)(void* matcher);       /* the sample may end here */
  const char* (*get_error)(void* matcher);   /* why it has failed, valid until it is freed; NULL: it has not */
  void (*free)(void* matcher);               /* called once, when the sample has ended */
  int32_t slow;                              /* nonzero: known to take long; it is kept out of the way of others */
  int32_t reserved;                          /* 0 */
} qwen3_matcher;

/* Lets a matcher give all masks of a constrained sample from output token `index` on, which must be the next one as in
 * qwen3_request_mask: the library asks it for the first, and behind each token, while the model already computes the next
 * position. The host then does nothing for this sample's tokens, and qwen3_request_mask is refused. A mask that is late
 * costs what it costs there. Where the matcher has stopped and none of the ids that end the request may be sampled
 * (ignore_eos, min_tokens), the sample ends with QWEN3_FINISH_STOP and token -1. Where it fails, or allows no id, the
 * sample ends with QWEN3_FINISH_MATCHER.
 * matcher: read during the call; from then on matcher->matcher belongs to the library, which calls `free` for it when the
 * sample has ended, at the latest inside qwen3_engine_close. After a failure it still belongs to the caller.
 * Never blocks on computation.
 * QWEN3_NOT_FOUND: no such live request or sample. QWEN3_INVALID_ARGUMENT: NULL, a NULL function, a struct_size that is
 * too small, not constrained, a wrong index, or the sample has a matcher. QWEN3_CLOSED. */
QWEN3_API qwen3_status qwen3_request_matcher(qwen3_engine* engine, uint64_t id, int32_t sample, int64_t index,
                                             const qwen3_matcher* matcher);

/* ------------------------------------------------------------------------------------------------------------- events */

typedef int32_t qwen3_event_kind;
enum {
  QWEN3_EVENT_TOKEN = 1,        /* one generated token */
  QWEN3_EVENT_PROMPT_TOKEN = 2, /* one prompt token with its log-probability (prompt_logprobs), in order, sample 0 */
  QWEN3_EVENT_FINISHED = 3      /* the last event of a sample; exactly one for each */
};

typedef int32_t qwen3_finish_reason;
enum {
  QWEN3_FINISH_NONE = 0,      /* not a FINISHED event */
  QWEN3_FINISH_STOP = 1,      /* an EOS or stop id, the last token event before this one; or a matcher, token -1 */
  QWEN3_FINISH_LENGTH = 2,    /* max_tokens or the end of the context */
  QWEN3_FINISH_CANCELLED = 3, /* qwen3_cancel */
  QWEN3_FINISH_ERROR = 4,     /* the device or the engine failed; the tokens so far are sound */
  QWEN3_FINISH_MATCHER = 5    /* the sample's qwen3_matcher failed; the log says why */
};

/* 112 bytes, no padding. Times are nanoseconds of CLOCK_MONOTONIC. Fields that do not belong to the kind are 0. */
typedef struct qwen3_event {
  uint64_t request;             /* id from qwen3_submit */
  uint64_t tag;                 /* qwen3_request.tag */
  qwen3_event_kind kind;
  int32_t sample;               /* 0..n-1 */
  int32_t token;                /* TOKEN, PROMPT_TOKEN: the id. FINISHED with STOP: the id that stopped, -1: a matcher; else
                                   -1 */
  float logprob;                /* natural log, raw logits. NaN where there is none: not asked for, or the first prompt
                                   token */
  uint32_t n_logprobs;          /* alternatives of this token in poll's logprobs array ... */
  uint32_t first_logprob;       /* ... beginning at this index, best first */
  qwen3_finish_reason finish_reason; /* FINISHED */
  int32_t reserved;
  int64_t index;                /* TOKEN: 0 for the first output token. PROMPT_TOKEN: its position */
  int64_t time_ns;              /* when the engine produced the event */
  int64_t n_prompt;             /* FINISHED: prompt tokens */
  int64_t n_cached;             /* FINISHED: of those, read from the prefix cache when the sample was first admitted */
  int64_t n_generated;          /* FINISHED: token events of this sample */
  int64_t queued_ns;            /* FINISHED: when it was submitted */
  int64_t started_ns;           /* FINISHED: when it first got a slot; 0: never */
  int64_t first_token_ns;       /* FINISHED: when its first token came; 0: never */
} qwen3_event;

/* One alternative of a token. A pair that never grows, like qwen3_logit_bias. */
typedef struct qwen3_logprob {
  int32_t token;
  float logprob; /* natural log, raw logits */
} qwen3_logprob;

/* Takes events in the order in which they happened; each is given out once, to whichever thread polls first.
 * events (out): [capacity] elements of event_size = sizeof(qwen3_event) bytes each. capacity: 1.. logprobs (out):
 * [logprobs_capacity], filled with the alternatives that the events refer to; may be NULL with capacity 0 if no request
 * asks for top_logprobs, else at least QWEN3_MAX_TOP_LOGPROBS. Poll returns early with fewer events when it is full.
 * timeout_ms: how long to wait for the first event; 0: not at all; -1: without limit. n (out): events written.
 * A host has to poll: while 262,144 events or more wait, no step is begun. On the CPU, whose cores the host shares, a
 * step waits for up to 5 ms until all have been taken; for a host that was late not again until it polls.
 * QWEN3_TIMEOUT: none came. QWEN3_CLOSED: the engine is being closed. QWEN3_INVALID_ARGUMENT: NULL, zero capacity, an
 * event_size smaller than ABI version 1's or above 4096, or a logprobs array too small for the next event. */
QWEN3_API qwen3_status qwen3_poll(qwen3_engine* engine, qwen3_event* events, size_t event_size, size_t capacity,
                                  qwen3_logprob* logprobs, size_t logprobs_capacity, int32_t timeout_ms, size_t* n);

/* For hosts with an event loop (epoll, libuv, asyncio): a descriptor that is readable while qwen3_poll has something to
 * say, events or QWEN3_CLOSED; poll then with timeout_ms 0. fd (out, not NULL): the same at every call. It is the
 * library's and closed by qwen3_engine_close: the host only waits for it, and takes it out of its loop before. Never
 * blocks. QWEN3_OUT_OF_MEMORY: the process has no descriptor left. QWEN3_INVALID_ARGUMENT: NULL. */
QWEN3_API qwen3_status qwen3_event_fd(qwen3_engine* engine, int32_t* fd);

/* ------------------------------------------------------------------------------------ evaluation: tokens in, logits out
 *
 * A small synchronous face beside the requests, for evaluation and teaching. The work is done by the same worker thread
 * with the same kernels, in chunks of the token budget between the steps of running requests, and its KV blocks come
 * from the same pool. Each call blocks until its result is there.
 * Common errors: QWEN3_INVALID_ARGUMENT (NULL, an id outside the vocab, an output array of the wrong size),
 * QWEN3_CONTEXT_OVERFLOW (longer than max_context), QWEN3_OUT_OF_MEMORY (no KV blocks left now), QWEN3_DEVICE_ERROR,
 * QWEN3_CLOSED. */

/* Writes the raw logits of positions first..n_tokens-1 to out[(n_tokens - first) * vocab], float32, row-major: row i
 * scores the token after position first + i. out_len: its length in floats, exactly that. */
QWEN3_API qwen3_status qwen3_score_logits(qwen3_engine* engine, const int32_t* tokens, size_t n_tokens, size_t first,
                                          float* out, size_t out_len);

/* Writes the log-probability of each token given those before it to out[n_tokens]; out[0] is NaN. */
QWEN3_API qwen3_status qwen3_score_logprobs(qwen3_engine* engine, const int32_t* tokens, size_t n_tokens, float* out);

/* One sequence with its own KV, advanced by hand. It holds KV blocks until it is reset or closed. One thread at a time
 * may use a sequence. */
typedef struct qwen3_sequence qwen3_sequence;

/* Makes an empty sequence. sequence (out): set to NULL on failure. Blocks for at most one step. */
QWEN3_API qwen3_status qwen3_sequence_open(qwen3_engine* engine, qwen3_sequence** sequence);

/* Appends tokens [n_tokens >= 1] and writes the logits after the last of them to logits[vocab] (NULL: not wanted).
 * After a failure the sequence is as before the call. */
QWEN3_API qwen3_status qwen3_sequence_prefill(qwen3_sequence* sequence, const int32_t* tokens, size_t n_tokens,
                                              float* logits, size_t logits_len);

/* Appends one token: qwen3_sequence_prefill with n_tokens 1. */
QWEN3_API qwen3_status qwen3_sequence_decode(qwen3_sequence* sequence, int32_t token, float* logits, size_t logits_len);

/* Forgets all tokens and frees the blocks. */
QWEN3_API qwen3_status qwen3_sequence_reset(qwen3_sequence* sequence);

/* Tokens held so far. NULL: 0. Never blocks. */
QWEN3_API int64_t qwen3_sequence_length(const qwen3_sequence* sequence);

/* Frees the sequence. NULL is a no-op. */
QWEN3_API void qwen3_sequence_close(qwen3_sequence* sequence);

/* ------------------------------------------------------------------------------------------------------- measuring
 *
 * What the device can do, and where the time of a step goes. Like evaluation: on the worker thread, between the steps of
 * requests, which wait meanwhile; each call blocks until it is done. Best used on an engine without requests. Errors as
 * for evaluation. */

/* What the device can do at most, measured the plainest way. */
typedef struct qwen3_peaks {
  size_t struct_size;
  double read_bytes_per_second; /* reading memory, several times what the caches hold */
  double flops_per_second;      /* multiplying operands that are at hand; a multiply-add counts as two */
  char flops_of[64];            /* the instruction that does it: "float32 multiply-add", "bf16 wgmma", ... */
} qwen3_peaks;

/* Measures the peaks: about a second, and up to 2 GB of the device's memory for that time. `peaks`: its struct_size must
 * be set by the caller. QWEN3_INVALID_ARGUMENT: NULL or too small. QWEN3_OUT_OF_MEMORY: too little is free to measure
 * with. */
QWEN3_API qwen3_status qwen3_measure_peaks(qwen3_engine* engine, qwen3_peaks* peaks);

/* A step to be measured: n_sequences sequences of random tokens that hold n_past tokens each already (computed first,
 * not measured) and get n_tokens more; then the next token of each is sampled. n_tokens 1 is a decode step. */
typedef struct qwen3_profile_spec {
  size_t struct_size;
  int32_t n_sequences; /* 1..max_slots. Default 1 */
  int32_t n_tokens;    /* 1..token_budget / n_sequences. Default 1 */
  int64_t n_past;      /* Default 0 */
  int32_t repeat;      /* how often the step is run each way, with and without times; 1..1000. Default 5 */
  int32_t reserved;    /* 0 */
} qwen3_profile_spec;

/* Fills `spec` with the defaults above. QWEN3_INVALID_ARGUMENT: NULL or a size smaller than ABI version 1's. Never
 * blocks. */
QWEN3_API qwen3_status qwen3_profile_spec_init(qwen3_profile_spec* spec, size_t struct_size);

/* One op of a step. */
typedef struct qwen3_op_time {
  const char* name; /* of the weight that it reads ("qkv_proj"), else its own ("attention"). Static memory */
  int32_t layer;    /* 0..n_layers-1; -1: outside the layers */
  int32_t reserved;
  int64_t begin_ns; /* after the step's begin: when the op before it was done */
  int64_t end_ns;   /* when it was done */
} qwen3_op_time;

/* Runs a step and writes the times of its ops, in order and without gaps, to ops[capacity]: those of the median of
 * spec->repeat runs. On a GPU each op then waits for the one before it and whole steps are not recorded, so such a step
 * takes longer than one of a request.
 * op_size: sizeof(qwen3_op_time). n (out): ops of the step; the first `capacity` of them are written. step_ns (out): the
 * median time of a step whose ops are not timed, as requests have it. No pointer may be NULL.
 * QWEN3_INVALID_ARGUMENT: NULL, a field out of range (the sentence names it), an op_size smaller than ABI version 1's or
 * above 4096. QWEN3_CONTEXT_OVERFLOW: n_past + n_tokens is more than max_context. QWEN3_CLOSED: the engine is being
 * closed, which ends a profile after the step that runs. After a failure n and step_ns are 0. */
QWEN3_API qwen3_status qwen3_profile_step(qwen3_engine* engine, const qwen3_profile_spec* spec, qwen3_op_time* ops,
                                          size_t op_size, size_t capacity, size_t* n, int64_t* step_ns);

#ifdef __cplusplus
}
#endif

#endif /* QWEN3_H */
