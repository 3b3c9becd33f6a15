// Results on their way are written where the step wants them: after a failure too, that place must live until then. An
// object of this kind, made after the place, sees to it. Used by the worker thread.
#pragma once

#include "base/error.h"
#include "ops/ops.h"

namespace qwen3 {

struct Landing {
  Ops& ops;
  ~Landing() {
    try {
      ops.wait();
    } catch (const Error&) {  // a device that failed: what brought us here says so
    }
  }
};

}  // namespace qwen3
