/* A complete host of libqwen3 in C11: several requests at once, their tokens as they come, one of them cancelled.
 *
 *   stream MODEL_DIR PROMPT...
 *
 * Each PROMPT is a list of token ids, like "9707 11 1879". All prompts run at the same time. Standard output carries
 * one line per event: "token PROMPT_NUMBER ID LOGPROB" or "end PROMPT_NUMBER REASON TOKENS"; progress, logs and the
 * closing statistics go to standard error. With two prompts or more the last is cancelled after a few tokens, to show
 * how.
 *
 * Build it against dist/ or an installed library:
 *   gcc -std=c11 stream.c $(pkg-config --cflags --libs qwen3) -o stream
 * (PKG_CONFIG_PATH=dist for the first). Where the loader does not look for libraries, tell it:
 *   LD_LIBRARY_PATH=dist ./stream MODEL_DIR PROMPT...
 * or link with -Wl,-rpath,'$ORIGIN' and ship the library beside the program.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <qwen3.h>
#include <stdio.h>
#include <stdlib.h>

enum { kMaxRequests = 32, kMaxPrompt = 4096, kEvents = 64, kOutputTokens = 24, kCancelAfter = 4 };

/* One line for a person; what failed is said by the library. */
static int fail(const char* doing) {
  fprintf(stderr, "stream: %s: %s\n", doing, qwen3_last_error());
  return 1;
}

static int32_t on_progress(void* user, const char* phase, uint64_t done, uint64_t total) {
  (void)user;
  /* Once a phase; a bar would be drawn at every call. */
  if (done == total) fprintf(stderr, "loaded: %s\n", phase);
  return 0; /* go on */
}

static void on_log(void* user, qwen3_log_level level, const char* line) {
  (void)user;
  (void)level;
  fprintf(stderr, "%s\n", line);
}

/* Reads ids into prompt [kMaxPrompt]. Returns their number, or 0 when the text is not a list of ids. */
static size_t parse_ids(const char* text, int32_t* prompt) {
  size_t n = 0;
  while (*text != '\0' && n < kMaxPrompt) {
    char* end = NULL;
    errno = 0;
    const long id = strtol(text, &end, 10);
    if (end == text || errno != 0 || id < 0 || id > INT32_MAX) return 0;
    prompt[n++] = (int32_t)id;
    text = end;
    while (*text == ' ' || *text == ',') text++;
  }
  return *text == '\0' ? n : 0;
}

static const char* reason_name(qwen3_finish_reason reason) {
  switch (reason) {
    case QWEN3_FINISH_STOP:
      return "stop";
    case QWEN3_FINISH_LENGTH:
      return "length";
    case QWEN3_FINISH_CANCELLED:
      return "cancelled";
    default:
      return "error";
  }
}

static int submit_all(qwen3_engine* engine, int n_requests, char** prompts, uint64_t* ids) {
  for (int i = 0; i < n_requests; i++) {
    int32_t prompt[kMaxPrompt];
    qwen3_request request;
    qwen3_request_init(&request, sizeof request);
    request.prompt = prompt;
    request.n_prompt = parse_ids(prompts[i], prompt);
    if (request.n_prompt == 0) {
      fprintf(stderr, "stream: \"%s\" is not a list of at most %d token ids\n", prompts[i], kMaxPrompt);
      return 1;
    }
    request.max_tokens = kOutputTokens;
    if (n_requests > 1 && i == n_requests - 1) { /* the one that is cancelled would run until the context is full */
      request.max_tokens = -1;
      request.ignore_eos = 1;
    }
    request.temperature = 0; /* greedy: the same tokens at every run */
    request.logprobs = 1;
    request.tag = (uint64_t)i; /* comes back in every event, so no table from ids to prompts is needed */
    if (qwen3_submit(engine, &request, &ids[i]) != QWEN3_OK) return fail("submitting a request");
  }
  return 0;
}

/* Prints events until every request has had its last one. */
static int stream_all(qwen3_engine* engine, int n_requests, const uint64_t* ids) {
  int running = n_requests;
  while (running > 0) {
    qwen3_event events[kEvents];
    size_t n = 0;
    const qwen3_status status = qwen3_poll(engine, events, sizeof events[0], kEvents, NULL, 0, 1000, &n);
    if (status == QWEN3_TIMEOUT) continue; /* a slow machine: nothing yet, ask again */
    if (status != QWEN3_OK) return fail("waiting for tokens");
    for (size_t i = 0; i < n; i++) {
      const qwen3_event* event = &events[i];
      const int which = (int)event->tag;
      if (event->kind == QWEN3_EVENT_TOKEN) {
        printf("token %d %" PRId32 " %.4f\n", which, event->token, (double)event->logprob);
        if (n_requests > 1 && which == n_requests - 1 && event->index == kCancelAfter - 1) {
          /* It may have ended by itself in the meantime, which is no failure. */
          const qwen3_status cancelled = qwen3_cancel(engine, ids[which], -1);
          if (cancelled != QWEN3_OK && cancelled != QWEN3_NOT_FOUND) return fail("cancelling a request");
        }
      } else if (event->kind == QWEN3_EVENT_FINISHED) {
        printf("end %d %s %" PRId64 "\n", which, reason_name(event->finish_reason), event->n_generated);
        running--;
      }
    }
    fflush(stdout);
  }
  return 0;
}

static int print_stats(const qwen3_engine* engine) {
  qwen3_stats stats = {.struct_size = sizeof stats};
  if (qwen3_engine_stats(engine, &stats) != QWEN3_OK) return fail("reading the statistics");
  fprintf(stderr, "%" PRIu64 " requests, %" PRIu64 " prompt tokens (%" PRIu64 " cached), %" PRIu64 " generated\n",
          stats.requests_submitted, stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens);
  fprintf(stderr, "%" PRIu64 " steps of %.2f ms\n", stats.steps,
          stats.steps > 0 ? (double)stats.step_ns / 1e6 / (double)stats.steps : 0.0);
  fprintf(stderr, "%" PRId64 " blocks: %" PRId64 " free, %" PRId64 " cached, %" PRId64 " used\n", stats.blocks_total,
          stats.blocks_free, stats.blocks_cached, stats.blocks_used);
  return 0;
}

int main(int argc, char** argv) {
  const int n_requests = argc - 2;
  if (n_requests < 1 || n_requests > kMaxRequests) {
    fprintf(stderr,
            "usage: stream MODEL_DIR PROMPT...   (1 to %d prompts, each a list of token ids like \"9707 11\")\n",
            kMaxRequests);
    return 2;
  }
  if (qwen3_abi_version() != QWEN3_ABI_VERSION) {
    fprintf(stderr, "stream: built for ABI version %d, but the library has %" PRIu32 "\n", QWEN3_ABI_VERSION,
            qwen3_abi_version());
    return 1;
  }
  qwen3_options options;
  qwen3_options_init(&options, sizeof options);
  options.progress = on_progress;
  options.log = on_log;
  options.log_level = QWEN3_LOG_WARNING;
  qwen3_engine* engine = NULL;
  if (qwen3_engine_open(argv[1], &options, &engine) != QWEN3_OK) return fail("opening the model");

  uint64_t ids[kMaxRequests];
  int result = submit_all(engine, n_requests, argv + 2, ids);
  if (result == 0) result = stream_all(engine, n_requests, ids);
  if (result == 0) result = print_stats(engine);
  qwen3_engine_close(engine);
  return result;
}
