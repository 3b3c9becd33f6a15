// The engine: one worker thread that turns queued requests into events, step by step.
//
// It joins the scheduler (who), the model (what) and the event queue (to whom). On an asynchronous device a step is
// issued before the results of the one before it are read, so that the device never waits for the host; a token that is
// not known yet passes from step to step on the device.
// One mutex guards requests, scheduler and pool; the worker gives it up while ops are issued and waited for, so that
// submit, cancel and stats never wait for a step. A sample that is cancelled during a step leaves at once: its blocks
// are free, what the steps in flight give for it is dropped. That is safe because only the worker hands blocks out
// again, to steps that the device does later. Masks of samples with a matcher are worked out on threads of their own,
// which take the mutex only to hand them over. A failure of the device or a bug caught in the worker ends every sample
// with an error event and marks the engine failed.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "engine/event_queue.h"
#include "engine/mask_threads.h"
#include "engine/request.h"
#include "engine/step_batch.h"
#include "kv/block_pool.h"
#include "kv/prefix_cache.h"
#include "model/model.h"
#include "qwen3.h"
#include "sched/scheduler.h"

namespace qwen3 {

// A sequence that the host advances by hand (qwen3_sequence, scoring). Used by one thread at a time.
struct ManualSequence {
  std::vector<BlockId> blocks;
  int64_t length = 0;
};

struct StepProfile {
  int64_t step_ns;          // a step that nobody times inside
  std::vector<OpTime> ops;  // of one whose ops were timed
};

class Engine {
 public:
  using OpenBackend = std::function<std::unique_ptr<Ops>(const BackendOptions&)>;

  // Loads the model and starts the worker; see qwen3_engine_open for errors. `open` is a parameter so that tests can
  // put a device of their own under the engine.
  Engine(const std::string& model_dir, const qwen3_options& options, const OpenBackend& open = open_backend);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const qwen3_info& info() const { return info_; }
  qwen3_stats stats();
  uint64_t submit(const qwen3_request& request);
  void cancel(uint64_t id, int32_t sample);
  void set_mask(uint64_t id, int32_t sample, int64_t index, std::span<const uint32_t> mask);
  void set_matcher(uint64_t id, int32_t sample, int64_t index, const qwen3_matcher& matcher);
  EventQueue& events() { return events_; }

  // Evaluation; each blocks until the worker has done it.
  // Appends tokens and writes the raw logits of rows first_row.. of them to `logits` [n_rows, vocab].
  void append(ManualSequence& sequence, std::span<const int32_t> tokens, size_t first_row, std::span<float> logits);
  void release(ManualSequence& sequence);
  void score_logits(std::span<const int32_t> tokens, size_t first, std::span<float> out);
  void score_logprobs(std::span<const int32_t> tokens, std::span<float> out);

  // Measuring; each blocks until the worker has done it.
  DevicePeaks measure_peaks();
  StepProfile profile_step(const qwen3_profile_spec& spec);

  // Makes every later call fail with kClosed and wakes blocked pollers; the destructor may follow once they have left.
  void begin_close();

 private:
  using Lock = std::unique_lock<std::mutex>;

  // -- opening
  void load(const std::string& model_dir, const qwen3_options& options, const OpenBackend& open);
  void log(qwen3_log_level level, const std::string& line) const;
  bool progress(const char* phase, uint64_t done, uint64_t total) const;

  // A step that has been issued to the device and whose results are not read yet.
  struct Flight {
    struct RowOwner {
      size_t chunk;
      int64_t prompt_index;  // the prompt token that the row scores, or -1: the row is sampled
    };
    std::vector<Chunk> chunks;
    int n_tokens = 0;
    std::vector<std::shared_ptr<Request>> requests;  // of the chunks: alive until the results are read
    StepBatch batch;
    std::vector<int32_t> first_rows;           // of each chunk
    std::vector<int32_t> logit_rows;           // token rows that need logits
    std::vector<SampleRow> rows;               // [logit_rows]
    std::vector<RowOwner> row_owners;          // [rows]
    std::vector<SampleResult> results;         // [rows]
    std::vector<std::vector<uint32_t>> masks;  // that rows refer to
    int64_t issued_ns = 0;
    uint64_t mark = 0;
  };

  // -- worker thread
  void run();
  void step(Lock& lock);
  void await_host(Lock& lock);
  bool issue(Lock& lock);
  void land(Lock& lock);
  void land_all(Lock& lock);
  void note_admissions(const StepPlan& plan);
  void build_batch(Flight& flight);
  void await_masks(const Flight& flight, std::chrono::nanoseconds limit, Lock& lock);
  void collect_rows(Flight& flight);
  void compute(Flight& flight, const BatchArrays& arrays, Lock& lock);
  size_t commit(const Flight& flight);
  void commit_sample(Sample& sample, const SampleResult* result);
  void report_nonfinite(const Flight& flight, Lock& lock);
  void check_idle();
  void fail(Status status, const std::string& message);

  // -- threads of masks_
  void take_answers(MaskThreads::Turn& turn);

  // -- with the mutex held
  Sample& alive_sample(Request& request, int32_t index);
  Sample& next_mask_owner(uint64_t id, int32_t index, int64_t output_index);
  size_t n_mask_words() const { return (static_cast<size_t>(info_.n_token_ids) + 31) / 32; }
  bool adopt_mask(Sample& sample, std::vector<uint32_t> mask);
  void finish(Sample& sample, qwen3_finish_reason reason, int32_t token = -1);
  void push_token(Sample& sample, const SampleResult& result);
  void push_prompt_token(const Sample& sample, int64_t index, const SampleResult* result);
  void check_open() const;

  // -- evaluation and measuring
  void check_going_on() const;  // check_open() without the mutex held
  void on_worker(const std::function<void()>& work);
  void hold_blocks(ManualSequence& sequence, int64_t length);
  // What to do with the rows of a chunk once it is computed: first is the chunk's offset in the tokens, n its length.
  using UseRows = std::function<void(size_t first, size_t n)>;
  void advance(ManualSequence& sequence, std::span<const int32_t> tokens, const UseRows& use_rows);

  // Constant after opening.
  qwen3_options options_{};
  qwen3_info info_{};
  std::unique_ptr<Model> model_;

  EventQueue events_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_.
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<PrefixCache> prefix_cache_;  // nullptr when off
  std::unique_ptr<Scheduler> scheduler_;
  std::unordered_map<uint64_t, std::shared_ptr<Request>> requests_;
  std::deque<std::function<void()>> jobs_;  // evaluation
  qwen3_stats counters_{};
  uint64_t next_id_ = 1;
  uint64_t next_arrival_ = 1;
  int n_manual_blocks_ = 0;
  int n_waiting_for_tokens_ = 0;  // alive samples of requests that wait for tokens
  bool closing_ = false;
  bool failed_ = false;
  bool was_busy_ = false;
  bool was_stalled_ = false;
  std::string failure_;

  // Used by the worker alone.
  std::array<Flight, 2> flights_;
  size_t next_flight_ = 0;  // the one to issue next
  size_t n_flying_ = 0;
  int64_t landed_ns_ = 0;  // when the last one's results were read
  StepBatch batch_;        // for evaluation

  std::thread worker_;
  MaskThreads masks_{[this](MaskThreads::Turn& turn) { take_answers(turn); }};  // last: its threads use all
};

}  // namespace qwen3
